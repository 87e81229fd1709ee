"""A copy of a recipe's folder, with tables that lack every tenth person: what it reads after these were erased."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shutil
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch

from expunge.service.infra.tenants import recipes_of
from expunge.workers.runtime.recipes import find, load
from unlearning.recipe import Recipe, everyone
from unlearning.types import Refused

EVERY = 10
"""one person in so many is left out"""
LARGEST_BYTES = 2**28
"""of all tables together; larger ones are not copied"""
MOST_FILES = 2_000
LEAST, NUMBERED = 0.5, 0.8
"""the column of people names more than this share of them; where they have numbers, which other things have too, most
of its rows do, and it names most of them"""
COMPARED = 1_000
"""people whose samples are compared: a number of everyone is in the samples of each"""
AT_ONCE = 4096
"""samples that are read together"""


def shorten(folder: Path, copy: Path, people: Collection[str] = (), *, parallel: bool = True) -> list[str]:
    """Copy the folder; return the names of the tables in it that are shorter in the copy, sorted.

    A row is left out where the column that names most of ``people`` has every tenth of them; an array loses the rows
    that a table of its length loses, if ``parallel``. Without ``people`` every tenth row of each table is left
    out.
    Modules are copied, other files are linked. Returns an empty list, without copying, where no table names any of
    them, and where the folder has too many files, or tables that are too large.
    """
    files = _files(folder)
    tables = {file: TABLES[file.suffix] for file in files if file.suffix in TABLES}
    if len(files) > MOST_FILES or sum(each.stat().st_size for each in tables) > LARGEST_BYTES:
        return []
    sought = People(frozenset(people), every_tenth(people))
    named = {file: found for file, table in tables.items() if (found := table.rows(file, sought)) is not None}
    others = {name for found in named.values() if found.out for name in found.others} if sought.numbered else set()
    of_people = {file: found.out for file, found in named.items() if found.out and found.column not in others}
    by_length = {named[file].count: out for file, out in of_people.items() if parallel}
    left_out = {
        file: out
        for file, found in named.items()
        if (
            out := (of_people.get(file) or by_length.get(found.count, ()))
            if people
            else range(EVERY // 2, found.count, EVERY)
        )
    }
    for file in files if left_out else ():
        place = copy / file.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        if file in left_out:
            out = frozenset(left_out[file])
            tables[file].keep(file, place, [each for each in range(named[file].count) if each not in out])
        elif file.suffix == ".py":
            shutil.copyfile(file, place)
        else:
            place.symlink_to(file)
    return sorted(file.relative_to(folder).as_posix() for file in left_out)


def every_tenth(people: Collection[str]) -> frozenset[str]:
    """Return the people whose rows are left out."""
    return frozenset(sorted(people)[EVERY // 2 :: EVERY])


@contextmanager
def shortened_copy(
    recipes: Path, tenant_id: str, name: str, recipe: Recipe, *, parallel: bool = True
) -> Iterator[tuple[Path, list[str]]]:
    """Copy a recipe's folder as ``shorten`` does, for a while; yield what is then ``EXPUNGE_RECIPES``, and the tables.

    Where no table in the folder names people of the recipe, the list is empty.
    """
    file = find(recipes_of(recipes, tenant_id), name)
    inner = name if file.name == "recipe.py" else name.rpartition("/")[0]
    with TemporaryDirectory() as place:
        root = Path(place).resolve()
        yield root, shorten(file.parent, recipes_of(root, tenant_id) / inner, everyone(recipe), parallel=parallel)


def require_samples_apart(recipes: Path, tenant_id: str, name: str, recipe: Recipe) -> None:
    """Raise Refused where samples of people who stay have another content without every tenth person in the tables.

    It is not compared where the recipe does not run there, as one that needs other files. An array of a table's length
    may hold other things than its rows: then the recipe runs, and the samples are the same, where it stays whole.
    """
    found = _changed(recipes, tenant_id, name, recipe, parallel=True)
    if found is None or not found[1]:
        return
    again = _changed(recipes, tenant_id, name, recipe, parallel=False)
    if again is None or again[1]:
        tables, changed, count = found
        raise Refused(
            f"Without every tenth person in {', '.join(tables[:3])}, {changed} of {count} samples that stay have "
            "another content: it was computed from the rows of other people, whom no retraining forgets.",
            "Scale and encode each row by constants that you know, or inside train, from run.inputs and run.targets.",
        )


def _changed(
    recipes: Path, tenant_id: str, name: str, recipe: Recipe, *, parallel: bool
) -> tuple[list[str], int, int] | None:
    """Return the tables that name people, and how many samples have another content of how many. None: not compared."""
    with shortened_copy(recipes, tenant_id, name, recipe, parallel=parallel) as (root, tables):
        if not tables:
            return None
        try:
            part = load(recipes_of(root, tenant_id), name).recipe
        except Refused:
            return None
        gone = every_tenth(everyone(recipe))  # a table with another spelling of them keeps some of their rows
        people = sorted(everyone(part) - gone)
        some = frozenset(people[:: len(people) // COMPARED + 1])
        contents, whole = _contents(part, some, gone), _contents(recipe, some, gone)
    both = contents.keys() & whole.keys()
    if both and all(contents[name][0] == whole[name][0] for name in both):
        return tables, sum(contents[name][1] != whole[name][1] for name in both), len(contents)
    known = {content for _, content in whole.values()}  # ids that number the rows are of other rows there
    changed = sum(content not in known for _, content in contents.values())
    # a recipe that takes some rows of many finds others there, which are new
    return tables, changed if changed == len(contents) else 0, len(contents)


def _contents(recipe: Recipe, people: frozenset[str], gone: frozenset[str]) -> dict[str, tuple[tuple[str, ...], bytes]]:
    """Return the people and a digest of the content of these people's samples, without those of ``gone``, by the id."""
    samples, found = recipe.samples, {}
    chosen = samples.people.where(lambda names: not people.isdisjoint(names) and gone.isdisjoint(names))
    theirs = chosen.nonzero().flatten()
    for places in torch.split(theirs, AT_ONCE):
        for place, *row in zip(places.tolist(), *next(iter(samples.rows.read([places]))), strict=True):
            plain = (each.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for each in row)
            content = hashlib.sha256(b"".join(plain)).digest()
            found[samples.ids[place]] = (samples.people[place], content)
    return found


@dataclass(frozen=True)
class Found:
    """How many rows a table has, which of them name people to leave out, by which column, and its other columns."""

    count: int
    out: Collection[int]
    column: str
    others: Collection[str]


@dataclass
class PeopleOfColumn:
    """What a column has of the people: in how many rows, which of them, and the rows of those to leave out."""

    rows: int = 0
    people: set[str] = field(default_factory=set)
    out: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class People:
    """All people of a recipe, and those of them to leave out."""

    all: frozenset[str]
    gone: frozenset[str]

    def note(self, column: PeopleOfColumn, row: int, text: str) -> None:
        if text in self.all:
            column.rows += 1
            column.people.add(text)
            if text in self.gone:
                column.out.append(row)

    @property
    def numbered(self) -> bool:
        """Return whether they have numbers, which items have too: a column next to theirs is of other things."""
        return all(each.isdecimal() for each in self.all)

    def found(self, count: int, columns: Mapping[str, PeopleOfColumn]) -> Found:
        """Choose the column of people; there may be none: items have numbers too, perhaps the same as people."""
        name = max(columns, key=lambda each: (len(columns[each].people), columns[each].rows), default="")
        best = columns.get(name, PeopleOfColumn())
        named = len(best.people) / max(1, len(self.all))
        enough = min(named, best.rows / max(1, count)) > NUMBERED if self.numbered else named > LEAST
        return Found(count, best.out if enough else (), name, columns.keys() - {name})


class Table(Protocol):
    """A kind of file with rows."""

    def rows(self, file: Path, people: People) -> Found | None:
        """Look for rows of people. None: the file is not one that can be shortened."""

    def keep(self, file: Path, copy: Path, rows: Sequence[int]) -> None:
        """Write a copy with these rows alone."""


def _files(folder: Path) -> list[Path]:
    found: list[Path] = []
    for place, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if not each.startswith((".", "__"))]
        found += [Path(place) / name for name in names if (Path(place) / name).is_file()]
        if len(found) > MOST_FILES:
            break
    return found


@dataclass(frozen=True)
class Lines:
    """A file with a row a line. A quoted field may hold a line's end: such a file is left as it is."""

    header: int

    def rows(self, file: Path, people: People) -> Found | None:
        lines = file.read_bytes().splitlines()
        if any(line.count(b'"') % 2 for line in lines):
            return None
        columns: defaultdict[str, PeopleOfColumn] = defaultdict(PeopleOfColumn)
        texts = (line.decode(errors="replace") for line in lines[self.header :])
        try:
            for number, fields in enumerate(self._fields(lines[:1], texts) if people.all else ()):
                for name, value in fields:
                    column = columns[name]
                    for text in (value,) if value in people.all else WORDS.split(value):
                        people.note(column, number, text)
        except (ValueError, csv.Error):
            return None
        return people.found(len(lines) - self.header, columns)

    def _fields(self, first: Sequence[bytes], texts: Iterable[str]) -> Iterator[Iterable[tuple[str, str]]]:
        """Yield the fields of each row, each with its column. Raises ValueError or csv.Error."""
        if self.header:
            ends = max("\t,;", key=lambda each: sum(line.count(each.encode()) for line in first))
            head = next(csv.reader([line.decode("utf-8-sig", "replace") for line in first], delimiter=ends), [])
            names = {place: name for place, name in enumerate(head) if head.count(name) == 1}
            read = csv.reader(texts, delimiter=ends)
            return ([(names.get(place, str(place)), value) for place, value in enumerate(row)] for row in read)
        rows = (json.loads(text) for text in texts)
        return (((name, str(value)) for name, value in row.items()) for row in rows if isinstance(row, dict))

    def keep(self, file: Path, copy: Path, rows: Sequence[int]) -> None:
        lines = file.read_bytes().splitlines(keepends=True)
        copy.write_bytes(b"".join(lines[: self.header] + [lines[self.header + row] for row in rows]))


class Array:
    """A ``.npy`` file: numbers, which name no person."""

    def rows(self, file: Path, people: People) -> Found | None:
        try:
            values = np.load(file, allow_pickle=False)
        except (ValueError, OSError):
            return None
        if values.ndim == 0 or len(values) < EVERY:
            return None
        texts = values.astype(str) if values.dtype.kind in "US" and values.ndim == 1 else np.empty(0, dtype=str)
        column = PeopleOfColumn()
        for number, each in enumerate(texts.tolist()):
            people.note(column, number, each)
        return people.found(len(values), {"": column})

    def keep(self, file: Path, copy: Path, rows: Sequence[int]) -> None:
        np.save(copy, np.load(file, allow_pickle=False)[list(rows)])


class Parquet:
    """A Parquet file, where pyarrow is installed."""

    def rows(self, file: Path, people: People) -> Found | None:
        try:
            parquet: Any = import_module("pyarrow.parquet")  # an extra
        except ImportError:
            return None
        arrow: Any = import_module("pyarrow")
        compute: Any = import_module("pyarrow.compute")
        table, columns = parquet.read_table(file), {}
        everyone, gone = (arrow.array(sorted(each), arrow.string()) for each in (people.all, people.gone))
        for name, column in zip(table.column_names, table.columns, strict=True):
            if str(column.type) in ("string", "large_string", "int64", "int32"):
                texts = column.cast(arrow.string())
                theirs = texts.filter(compute.is_in(texts, value_set=everyone))
                out = compute.indices_nonzero(compute.is_in(texts, value_set=gone)).to_pylist()
                columns[name] = PeopleOfColumn(len(theirs), set(theirs.unique().to_pylist()), out)
        return people.found(table.num_rows, columns)

    def keep(self, file: Path, copy: Path, rows: Sequence[int]) -> None:
        parquet: Any = import_module("pyarrow.parquet")
        parquet.write_table(parquet.read_table(file).take(list(rows)), copy)


WORDS = re.compile(r"""[\[\]\t,;"']+""")
"""what is between several people in one field"""
TABLES: Mapping[str, Table] = MappingProxyType(
    {
        ".csv": Lines(1),
        ".tsv": Lines(1),
        ".jsonl": Lines(0),
        ".ndjson": Lines(0),
        ".npy": Array(),
        ".parquet": Parquet(),
    }
)
