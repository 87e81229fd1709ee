"""The draw of people that tests see: who is kept apart, and in which part everybody is.

An installation draws by its pepper, which is random. A test that reads a figure off thirty people passes with most
draws and fails with a few. So all installations of the tests have one pepper: a test sees the same people in each run.
``TESTS_DRAW=7 make test`` gives another, to look for tests that pass by luck.
"""

from __future__ import annotations

import hashlib
import os

from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.settings import Settings
from expunge_service.infra.tenants import DEFAULT_TENANT
from expunge_workers.runtime.rows_recipe import salt_of
from unlearning.rows._people import is_aside


def fix_draw(settings: Settings) -> None:
    """Write the tests' pepper, where this installation has none yet."""
    settings.pepper_file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if not settings.pepper_file.exists():
        number = os.environ.get("TESTS_DRAW", "0")
        settings.pepper_file.write_text(hashlib.sha256(f"tests {number}".encode()).hexdigest() + "\n")
        settings.pepper_file.chmod(0o600)


def keeps_apart(settings: Settings, person: str, aside: float) -> bool:
    """Return whether a recipe with this ``aside`` measures the person only."""
    salt = salt_of(Pepper.load(settings.pepper_file), DEFAULT_TENANT)
    return is_aside((person,), aside, salt, "aside")
