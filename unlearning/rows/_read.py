"""Rows before their types are found: a file is split, the rows of those who stay are taken, and only these are typed.

A type, a category or a column that one person's rows alone bring about would tell of them after they left.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any, Protocol, cast
from uuid import UUID

import numpy as np
import torch

from unlearning.columns import Column, Texts
from unlearning.rows._people import MISSING, Cell, refused_list, refused_type, text_of
from unlearning.rows.declarations import ROW
from unlearning.sources import texts_of
from unlearning.types import RecipeError

if TYPE_CHECKING:
    import pyarrow as pa

Places = np.ndarray[Any, np.dtype[np.int64]]


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

    def contents(self) -> list[bytes]:
        """Return what each row holds, as bytes that differ where a cell does."""

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

    def contents(self) -> list[bytes]:
        names = repr(self.names).encode()
        return [names + repr(cells).encode() for _, cells in self.rows]

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

    def contents(self) -> list[bytes]:
        return [repr(sorted(row.items())).encode() for row in self.rows]

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


@dataclass(frozen=True)
class ArrowTable:
    """The rows of an Arrow table, whose types its writer chose."""

    source: str
    table: pa.Table

    @property
    def names(self) -> Sequence[str]:
        return list(self.table.column_names)

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def cells(self, column: str) -> Column[Cell]:
        texts = _whole(self._texts(column))
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

    def contents(self) -> list[bytes]:
        arrow = pyarrow("lib")
        names, columns = repr(self.names).encode(), [_written(self._plain(name)) for name in self.names]
        if not columns:
            return [names] * len(self)
        missing = {"null_handling": "replace", "null_replacement": "\0"}
        joined = pyarrow("compute").binary_join_element_wise(*columns, "\x1f", **missing)
        return [names + row for row in joined.cast(arrow.binary()).to_pylist()]

    def values(self, column: str) -> Sequence[Any]:
        return cast("Sequence[Any]", self._plain(column).to_pylist())

    def take(self, places: Places, texts: frozenset[str], types: Mapping[str, str]) -> pa.Table:
        arrow, compute = pyarrow("lib"), pyarrow("compute")
        columns = {name: self._texts(name) if name in texts else self._plain(name) for name in self.names}
        # take copies: what a filter or a slice gives may share buffers with the rows of those who left
        taken = {name: _whole(compute.take(column, arrow.array(places))) for name, column in columns.items()}
        return arrow.table(
            {name: _cast(column, types[name], name) if name in types else column for name, column in taken.items()}
        )

    def _plain(self, name: str) -> Any:
        """Return a column without dictionaries and metadata: both may name what nobody here has."""
        column = self.table.column(name)
        if pyarrow("types").is_run_end_encoded(column.type):
            column = pyarrow("compute").run_end_decode(column)
        return column.cast(_plain_type(column.type))

    def _texts(self, name: str) -> Any:
        types, arrow = pyarrow("types"), pyarrow("lib")
        column = self._plain(name)
        entry = column.type.value_type if _is_list(column.type) else column.type
        if not (
            types.is_integer(entry) or types.is_string(entry) or types.is_large_string(entry) or types.is_null(entry)
        ):
            raise refused_type(name, column.type)
        return column.cast(arrow.list_(arrow.string()) if _is_list(column.type) else arrow.string())


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


def _read_csv(file: IO[bytes], source: str, separator: str) -> Cells:
    reader = csv.reader(io.TextIOWrapper(file, "utf-8-sig", newline=""), delimiter=separator, strict=True)
    names = next(reader, [])
    return Cells(source, names, [(reader.line_num, cells) for cells in reader if cells])


def _read_json(file: IO[bytes], source: str) -> Objects:
    return Objects(source, _objects(json.loads(file.read()), source))


def _read_json_lines(file: IO[bytes], source: str) -> Objects:
    return Objects(source, _objects([json.loads(line) for line in file if line.strip()], source))


def _read_parquet(file: IO[bytes], source: str) -> ArrowTable:
    return ArrowTable(source, pyarrow("parquet").ParquetFile(file).read())


def _read_arrow(file: IO[bytes], source: str) -> ArrowTable:
    ipc = pyarrow("ipc")
    is_file = file.read(6) == b"ARROW1"  # else a stream
    file.seek(0)
    return ArrowTable(source, (ipc.open_file if is_file else ipc.open_stream)(file).read_all())


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


def _whole(column: Any) -> Any:
    """Return a column in one piece; of none, an empty one."""
    pieces = column.chunks if hasattr(column, "chunks") else [column]
    return pieces[0] if len(pieces) == 1 else column.combine_chunks()


def pyarrow(module: str) -> Any:
    """Return a module of pyarrow. Raises RecipeError where it is not installed."""
    try:
        return import_module(f"pyarrow.{module}")
    except ModuleNotFoundError:
        raise RecipeError("pyarrow is not installed.", 'Run `pip install "expunge[parquet]"`.') from None
