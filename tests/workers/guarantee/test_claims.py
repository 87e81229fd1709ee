"""What certificates.md asks every developer to expect of whole updates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.unlearning.recipes import softmax
from tests.workers.worlds import World
from unlearning.bounds.minimiser import Minimiser
from unlearning.model.convex import converge
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import Forgotten, State


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_equal_sized_forget_sets_give_equal_public_fields(world: World) -> None:
    seen: list[Any] = []
    for name, person in (("first", "p3"), ("second", "p7")):
        model_id = world.live("convex", "newton", name=name)
        world.delete(person, models=(name,))
        world.work(model_id)
        head, generation = world.head(model_id), world.generation(model_id)
        seen.append(
            (
                head.claim,
                head.samples,
                head.people,
                head.size,
                generation.spent,
                generation.budget_cost,
                generation.budget,
            )
        )
    assert seen[0] == seen[1]


def test_a_hundred_forget_sets_end_within_the_cap() -> None:
    problem = Problem(softmax(weight_decay=0.05)).double()
    examples = problem.recipe.samples.examples()
    w, cap = train(problem, examples).weights, 1e-3
    generator = torch.Generator().manual_seed(0)
    worst = 0.0
    for index in range(100):
        gone = torch.randperm(len(examples), generator=generator)[: 1 + index % 20]
        retain = examples.without(gone)
        released, bound = Minimiser().refine(problem, Forgotten(State(w)), retain, cap, {})
        true = float((released - converge(problem, w, retain, 1e-12)).norm())
        assert true <= bound <= cap
        worst = max(worst, true)
    assert worst > 1e-9, "some set uses its cap: the update is not simply the minimiser"
