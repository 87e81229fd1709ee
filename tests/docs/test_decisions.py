"""A decision has four parts, at most 300 words, and names the test or lint that holds it, which exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "decisions"
PAGES = sorted(FOLDER.glob("[0-9]*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_decision_is_short_and_names_what_holds_it(page: Path) -> None:
    text = page.read_text()
    assert len(text.split()) <= 300
    assert re.findall(r"^\*\*(\w+)\.\*\*", text, re.MULTILINE) == ["Context", "Decision", "Status", "Consequences"]
    named = re.findall(
        r"`((?:connect/|lab/)?tests/[a-z_/]+(?:\.py)?|pyproject\.toml)`", text[text.index("\nHeld by ") :]
    )
    assert named
    assert not [path for path in named if not (ROOT / path).exists()]


def test_decisions_are_numbered_without_gaps_or_doubles_and_all_are_listed() -> None:
    assert [int(page.name[:2]) for page in PAGES] == list(range(1, len(PAGES) + 1))
    assert re.findall(r"\((\d\d-[a-z-]+\.md)\)", (FOLDER / "README.md").read_text()) == [page.name for page in PAGES]
