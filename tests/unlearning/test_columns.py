from __future__ import annotations

import hashlib
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unlearning.columns import Column, Texts, row_bytes, row_digests

WORDS = st.lists(st.text(alphabet="abä→", max_size=3), max_size=30)


@settings(max_examples=50, deadline=None)
@given(WORDS)
def test_a_column_is_the_list_that_it_was_made_of(words: list[str]) -> None:
    column, texts = Column.of(words), Texts.of(words)
    assert list(column) == list(texts) == words
    assert column == words and texts == words
    assert [column[place] for place in range(len(words))] == [texts[place] for place in range(len(words))] == words
    assert column.distinct() == set(words)
    rows = torch.arange(0, len(words), 2)
    assert column.take(rows) == texts.take(rows) == words[::2]
    assert column.take(rows).compact() == words[::2]
    assert column.take(rows).compact().values == tuple(word for word in column.values if word in words[::2])
    assert column[::-1] == texts[::-1] == tuple(words[::-1])


@settings(max_examples=50, deadline=None)
@given(st.lists(WORDS, min_size=1, max_size=4))
def test_columns_are_joined_one_after_the_other(several: list[list[str]]) -> None:
    joined = Column.joined([Column.of(words) for words in several])
    assert list(joined) == [word for words in several for word in words]
    assert len(joined.values) == len({*joined.values})
    assert list(Texts.joined([Texts.of(words) for words in several])) == list(joined)


@settings(max_examples=50, deadline=None)
@given(WORDS, WORDS)
def test_texts_are_the_same_where_the_lists_are(words: list[str], others: list[str]) -> None:
    assert Texts.of(words).same(Texts.of(others)) == (words == others)
    assert Texts.read(Texts.of(words).data, Texts.of(words).ends).same(Texts.of(words))


@pytest.mark.parametrize(
    ("data", "ends"),
    [
        ([97, 98], [0, 1]),  # a text is missing at the end
        ([97, 98], [0, 2, 1]),
        ([97, 98], [1, 2]),
        ([97, 98], []),
        ([0xC3, 0xA4], [0, 1, 2]),  # half a letter
        ([0xFF], [0, 1]),
    ],
)
def test_what_is_no_column_of_texts_is_refused(data: list[int], ends: list[int]) -> None:
    with pytest.raises(ValueError):
        Texts.read(np.array(data, dtype=np.uint8), np.array(ends, dtype=np.int64))


@pytest.mark.parametrize("shape", [(0, 3), (4,), (4, 0), (3, 2, 5)])
def test_rows_are_digested_as_each_of_them_is(shape: tuple[int, ...]) -> None:
    rows = np.random.default_rng(0).standard_normal(shape)
    assert [bytes(row) for row in row_bytes(rows)] == [row.tobytes() for row in rows]
    digests = row_digests(row_bytes(rows))
    assert digests.shape == (len(rows), 32)
    assert [digest.tobytes() for digest in digests] == [hashlib.sha256(row.tobytes()).digest() for row in rows]


@settings(max_examples=50, deadline=None)
@given(WORDS)
def test_the_first_repeated_text_is_found(words: list[str]) -> None:
    again = [place for place, word in enumerate(words) if word in words[:place]]
    assert Texts.of(words).repeated() == (again[0] if again else None)
    assert Texts.of(words).empty() == (words.index("") if "" in words else None)


def test_texts_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Texts, "_hashes", lambda self: np.zeros(len(self), dtype=np.int64))
    texts = Texts.of(["a", "b", "c", "b"])
    assert texts.repeated() == 3


def test_each_entry_is_asked_for_once_and_only_if_some_row_has_it() -> None:
    column = Column.of(["a", "b", "a", "c"]).take(torch.tensor([0, 2, 3]))
    asked: list[str] = []
    assert column.each(lambda word: asked.append(word) or ord(word)).tolist() == [97, 97, 99]  # type: ignore[func-returns-value]
    assert asked == ["a", "c"]
    assert column.where("a".__eq__).tolist() == [True, True, False]
    assert list(column.map(str.upper)) == ["A", "A", "C"]


def test_entries_that_become_equal_are_one() -> None:
    column = Column.of([("a+b",), ("a", "b")]).map("+".join)
    assert column.values == ("a+b",) and list(column) == ["a+b", "a+b"]


def test_no_row_is_a_python_object() -> None:
    count = 100_000
    before = sys.getallocatedblocks()
    texts, column = Texts.of(map(str, range(count))), Column.of(str(row % 100) for row in range(count))
    assert sys.getallocatedblocks() - before < 5_000
    assert len(texts) == len(column) == count


def test_what_is_shown_names_nobody() -> None:
    assert "ada" not in repr(Column.of(["ada"])) + repr(Texts.of(["ada"]))
