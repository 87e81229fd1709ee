"""Rows before their types are found: a file is split, the rows of those who stay are taken, and only these are typed.

A type, a category or a column that one person's rows alone bring about would tell of them after they left.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import IO, TYPE_CHECKING, Any, Protocol, cast
from uuid import UUID

import numpy as np
import torch

from unlearning.arrow import in_one_piece, pyarrow, texts_of
from unlearning.columns import Column, Texts, row_bytes
from unlearning.rows._paths import UnwrittenFile
from unlearning.rows._people import MISSING, Cell, refused_list, refused_type, text_of
from unlearning.rows.declarations import ROW
from unlearning.types import RecipeError

if TYPE_CHECKING:
    import pyarrow as pa

Places = np.ndarray[Any, np.dtype[np.int64]]
PIECE = 2**12
"""rows of which the contents are in memory at once"""
NUMBER = np.dtype([("here", "u1"), ("nearest", "<f8"), ("lacking", "<i8")])
"""a number in a content: whether it is one, the nearest float64, and what that lacks

So 1 and 1.0 are the same, and whole numbers above 2^53 are told apart."""
LARGEST = np.nextafter(2.0**63, 0.0)
"""the largest float64 that is an int64 too"""
KINDS = ("number", "numbers", "text")


class Unread(Protocol):
    """Rows whose types are not found yet."""

    @property
    def source(self) -> str:
        """What these rows are called in refusals."""

    @property
    def names(self) -> Sequence[str]:
        """The columns that some row has."""

    def __len__(self) -> int: ...

    def cells(self, column: str) -> Column[Cell]:
        """Return the ids in a column of people or rows, one cell for each row."""

    def ids(self, column: str) -> Texts:
        """Return the ids of the rows, empty where one is missing. Raises RecipeError where they are lists."""

    def contents(self) -> Iterator[bytes | memoryview]:
        """Yield what each row holds, as bytes that differ where a cell does."""

    def values(self, column: str) -> Sequence[Any]:
        """Return the cells of a column as Python's values; a csv's are texts."""

    def take(self, places: Places, texts: frozenset[str], types: Mapping[str, str]) -> pa.Table:
        """Return these rows, typed by themselves alone; the columns ``texts`` stay text."""


@dataclass(frozen=True)
class Cells:
    """The rows of a csv: each is the line that it ends on, and its cells."""

    source: str
    names: Sequence[str]
    rows: Sequence[tuple[int, Sequence[str]]]

    def __len__(self) -> int:
        return len(self.rows)

    def cells(self, column: str) -> Column[Cell]:
        place = self.names.index(column)
        texts = Column.of(cells[place] if place < len(cells) else "" for _, cells in self.rows)
        return texts.map(lambda text: text_of(text, column))

    def ids(self, column: str) -> Texts:
        return _texts_of(self.cells(column), column)

    def contents(self) -> Iterator[bytes]:
        names = repr(self.names).encode()
        return (names + repr(cells).encode() for _, cells in self.rows)

    def values(self, column: str) -> Sequence[Any]:
        place = self.names.index(column)
        return [cells[place] if place < len(cells) else "" for _, cells in self.rows]

    def take(self, places: Places, texts: frozenset[str], types: Mapping[str, str]) -> pa.Table:
        chosen = [self.rows[place] for place in places.tolist()]
        for line, cells in chosen:
            if len(cells) != len(self.names):
                what = f"Line {line} of {self.source} has {len(cells)} cells, and its header {len(self.names)}."
                raise RecipeError(what, "Quote cells that hold the separator, or name it: format='csv;'.")
        columns = zip(*(cells for _, cells in chosen), strict=True) if chosen else [()] * len(self.names)
        arrays = [
            _typed_cells(cells, name, "text" if name in texts else types.get(name))
            for name, cells in zip(self.names, columns, strict=True)
        ]
        return pyarrow("lib").table(arrays, names=list(self.names))


@dataclass(frozen=True)
class Objects:
    """Rows of Python's values, of JSON or of a database, by the name of their column."""

    source: str
    rows: Sequence[Mapping[str, Any]]
    columns: Sequence[str] | None = None
    """of an answer, which has them without a row too; None: those that some row has, in order of appearance"""

    @property
    def names(self) -> Sequence[str]:
        return _names_in(self.rows) if self.columns is None else self.columns

    def __len__(self) -> int:
        return len(self.rows)

    def cells(self, column: str) -> Column[Cell]:
        return Column.of(
            tuple(text_of(value, column) for value in cell) if isinstance(cell, list) else text_of(cell, column)
            for cell in (row.get(column) for row in self.rows)
        )

    def ids(self, column: str) -> Texts:
        return _texts_of(self.cells(column), column)

    def contents(self) -> Iterator[bytes]:
        return (repr(sorted(row.items())).encode() for row in self.rows)

    def values(self, column: str) -> Sequence[Any]:
        return [row.get(column) for row in self.rows]

    def take(self, places: Places, texts: frozenset[str], types: Mapping[str, str]) -> pa.Table:
        chosen = Objects(self.source, [self.rows[place] for place in places.tolist()], self.columns)
        return pyarrow("lib").table(
            {
                name: _id_array(list(chosen.cells(name)))
                if name in texts
                else _typed_values([row.get(name) for row in chosen.rows], name, types.get(name))
                for name in chosen.names
            }
        )


class ArrowColumns(Protocol):
    """A table of Arrow, wherever its columns are."""

    @property
    def names(self) -> list[str]: ...

    def __len__(self) -> int: ...

    def column(self, name: str) -> Any:
        """Return a column as a chunked array."""

    def pieces(self) -> Iterator[pa.Table]:
        """Yield all rows in order, ``PIECE`` at most at a time."""


@dataclass(frozen=True)
class LoadedColumns:
    """A table in memory."""

    table: pa.Table

    @property
    def names(self) -> list[str]:
        return list(self.table.column_names)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> Any:
        return self.table.column(name)

    def pieces(self) -> Iterator[pa.Table]:
        return (self.table.slice(start, PIECE) for start in range(0, len(self), PIECE))


class ParquetColumns:
    """A Parquet file, of which a column, or some rows of a row group, are in memory while they are looked at.

    Raises RecipeError where the file is written to while it is open.
    """

    def __init__(self, file: IO[bytes], source: str) -> None:
        self._file = UnwrittenFile(file, source)
        reading = os.fdopen(self._file.descriptor, "rb", closefd=False)
        self._parquet = pyarrow("parquet").ParquetFile(reading, pre_buffer=False)

    @property
    def names(self) -> list[str]:
        return list(self._parquet.schema_arrow.names)

    def __len__(self) -> int:
        return int(self._parquet.metadata.num_rows)

    def column(self, name: str) -> Any:
        column = self._parquet.read(columns=[name]).column(name)
        self._file.require_unwritten()
        return column

    def pieces(self) -> Iterator[pa.Table]:
        for batch in self._parquet.iter_batches(PIECE):
            yield pyarrow("lib").Table.from_batches([batch])
        self._file.require_unwritten()


@dataclass(frozen=True)
class JoinedColumns:
    """Tables of the same columns, one after the other."""

    source: str
    parts: Sequence[ArrowColumns]

    @property
    def names(self) -> list[str]:
        return self.parts[0].names

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def column(self, name: str) -> Any:
        columns = [_plain(part.column(name)) for part in self.parts]
        kinds = dict.fromkeys(str(column.type) for column in columns)
        if len(kinds) > 1:
            what = f"The column {name!r} is {' and '.join(kinds)} in the files of {self.source}."
            raise RecipeError(what, "Write them with one schema.")
        return pyarrow("lib").chunked_array([chunk for column in columns for chunk in column.chunks], columns[0].type)

    def pieces(self) -> Iterator[pa.Table]:
        return (piece for part in self.parts for piece in part.pieces())


@dataclass(frozen=True)
class ArrowTable:
    """The rows of a table of Arrow, whose types its writer chose."""

    source: str
    columns: ArrowColumns

    @property
    def names(self) -> Sequence[str]:
        return self.columns.names

    def __len__(self) -> int:
        return len(self.columns)

    def cells(self, column: str) -> Column[Cell]:
        texts = in_one_piece(self._texts(column))
        if _is_list(texts.type):
            return Column.of(None if cell is None else tuple(cell) for cell in texts.to_pylist())
        coded = texts.dictionary_encode(null_encoding="encode")
        codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        return Column(torch.from_numpy(codes), tuple(coded.dictionary.to_pylist()))

    def ids(self, column: str) -> Texts:
        texts = self._texts(column)
        if _is_list(texts.type):
            raise refused_list(column)
        return texts_of(texts)

    def contents(self) -> Iterator[bytes | memoryview]:
        for piece in self.columns.pieces():
            columns = [_plain(piece.column(name)) for name in self.names]
            kinds = [_read_as(column.type) for column in columns]
            by_kind: dict[str, list[Any]] = {kind: [] for kind in KINDS}
            for column, kind in zip(columns, kinds, strict=True):
                by_kind[kind].append(column)
            numbers, lists, others = by_kind.values()
            compute, texts = pyarrow("compute"), [*map(_written, others)]
            # of unequal lengths, so each is told too: no text reads like the end of one and the start of the next
            numbers += [*map(compute.list_value_length, lists), *map(compute.binary_length, texts)]
            head = hashlib.sha256(repr([*zip(self.names, kinds, strict=True)]).encode()).digest()
            fixed = row_bytes(_numbers_after(head, numbers, len(piece)))
            further = [*([_joined(texts)] if texts else []), *map(_lists_of_rows, lists)]
            yield from map(b"".join, zip(fixed, *further, strict=True)) if further else fixed

    def values(self, column: str) -> Sequence[Any]:
        return cast("Sequence[Any]", _plain(self.columns.column(column)).to_pylist())

    def take(self, places: Places, texts: frozenset[str], types: Mapping[str, str]) -> pa.Table:
        return pyarrow("lib").table({name: self._taken(name, places, texts, types) for name in self.names})

    def _taken(self, name: str, places: Places, texts: frozenset[str], types: Mapping[str, str]) -> Any:
        """Return the cells of a column at these places. The whole column is in memory no longer than this takes."""
        column = self._texts(name) if name in texts else _plain(self.columns.column(name))
        # take copies: what a filter or a slice gives may share buffers with the rows of those who left
        taken = in_one_piece(pyarrow("compute").take(column, pyarrow("lib").array(places)))
        return _cast(taken, types[name], name) if name in types else taken

    def _texts(self, name: str) -> Any:
        types, arrow = pyarrow("types"), pyarrow("lib")
        column = _plain(self.columns.column(name))
        entry = column.type.value_type if _is_list(column.type) else column.type
        if not (
            types.is_integer(entry) or types.is_string(entry) or types.is_large_string(entry) or types.is_null(entry)
        ):
            raise refused_type(name, column.type)
        return column.cast(arrow.list_(arrow.string()) if _is_list(column.type) else arrow.string())


def _plain(column: Any) -> Any:
    """Return a column without dictionaries and metadata: both may name what nobody here has."""
    if pyarrow("types").is_run_end_encoded(column.type):
        column = pyarrow("compute").run_end_decode(column)
    return column.cast(_plain_type(column.type))


def _texts_of(cells: Column[Cell], column: str) -> Texts:
    if any(isinstance(cell, tuple) for cell in cells.values):
        raise refused_list(column)
    return Texts.of(cast("Iterable[str]", cells.map(lambda cell: cell or "")))


def read(file: IO[bytes], source: str, format: str) -> Unread:
    """Split a file into rows. ``format`` is that of a ``TableSource``.

    Raises:
        RecipeError: the file is not of that format, a column has no name of its own, or pyarrow is not installed.
    """
    try:
        rows = (
            _read_csv(file, source, format[3:] or ",") if format.startswith("csv") else _READERS[format](file, source)
        )
    except (UnicodeDecodeError, json.JSONDecodeError, csv.Error) as error:
        what = f"{source} cannot be read as {format!r}: {type(error).__name__}."  # the error's text repeats cells
        raise RecipeError(what, "Write it as UTF-8 and in that format, or name its format.") from None
    except pyarrow("lib").ArrowInvalid:
        what = f"{source} is no {format} file."
        raise RecipeError(what, "Write it again, or name its format: format='csv'.") from None
    twice = {name for name in rows.names if [*rows.names].count(name) > 1}
    if twice or ROW in rows.names:
        what = f"{source} has the column {sorted(twice)[0] if twice else ROW!r}{' twice' if twice else ''}."
        raise RecipeError(what, f"Give each column its own name; {ROW!r} is the number of a row.")
    return rows


def to_arrow(answer: Any, function: str) -> Any:
    """Return what a reader's function gave, a pandas frame or an Arrow table, as the buffer of a file of Arrow.

    Raises:
        RecipeError: it is neither.
    """
    arrow = pyarrow("lib")
    if not isinstance(answer, arrow.Table):
        try:
            answer = arrow.Table.from_pandas(answer, preserve_index=False)
        except (AttributeError, TypeError, arrow.ArrowException) as error:
            what = f"{function}() gave a {type(answer).__name__} that is no table ({type(error).__name__})."
            raise RecipeError(what, "Return a pandas frame or an Arrow table, one row for each sample.") from None
    sink = arrow.BufferOutputStream()
    with pyarrow("ipc").new_file(sink, answer.schema) as writer:
        writer.write_table(answer)
    return sink.getvalue()


def read_arrow(data: Any, source: str) -> Unread:
    """Return the rows of the buffer of a file of Arrow, in place. Raises RecipeError, as ``read``."""
    arrow = pyarrow("lib")
    return read(arrow.BufferReader(arrow.py_buffer(data)), source, "arrow")


def joined(files: Sequence[Unread]) -> Unread:
    """Return the rows of files of one format, one after the other. Raises RecipeError where their columns differ."""
    first, *others = files
    if not others:
        return first
    source = f"{first.source} and {len(others)} more"
    differing = next((file for file in others if {*file.names} != {*first.names}), None)
    if isinstance(first, Objects):
        return Objects(source, [row for file in cast("Sequence[Objects]", files) for row in file.rows])
    if differing is not None:
        names = ", ".join(sorted({*differing.names} ^ {*first.names}))
        what = f"{first.source} and {differing.source} have different columns: {names} is not in both."
        raise RecipeError(what, "Name files of the same columns.")
    if isinstance(first, ArrowTable):
        return ArrowTable(
            source, JoinedColumns(source, [table.columns for table in cast("Sequence[ArrowTable]", files)])
        )
    rows = []
    for file in cast("Sequence[Cells]", files):
        order = [file.names.index(name) for name in first.names]
        alike = order == [*range(len(order))]
        rows += [
            (line, cells if alike or len(cells) != len(order) else [cells[place] for place in order])
            for line, cells in file.rows
        ]
    return Cells(source, first.names, rows)


def _read_csv(file: IO[bytes], source: str, separator: str) -> Cells:
    reader = csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""), delimiter=separator, strict=True)
    names = next(reader, [])
    return Cells(source, names, [(reader.line_num, cells) for cells in reader if cells])


def _read_json(file: IO[bytes], source: str) -> Objects:
    return Objects(source, _objects(json.loads(file.read()), source))


def _read_json_lines(file: IO[bytes], source: str) -> Objects:
    return Objects(source, _objects([json.loads(line) for line in file if line.strip()], source))


def _read_parquet(file: IO[bytes], source: str) -> ArrowTable:
    return ArrowTable(source, ParquetColumns(file, source))


def _read_arrow(file: IO[bytes], source: str) -> ArrowTable:
    ipc = pyarrow("ipc")
    is_file = file.read(6) == b"ARROW1"  # else a stream
    file.seek(0)
    return ArrowTable(source, LoadedColumns((ipc.open_file if is_file else ipc.open_stream)(file).read_all()))


_READERS: Mapping[str, Callable[[IO[bytes], str], Unread]] = {
    "json": _read_json,
    "jsonl": _read_json_lines,
    "parquet": _read_parquet,
    "arrow": _read_arrow,
}


def _objects(rows: Any, source: str) -> list[Mapping[str, Any]]:
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise RecipeError(f"{source} is no list of objects.", "Write one object for each row.")
    return rows


def _names_in(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _typed_cells(cells: Sequence[str], name: str, kind: str | None) -> Any:
    """Return the cells of a csv as whole numbers, numbers, true and false, or texts: the first that all of them are."""
    arrow, compute = pyarrow("lib"), pyarrow("compute")
    texts = arrow.array([None if cell in MISSING else cell for cell in cells], arrow.string())
    if kind is not None:
        return _cast(texts, kind, name)
    if texts.null_count == len(texts):
        return texts.cast(arrow.float64())
    trimmed = compute.utf8_trim_whitespace(texts)
    for guess in (arrow.int64(), arrow.float64(), arrow.bool_()):
        try:
            return trimmed.cast(guess)
        except arrow.ArrowInvalid:
            continue
    return texts


def _typed_values(values: list[Any], name: str, kind: str | None) -> Any:
    """Return Python's values as one Arrow array, typed by these alone."""
    arrow = pyarrow("lib")
    values = [_of_database(value) for value in values]
    numbers = [value for value in values if value is not None]
    if kind == "text":
        return arrow.array([value if isinstance(value, str | None) else str(value) for value in values], arrow.string())
    try:
        if any(isinstance(value, float) for value in numbers) and all(type(value) in (int, float) for value in numbers):
            array = arrow.array([None if value is None else float(value) for value in values], arrow.float64())
        else:
            array = arrow.array(values)
    except (arrow.ArrowException, OverflowError):
        kinds = " and ".join(sorted({type(value).__name__ for value in numbers}))
        what = f"The column {name!r} holds {kinds}, and no one type holds all of them."
        raise RecipeError(what, f"Choose one: types={{{name!r}: 'text'}}.") from None
    if kind is None:  # nothing known of any row reads as in a csv: missing numbers
        return array.cast(arrow.float64()) if pyarrow("types").is_null(array.type) else array
    return _cast(array, kind, name)


def _of_database(value: Any) -> Any:
    """Return a value that a database has a type of its own for as the one that models are trained on."""
    if isinstance(value, UUID):
        return str(value)
    return float(value) if isinstance(value, Decimal) else value  # PostgreSQL's avg of whole numbers is a Decimal


def _id_array(cells: Sequence[Cell]) -> Any:
    """Return ids as texts, or as lists of texts where one cell is a list."""
    arrow = pyarrow("lib")
    if not any(isinstance(cell, tuple) for cell in cells):
        return arrow.array(cells, arrow.string())
    lists = [[cell] if isinstance(cell, str) else cell for cell in cells]
    return arrow.array(lists, arrow.list_(arrow.string()))


def _cast(array: Any, kind: str, name: str) -> Any:
    arrow = pyarrow("lib")
    types = {
        "text": arrow.string(),
        "int": arrow.int64(),
        "float": arrow.float64(),
        "bool": arrow.bool_(),
        "date": arrow.date32(),
        "datetime": arrow.timestamp("us"),
    }
    try:
        return array.cast(types[kind])
    except arrow.ArrowException:
        what = f"The column {name!r} holds what is no {kind}."
        raise RecipeError(what, "Correct its cells, or declare another type in types=.") from None


def _plain_type(kind: Any) -> Any:
    """Return a type without dictionaries and the metadata of inner fields."""
    arrow, types = pyarrow("lib"), pyarrow("types")
    if isinstance(kind, arrow.BaseExtensionType):
        return _plain_type(kind.storage_type)
    if types.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if types.is_fixed_size_list(kind):
        return arrow.list_(_plain_type(kind.value_type), kind.list_size)
    if _is_list(kind):
        make = arrow.large_list if types.is_large_list(kind) else arrow.list_
        return make(_plain_type(kind.value_type))
    if types.is_struct(kind):
        return arrow.struct([arrow.field(field.name, _plain_type(field.type)) for field in kind])
    return kind


def _is_list(kind: Any) -> bool:
    types = pyarrow("types")
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _read_as(kind: Any) -> str:
    """Return which of KINDS a type of Arrow is read as: numbers, lists of numbers, or texts of anything else."""
    types = pyarrow("types")
    if _is_list(kind):
        return "numbers" if _read_as(kind.value_type) == "number" else "text"
    is_number = types.is_floating(kind) or (types.is_integer(kind) and not types.is_uint64(kind))
    return "number" if is_number else "text"


def _joined(texts: Sequence[Any]) -> Sequence[bytes]:
    """Return the texts of each row, one after the other."""
    joined = pyarrow("compute").binary_join_element_wise(*texts, "", null_handling="replace", null_replacement="")
    return cast("Sequence[bytes]", joined.cast(pyarrow("lib").binary()).to_pylist())


def _lists_of_rows(column: Any) -> Iterator[memoryview]:
    """Yield the bytes of each list of numbers of a column."""
    compute = pyarrow("compute")
    lengths = compute.list_value_length(column).fill_null(0).to_numpy()
    entries = compute.list_flatten(column)
    data = memoryview(_numbers_after(b"", [entries], len(entries)).tobytes())
    ends = np.cumsum(lengths) * NUMBER.itemsize
    sizes = (lengths * NUMBER.itemsize).tolist()
    return (data[end - size : end] for end, size in zip(ends.tolist(), sizes, strict=True))


def _numbers_after(head: bytes, columns: Sequence[Any], count: int) -> np.ndarray[Any, Any]:
    """Return so many rows of bytes (count, width): the head, then a ``NUMBER`` of each of these columns."""
    rows = np.empty(count, dtype=[("head", "u1", (len(head),)), ("numbers", NUMBER, (len(columns),))])
    rows["head"] = np.frombuffer(head, dtype=np.uint8)
    for place, column in enumerate(columns):
        values = (column.fill_null(0) if column.null_count else column).to_numpy()
        nearest, lacking = values.astype(np.float64), np.int64(0)
        if values.dtype.kind in "iu":
            lacking = values.astype(np.int64) - np.minimum(nearest, LARGEST).astype(np.int64)
        else:
            nearest[np.isnan(nearest)] = np.nan
        numbers = rows["numbers"][:, place]
        numbers["here"] = column.is_valid().to_numpy() if column.null_count else 1
        numbers["nearest"], numbers["lacking"] = nearest, lacking
    return rows


def _written(column: Any) -> Any:
    """Return the values of a column as texts that tell them apart, a missing value and its name too."""
    arrow, types = pyarrow("lib"), pyarrow("types")
    if types.is_string(column.type) or types.is_large_string(column.type):
        texts = pyarrow("compute").binary_join_element_wise("=", column.cast(arrow.string()), "")
    elif types.is_primitive(column.type):
        texts = column.cast(arrow.string())
    else:
        return arrow.chunked_array([[repr(value) for value in column.to_pylist()]], arrow.string())
    return texts
