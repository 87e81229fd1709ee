"""A written grid of bins for tables: where trees may split, said by the recipe and never computed from samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from unlearning.types import RecipeError

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Grid:
    """The columns of a table, each with its edges (float64, rising) or, of a category, with how many values it has.

    A number x lies in bin k where k edges are below it, so that x <= edges[k] is all that a split can ask. Quantiles of
    all rows are no grid: they change when a person goes, so that every member of an ensemble would.
    """

    names: tuple[str, ...]
    edges: tuple[Tensor | int, ...]

    @property
    def most(self) -> int:
        """Return the number of bins of the column that has most."""
        return max(each if isinstance(each, int) else len(each) + 1 for each in self.edges)

    @property
    def categories(self) -> list[int]:
        """Return the places of the columns that are categories."""
        return [place for place, each in enumerate(self.edges) if isinstance(each, int)]

    def bins(self, x: Tensor, dtype: Any = np.float64) -> Array:
        """Return the bins of inputs (n, columns), as float64; NaN where a value is missing or no known category.

        Inputs and edges are compared in ``dtype``. Raises RecipeError where the number of columns is another.
        """
        if x.dim() != 2 or x.shape[1] != len(self.edges):
            raise RecipeError(
                f"The inputs have the shape {tuple(x.shape)}, and the grid has {len(self.edges)} columns.",
                "Name every column in ul.grid, in the order of the inputs.",
            )
        values = x.detach().cpu().numpy()
        found = np.empty(values.shape, dtype=np.float64)
        for place, edges in enumerate(self.edges):
            column = values[:, place]
            if isinstance(edges, int):
                known = (column >= 0) & (column < edges) & (column == np.floor(column))
                found[:, place] = np.where(known, column, np.nan)
            else:
                found[:, place] = np.searchsorted(edges.numpy().astype(dtype), column.astype(dtype))
                found[np.isnan(column.astype(dtype)), place] = np.nan
        return found


def grid(**columns: Sequence[float] | int) -> Grid:
    """Return the grid of a table: for each column its rising edges, or of a category how many values it has (0 on).

    Raises:
        RecipeError: no column, edges that are not finite or do not rise, fewer than two values.
    """
    if not columns:
        raise RecipeError("The grid has no column.", "Name each column with its edges, in the order of the inputs.")
    return Grid(tuple(columns), tuple(_edges(name, given) for name, given in columns.items()))


def _edges(name: str, given: Sequence[float] | int) -> Tensor | int:
    if not all(each.isalnum() or each == "_" for each in name):
        raise RecipeError(f"The column {name!r} is no plain word.", "Use letters, digits and _.")
    if isinstance(given, int):
        if given < 2:
            raise RecipeError(f"The column {name!r} has {given} values.", "A category has two or more.")
        return given
    edges = torch.as_tensor(given, dtype=torch.float64).reshape(-1)
    if not len(edges) or not bool(torch.isfinite(edges).all()) or not bool((edges.diff() > 0).all()):
        raise RecipeError(f"The edges of {name!r} are not finite numbers that rise.", "Write them from low to high.")
    return edges
