"""Functions of one person's rows: what a recipe maps, block by block, and how the results of all blocks are one array.

A block holds all rows of the same people. So nothing of a result follows from anybody else, and it can be kept until
one of them leaves.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from unlearning.columns import Column
from unlearning.rows._people import People
from unlearning.types import RecipeError

if TYPE_CHECKING:
    from unlearning.rows._rows import Rows

Array = np.ndarray[Any, Any]
Places = np.ndarray[Any, np.dtype[np.int64]]
MapFunction = Callable[..., Any]
"""(rows of the same people, public files by name) -> numbers (n, ...), an entry for each of the rows"""
HEADER = 1 << 12
"""bytes that hold the longest header of an array here"""


@dataclass(frozen=True)
class MappedBefore:
    """What a function gave for all rows of a file, and the public files that it was given."""

    values: Array
    files: Mapping[str, Path]


def places_of_blocks(people: Column[People]) -> list[Places]:
    """Return where the rows of each block lie, rising; blocks by their first row. Rows of nobody are one block."""
    codes = people.codes.numpy()
    if not len(codes):
        return []
    _, first, numbers = np.unique(codes, return_index=True, return_inverse=True)
    ranks = np.argsort(np.argsort(first))[numbers]
    order = np.argsort(ranks, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(ranks[order])) + 1)


def map_block(function: MapFunction, block: Rows, files: Mapping[str, Path]) -> Array:
    """Call the function on a block: its numbers (n, ...).

    Raises RecipeError where it returns something else.
    """
    value = function(block, **files)
    array = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)
    if array.dtype.kind not in "fiub" or array.ndim == 0 or len(array) != len(block):
        returned = f"{array.dtype} of shape {array.shape}"
        what = f"{_name(function)}() returned {returned} for a block of {len(block)} rows."
        raise RecipeError(what, "Return an array of numbers with one entry for each row of the block.")
    return np.ascontiguousarray(array)


def block_to_bytes(array: Array) -> bytes:
    """Write what a function gave for a block, as ``.npy``. Several, one behind the other, are what is read below."""
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version=(1, 0), allow_pickle=False)
    return file.getvalue()


def blocks_from_bytes(function: MapFunction, data: memoryview, people: Column[People]) -> Array:
    """Read what ``block_to_bytes`` wrote for each block of these rows, in order: (n, ...) in the order of the rows.

    Raises RecipeError where two blocks have another type or shape.
    """
    return join_blocks(function, _arrays_in(data), places_of_blocks(people), len(people))


def join_blocks(function: MapFunction, results: Iterator[Array], blocks: Sequence[Places], count: int) -> Array:
    """Put what a function gave for each block where its rows lie, among ``count``; entries of other rows are zero.

    Raises RecipeError where two blocks have another type or shape.
    """
    whole: Array | None = None
    for result, places in zip(results, blocks, strict=True):
        if whole is None:
            whole = np.zeros((count, *result.shape[1:]), result.dtype)
        if (result.dtype, result.shape[1:]) != (whole.dtype, whole.shape[1:]):
            what = f"{_name(function)}() returned {_kind(whole)} for one block and {_kind(result)} for another."
            raise RecipeError(what, "Return the same for every block: name the type, and do not count what is in it.")
        whole[places] = result
    return np.zeros(0) if whole is None else whole


def _arrays_in(data: memoryview) -> Iterator[Array]:
    """Yield the arrays of a file of several, where they lie."""
    start = 0
    while start < len(data):
        header = io.BytesIO(data[start : start + HEADER])
        np.lib.format.read_magic(header)
        shape, _, dtype = np.lib.format.read_array_header_1_0(header)
        start += header.tell()
        end = start + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        yield np.frombuffer(data[start:end], dtype).reshape(shape)
        start = end


def _kind(array: Array) -> str:
    return f"{array.dtype} of shape (n{''.join(f', {size}' for size in array.shape[1:])})"


def _name(function: MapFunction) -> str:
    return getattr(function, "__name__", type(function).__name__)
