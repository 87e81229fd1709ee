"""A copy of a recipe's folder, with tables that lack every tenth person: what it reads after these were erased."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
LEAST = 0.5
"""a table names more than this share of the people to leave out: a few numbers may be those of other things"""
COMPARED = 1_000
"""people whose samples are compared: a number of everyone is in the samples of each"""
AT_ONCE = 4096
"""samples that are read together"""


def shorten(folder: Path, copy: Path, people: Collection[str] = ()) -> list[str]:
    """Copy the folder; return the names of the tables in it that are shorter in the copy, sorted.

    A row is left out where a field of it is the id of every tenth of ``people``, in a table that names most of these;
    an array loses the rows that a table of its length loses. Without ``people`` every tenth row of each table is left
    out.
    Modules are copied, other files are linked. Returns an empty list, without copying, where no table names any of
    them, and where the folder has too many files, or tables that are too large.
    """
    files = _files(folder)
    tables = {file: TABLES[file.suffix] for file in files if file.suffix in TABLES}
    if len(files) > MOST_FILES or sum(each.stat().st_size for each in tables) > LARGEST_BYTES:
        return []
    gone = frozenset(sorted(people)[EVERY // 2 :: EVERY])
    named = {file: found for file, table in tables.items() if (found := table.rows(file, gone)) is not None}
    of_people = {file: found.out for file, found in named.items() if found.out and found.named > LEAST * len(gone)}
    by_length = {named[file].count: out for file, out in of_people.items()}
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


@contextmanager
def shorter(recipes: Path, tenant_id: str, name: str, recipe: Recipe) -> Iterator[tuple[Path, list[str]]]:
    """Copy a recipe's folder as ``shorten`` does, for a while; yield what is then ``EXPUNGE_RECIPES``, and the tables.

    Where no table in the folder names people of the recipe, the list is empty.
    """
    file = find(recipes_of(recipes, tenant_id), name)
    inner = name if file.name == "recipe.py" else name.rpartition("/")[0]
    with TemporaryDirectory() as place:
        root = Path(place).resolve()
        yield root, shorten(file.parent, recipes_of(root, tenant_id) / inner, everyone(recipe))


def require_samples_apart(recipes: Path, tenant_id: str, name: str, recipe: Recipe) -> None:
    """Raise Refused where samples of people who stay have another content without every tenth person in the tables.

    It is not compared where the recipe does not run there, as one that needs other files.
    """
    with shorter(recipes, tenant_id, name, recipe) as (root, tables):
        if not tables:
            return
        try:
            part = load(recipes_of(root, tenant_id), name).recipe
        except Refused:
            return
        people = sorted(everyone(part))
        some = frozenset(people[:: len(people) // COMPARED + 1])
        contents, whole = _contents(part, some), _contents(recipe, some)
    changed = sum(1 for each in contents if each not in whole)
    if changed:
        raise Refused(
            f"Without every tenth person in {', '.join(tables[:3])}, {changed} of {len(contents)} samples that stay "
            "have another content: it was computed from the rows of other people, whom no retraining forgets.",
            "Scale and encode each row by constants that you know, or inside train, from run.inputs and run.targets.",
        )


def _contents(recipe: Recipe, people: frozenset[str]) -> set[bytes]:
    """Return digests of the content of these people's samples: not of their ids, which may count rows."""
    found = set()
    theirs = recipe.samples.people.where(lambda names: not people.isdisjoint(names)).nonzero().flatten()
    for block in recipe.samples.rows.read(torch.split(theirs, AT_ONCE)):
        for row in zip(*block, strict=True):
            plain = (each.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for each in row)
            found.add(hashlib.sha256(b"".join(plain)).digest())
    return found


@dataclass(frozen=True)
class Found:
    """How many rows a table has, which of them name people to leave out, and how many people these are."""

    count: int
    out: Collection[int]
    named: int


class Table(Protocol):
    """A kind of file with rows."""

    def rows(self, file: Path, gone: Collection[str]) -> Found | None:
        """Look for rows of these people. None: the file is not one that can be shortened."""

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

    def rows(self, file: Path, gone: Collection[str]) -> Found | None:
        lines = file.read_bytes().splitlines()
        if any(line.count(b'"') % 2 for line in lines):
            return None
        wanted = frozenset(each.encode() for each in gone)
        rows = lines[self.header :]
        hits = {number: hit for number, line in enumerate(rows) if (hit := wanted.intersection(WORDS.split(line)))}
        return Found(len(rows), hits.keys(), len(frozenset().union(*hits.values())))

    def keep(self, file: Path, copy: Path, rows: Sequence[int]) -> None:
        lines = file.read_bytes().splitlines(keepends=True)
        copy.write_bytes(b"".join(lines[: self.header] + [lines[self.header + row] for row in rows]))


class Array:
    """A ``.npy`` file: numbers, which name no person."""

    def rows(self, file: Path, gone: Collection[str]) -> Found | None:
        try:
            values = np.load(file, allow_pickle=False)
        except (ValueError, OSError):
            return None
        if values.ndim == 0 or len(values) < EVERY:
            return None
        texts = values.astype(str) if values.dtype.kind in "US" and values.ndim == 1 else np.empty(0, dtype=str)
        hits = {number: each for number, each in enumerate(texts.tolist()) if each in gone}
        return Found(len(values), hits.keys(), len(frozenset(hits.values())))

    def keep(self, file: Path, copy: Path, rows: Sequence[int]) -> None:
        np.save(copy, np.load(file, allow_pickle=False)[list(rows)])


class Parquet:
    """A Parquet file, where pyarrow is installed."""

    def rows(self, file: Path, gone: Collection[str]) -> Found | None:
        try:
            parquet: Any = import_module("pyarrow.parquet")  # an extra
        except ImportError:
            return None
        arrow: Any = import_module("pyarrow")
        compute: Any = import_module("pyarrow.compute")
        table, wanted = parquet.read_table(file), arrow.array(sorted(gone), arrow.string())
        out: set[int] = set()
        named: set[str] = set()
        for column in table.columns:
            if str(column.type) in ("string", "large_string", "int64", "int32"):
                texts = column.cast(arrow.string())
                found = compute.is_in(texts, value_set=wanted)
                out |= set(compute.indices_nonzero(found).to_pylist())
                named |= set(texts.filter(found).to_pylist())
        return Found(table.num_rows, out, len(named))

    def keep(self, file: Path, copy: Path, rows: Sequence[int]) -> None:
        parquet: Any = import_module("pyarrow.parquet")
        parquet.write_table(parquet.read_table(file).take(list(rows)), copy)


WORDS = re.compile(rb"""[\t,;"']""")
"""what ends a field of a line"""
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
