"""Call a recipe with rows in this process, as a notebook or the laboratory does. A service calls it in a world."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from unlearning.recipe import Recipe
from unlearning.rows._open import open_rows, read_source
from unlearning.rows._paths import open_public
from unlearning.rows._rows import Rows, set_apart
from unlearning.rows._run import RunParameter, TrainingRun
from unlearning.rows.declarations import PublicFile, Source
from unlearning.types import RecipeError


def call_recipe(
    recipe: Callable[..., Any],
    root_of: Callable[[Source | PublicFile], Path],
    *,
    databases: Mapping[str, str] | None = None,
    salt: bytes = b"",
    is_gone: Callable[[str], bool] | None = None,
) -> Any:
    """Call a recipe on the rows of everybody who is trained on, and make its holdout of those of the people kept apart.

    Args:
        recipe: the function, whose parameters' defaults are sources, public files or ``ul.run()``.
        root_of: gives the folder beneath which a source or a public file lies.
        databases: the address by setting, for queries.
        salt: the secret by which people are kept apart; empty: as where a recipe is called by hand.
        is_gone: whether a person, by the id that requests name, is left out of all rows; None: nobody is.

    Returns:
        What the recipe returned; of a ``Recipe`` with a holdout of two tensors.

    Raises:
        RecipeError: a source cannot be read, the holdout is no pair of tensors, or no source keeps people apart for it.
    """
    arguments: dict[str, Any] = {}
    apart: dict[str, Rows] = {}
    for name, parameter in inspect.signature(recipe).parameters.items():
        default = parameter.default
        if isinstance(default, Source):
            rows = _rows_without(default, root_of(default), databases, salt, is_gone)
            if default.aside:
                rows, apart[name] = set_apart(rows, default.aside)
            arguments[name] = rows
        elif isinstance(default, PublicFile):
            arguments[name] = open_public(default, root_of(default))
        elif isinstance(default, RunParameter):
            arguments[name] = TrainingRun()
    made = recipe(**arguments)
    if not isinstance(made, Recipe) or not callable(made.holdout):
        return made
    if not apart:
        what = "The holdout is a function of the people kept apart, and no source keeps any."
        raise RecipeError(what, 'Say so in the source, as in ul.table("people.csv", person="id", aside=0.2).')
    return with_holdout(made, apart)


def with_holdout(recipe: Recipe, apart: Mapping[Any, Rows]) -> Recipe:
    """Return the recipe with its holdout made of the rows of people who are kept apart, by source.

    Raises:
        RecipeError: the holdout is no pair of inputs and targets.
    """
    made: Any = recipe.holdout
    if callable(made):
        made = made(*apart.values()) if len(apart) == 1 else made(**apart)
    try:
        inputs, targets = (torch.as_tensor(part) for part in made)
    except (TypeError, ValueError):
        what = f"holdout returned a {type(made).__name__}."
        raise RecipeError(what, "Return inputs and targets of the rows that it is given.") from None
    return replace(recipe, holdout=(inputs, targets))


def _rows_without(
    source: Source,
    root: Path,
    databases: Mapping[str, str] | None,
    salt: bytes,
    is_gone: Callable[[str], bool] | None,
) -> Rows:
    gone: frozenset[str] = frozenset()
    if is_gone is not None:
        gone = frozenset(filter(is_gone, read_source(source, root, databases=databases).everybody))
    return open_rows(source, root, without=gone, salt=salt, databases=databases)
