"""Reading deletion lists as they are downloaded, and the file that says which person has which identifiers.

A file that is not what it should be raises ValueError: the text names the file, the line and what is wrong, never a
value.
"""

from __future__ import annotations

import csv
import io
import os
import re
import unicodedata
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, NamedTuple
from zipfile import BadZipFile, ZipFile

from expunge_client.id_lint import lint_lines
from expunge_connect.drop.cells import AMERICAN, Malformed, read
from expunge_connect.drop.identifiers import COLUMNS, LISTS, PERSON, Row

REMOVED = "Removed"
REGION = "EXPUNGE_DROP_REGION"
"""the setting with the country whose phone numbers stand without their country's code, as in ISO 3166"""
NAMED_LINES = 3
"""lines that a refusal names for each way in which cells are malformed"""
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


class MalformedCells:
    """Cells of a file of people that hold something else than their column should: how many, and the first lines."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """by column"""
        self._lines: dict[tuple[str, str], list[int]] = defaultdict(list)

    def add(self, column: str, expected: str, line: int) -> None:
        self.counts[column] += 1
        lines = self._lines[column, expected]
        if len(lines) <= NAMED_LINES:
            lines.append(line)

    def of(self, list_name: str) -> int:
        """How many cells could not be compared with this list."""
        return sum(self.counts[column] for column, _ in LISTS[list_name])

    def __str__(self) -> str:
        return "; ".join(
            f"column {column}, line {', '.join(map(str, lines[:NAMED_LINES]))}"
            f"{' and others' if len(lines) > NAMED_LINES else ''}: not {expected}"
            for (column, expected), lines in self._lines.items()
        )


class People:
    """The rows of a file of people, read once by iterating. Each cell is read strictly (cells.py).

    A malformed cell counts and is empty in its row. After the last row the file is refused where there was one, unless
    ``skip_malformed``; and where the linter of ids refuses a person's id. So a caller that acts after the last row has
    done nothing by then. What the linter warns of is in ``warnings`` afterwards.

    Raises:
        ValueError: it is not such a file, or has malformed cells or ids. The text names lines, and never a value.
    """

    def __init__(self, path: Path, reader: csv.DictReader[str], *, skip_malformed: bool) -> None:
        self._path, self._reader, self._skip_malformed = path, reader, skip_malformed
        self._region = os.environ.get(REGION, AMERICAN).upper()
        self.malformed = MalformedCells()
        self.warnings: list[str] = []

    def __iter__(self) -> Iterator[Row]:
        first_lines: dict[str, int] = {}
        for row in self._reader:
            line = self._reader.line_num
            person = self._person(row, line)
            first_lines.setdefault(person, line)
            yield {
                PERSON: person,
                **{column: self._cell(column, row[column], line) for column in row if column != PERSON},
            }
        if not first_lines:
            raise ValueError(f"{self._path} holds no people: nobody would be found. Write all of them to it.")
        self._refuse_malformed()
        self._lint(first_lines)

    def _person(self, row: dict[str, str], line: int) -> str:
        if not row[PERSON] or "" in row:
            raise ValueError(f"{self._path}, line {line}: no person, or more fields than columns.")
        person = unicodedata.normalize("NFC", row[PERSON])
        if person != person.strip() or any(unicodedata.category(sign) in _HIDDEN for sign in person):
            raise ValueError(
                f"{self._path}, line {line}: a person's id with invisible characters, or white space at an end."
            )
        return person

    def _cell(self, column: str, text: str | None, line: int) -> str:
        try:
            return read(column, text or "", self._region)
        except Malformed as error:
            self.malformed.add(column, str(error), line)
            return ""

    def _refuse_malformed(self) -> None:
        if self.malformed.counts and not self._skip_malformed:
            raise ValueError(
                f"{self._path} has {self.malformed.counts.total()} malformed values ({self.malformed}). "
                "Their people would be answered as not found, or as strangers. Correct the file, or give "
                "--skip-malformed to compare the others."
            )

    def _lint(self, first_lines: dict[str, int]) -> None:
        findings = lint_lines(first_lines)
        refused = [finding.describe() for finding in findings if finding.refused]
        if refused:
            raise ValueError(
                f"{self._path}, column person: {'; '.join(refused)}. Write the ids of your recipes as texts."
            )
        self.warnings = [f"{self._path}, column person: {finding.describe()}" for finding in findings]


@contextmanager
def identities(path: Path, *, skip_malformed: bool = False) -> Iterator[People]:
    """Open a CSV file with the column ``person`` and some of ``COLUMNS``; a person may have several lines.

    Nothing of it is stored. Raises ValueError, also for a file without people.
    """
    with path.open(newline="", encoding="utf-8-sig") as file, _readable(str(path)):
        reader = csv.DictReader(_lines(str(path), file), restkey="")
        _require_columns(path, reader.fieldnames or ())
        yield People(path, reader, skip_malformed=skip_malformed)


def _require_columns(path: Path, columns: Sequence[str]) -> None:
    unknown = sorted(set(columns) - {PERSON, *COLUMNS})
    if PERSON not in columns or len(columns) < 2 or unknown:
        extra = f" It has unknown ones: {', '.join(unknown)}." if unknown else ""
        raise ValueError(f"{path} needs the column person and some of {', '.join(COLUMNS)}.{extra}")
    if len(set(columns)) < len(columns):
        raise ValueError(f"{path} names a column twice. Give each column once.")
