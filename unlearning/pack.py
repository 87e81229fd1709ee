"""Samples that are not one tensor: numbers of several types, categories, missing values, lists of any length.

A ``Pack`` writes each sample as one row of bytes, so that it is digested, compared and taken away like any other; a
model's ``forward`` or a training decodes it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from unlearning.arrow import pyarrow, table_of
from unlearning.types import RecipeError

if TYPE_CHECKING:
    import pyarrow as pa

DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "float32", "float64")
LENGTH = np.dtype("<i4")


@dataclass(frozen=True)
class Field:
    """A column of a packed sample.

    Args:
        dtype: one of ``DTYPES``.
        width: how many values a sample has, a constant of the recipe; for ``ragged`` the most that it may have.
        ragged: a sample may have fewer; ``decode`` gives how many under ``NAME_length``, and zeros after them.
        values: the categories, constants of the recipe; a value is stored as its place, -1 where it is none of them.

    Raises:
        RecipeError: another dtype, a width below 1, categories that are not distinct or in a dtype without -1.
    """

    dtype: str
    width: int = 1
    ragged: bool = False
    values: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise RecipeError(f"The dtype {self.dtype!r} of a field is not known.", f"Use one of {', '.join(DTYPES)}.")
        if self.width < 1:
            raise RecipeError(f"A field has width {self.width}.", "Give 1 or more.")
        if self.values is not None:
            object.__setattr__(self, "values", tuple(self.values))
            room = self.kind.kind == "i" and len(self.values) - 1 <= np.iinfo(self.kind).max
            if not room or len(set(self.values)) != len(self.values):
                what = f"{len(self.values)} categories are stored as {self.dtype}, or one of them twice."
                raise RecipeError(what, "Name each once, and use int8, int16, int32 or int64.")

    @property
    def kind(self) -> np.dtype[Any]:
        return np.dtype(self.dtype).newbyteorder("<")

    @property
    def size(self) -> int:
        """Return the bytes of a sample."""
        return self.width * self.kind.itemsize + self.ragged * LENGTH.itemsize


class Pack:
    """Columns by name as one uint8 row a sample: ``Pack(age=Field("float64"), ids=Field("int32", 40, ragged=True))``.

    Categories are a part of what the model brings along: a certificate lists their digest, as of other parts, since
    code cannot tell whether they were written down or taken from the people in the table.

    Raises:
        RecipeError: no field, or a field with the name of another one's length.
    """

    def __init__(self, **fields: Field) -> None:
        lengths = {f"{name}_length" for name, field in fields.items() if field.ragged}
        if not fields or lengths & fields.keys():
            raise RecipeError(f"The fields {sorted(fields)} cannot be packed.", "Give one or more, and other names.")
        self.fields = fields
        self.row_bytes = sum(field.size for field in fields.values())
        known = {name: field.values for name, field in fields.items() if field.values is not None}
        if known:
            self.categories = torch.frombuffer(bytearray(json.dumps(known).encode()), dtype=torch.uint8)

    def encode(self, frame: Any) -> Tensor:
        """Return rows (n, row_bytes) uint8 of an Arrow table, a pandas or Polars frame, or a dict of columns.

        Raises:
            RecipeError: a column is missing, a number is missing where a field has no NaN, or a list is too long.
        """
        table = table_of(frame)
        missing = sorted(self.fields.keys() - set(table.column_names))
        if missing:
            raise RecipeError(f"The frame lacks the columns {', '.join(missing)}.", "Give every field of the pack.")
        parts = [part for name, field in self.fields.items() for part in _encoded(name, field, table.column(name))]
        return torch.from_numpy(np.concatenate(parts, axis=1))

    def decode(self, rows: Tensor) -> dict[str, Tensor]:
        """Return the fields (n,) or (n, width) of rows (n, row_bytes) uint8, and ``NAME_length`` (n,) where ragged.

        Raises:
            RecipeError: the rows were packed by other fields.
        """
        if rows.dtype != torch.uint8 or rows.dim() != 2 or rows.shape[1] != self.row_bytes:
            what = f"Rows of {rows.dtype} and shape {tuple(rows.shape)} are given; the pack has {self.row_bytes} bytes."
            raise RecipeError(what, "Encode them by the same pack.")
        found, start = {}, 0
        for name, field in self.fields.items():
            dtypes = [(name, getattr(torch, field.dtype), field.width)]
            dtypes += [(f"{name}_length", torch.int32, 1)] * field.ragged
            for key, dtype, width in dtypes:
                size = width * dtype.itemsize
                part = rows[:, start : start + size].clone(memory_format=torch.contiguous_format).view(dtype)
                found[key] = part if width > 1 or (field.ragged and key == name) else part.squeeze(1)
                start += size
        return found


def _encoded(name: str, field: Field, column: pa.ChunkedArray) -> list[np.ndarray[Any, Any]]:
    """Return the bytes (n, size) of a column, and of its lengths where it is ragged."""
    whole, count = column.combine_chunks(), len(column)
    if hasattr(whole, "combine_chunks"):  # an empty column stays chunked in some versions
        whole = whole.chunk(0)
    lists = hasattr(whole.type, "value_type") and not hasattr(whole.type, "index_type")
    if not lists:
        if field.ragged or field.width > 1:
            raise RecipeError(f"The column {name!r} holds no lists.", f"Give lists of at most {field.width} values.")
        return [_as_bytes(_values(name, field, whole), count)]
    lengths = np.array(
        [0 if each is None else each for each in pyarrow("compute").list_value_length(whole).to_pylist()]
    )
    fits = lengths <= field.width if field.ragged else lengths == field.width
    if not fits.all():
        row = int((~fits).argmax())
        hint = "Raise the field's width to a constant that fits every list, or cut the list."
        raise RecipeError(f"Row {row} of {name!r} has {lengths[row]} values; the field has {field.width}.", hint)
    filled = np.zeros((count, field.width), dtype=field.kind)
    filled[np.arange(field.width) < lengths[:, None]] = _values(name, field, pyarrow("compute").list_flatten(whole))
    told = [_as_bytes(lengths.astype(LENGTH), count)] if field.ragged else []
    return [_as_bytes(filled, count), *told]


def _values(name: str, field: Field, column: Any) -> np.ndarray[Any, Any]:
    if field.values is not None:
        if hasattr(column.type, "index_type"):
            column = column.dictionary_decode()
        known = table_of({"known": list(field.values)}).column("known").combine_chunks()
        if known.type != column.type:
            try:
                column = pyarrow("compute").cast(column, known.type)
            except ValueError:
                what = f"The column {name!r} holds {column.type}, its categories are {known.type}."
                raise RecipeError(what, "Write the categories as the column has them.") from None
        places = pyarrow("compute").fill_null(pyarrow("compute").index_in(column, known), -1)
        return np.asarray(places).astype(field.kind)
    if column.null_count and field.kind.kind != "f":
        what = f"{column.null_count} values of {name!r} are missing, and {field.dtype} has no missing value."
        raise RecipeError(what, "Use a float, or values=... of which a missing one is none.")
    given: np.ndarray[Any, Any] = column.to_numpy(zero_copy_only=False)
    if given.dtype.kind not in "biuf":
        raise RecipeError(f"The column {name!r} holds {column.type}, no numbers.", "Give numbers, or values=(...).")
    with np.errstate(over="ignore", invalid="ignore"):
        kept: np.ndarray[Any, Any] = given.astype(field.kind)
    if field.kind.kind != "f" and not np.array_equal(kept, given):
        raise RecipeError(f"A value of {name!r} does not fit into {field.dtype}.", "Use a larger dtype.")
    return kept


def _as_bytes(values: np.ndarray[Any, Any], count: int) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(values).reshape(count, -1).view(np.uint8).reshape(count, -1)
