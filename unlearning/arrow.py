"""Columns of Arrow: how its modules are loaded, and texts of its columns."""

from __future__ import annotations

from importlib import import_module
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from unlearning.columns import Texts
from unlearning.types import RecipeError

if TYPE_CHECKING:
    import pyarrow as pa


def pyarrow(module: str) -> Any:
    """Return a module of pyarrow. Raises RecipeError where it is not installed."""
    try:
        return import_module(f"pyarrow.{module}")
    except ModuleNotFoundError:
        raise RecipeError("pyarrow is not installed.", "Run `pip install pyarrow`.") from None


def table_of(frame: Any) -> pa.Table:
    """Return an Arrow table of a pandas or Polars frame, a dict of columns, or a Parquet file by its path.

    Raises:
        RecipeError: pyarrow is not installed, or the frame is none.
    """
    if isinstance(frame, str | PathLike):
        return pyarrow("parquet").read_table(frame)
    try:
        return pyarrow("lib").table(frame)
    except (TypeError, ValueError) as error:
        what = f"A {type(frame).__name__} is no table: {error}."
        raise RecipeError(what, "Give a frame of pandas or Polars, an Arrow table, or a Parquet file's path.") from None


def texts_of(column: Any) -> Texts:
    """Return a column of texts or whole numbers as texts; a missing one is empty."""
    compute, arrow = pyarrow("compute"), pyarrow("lib")
    texts = compute.fill_null(compute.cast(in_one_piece(column), arrow.large_string()), "")
    ends = np.frombuffer(texts.buffers()[1], dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    data = np.frombuffer(texts.buffers()[2] or b"", dtype=np.uint8)[ends[0] : ends[-1]].copy()
    return Texts(data, ends - ends[0])


def in_one_piece(column: Any) -> Any:
    """Return a column in one piece; of none, an empty one."""
    pieces = column.chunks if hasattr(column, "chunks") else [column]
    return pieces[0] if len(pieces) == 1 else column.combine_chunks()
