"""The maths of forgetting. Names resolve lazily, so that importing this package never loads torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unlearning import trees as trees
    from unlearning.artefact import Artefact as Artefact
    from unlearning.bins import grid as grid
    from unlearning.estimators import sklearn as sklearn
    from unlearning.holdout import held_out as held_out
    from unlearning.index import Index as Index
    from unlearning.index import person_numbers as person_numbers
    from unlearning.methods.shards.ensemble import published as published
    from unlearning.model.problem import Problem as Problem
    from unlearning.model.training import Recorder as Recorder
    from unlearning.pack import Field as Field
    from unlearning.pack import Pack as Pack
    from unlearning.recipe import Recipe as Recipe
    from unlearning.recipe import Run as Run
    from unlearning.recipe import Samples as Samples
    from unlearning.settings import SGD as SGD
    from unlearning.settings import AdamW as AdamW
    from unlearning.settings import Schedule as Schedule
    from unlearning.settings import Training as Training
    from unlearning.types import RecipeError as RecipeError
    from unlearning.types import Trajectory as Trajectory

_HOMES = {
    "AdamW": "settings",
    "Artefact": "artefact",
    "Field": "pack",
    "Index": "index",
    "Pack": "pack",
    "Problem": "model.problem",
    "Recipe": "recipe",
    "Run": "recipe",
    "RecipeError": "types",
    "SGD": "settings",
    "Samples": "recipe",
    "Schedule": "settings",
    "Training": "settings",
    "Recorder": "model.training",
    "Trajectory": "types",
    "grid": "bins",
    "held_out": "holdout",
    "person_numbers": "index",
    "published": "methods.shards.ensemble",
    "sklearn": "estimators",
}

__all__ = [
    "SGD",
    "AdamW",
    "Artefact",
    "Field",
    "Index",
    "Pack",
    "Problem",
    "Recipe",
    "RecipeError",
    "Recorder",
    "Run",
    "Samples",
    "Schedule",
    "Training",
    "Trajectory",
    "grid",
    "held_out",
    "person_numbers",
    "published",
    "sklearn",
    "trees",
]


def __getattr__(name: str) -> object:
    if name == "trees":
        return import_module("unlearning.trees")
    if name not in _HOMES:
        raise AttributeError(f"module 'unlearning' has no attribute {name!r}")
    return getattr(import_module(f"unlearning.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
