"""Rows in random order, and as torch's loaders take them, a few at a time: of what is larger than memory too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset

from unlearning.rows._read import Places
from unlearning.types import RecipeError

if TYPE_CHECKING:
    from unlearning.rows._rows import Rows

NEIGHBOURS_BYTES, TOGETHER_BYTES = 2**20, 2**26
"""of rows that lie side by side and are read at once, at a disk's full speed; and of those that are mixed in memory"""


def windows_of(count: int, row_bytes: int, size: int, seed: int) -> Iterator[tuple[Places, Places]]:
    """Yield all rows in an order that follows from the seed, some at a time: their places, rising, and which of these
    comes when.

    Groups of neighbours come in random order, and ``TOGETHER_BYTES`` of rows, a multiple of ``size``, are mixed. Where
    all fit into these, every order of the rows is as likely.
    """
    draws, group = np.random.default_rng(seed), max(1, NEIGHBOURS_BYTES // row_bytes)
    groups = [np.arange(first, min(first + group, count)) for first in draws.permutation(np.arange(0, count, group))]
    order = np.concatenate([*groups, np.empty(0, dtype=np.int64)])
    together = max(1, TOGETHER_BYTES // row_bytes // size) * size
    for start in range(0, count, together):
        near = np.sort(order[start : start + together])
        yield near, draws.permutation(len(near))


def require_size(size: int) -> None:
    if size < 1:
        raise RecipeError(f"A block or batch has {size} rows.", "Give 1 or more.")


class RowsDataset(Dataset[dict[str, Any]]):
    """Rows as a data set of torch: an item is a row, what it holds by column. Several are read at once."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> dict[str, Any]:
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        return self.__getitems__([place % len(self)])[0]

    def __getitems__(self, places: Sequence[int]) -> list[dict[str, Any]]:
        taken = self._rows._take(np.asarray(places, dtype=np.int64))
        values = {name: taken[name] for name in taken.columns}
        return [{name: array[row] for name, array in values.items()} for row in range(len(places))]
