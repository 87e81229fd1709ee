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
    from unlearning.rows import Published as Published
    from unlearning.rows import Rows as Rows
    from unlearning.rows import TrainingRun as TrainingRun
    from unlearning.rows import arrays as arrays
    from unlearning.rows import folder as folder
    from unlearning.rows import public as public
    from unlearning.rows import query as query
    from unlearning.rows import run as run
    from unlearning.rows import table as table
    from unlearning.rows import via as via
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
    "Published": "rows",
    "Recipe": "recipe",
    "RecipeError": "types",
    "Recorder": "model.training",
    "Rows": "rows",
    "Run": "recipe",
    "SGD": "settings",
    "Samples": "recipe",
    "Schedule": "settings",
    "Training": "settings",
    "TrainingRun": "rows",
    "Trajectory": "types",
    "arrays": "rows",
    "folder": "rows",
    "grid": "bins",
    "held_out": "holdout",
    "person_numbers": "index",
    "public": "rows",
    "published": "methods.shards.ensemble",
    "query": "rows",
    "run": "rows",
    "sklearn": "estimators",
    "table": "rows",
    "via": "rows",
}

__all__ = [
    "SGD",
    "AdamW",
    "Artefact",
    "Field",
    "Index",
    "Pack",
    "Problem",
    "Published",
    "Recipe",
    "RecipeError",
    "Recorder",
    "Rows",
    "Run",
    "Samples",
    "Schedule",
    "Training",
    "TrainingRun",
    "Trajectory",
    "arrays",
    "folder",
    "grid",
    "held_out",
    "person_numbers",
    "public",
    "published",
    "query",
    "run",
    "sklearn",
    "table",
    "trees",
    "via",
]


def __getattr__(name: str) -> object:
    if name == "trees":
        return import_module("unlearning.trees")
    if name not in _HOMES:
        raise AttributeError(f"module 'unlearning' has no attribute {name!r}")
    return getattr(import_module(f"unlearning.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
