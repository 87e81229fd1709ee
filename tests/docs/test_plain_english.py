"""The lint for plain English: what it accepts, what it refuses, and that the listed rooms are clean."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import plain_english


@pytest.mark.parametrize(
    "docstring",
    [
        "Return the rows.",
        "Disable Python's cyclic garbage collector during bulk inserts.",
        "Count the rows.",
        "Wait for the database.",
        "Look up ``name``.",
        "Check that the file is there.",
        "Check and return the body.",
        "Run ``work`` once.",
        "Raise Problem (403) unless the caller may write.",
    ],
)
def test_an_imperative_is_accepted(docstring: str) -> None:
    assert plain_english.opens_with_a_verb(docstring)


@pytest.mark.parametrize(
    "docstring",
    [
        "The rows.",
        "Returns the rows.",
        "Rows of a table.",
        "Count of rows.",
        "Counts the rows.",
        "Time at which it ended.",
        "State that a method keeps.",
        "Sample ids of a person.",
        "Sum.",
        "Request, newest first.",
        "Whether it is there.",
        "What every page needs.",
        "return the rows.",
    ],
)
def test_a_noun_or_a_question_is_refused(docstring: str) -> None:
    assert not plain_english.opens_with_a_verb(docstring)


def found(path: Path, text: str) -> list[str]:
    path.write_text(text)
    return [f"{finding.line} {finding.what}" for finding in plain_english.check([path])]


def test_a_banned_word_is_found_in_a_message_a_comment_and_a_docstring_at_its_line(tmp_path: Path) -> None:
    lines = ['"""A module.', "", 'It rests."""', "raise ValueError('Nobody was told.')", "x = 1  # made anew"]
    whats = found(tmp_path / "a.py", "\n".join(lines))
    assert [what.split(":")[0] for what in whats] == ['3 "rests"', '4 "told"', '5 "anew"']


def test_names_and_code_are_no_prose(tmp_path: Path) -> None:
    assert found(tmp_path / "a.py", 'told = 1\nkey = "told"\n\ndef f():\n    """Return ``told``."""\n') == []


def test_only_what_a_page_shows_is_checked(tmp_path: Path) -> None:
    page = '{% if told %}\n<p class="told">Kept beside it</p>\n<script>told()</script>'
    assert found(tmp_path / "a.html", page) == ['2 "beside": write next to; as well as; also']


def test_a_long_sentence_is_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.py"
    path.write_text(f'"""{"word " * 36}."""')
    assert plain_english.main([str(path)]) == 0
    assert "warning: 37 words" in capsys.readouterr().out


def test_no_word_is_listed_as_a_noun_alone() -> None:
    assert plain_english.ALSO_NOUNS <= plain_english.VERBS


def test_the_listed_rooms_are_clean() -> None:
    assert plain_english.main([]) == 0
