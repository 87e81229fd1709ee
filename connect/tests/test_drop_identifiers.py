"""The state's own worked examples (DROP, technical specifications 1.2.0, "Working with the data"), and twins."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge_connect.drop.identifiers import LISTS, hash_of, name
from expunge_connect.drop.lists import ListEntry, identities, lists

DANIELLE = {"first_name": "Danielle", "last_name": "Johnson", "birth_date": "July 4, 1985", "zip": "91790"}
EVE = {"first_name": "Eve", "last_name": "Genesis", "vin": "1HGCM82633A004352"}
EXAMPLES = [
    ("Email", {"email": "Anna.Smith@Domain.com"}, "KA18MT/ph6IHYjzT9zwETySDQyvSh87YuoSBpOQtkhE="),
    ("Phone", {"phone": "+1(415)555-9317"}, "vGM7y5n+hBXRSEAklhHDPCbysyNgYTmXdMcagGUOY8E="),
    ("MAID", {"maid": "a3f1c2d4-5678-90ab-cdef-1234567890ab"}, "250KY6lOgzYUB3EHrkbDCE2kMEZQE69SF38muhoDudI="),
    ("CTVID", {"ctvid": "SmartTV_9F8E7D6C"}, "d9fxuTIrKksBXYDlaWsvQbcyUUfCbUx7v78gd+KP+tc="),
    ("NDZ", DANIELLE, "PQOfn1RffEKmqMmNAzDKKaoZCwxWbQZkQzPWmQo9REA="),
    ("NameVIN", EVE, "rtnDuXIe63jXYQQXW5r07GJ7lSsrib8+46QuKFwkOmk="),
]
FIELDS = [
    ("first_name", "Juan Pablo", "91hIbrbzNeqHs3o81O5yNrXUj7wDd2shvZ6THKi9qz8="),
    ("last_name", "Martinez", "2wRPGbwBNxhShjRczx8GfS2c4cjvs4NJskeWloUNtp8="),
    ("birth_date", "July 4, 1776", "skXYXxBER6HQTZ3rXSZH1wVGLQ054mS5rbR/bwvzy4I="),
    ("zip", "91790-3771", "2FPZucR4x7U8KlM+SFAX4LPGhwNz/PIZUCSUdDh0o/s="),
    ("zip", "M1B 1A1", "n8L9q8mVeT6Xt9/EeUNiTukGDrkbPJ3DvOEx14uElxk="),
    ("zip", "00712345", "aeNUYKh7Xw5sqpxSbSP9eOHsj6iXewbUyavv89DIuhQ="),
    ("vin", "1HGCM82633A004352", "iNswy1m+0VSt8jAfFrvaiQ1R/0HAbgSwNGkwqo6QBss="),
]
SPELLINGS = {column: spelling for fields in LISTS.values() for column, spelling in fields}


def in_base64(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


@pytest.mark.parametrize(("list_name", "row", "expected"), EXAMPLES)
def test_a_person_is_hashed_as_the_state_shows(list_name: str, row: dict[str, str], expected: str) -> None:
    assert in_base64(hash_of(list_name, row)) == expected
    assert all(hash_of(list_name, {**row, column: ""}) is None for column in row), "every field is needed"


@pytest.mark.parametrize(("column", "text", "expected"), FIELDS)
def test_a_field_is_spelled_as_the_state_shows(column: str, text: str, expected: str) -> None:
    spelled = SPELLINGS[column](text)
    assert in_base64(hashlib.sha256((spelled or "").encode()).digest()) == expected


@pytest.mark.parametrize(
    ("given_name", "spelled"),
    [
        ("José", "jose"),
        ("Jose\u0301", "jose"),
        ("Müller", "muller"),
        ("Straße", "strasse"),
        ("Щербакова", "shcherbakova"),
        ("Θεοδώρου", "theodoroy"),
        ("O'Brien-Smith 2nd", "obriensmith2nd"),
        ("王小明", "王小明"),
        (" - ", None),
    ],
)
def test_latin_greek_and_cyrillic_names_become_ascii_and_others_stay(given_name: str, spelled: str | None) -> None:
    assert name(given_name) == spelled


@pytest.mark.parametrize(
    "row",
    [{"maid": "a3f1"}, {"ctvid": "short"}, {"vin": "123", "first_name": "a", "last_name": "b"}, {"phone": "none"}],
)
def test_what_is_malformed_names_nobody(row: dict[str, str]) -> None:
    assert [hash_of(each, row) for each in LISTS] == [None] * len(LISTS)


@given(st.text(max_size=40))
def test_any_text_is_spelled_or_refused_the_same_way_twice(text: str) -> None:
    for spelling in SPELLINGS.values():
        once = spelling(text)
        assert once is None or once
        if once is not None and spelling is not SPELLINGS["birth_date"]:
            assert spelling(once) in (once, None)


HASH = "KA18MT/ph6IHYjzT9zwETySDQyvSh87YuoSBpOQtkhE="


def test_a_download_is_read_as_one_archive_or_file_by_file(tmp_path: Path) -> None:
    content = {"20260812_4821_Email.csv": f"ID,Hash\nA7kP2xQ9Lm4R,{HASH}\n", "20260812_4821_NDZ.csv": "ID,Hash\n"}
    with zipfile.ZipFile(tmp_path / "20260812_4821_DROP.zip", "w") as archive:
        for file, text in content.items():
            archive.writestr(file, text)
            (tmp_path / file).write_text(text)
    from_zip = [
        (each.source, each.list_name, list(each.entries)) for each in lists(tmp_path / "20260812_4821_DROP.zip")
    ]
    from_files = [
        (each.source, each.list_name, list(each.entries)) for file in sorted(content) for each in lists(tmp_path / file)
    ]
    entry = ListEntry("A7kP2xQ9Lm4R", base64.b64decode(HASH), "Email")
    assert from_zip == from_files == [("20260812_4821", "Email", [entry]), ("20260812_4821", "NDZ", [])]


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("list.csv", "", "is not named like a list"),
        ("20261399_4821_Email.csv", "", "no date"),
        ("20260812_4821_Email.csv", "Hash,ID\n", "does not begin with the line ID,Hash"),
        ("20260812_4821_Email.csv", f"ID,Hash\nA7kP2xQ9Lm4R,{HASH},x\n", "line 2"),
        ("20260812_4821_Email.csv", f"ID,Hash\nA7kP2xQ9Lm4R,{HASH}\nA7kP,{HASH}\n", "line 3"),
        ("20260812_4821_Email.csv", "ID,Hash\nA7kP2xQ9Lm4R,AAAA\n", "line 2"),
        ("20260812_4821_Removed.csv", f"ID,Hash,ListType\nA7kP2xQ9Lm4R,{HASH},Post\n", "line 2"),
    ],
)
def test_a_malformed_list_is_refused_with_its_line_and_no_value(
    tmp_path: Path, file: str, text: str, message: str
) -> None:
    (tmp_path / file).write_text(text)
    with pytest.raises(ValueError, match=message) as refused:
        for each in lists(tmp_path / file):
            list(each.entries)
    assert HASH not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["email\na@b.c\n", "person\np1\n", "person,mail\np1,a@b.c\n", "person,email\n,a@b.c\n"]
)
def test_a_file_of_identities_needs_a_person_and_known_columns(tmp_path: Path, text: str) -> None:
    (tmp_path / "people.csv").write_text(text)
    with pytest.raises(ValueError, match="person"), identities(tmp_path / "people.csv") as rows:
        list(rows)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("person,email\np1,josé@b.c\n".encode("latin-1"), "not UTF-8"),
        (b'person,email\np1,"' + b"a@b.c\n" * 30_000, "cannot be read as CSV"),
    ],
    ids=["another encoding", "a quote that nobody closes"],
)
def test_a_file_that_is_no_csv_of_ours_is_refused_with_its_name(tmp_path: Path, content: bytes, message: str) -> None:
    people, state = tmp_path / "people.csv", tmp_path / "20260812_4821_Email.csv"
    people.write_bytes(content)
    with pytest.raises(ValueError, match=f"people.*{message}"), identities(people) as rows:
        list(rows)
    state.write_bytes(content.replace(b"person,email", b"ID,Hash"))
    with pytest.raises(ValueError, match=f"{state.name}.*{message}"):
        for found in lists(state):
            list(found.entries)


def test_an_archive_that_is_none_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "20260812_4821_DROP.zip").write_text("<html>Sign in</html>")
    with pytest.raises(ValueError, match=r"DROP\.zip is no ZIP file"):
        list(lists(tmp_path / "20260812_4821_DROP.zip"))
