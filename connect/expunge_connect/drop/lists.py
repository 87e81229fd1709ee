"""Reading deletion lists as they are downloaded, and the file that says which person has which identifiers.

A file that is not what it should be raises ValueError: the text names the file, the line and what is wrong, never a
value.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from base64 import b64decode
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, NamedTuple
from zipfile import BadZipFile, ZipFile

from expunge_connect.drop.identifiers import COLUMNS, LISTS, PERSON, Row

REMOVED = "Removed"
_NAME = re.compile(rf"([0-9]{{8}}_[0-9]{{4}})_({'|'.join((*LISTS, REMOVED))})(?:_[A-Za-z0-9]{{1,10}})?\.csv")
_ITEM = re.compile(r"[A-Za-z0-9]{12}")
HASH_BYTES = 32
EARLIEST, LATEST = datetime(1971, 1, 1, tzinfo=UTC), datetime(9999, 1, 1, tzinfo=UTC)
_HIDDEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""categories of control and format characters; the service compares ids by their NFC form, and refuses these"""
LONGEST_LINE = 10_000
"""characters of a line of either file"""
MOST_UNPACKED = 20
"""times its own size: random hashes pack to no less than half"""


class ListEntry(NamedTuple):
    """One line of a list: a work item of the state, and the hash of the identifier that it names."""

    item: str
    hash: bytes
    list_name: str


class DeletionList(NamedTuple):
    """One CSV file of a download. ``source`` is the start of its name: the day and the broker's number."""

    source: str
    list_name: str
    entries: Iterator[ListEntry]


def received_at(source: str) -> datetime:
    """Return the day that the list was downloaded on, in UTC. Raises ValueError where the name holds no date."""
    try:
        day = datetime.strptime(source[:8], "%Y%m%d").replace(tzinfo=UTC)
    except ValueError:
        day = datetime.min.replace(tzinfo=UTC)
    if not EARLIEST <= day < LATEST:
        raise ValueError(f"{source} begins with no date (YYYYMMDD) from 1971 to 9998.")
    return day


def lists(path: Path) -> Iterator[DeletionList]:
    """Yield the lists of a downloaded CSV file, or of the whole ZIP file, as they are read. Raises ValueError."""
    if path.suffix != ".zip":
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield _list(path.name, file)
        return
    try:
        archive = ZipFile(path)
    except BadZipFile:
        raise ValueError(f"{path} is no ZIP file: download it again.") from None
    with archive:
        if sum(each.file_size for each in archive.infolist()) > MOST_UNPACKED * path.stat().st_size:
            raise ValueError(f"{path} unpacks to more than {MOST_UNPACKED} times its size, as no list does.")
        for name in sorted(archive.namelist()):
            with archive.open(name) as file:
                yield _list(Path(name).name, io.TextIOWrapper(file, "utf-8-sig", newline=""))


def _list(name: str, file: IO[str]) -> DeletionList:
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name} is not named like a list of DROP, for example 20260812_4821_Email.csv.")
    received_at(match[1])
    return DeletionList(match[1], match[2], _entries(name, match[2], file))


def _entries(name: str, list_name: str, file: IO[str]) -> Iterator[ListEntry]:
    header = ["ID", "Hash", *(["ListType"] if list_name == REMOVED else [])]
    with _readable(name):
        reader = csv.reader(_lines(name, file))
        if next(reader, None) != header:
            raise ValueError(f"{name} does not begin with the line {','.join(header)}.")
        for line, row in enumerate(reader, 2):
            try:
                item, text, kind = row if list_name == REMOVED else (*row, list_name)
                found = b64decode(text, validate=True)
            except ValueError:
                raise ValueError(f"{name}, line {line}: not {len(header)} fields, or no Base64.") from None
            if not _ITEM.fullmatch(item) or len(found) != HASH_BYTES or kind not in LISTS:
                raise ValueError(f"{name}, line {line}: not an id of 12 letters and digits with a SHA-256 hash.")
            yield ListEntry(item, found, kind)


def _lines(name: str, file: IO[str]) -> Iterator[str]:
    """Yield the lines. Raises ValueError at one that is too long, before it is read whole."""
    while line := file.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise ValueError(f"{name} has a line of {LONGEST_LINE} characters or more.")
        yield line


@contextmanager
def _readable(name: str) -> Iterator[None]:
    try:
        yield
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not UTF-8 text. Save it as CSV in UTF-8.") from None
    except csv.Error as error:
        raise ValueError(f"{name} cannot be read as CSV: {error}.") from None


@contextmanager
def identities(path: Path) -> Iterator[Iterator[Row]]:
    """Open a CSV file with the column ``person`` and some of ``COLUMNS``; a person may have several lines.

    Nothing of it is stored. Raises ValueError, also for a file without people.
    """
    with path.open(newline="", encoding="utf-8-sig") as file, _readable(str(path)):
        reader = csv.DictReader(_lines(str(path), file), restkey="")
        _require_columns(path, reader.fieldnames or ())
        yield _rows(path, reader)


def _require_columns(path: Path, columns: Sequence[str]) -> None:
    unknown = sorted(set(columns) - {PERSON, *COLUMNS})
    if PERSON not in columns or len(columns) < 2 or unknown:
        extra = f" It has unknown ones: {', '.join(unknown)}." if unknown else ""
        raise ValueError(f"{path} needs the column person and some of {', '.join(COLUMNS)}.{extra}")
    if len(set(columns)) < len(columns):
        raise ValueError(f"{path} names a column twice. Give each column once.")


def _rows(path: Path, reader: csv.DictReader[str]) -> Iterator[Row]:
    for row in reader:
        if not row[PERSON] or "" in row:
            raise ValueError(f"{path}, line {reader.line_num}: no person, or more fields than columns.")
        row[PERSON] = unicodedata.normalize("NFC", row[PERSON])
        if row[PERSON] != row[PERSON].strip() or any(unicodedata.category(each) in _HIDDEN for each in row[PERSON]):
            raise ValueError(
                f"{path}, line {reader.line_num}: a person's id with invisible characters, or white space at an end."
            )
        yield row
    if reader.line_num < 2:
        raise ValueError(f"{path} holds no people: nobody would be found. Write all of them to it.")
