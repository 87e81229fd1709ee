"""The blocks of docs/recipes.md that are a part of a recipe, and so are saved by no test, run as they stand."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

import unlearning as ul

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text()


def block(heading: str) -> dict[str, Any]:
    """The names that the first block below a heading defines."""
    found = re.search(rf"^#+ {heading}\n.*?^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert found, heading
    scope: dict[str, Any] = {"__name__": "block"}
    exec(found[1], scope)
    return scope


def test_mixed_columns_are_read_back_by_the_model() -> None:
    found = block("Mixed columns, categories, missing values")
    rows = found["PACK"].encode({"age": [30.0, None], "city": ["Rome", "Paris"], "bought": [[1, 2], []]})
    assert found["Model"]()(rows).shape == (2, 1)
    assert found["PACK"].decode(rows)["city"].tolist() == [1, -1]


def test_an_estimator_of_scikit_learn_is_a_whole_recipe() -> None:
    recipe: ul.Recipe = block("An estimator of scikit-learn")["recipe"]()
    assert len(recipe.samples) + len(recipe.holdout[1]) == 569


def test_a_person_without_a_row_has_the_last_one() -> None:
    model = block("A row for each person")["Rated"]()
    asked = torch.tensor([[7, 3], [8, 3]])
    answers = model(asked)
    assert answers.shape == (2, 1) and answers[0] == answers[1]
