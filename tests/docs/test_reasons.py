"""The page of reasons is the table of reasons."""

from __future__ import annotations

from tests.docs.reasons import PAGE, page


def test_the_page_is_made_from_the_table() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.docs.reasons"
