"""A decision names what keeps it, and that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_decision_names_the_test_or_lint_that_enforces_it(page: Path) -> None:
    named = re.findall(r"`((?:connect/|lab/)?tests/[a-z_/]+(?:\.py)?|pyproject\.toml)`", page.read_text())
    assert named
    assert not [path for path in named if not (ROOT / path).exists()]


def test_decisions_are_numbered_without_gaps_or_doubles() -> None:
    assert [int(page.name[:4]) for page in PAGES] == list(range(1, len(PAGES) + 1))
