"""A recipe's files are published as they are, under names that stay in their folder, in formats that run no code."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearning import formats
from unlearning.formats import files_of
from unlearning.rows import Published
from unlearning.types import RecipeError


def array(*values: float) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array(values))
    return buffer.getvalue()


def test_one_file_is_published_as_it_is() -> None:
    assert bytes(Published({"model.json": '{"a": 1}'})) == b'{"a": 1}'
    assert bytes(Published({"x.npy": array(1, 2)})) == array(1, 2)


def test_several_files_are_one_zip_that_depends_on_them_alone() -> None:
    files = {"model.npy": array(1, 2), "en/words.json": '{"é": 1}'}
    data = bytes(Published(files))
    assert data == bytes(Published(dict(reversed(files.items()))))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert archive.namelist() == ["en/words.json", "model.npy"]
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert {entry.compress_type for entry in archive.infolist()} == {zipfile.ZIP_STORED}
        assert archive.read("en/words.json") == '{"é": 1}'.encode()
    assert data != bytes(Published(files | {"model.npy": array(1, 3)}))


@pytest.mark.parametrize(
    "name",
    ["", "../a.json", "/a.json", "a//b.json", "a/../b.json", ".a.json", "a\\b.json", "a\0.json", "a/", "é.json", "C:a"],
)
def test_a_name_that_leads_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match=r"A file is named .*Use letters"):
        Published({name: "{}"})


def test_the_archive_is_read_back() -> None:
    files = {"model.npy": array(1, 2), "en/words.json": b"{}"}
    assert files_of(bytes(Published(files))) == files
    assert list(files_of(bytes(Published(files)))) == ["en/words.json", "model.npy"]


def test_a_folder_in_place_of_contents_says_how_to_give_it(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"got a PosixPath.*file\.read_bytes\(\) for file in folder\.iterdir\(\)"):
        Published(tmp_path)  # type: ignore[arg-type]


def test_a_number_in_place_of_what_scores_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"got a float as score.*score=lambda apart"):
        Published({"model.json": "{}"}, score=0.9)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["model.pkl", "model.PT", "m.joblib.json"])
def test_the_name_of_a_pickle_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match="is that of a pickled file, which runs code"):
        Published({name: "{}"})


@pytest.mark.parametrize("content", [pickle.dumps([1]), b"#!/bin/sh\n", "hello", pickle.dumps({}, protocol=0)])
def test_a_content_of_no_known_format_is_refused(content: bytes | str) -> None:
    with pytest.raises(RecipeError, match=r"'m.json' is of no format that is known.*Return a file of one of these"):
        Published({"m.json": content, "n.json": "{}"})


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({}, "publishes no file"),
        ({"a.json": b""}, "'a.json' is empty"),
        ({"a.json": 1}, "'a.json' holds a int. Give bytes or a text"),
        ({"a.json": "{}", "A.json": "{}"}, "one name but for its case"),
        ({"a": "{}", "a/b": "{}"}, "'a' is that of a file and of a folder"),
        ({1: "{}"}, "A file is named 1"),
        ({"a.zip": "{}"}, "'a.zip' is that of an archive"),
        ({"a.json": bytes(Published({"b.json": "{}", "c.json": "{}"}))}, "'a.json' is an archive"),
        ({f"{'a/' * 100}b.json": "{}"}, "has 206 letters"),
    ],
)
def test_files_that_cannot_lie_side_by_side_are_refused(files: Any, sentence: str) -> None:
    with pytest.raises(RecipeError, match=sentence):
        Published(files)


@pytest.mark.parametrize("content", ["[1, 2]", "null", '"words"', "3.5"])
def test_json_that_is_no_object_is_refused_with_the_object_to_return(content: str) -> None:
    with pytest.raises(RecipeError, match=r"'m\.json' is JSON, and no object\. Put the value into one: json\.dumps"):
        Published({"m.json": content})


def test_more_than_a_zip_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    published = Published({"a.json": "{}", "b.json": "{}"})
    monkeypatch.setattr(formats, "LARGEST_ARCHIVE", len(bytes(published)))
    bytes(published)
    with pytest.raises(RecipeError, match=r"2 files make an archive of 203 bytes; it may .* Publish fewer"):
        bytes(Published({"a.json": "{}", "b.json": "{ }"}))
    monkeypatch.setattr(formats, "MOST_FILES", 1)
    with pytest.raises(RecipeError, match="it may have 1 files"):
        bytes(published)


def test_the_files_are_those_of_the_call_and_the_score_waits() -> None:
    files: dict[str, bytes | str] = {"a.json": "{}"}
    published = Published(files, score=lambda aside: len(aside))
    files["b.json"] = "{}"
    assert published.files == {"a.json": b"{}"}
    assert published.score is not None
