"""Recipes that search what they are given, and the memory around it, for more than their rows."""

# Each looks in its own way.
# ruff: noqa: PTH123

from __future__ import annotations

import ctypes
import gc
import inspect
import re
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
from sources import PEOPLE
from training import attempt, train

from unlearning.rows import Published, Rows


def objects_in_memory(rows: Rows = PEOPLE) -> Published:
    """Other rows among everything that the garbage collector knows."""

    def look() -> list[int]:
        others = [thing for thing in gc.get_objects() if type(thing) is Rows]
        return sorted({len(other) for other in others})

    return train(rows, look)


def frames_of_callers(rows: Rows = PEOPLE) -> Published:
    """Other rows among the variables of whoever called."""

    def look() -> list[int]:
        values = [value for frame in inspect.stack() for value in frame.frame.f_locals.values()]
        return sorted({len(other) for other in _rows_in(values)})

    return train(rows, look)


def first_module(rows: Rows = PEOPLE) -> Published:
    """Other rows among the globals of the program."""
    return train(rows, lambda: sorted(len(other) for other in _rows_in(vars(sys.modules["__main__"]).values())))


def _rows_in(values: Iterable[Any]) -> list[Rows]:
    flat = [entry for value in values for entry in (value if isinstance(value, list | tuple) else [value])]
    flat = [entry for value in flat for entry in (value.values() if isinstance(value, dict) else [value])]
    return [value for value in flat if type(value) is Rows]


def own_memory(rows: Rows = PEOPLE) -> Published:
    """Words and numbers of two people, anywhere in this process."""

    def look() -> list[bytes]:
        words = set()
        with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
            for line in maps:
                area, rights, _, _, _, *path = line.split()
                start, end = (int(place, 16) for place in area.split("-"))
                if rights.startswith("rw") and not path and end - start < 1 << 28:
                    memory.seek(start)
                    content = attempt(partial(memory.read, end - start)) or b""
                    words |= set(re.findall(rb"z[e]bra|4000[.]2[5]", content))
        return sorted(words)

    return train(rows, look)


def neighbours_in_buffers(rows: Rows = PEOPLE) -> Published:
    """What lies around a column: a slice's buffers are its parent's."""

    def look() -> list[bytes]:
        contents = []
        for buffer in _buffers(rows):
            while buffer.parent is not None:
                buffer = buffer.parent
            contents.append(bytes(memoryview(buffer)))
        return sorted(set(contents))

    return train(rows, look)


def values_under_nulls(rows: Rows = PEOPLE) -> Published:
    """Every byte of every column, those of missing numbers too."""
    return train(rows, lambda: [bytes(memoryview(buffer)) for buffer in _buffers(rows)])


def past_the_end(rows: Rows = PEOPLE) -> Published:
    """The bytes between the end of a buffer and the next number that 8 divides."""

    def look() -> list[bytes]:
        return [ctypes.string_at(buffer.address + buffer.size, -buffer.size % 8) for buffer in _buffers(rows)]

    return train(rows, look)


def _buffers(rows: Rows) -> list[Any]:
    chunks = [chunk for column in rows._table.columns for chunk in column.chunks]
    return [buffer for chunk in chunks for buffer in chunk.buffers() if buffer is not None]


def pieces(rows: Rows = PEOPLE) -> Published:
    """How a column is cut, which a filter leaves as it was."""
    return train(rows, lambda: [len(chunk) for column in rows._table.columns for chunk in column.chunks])


def offsets(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: [chunk.offset for column in rows._table.columns for chunk in column.chunks])


def dictionaries(rows: Rows = PEOPLE) -> Published:
    """The values that a column may have, which a filter leaves as they were."""

    def look() -> list[Any]:
        chunks = [chunk for column in rows.arrow().columns for chunk in column.chunks]
        return [chunk.dictionary.to_pylist() for chunk in chunks if hasattr(chunk, "dictionary")]

    return train(rows, look)


def schema_metadata(rows: Rows = PEOPLE) -> Published:
    def look() -> list[Any]:
        schema = rows.arrow().schema
        return [entry for entry in (schema.metadata, *(field.metadata for field in schema)) if entry]

    return train(rows, look)


def pandas_index(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: [rows.pandas().index.tolist(), rows.pandas().attrs, rows.pandas().flags])


def pandas_categories(rows: Rows = PEOPLE) -> Published:
    def look() -> list[Any]:
        frame = rows.pandas()
        return [frame[name].astype("category").cat.categories.tolist() for name in ("city", "kind")] + [
            [str(kind) for kind in frame.dtypes],
            [kind.categories.tolist() for kind in frame.dtypes if hasattr(kind, "categories")],
        ]

    return train(rows, look)


def types_of_columns(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: [str(rows.arrow().schema), [rows[name].dtype.str for name in rows.columns]])


def names_of_columns(rows: Rows = PEOPLE) -> Published:
    """A column that one person alone had."""
    return train(rows, lambda: list(rows.columns))


def row_numbers(rows: Rows = PEOPLE) -> Published:
    """The number of all rows, and gaps, from ``__row``."""
    return train(rows, lambda: [int(rows["__row"].max()), np.diff(rows["__row"]).tolist()])


def gaps_of_ids(rows: Rows = PEOPLE) -> Published:
    """The ids are the source's own: who was never there left the same gaps."""
    return train(rows, lambda: np.diff([int(name) for name in rows._ids]).tolist())


def numbers_of_people(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: rows.people.tolist())


def names_of_people(rows: Rows = PEOPLE) -> Published:
    """A list of people that is longer than those of the rows."""
    return train(rows, lambda: [rows._people.values, rows._people.codes.tolist()])


def bytes_of_ids(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: [np.asarray(value).tobytes() for value in vars(rows._ids).values()])


def sides_of_a_split(rows: Rows = PEOPLE) -> Published:
    return train(rows, lambda: [half["visit"].tolist() for half in rows.split(0.3)])


def blocks_and_samples(rows: Rows = PEOPLE) -> Published:
    def look() -> list[Any]:
        samples = rows.samples(rows.numpy("weight", "pulse"), rows["ill"], at=rows["__row"])
        return [[len(block) for block in rows.blocks(7)], list(samples.ids), list(samples.subjects)]

    return train(rows, look)
