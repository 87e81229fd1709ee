"""The recipes of ``examples/digits``, opened in this process with everybody in them."""

from __future__ import annotations

import runpy
from pathlib import Path

from unlearning.recipe import Recipe
from unlearning.rows import call_recipe

FOLDER = Path(__file__).parents[1] / "examples" / "digits"


def digits(name: str = "recipe") -> Recipe:
    """Return ``examples/digits/NAME.py``: ``recipe``, the softmax regression, or ``convolutional``, the network."""
    recipe: Recipe = call_recipe(runpy.run_path(str(FOLDER / f"{name}.py"))["recipe"], lambda _: FOLDER)
    return recipe
