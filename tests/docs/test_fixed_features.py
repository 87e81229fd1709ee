"""The two recipes of docs/recipes.md with fixed features, as they stand there, can be ``proved``."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from expunge.workers.guarantee.terms import guarantee_of, require_closed_form
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import Policy
from unlearning.bounds.minimiser import Minimiser
from unlearning.methods.newton import Newton
from unlearning.model.parts import parts_of, require_declared
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.recipe import Recipe
from unlearning.types import Refused, State

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


def recipe_of(name: str) -> Recipe:
    """The block that the page saves as ``recipes/NAME.py``, run."""
    text = PAGE.read_text()
    block = re.search(rf"`recipes/{name}\.py`.*?^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    scope: dict[str, Any] = {}
    exec(block[1], scope)
    found: Recipe = scope["recipe"]()
    return found


def pasted(recipe: Recipe) -> Recipe:
    """The recipe with the line that the first registration's refusal prints."""
    with pytest.raises(Refused) as refused:
        require_declared(recipe, parts_of(recipe))
    line = re.search(r'public=(\{"[^}]*\})', refused.value.hint)
    assert line is not None
    return replace(recipe, public=dict(re.findall(r'"([^"]+)": "([0-9a-f]{64})"', line[1])))


@pytest.mark.drill
@pytest.mark.parametrize(("name", "accuracy"), [("scattering", 0.93), ("tangent", 0.88)])
def test_the_recipe_can_be_proved(name: str, accuracy: float) -> None:
    recipe = recipe_of(name)
    recipe = pasted(recipe) if name == "tangent" else recipe
    require_declared(recipe, parts_of(recipe))
    problem, examples = Problem(recipe), recipe.samples.examples()
    policy = Policy.from_json({"method": "newton", "guarantee": "proved"})
    assert guarantee_of(policy, problem, Newton()) is Guarantee.PROVED
    require_closed_form(Newton(), problem, examples)
    w = train(problem, examples).weights
    Minimiser().require_useful(problem, examples, State(w), policy.max_distance, {})
    assert problem.double().accuracy(w, *recipe.holdout) >= accuracy
    if name == "tangent":
        assert problem.double().accuracy(torch.zeros_like(w), *recipe.holdout) < problem.double().accuracy(
            w, *recipe.holdout
        )
