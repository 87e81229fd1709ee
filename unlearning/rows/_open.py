"""Open a source without some people: who leaves is decided on text, before anything is inferred from the rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unlearning.accounting import ids
from unlearning.columns import Column, Texts
from unlearning.rows._databases import answer
from unlearning.rows._paths import open_file
from unlearning.rows._people import Cell, People, people_of, refused_list
from unlearning.rows._read import Objects, Places, Unread, pyarrow, read
from unlearning.rows._rows import Array, Rows
from unlearning.rows.declarations import (
    ArraysSource,
    FolderSource,
    QuerySource,
    Source,
    TableSource,
    Via,
    format_by_suffix,
)
from unlearning.types import RecipeError


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
        source: what ``ul.table``, ``ul.query``, ``ul.folder`` or ``ul.arrays`` declared.
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
    unread = _read(source, root, databases or {}, gone)
    _require_columns(source, unread)
    people = _people(source, root, unread)
    places: Places = np.flatnonzero(people.where(gone.isdisjoint).numpy())
    ids_of_rows = None if source.id is None else unread.ids(source.id)
    if isinstance(source, QuerySource) and ids_of_rows is not None:
        places = _ordered(places, ids_of_rows)
    here = people.take(torch.from_numpy(places)).compact()
    return Rows(
        _table=_table(source, root, unread, places),
        _people=here,
        _ids=_numbered(here) if ids_of_rows is None else _ids(source, ids_of_rows.take(torch.from_numpy(places))),
        _numbers=np.arange(len(places)),
        _arrays=_arrays(source, root, unread, places) if isinstance(source, ArraysSource) else {},
        _salt=salt,
    )


def _read(source: Source, root: Path, databases: Mapping[str, str], gone: frozenset[str]) -> Unread:
    match source:
        case QuerySource():
            return answer(source, databases, gone)
        case TableSource(path=path, format=format):
            return _read_file(root, path, format)
        case FolderSource(index=path) | ArraysSource(names=path):
            return _read_file(root, path, format_by_suffix(path))
        case _:
            what = f"{type(source).__name__} is no source of rows."
            raise RecipeError(what, "Use ul.table, ul.query, ul.folder or ul.arrays.")


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
    times: Counter[str] = Counter()
    names = []
    for row in people:
        person = "+".join(row)
        names.append(f"{person}#{times[person]}")
        times[person] += 1
    return Texts.of(names)


def _ordered(places: Places, ids: Texts) -> Places:
    """Return the places ordered by id: by number where all ids of these rows are whole numbers, else as texts."""
    chosen = list(ids.take(torch.from_numpy(places)))
    numbers = all(name.removeprefix("-").isdecimal() for name in chosen)
    order = sorted(range(len(chosen)), key=lambda row: (int(chosen[row]) if numbers else 0, chosen[row]))
    return places[np.array(order, dtype=np.int64)]


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


def _arrays(source: ArraysSource, root: Path, unread: Unread, places: Places) -> dict[str, Array]:
    arrays = {}
    for name, path in source.files.items():
        if name in unread.names:
            raise RecipeError(f"{name!r} is an array and a column of {source.names}.", "Name the array otherwise.")
        with open_file(root, path) as file:
            try:
                array = np.lib.format.read_array(file, allow_pickle=False)
            except ValueError:
                what = f"{path} is no array without objects."
                raise RecipeError(what, "Write numbers with numpy.save; texts belong into the table.") from None
        if array.shape[:1] != (len(unread),):
            what = f"{path} has the shape {array.shape}, and {source.names} {len(unread)} rows."
            raise RecipeError(what, "Write one entry for each row, in the same order.")
        arrays[name] = np.ascontiguousarray(array[places])
    return arrays
