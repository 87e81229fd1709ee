"""An archive of several files: read back whole, and refused where one byte is not as ``archive_of`` writes it."""

from __future__ import annotations

import hashlib
import io
import pickle
import random
import struct
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from unlearning.formats import ARCHIVE, FORMATS, archive_of, files_of, format_of, is_archive, why_misnamed

WORDS, SCALER = b'{"words": ["a", "b"]}', b'{"mean": [1.5]}'
PICKLE = pickle.dumps({"weights": [1.0]})
_DATE = (1980, 1, 1, 0, 0, 0)


def array(*values: float) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(values))
    return file.getvalue()


FILES = {"en/words.json": WORDS, "model.npy": array(1, 2), "scaler.json": SCALER}
DATA = archive_of(FILES)


def by_zipfile(files: Mapping[str, bytes], **changed: object) -> bytes:
    """Write an archive by the standard library. ``changed``: attributes of its first entry."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for place, name in enumerate(files):
            entry = zipfile.ZipInfo(name, _DATE)
            entry.create_system, entry.external_attr = 3, 0o100644 << 16
            for attribute, value in changed.items() if place == 0 else ():
                setattr(entry, attribute, value)
            archive.writestr(entry, files[name])
    return file.getvalue()


def commented(data: bytes, comment: bytes) -> bytes:
    return data[:-2] + struct.pack("<H", len(comment)) + comment


def gapped(data: bytes, inserted: bytes) -> bytes:
    """Put bytes before the central directory, whose place the end then names rightly."""
    (place,) = struct.unpack_from("<I", data, len(data) - 6)
    return data[:place] + inserted + data[place:-6] + struct.pack("<I", place + len(inserted)) + data[-2:]


def renamed(data: bytes, old: bytes, new: bytes) -> bytes:
    assert len(old) == len(new) and data.count(old) == 2
    return data.replace(old, new)


def with_central(data: bytes, place: int, form: str, value: int) -> bytes:
    """Change a field of the first entry of the central directory."""
    start = data.index(b"PK\1\2")
    changed = bytearray(data)
    struct.pack_into(form, changed, start + place, value)
    return bytes(changed)


def with_local(data: bytes, place: int, form: str, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into(form, changed, place, value)
    return bytes(changed)


def torch_file() -> bytes:
    file = io.BytesIO()
    torch.save({"a": torch.ones(2)}, file)
    return file.getvalue()


def forced_zip64() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in sorted(FILES):
            with archive.open(zipfile.ZipInfo(name, _DATE), "w", force_zip64=True) as entry:
                entry.write(FILES[name])
    return file.getvalue()


def streamed() -> bytes:
    """Written where one cannot go back: sizes follow the contents, in descriptors."""

    class Stream(io.RawIOBase):
        written = b""

        def writable(self) -> bool:
            return True

        def write(self, data: object) -> int:
            self.written += bytes(data)  # type: ignore[call-overload]
            return len(data)  # type: ignore[arg-type]

    stream = Stream()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in sorted(FILES):
            archive.writestr(zipfile.ZipInfo(name, _DATE), FILES[name])
    return stream.written


TWO = {"a.json": WORDS, "b.json": SCALER}
LINK = {"external_attr": 0o120777 << 16}
REFUSED: dict[str, bytes] = {
    "nothing": b"",
    "an empty zip": by_zipfile({}),
    "one file": by_zipfile({"a.json": WORDS}),
    "compressed": by_zipfile(TWO, compress_type=zipfile.ZIP_DEFLATED),
    "not in order": by_zipfile({"b.json": SCALER, "a.json": WORDS}),
    "a date": by_zipfile(TWO, date_time=(2026, 1, 1, 0, 0, 0)),
    "a link": by_zipfile(TWO, **LINK),
    "an executable": by_zipfile(TWO, external_attr=0o100755 << 16),
    "a hidden file of DOS": by_zipfile(TWO, external_attr=(0o100644 << 16) | 2),
    "another system": by_zipfile(TWO, create_system=0),
    "a comment of an entry": by_zipfile(TWO, comment=PICKLE),
    "an extra field": by_zipfile(TWO, extra=b"\xfe\xca\4\0code"),
    "a folder's entry": by_zipfile({"a/": b"", "a/a.json": WORDS, "b.json": SCALER}),
    "an absolute name": by_zipfile({"/a.json": WORDS, "b.json": SCALER}),
    "a name that leads up": by_zipfile({"../a.json": WORDS, "b.json": SCALER}),
    "a name that leads up inside": by_zipfile({"a/../../a.json": WORDS, "b.json": SCALER}),
    "a backslash": by_zipfile({"..\\a.json": WORDS, "b.json": SCALER}),
    "a drive": by_zipfile({"C:a.json": WORDS, "b.json": SCALER}),
    "a zero": renamed(by_zipfile(TWO), b"a.json", b"a\0json"),
    "a name beyond ASCII": by_zipfile({"a.json": WORDS, "é.json": SCALER}),
    "a name in another encoding": renamed(by_zipfile(TWO), b"a.json", b"\xe9.json"),
    "a name twice": renamed(by_zipfile(TWO), b"b.json", b"a.json"),
    "a name twice but for its case": by_zipfile({"A.json": WORDS, "a.json": SCALER}),
    "a file that is a folder": by_zipfile({"a": WORDS, "a/b.json": SCALER}),
    "the name of a pickle": by_zipfile({"a.json": WORDS, "b.pkl": SCALER}),
    "the name of a zip": by_zipfile({"a.json": WORDS, "b.zip": SCALER}),
    "64 bits": forced_zip64(),
    "descriptors": streamed(),
    "something before": b"#!/bin/sh\n" + DATA,
    "something behind": DATA + b"\0",
    "a comment": commented(DATA, b"hello"),
    "a comment that is a pickle": commented(DATA, PICKLE),
    "a gap before the directory": gapped(DATA, PICKLE),
    "two archives": DATA + DATA,
    "no end": DATA[:-22],
    "no directory": DATA[: DATA.index(b"PK\1\2")],
    "an encrypted entry": with_local(with_central(DATA, 8, "<H", 1), 6, "<H", 1),
    "encrypted in the directory alone": with_central(DATA, 8, "<H", 1),
    "encrypted in the local header alone": with_local(DATA, 6, "<H", 1),
    "UTF-8 in the directory alone": with_central(DATA, 8, "<H", 1 << 11),
    "another size in the directory": with_central(DATA, 24, "<I", 3),
    "another size in the local header": with_local(DATA, 22, "<I", 3),
    "a size beyond the end": with_local(DATA, 22, "<I", 2**32 - 1),
    "another checksum": with_local(with_central(DATA, 16, "<I", 1), 14, "<I", 1),
    "another checksum in the directory": with_central(DATA, 16, "<I", zlib.crc32(PICKLE)),
    "another place": with_central(DATA, 42, "<I", 40),
    "another disk": with_central(DATA, 34, "<H", 1),
    "text, says the directory": with_central(DATA, 36, "<H", 1),
    "another name in the directory": DATA[::-1].replace(b"en/words.json"[::-1], b"en/sword.json"[::-1], 1)[::-1],
    "torch": torch_file(),
}
UNFIT: dict[str, Mapping[str, bytes]] = {
    "a pickle": {"a.json": WORDS, "b.bin": PICKLE},
    "a script": {"a.json": WORDS, "b.sh": b"#!/bin/sh\n"},
    "an empty file": {"a.json": WORDS, "b.json": b""},
    "an archive": {"a.json": WORDS, "b.json": archive_of(TWO)},
    "an archive of archives": {"a.json": WORDS, "b.json": archive_of({"a.json": WORDS, "b.json": archive_of(TWO)})},
    "a torch file": {"a.json": WORDS, "b.bin": torch_file()},
}
"""archives by their form, and one of their files is of no format that may be in one"""


def test_the_standard_library_writes_and_reads_the_same() -> None:
    assert by_zipfile(dict(sorted(FILES.items()))) == DATA == archive_of(dict(reversed(FILES.items())))
    with zipfile.ZipFile(io.BytesIO(DATA)) as file:
        assert file.testzip() is None and {name: file.read(name) for name in file.namelist()} == FILES
    assert format_of(DATA) == ARCHIVE and files_of(DATA) == FILES and list(files_of(DATA)) == sorted(FILES)


def test_what_is_written_never_changes() -> None:
    """Digests of archives are on certificates, and an archive that is written otherwise is not read."""
    written = hashlib.sha256(archive_of({"a.json": b"{}", "b/c.json": b"{}"})).hexdigest()
    assert written == "9b342a6fc41e119489e340c7e3be3bffab6b8b4c0065510cde3430c672c2c82b"


@pytest.mark.parametrize("kind", REFUSED)
def test_any_other_zip_is_no_archive(kind: str) -> None:
    data = REFUSED[kind]
    assert format_of(data) != ARCHIVE and not is_archive(data)
    with pytest.raises(ValueError, match=f"^These {len(data)} bytes are no archive of several files. Give"):
        files_of(data)


@pytest.mark.parametrize("kind", UNFIT)
def test_an_archive_holds_no_file_of_another_format(kind: str) -> None:
    data = archive_of(UNFIT[kind])
    assert files_of(data) == UNFIT[kind]
    assert format_of(data) != ARCHIVE


def test_a_torch_file_is_still_refused() -> None:
    assert format_of(torch_file()) is None
    assert format_of(archive_of(UNFIT["a torch file"])) is None


COMPONENTS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,9}", fullmatch=True)
NAMES = st.lists(COMPONENTS, min_size=1, max_size=3).map("/".join)
CONTENTS = st.dictionaries(NAMES, st.binary(max_size=60), min_size=2, max_size=6)


@given(CONTENTS)
def test_files_come_back_from_an_archive(files: dict[str, bytes]) -> None:
    data = archive_of(files)
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        assert {name: file.read(name) for name in file.namelist()} == files
    assert is_archive(data) == (why_misnamed(files) is None)
    if is_archive(data):
        assert files_of(data) == files


@settings(max_examples=400)
@given(st.data())
def test_a_changed_archive_is_none(drawn: st.DataObject) -> None:
    """Bytes changed, cut out, doubled or added anywhere outside a content; inside one the checksum tells."""
    changed = bytearray(DATA)
    place = drawn.draw(st.integers(0, len(DATA) - 1))
    kind = drawn.draw(st.sampled_from(["change", "cut", "double", "add", "end"]))
    length = drawn.draw(st.integers(1, 40))
    if kind == "change":
        changed[place] ^= drawn.draw(st.integers(1, 255))
    elif kind == "cut":
        del changed[place : place + length]
    elif kind == "double":
        changed[place:place] = changed[place : place + length]
    elif kind == "add":
        changed[place:place] = drawn.draw(st.binary(min_size=1, max_size=40))
    else:
        del changed[place:]
    assert not is_archive(bytes(changed)) and format_of(bytes(changed)) != ARCHIVE


def test_no_bytes_end_in_another_error() -> None:
    dice = random.Random(3)
    for _ in range(300):
        changed = bytearray(DATA)
        for _ in range(dice.randrange(1, 9)):
            changed[dice.randrange(len(changed))] = dice.randrange(256)
        assert format_of(bytes(changed)) in (None, *FORMATS)
        is_archive(bytes(changed))


def test_more_entries_than_a_zip_counts_are_no_archive() -> None:
    entry = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 33, 0, 0, 0, 5, 0)
    assert not is_archive(b"".join(entry + f"{place:05x}".encode() for place in range(2**16 + 5)))
