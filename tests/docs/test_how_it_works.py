"""The page that says how Expunge is built: every file that it names exists, and the path of a request is short."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-it-works.md").read_text()


def test_every_file_and_folder_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`((?:service|workers|unlearning|client|connect|lab)/[\w/.]*)`", PAGE))
    assert len(named) > 20
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


def test_a_request_is_followed_in_at_most_twelve_stops() -> None:
    stops = re.findall(r"^(\d+)\. \*\*[A-Z].*\*\*: .*`(?:service|workers)/", PAGE, re.M)
    assert stops == [str(number) for number in range(1, len(stops) + 1)] and 0 < len(stops) <= 12


def test_the_rooms_on_the_page_are_those_of_the_folders() -> None:
    for package in ("service", "workers"):
        (row,) = re.findall(rf"^\| `{package}/` \| (.*) \|$", PAGE, re.M)
        folders = {path.parent.name for path in (ROOT / package / f"expunge_{package}").glob("*/__init__.py")}
        assert folders <= set(re.findall(r"`(\w+)`", row))
