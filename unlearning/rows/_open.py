"""Open a source without some people: who leaves is decided on text, before anything is inferred from the rows."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from functools import cached_property
from itertools import compress, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unlearning.accounting import ids
from unlearning.arrow import pyarrow
from unlearning.columns import DIGEST, Column, Texts, row_digests
from unlearning.rows._databases import Shadow, answer
from unlearning.rows._entries import Entries, LoadedEntries, open_entries
from unlearning.rows._maps import places_of_blocks
from unlearning.rows._paths import open_file, path_beneath
from unlearning.rows._people import Cell, People, people_of, refused_list
from unlearning.rows._read import Objects, Places, Unread, joined, read, read_arrow, to_arrow
from unlearning.rows._rows import FileColumn, Rows
from unlearning.rows.declarations import (
    ArraysSource,
    FolderSource,
    QuerySource,
    ReaderSource,
    Source,
    TableSource,
    Via,
    format_by_suffix,
)
from unlearning.types import RecipeError


@dataclass(frozen=True)
class RowUnits:
    """What leaves a source as one: all rows of the same people, or one row where the source names rows by ``id``.

    A source that says ``at=`` has no unit a row: its rows are told apart by time.

    Args:
        people: of each unit (k); a query has units without rows, of people whom its tables alone name.
        ids: of each unit's row (k), or empty.
        digests: (k, 32) uint8, of its people, its id and what its rows hold.
        counts: (k,) int64, of its rows.
        of_rows: (n,) int64, the unit of each row; -1 for a row of nobody.
    """

    people: Column[People]
    ids: Texts
    digests: np.ndarray[Any, Any]
    counts: Places
    of_rows: Places

    def __len__(self) -> int:
        return len(self.people)


@dataclass(frozen=True)
class OpenSource:
    """A source as it was read, with everybody in it; made by ``read_source``.

    Args:
        everybody: the people of its rows, and those whom the tables of a query name.
        places: of the rows that are read, among all in ``unread``; the others came later.
    """

    source: Source
    root: Path
    databases: Mapping[str, str]
    everybody: frozenset[str]
    unread: Unread = field(repr=False)
    people: Column[People] = field(repr=False)
    places: Places = field(repr=False)

    def units(self, name: str = "") -> RowUnits:
        """Return what leaves as one. Raises RecipeError where a row's id, or a file of it, is missing.

        ``name``: of the source, by which units of two sources have different digests.
        """
        rows = self.people.take(torch.from_numpy(self.places)).compact()
        somebodys = np.flatnonzero(rows.where(bool).numpy())
        named = self.source.id is not None and self.source.at is None
        of_rows = firsts = np.arange(len(somebodys))
        if not named:
            firsts, of_rows = _by_first_appearance(rows.codes.numpy()[somebodys])
        codes = rows.codes[torch.from_numpy(somebodys[firsts])]
        ids = self._ids().take(torch.from_numpy(somebodys[firsts])) if named else Texts.of([""] * len(firsts))
        order = np.argsort(of_rows, kind="stable")
        ends = np.cumsum(np.bincount(of_rows, minlength=len(firsts))) * DIGEST
        contents = self._contents[somebodys[order]].tobytes()
        people = [f"{name} {value!r} ".encode() for value in rows.values]
        digests = row_digests(
            b"".join((people[code], id, contents[start:end]))
            for code, id, (start, end) in zip(
                codes.tolist(), ids.encoded(0, len(ids)), pairwise([0, *ends.tolist()]), strict=True
            )
        )
        others = sorted(self.everybody.difference(*rows.values))  # whom the tables of a query name, and no row
        without_rows = row_digests(f"{name} {person!r}".encode() for person in others)
        everywhere = np.full(len(rows), -1, dtype=np.int64)
        everywhere[somebodys] = of_rows
        return RowUnits(
            people=Column(
                torch.cat([codes, torch.arange(len(others)) + len(rows.values)]),
                (*rows.values, *((person,) for person in others)),
            ),
            ids=Texts(ids.data, np.pad(ids.ends, (0, len(others)), "edge")),
            digests=np.concatenate([digests, without_rows]),
            counts=np.bincount(of_rows, minlength=len(firsts) + len(others)),
            of_rows=everywhere,
        )

    def rows(self, units: RowUnits, staying: Places, salt: bytes = b"") -> Rows:
        """Return the rows of these units, given by number, and of nobody, as if no others had ever been there.

        ``units`` are its own. Raises RecipeError as ``open_rows`` does.
        """
        source, places = self._staying(units, staying)
        return source.at(places, salt)

    def rows_and_blocks(self, units: RowUnits, staying: Places, salt: bytes) -> tuple[Rows, list[str]]:
        """Return these rows too, and a digest of each block of them (``places_of_blocks``).

        It is another one wherever what a function is given of the block is. Raises RecipeError as ``open_rows`` does.
        """
        source, places = self._staying(units, staying)
        rows = source.at(places, salt)
        contents = source._contents[np.searchsorted(source.places, source._in_order(places))]
        columns = [[column.name, str(column.type)] for column in rows._table.schema]
        arrays = [[name, entries.dtype.str, entries.shape[1:]] for name, entries in rows._arrays.items()]
        kinds = json.dumps([columns, arrays])
        digests = []
        for block in places_of_blocks(rows._people):
            names = [kinds, rows._people[int(block[0])], [rows._ids[row] for row in block.tolist()]]
            digest = hashlib.sha256(hashlib.sha256(json.dumps(names).encode()).digest())
            digest.update(contents[block].tobytes())
            digests.append(digest.hexdigest())
        return rows, digests

    def _staying(self, units: RowUnits, staying: Places) -> tuple[OpenSource, Places]:
        """Return the places of the rows of these units, and of nobody, and the source that has them."""
        if isinstance(self.source, QuerySource):
            here = {person for number in staying.tolist() for person in units.people[number]}
            names = {(units.people[number], units.ids[number]) for number in staying.tolist()}
            again = read_source(self.source, self.root, databases=self.databases, without=self.everybody - here)
            units = again.units()
            numbered = enumerate(zip(units.people, units.ids, strict=True))
            staying = np.array([number for number, name in numbered if name in names])
            return again, again.places[np.isin(units.of_rows, staying) | (units.of_rows < 0)]
        return self, self.places[np.isin(units.of_rows, staying) | (units.of_rows < 0)]

    def at(self, places: Places, salt: bytes) -> Rows:
        """Return the rows at these places of ``unread``."""
        source, root, unread = self.source, self.root, self.unread
        ids_of_rows = None if source.id is None else unread.ids(source.id)
        places = self._in_order(places)
        here = self.people.take(torch.from_numpy(places)).compact()
        return Rows(
            _table=_table(source, root, unread, places),
            _people=here,
            _ids=_numbered(here) if ids_of_rows is None else _ids(source, ids_of_rows.take(torch.from_numpy(places))),
            _numbers=np.arange(len(places)),
            _arrays=_arrays(source, root, unread, places) if isinstance(source, ArraysSource) else {},
            _salt=salt,
            _files=FileColumn(source.file, root, source.path) if isinstance(source, FolderSource) else None,
        )

    def _in_order(self, places: Places) -> Places:
        """Return the places in the order of the rows: that of the source, and of a query by its ids."""
        if isinstance(self.source, QuerySource) and self.source.id is not None:
            return _ordered(places, self.unread.ids(self.source.id))
        return places

    @cached_property
    def _contents(self) -> np.ndarray[Any, Any]:
        """A digest of what each row that is read holds, with its entries of arrays and its file: (n, 32) uint8."""
        here = np.zeros(len(self.unread), dtype=bool)
        here[self.places] = True
        contents = self.unread.contents() if here.all() else compress(self.unread.contents(), here.tolist())
        if isinstance(self.source, ArraysSource | FolderSource):
            beside = _beside(self.source, self.root, self.unread, self.places)
            contents = map(b"".join, zip(contents, beside, strict=True))
        return row_digests(contents)

    def _ids(self) -> Texts:
        return _ids(self.source, self.unread.ids(self.source.id or "").take(torch.from_numpy(self.places)))


def open_rows(
    source: Source,
    root: Path,
    *,
    without: frozenset[str] = frozenset(),
    salt: bytes = b"",
    databases: Mapping[str, str] | None = None,
) -> Rows:
    """Read a source as if some people had never been in it.

    Args:
        source: what ``ul.table``, ``ul.query``, ``ul.folder``, ``ul.arrays`` or ``ul.reader`` declared.
        root: the folder beneath which the source's paths lie; it may be a link itself, nothing beneath it may.
        without: the ids of the people who left, as requests name them.
        salt: the secret by which people are kept apart (``aside=``) and split.
        databases: the address by setting, for queries.

    Returns:
        The rows of the others, in the order of the source; of a query by its ``id``. They hold the people who are kept
        apart too: ``set_apart``.

    Raises:
        RecipeError: a path leads elsewhere, a file or column is missing, a row names no person, or a cell is no id.
    """
    gone = frozenset(map(ids.nfc, without))
    reading = read_source(source, root, databases=databases, without=gone)
    rows = reading.at(np.flatnonzero(reading.people.where(gone.isdisjoint).numpy()), salt)
    loaded = {name: LoadedEntries(entries.whole()) for name, entries in rows._arrays.items()}
    return replace(rows, _arrays=loaded)  # their files may be written to from now on


def read_source(
    source: Source,
    root: Path,
    *,
    databases: Mapping[str, str] | None = None,
    without: frozenset[str] = frozenset(),
    until: datetime | None = None,
    table: memoryview | None = None,
) -> OpenSource:
    """Read a source with everybody in it.

    Args:
        without: of a query, people whom the database never held.
        table: of a reader, what its function gave elsewhere, as ``to_arrow`` writes it; None: it is called here.
        until: rows whose time (``at=``) is later are left out; None: none is.

    Raises:
        RecipeError: as ``open_rows``; a time is missing or is none.
    """
    who = Shadow(without)
    unread = _read(source, root, databases or {}, who, table)
    _require_columns(source, unread)
    people = _people(source, root, unread)
    places: Places = np.arange(len(unread))
    if until is not None and source.at is not None:
        places = places[_is_before(unread, source.at, until)]
    everybody = who.others.union(*people.values)
    return OpenSource(source, root, databases or {}, frozenset(everybody), unread, people, places)


def _by_first_appearance(values: Places) -> tuple[Places, Places]:
    """Return where each different value stands first, rising; and which of these each value (n,) is."""
    _, first, inverse = np.unique(values, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    return first[order], ranks[inverse.reshape(-1)]


def _read(source: Source, root: Path, databases: Mapping[str, str], who: Shadow, table: memoryview | None) -> Unread:
    match source:
        case QuerySource():
            return answer(source, databases, who)
        case ReaderSource(function=name):
            return read_arrow(_table_of(source, root) if table is None else table, f"{name}()")
        case TableSource(path=path, more=more, format=format):
            return joined([_read_file(root, each, format) for each in (path, *more)])
        case FolderSource(index=path) | ArraysSource(names=path):
            return _read_file(root, path, format_by_suffix(path))
        case _:
            what = f"{type(source).__name__} is no source of rows."
            raise RecipeError(what, "Use ul.table, ul.query, ul.folder, ul.arrays or ul.reader.")


def _table_of(source: ReaderSource, root: Path) -> Any:
    """Call the function of a reader in this process; return what it gives, as ``to_arrow`` does. Raises RecipeError."""
    if source.call is None:
        raise ValueError("A source that was read from JSON has no function: it is called in a world of the recipe.")
    return to_arrow(source.call(path_beneath(root, source.path)), source.function)


def _read_file(root: Path, path: str, format: str) -> Unread:
    with open_file(root, path) as file:
        return read(file, path, format)


def _require_columns(source: Source, unread: Unread) -> None:
    """Refuse names that no row has. A type may name a column of JSON that is gone with the people who had it."""
    if isinstance(unread, Objects) and unread.columns is None and not len(unread):
        return  # an empty list of JSON has no columns
    wanted = {*source.text_columns, *([source.at] if source.at is not None else [])}
    if isinstance(source, FolderSource):
        wanted.add(source.file)
    if not isinstance(unread, Objects) or unread.columns is not None:
        wanted |= source.types.keys()
    missing = sorted(wanted - set(unread.names))
    if missing:
        what = f"{unread.source} lacks the columns {', '.join(missing)}. It has {', '.join(unread.names) or 'none'}."
        hint = "Select them; person= names the person's." if isinstance(source, QuerySource) else "Correct the names."
        raise RecipeError(what, hint)


def _people(source: Source, root: Path, unread: Unread) -> Column[People]:
    """Return the people of each row. Raises RecipeError where a row has none and the source does not keep such rows."""
    columns = [unread.cells(name) for name in source.person_columns]
    if isinstance(source.person, Via):
        columns = [_people_by_key(source.person, root, columns[0])]
    people = people_of(columns, source.person_columns, source.spelled)
    if () in people.values and source.nobody == "refuse":
        nobody = people.where(lambda row: not row).nonzero().squeeze(1)
        raise RecipeError(
            f"{len(nobody)} rows of {unread.source} name no person, the first is row {int(nobody[0]) + 1}.",
            "Name their people, or say nobody='keep': such rows never leave.",
        )
    return people


def _people_by_key(via: Via, root: Path, keys: Column[Cell]) -> Column[Cell]:
    """Return the people whom the other table names under each row's key."""
    other = _read_file(root, via.path, format_by_suffix(via.path))
    for name in (via.key, via.person):
        if name not in other.names:
            raise RecipeError(f"{via.path} has no column {name!r}.", f"It has {', '.join(other.names)}.")
    people: dict[Cell, list[str | None]] = {}
    for key, person in zip(other.cells(via.key), other.cells(via.person), strict=True):
        people.setdefault(key, []).extend(person if isinstance(person, tuple) else (person,))
    for key in (*people, *keys.values):
        if isinstance(key, tuple):
            raise refused_list(via.key)
    people[None] = []  # a row without a key is nobody's, whatever the other table says
    return keys.map(lambda key: tuple(people.get(key, ())))


def _ids(source: Source, ids: Texts) -> Texts:
    """Return the column of row ids. Raises RecipeError for one that is missing or stands twice."""
    if ids.empty() is not None:
        missing = int((np.diff(ids.ends) == 0).sum())
        what = f"{missing} rows have no text or whole number in the id's column {source.id!r}."
        raise RecipeError(what, "Give every row its own id.")
    if ids.repeated() is not None:
        again = len(ids) - len(set(ids))
        order = " and the order of the rows would be open" if isinstance(source, QuerySource) else ""
        what = f"{again} rows have an id that an earlier row has in the column {source.id!r}{order}."
        raise RecipeError(what, "Give every row its own id.")
    return ids


def _numbered(people: Column[People]) -> Texts:
    """Return an id for each row of a source that has none: its person, and which of the person's rows it is."""
    persons = people.map("+".join)
    codes = persons.codes.numpy()
    order = np.argsort(codes, kind="stable")
    times = np.empty(len(codes), dtype=np.int64)
    times[order] = np.arange(len(codes)) - np.searchsorted(codes[order], codes[order])
    return Texts.of(f"{person}#{time}" for person, time in zip(persons, times.tolist(), strict=True))


def _ordered(places: Places, ids: Texts) -> Places:
    """Return the places ordered by id: by number where all ids of these rows are whole numbers, else as texts."""
    chosen = list(ids.take(torch.from_numpy(places)))
    numbers = all(name.removeprefix("-").isdecimal() for name in chosen)
    order = sorted(range(len(chosen)), key=lambda row: (int(chosen[row]) if numbers else 0, chosen[row]))
    return places[np.array(order, dtype=np.int64)]


def _is_before(unread: Unread, column: str, until: datetime) -> np.ndarray[Any, Any]:
    """Return a mask (n,) bool of the rows that were there by then."""
    moments = [_moment(value, row + 1, column) for row, value in enumerate(unread.values(column))]
    return np.array([moment <= until for moment in moments], dtype=bool)


def _moment(value: Any, row: int, column: str) -> datetime:
    """Return a time with its zone, UTC where it says none; a date begins at midnight."""
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            value = None
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if not isinstance(value, datetime):
        what = f"Row {row} holds no time in the column {column!r}, which at= names."
        raise RecipeError(what, "Write ISO 8601, as 2026-11-28T09:30:00Z.")
    return value if value.tzinfo is not None else value.replace(tzinfo=UTC)


def _beside(source: ArraysSource | FolderSource, root: Path, unread: Unread, places: Places) -> Iterator[bytes]:
    """Yield what belongs to each of these rows beside its cells: its entries of arrays, or a digest of its file."""
    if isinstance(source, ArraysSource):
        arrays = [_bytes_of(entries) for entries in _arrays(source, root, unread, places).values()]
        return map(b"".join, zip(*arrays, strict=True))
    names = unread.values(source.file)
    return (_digest_of(root, f"{source.path}/{names[place]}") for place in places.tolist())


def _bytes_of(entries: Entries) -> Iterator[bytes]:
    """Yield the bytes of each entry."""
    return (entry.tobytes() for piece in entries.pieces() for entry in piece)


def _digest_of(root: Path, path: str) -> bytes:
    with open_file(root, path) as file:
        return hashlib.file_digest(file, "sha256").digest()


def _table(source: Source, root: Path, unread: Unread, places: Places) -> Any:
    table = unread.take(places, source.text_columns, source.types)
    if not isinstance(source, FolderSource):
        return table
    paths = []
    for name in table.column(source.file).to_pylist():
        if not name:
            raise RecipeError(f"A row of {source.index} names no file in {source.file!r}.", "Name one in every row.")
        path = f"{source.path}/{name}"
        open_file(root, path).close()
        paths.append(str(root / path))
    column = table.column_names.index(source.file)
    return table.set_column(column, source.file, pyarrow("lib").array(paths, pyarrow("lib").string()))


def _arrays(source: ArraysSource, root: Path, unread: Unread, places: Places) -> dict[str, Entries]:
    arrays = {}
    for name, path in source.files.items():
        if name in unread.names:
            raise RecipeError(f"{name!r} is an array and a column of {source.names}.", "Name the array otherwise.")
        with open_file(root, path) as file:
            entries = open_entries(file, path)
        if entries.shape[:1] != (len(unread),):
            what = f"{path} has the shape {entries.shape}, and {source.names} {len(unread)} rows."
            raise RecipeError(what, "Write one entry for each row, in the same order.")
        arrays[name] = entries.at(places)
    return arrays
