"""Which tests run in one process, so that what they share is made once.

``--dist loadgroup`` of pytest-xdist 3.8 groups nothing under pytest 9.2: it writes a test's group into its name, which
pytest no longer reads from there (pytest-xdist issue 1386). Nothing fails then; every file runs in every process, and
each of them makes every scene.
"""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling


class Groups(LoadScopeScheduling):
    """Gives each group of tests to one process."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def group_of(nodeid: str) -> str:
    """Return the file of a test, or the running service that it asks: one for all tests of tests/stories."""
    stack = re.search(r"^tests/stories/.*[\[-](sqlite|postgres)[\]-]", nodeid)
    return stack[1] if stack else nodeid.partition("::")[0]
