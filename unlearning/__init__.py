"""The maths of forgetting. Names resolve lazily, so that importing this package never loads torch."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unlearning.artefact import Artefact as Artefact
    from unlearning.model.problem import Problem as Problem
    from unlearning.model.training import Recorder as Recorder
    from unlearning.pack import Field as Field
    from unlearning.pack import Pack as Pack
    from unlearning.person_number import person_numbers as person_numbers
    from unlearning.recipe import Recipe as Recipe
    from unlearning.recipe import Samples as Samples
    from unlearning.rows import Published as Published
    from unlearning.rows import Rows as Rows
    from unlearning.rows import TrainingRun as TrainingRun
    from unlearning.rows import arrays as arrays
    from unlearning.rows import folder as folder
    from unlearning.rows import public as public
    from unlearning.rows import query as query
    from unlearning.rows import reader as reader
    from unlearning.rows import run as run
    from unlearning.rows import table as table
    from unlearning.rows import via as via
    from unlearning.rows import weights as weights
    from unlearning.served import published as published
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
    "Pack": "pack",
    "Problem": "model.problem",
    "Published": "rows",
    "Recipe": "recipe",
    "RecipeError": "types",
    "Recorder": "model.training",
    "Rows": "rows",
    "SGD": "settings",
    "Samples": "recipe",
    "Schedule": "settings",
    "Training": "settings",
    "TrainingRun": "rows",
    "Trajectory": "types",
    "arrays": "rows",
    "folder": "rows",
    "person_numbers": "person_number",
    "public": "rows",
    "weights": "rows",
    "published": "served",
    "query": "rows",
    "reader": "rows",
    "run": "rows",
    "table": "rows",
    "via": "rows",
}

__all__ = [
    "SGD",
    "AdamW",
    "Artefact",
    "Field",
    "Pack",
    "Problem",
    "Published",
    "Recipe",
    "RecipeError",
    "Recorder",
    "Rows",
    "Samples",
    "Schedule",
    "Training",
    "TrainingRun",
    "Trajectory",
    "arrays",
    "folder",
    "person_numbers",
    "public",
    "published",
    "query",
    "reader",
    "run",
    "table",
    "via",
    "weights",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'unlearning' has no attribute {name!r}")
    return getattr(import_module(f"unlearning.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
