"""The glossary is short, and the documents use none of the words that were given up."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.commands import ROOT

PAGES = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
RETIRED = re.compile(
    r"\b(effectiveness|delta_cap|lineages?|tombstones?|keepers?|nudg\w*|doorbell|forgotten_in_recipe|releases_left"
    r"|(?:drive|drives|drove|driven) on)\b|`(?:sigma|charge|basis|require|head|held|release|nudge)`",
    re.IGNORECASE,
)
"""names that were given up, each for the word of the field that the glossary has"""


def test_the_glossary_has_says_how_many_terms_it_has() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    terms = re.findall(r"^\*\*(.+?)\.\*\* \S", text, re.MULTILINE)
    assert len(terms) == len(set(terms)) == 39 and "Thirty-nine words" in text
    assert text.count("**") == 2 * len(terms), "a term stands in bold inside another's text"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_uses_a_word_that_was_given_up(page: Path) -> None:
    of_today = re.sub(r"^Certificates and logs before .*$", "", page.read_text(), flags=re.MULTILINE)
    found = [match.group() for match in RETIRED.finditer(of_today)]
    assert not found


@pytest.mark.parametrize("text", ["the keeper sweeps", "status `held`", "one lineage", "Tombstones", "it is driven on"])
def test_a_word_that_was_given_up_is_found(text: str) -> None:
    assert RETIRED.search(text)
