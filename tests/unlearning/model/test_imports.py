"""Weights that were trained elsewhere bring the running statistics, and everything else that no training moves."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from unlearning.model.imports import load_constants
from unlearning.types import RecipeError


def model() -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2))


def weights() -> dict[str, torch.Tensor]:
    made = model()
    made(torch.tensor([[1.0, 5.0], [3.0, 9.0]]))
    return {name: value.clone() for name, value in made.state_dict().items()}


def test_running_statistics_come_along_and_trained_parameters_stay() -> None:
    given, taken = weights(), model()
    before = taken[1].weight.detach().clone()
    load_constants(taken, given)
    assert torch.equal(taken.state_dict()["0.running_mean"], torch.tensor([0.2, 0.7]))
    assert torch.equal(taken[1].weight, before) and not torch.equal(before, given["1.weight"])


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("0.running_var", None, "lack '0.running_var'"),
        ("2.weight", torch.zeros(3), "name '2.weight'"),
        ("0.running_mean", torch.zeros(3), r"has shape \(3,\); the model's has \(2,\)"),
    ],
)
def test_weights_that_are_not_the_whole_model_are_refused(name: str, value: torch.Tensor | None, says: str) -> None:
    given = weights() | ({} if value is None else {name: value})
    if value is None:
        del given[name]
    with pytest.raises(RecipeError, match=says):
        load_constants(model(), given)
