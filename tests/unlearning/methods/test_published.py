"""One line loads a published file and serves it: one model, or several that answer as one, as 0.2.0 published them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import unlearning as ul
from tests.unlearning.trained_here import network, samples
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.served import Ensemble

ROOT = Path(__file__).parents[3]
SCRIPT = """
import json, sys, torch, safetensors.torch, unlearning
from tests.unlearning.trained_here import network, samples
torch.load = None
model = unlearning.published(network(samples()), safetensors.torch.load_file(sys.argv[1]))
print(json.dumps(model(samples().inputs).tolist()))
"""
X = samples().inputs


def members(count: int) -> list[nn.Module]:
    """Return networks that were trained from different seeds."""
    made = []
    for seed in range(count):
        torch.manual_seed(seed)
        module = network(samples()).model()
        with torch.no_grad():
            for value in module.parameters():
                value.add_(torch.randn_like(value))
        made.append(module.eval())
    return made


def sharded(count: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return a file of 0.2.0 with so many members, and what they answer: the mean of their probabilities."""
    made = members(count)
    tensors = {
        f"members.{place}.{name}": value for place, each in enumerate(made) for name, value in each.state_dict().items()
    }
    with torch.no_grad():
        return tensors, torch.stack([each(X).softmax(dim=1) for each in made]).mean(dim=0).log()


def stacked(count: int) -> tuple[dict[str, Tensor], Tensor]:
    """Return such a file with a head, which weighs the log-probabilities of the members."""
    tensors, _ = sharded(count)
    weight, bias = torch.randn(3, 3 * count), torch.randn(3)
    with torch.no_grad():
        given = torch.cat([each(X).log_softmax(dim=1) for each in members(count)], dim=1)
    return {**tensors, "head.weight": weight, "head.bias": bias}, given @ weight.T + bias


def alone(_: int) -> tuple[dict[str, Tensor], Tensor]:
    recipe = network(samples())
    problem = Problem(recipe)
    w = train(problem, recipe.samples.examples()).weights
    with torch.no_grad():
        return problem.tensors(w), problem.outputs(w, X)


def test_one_line_loads_and_serves_a_sharded_model_in_another_process(tmp_path: Path) -> None:
    tensors, expected = sharded(3)
    save_file(tensors, tmp_path / "version.safetensors")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "version.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert torch.allclose(torch.tensor(json.loads(done.stdout)), expected, atol=1e-6)


@pytest.mark.parametrize("version", [alone, sharded, stacked])
def test_what_is_loaded_answers_as_the_service_measured(version: object) -> None:
    assert callable(version)
    tensors, expected = version(2)
    recipe = network(samples())
    for model in (recipe, recipe.model):
        module = ul.published(model, tensors)
        assert not module.training and torch.allclose(module(X), expected, atol=1e-5)


def test_an_ensemble_of_one_score_averages_probabilities_too() -> None:
    ensemble = Ensemble([nn.Linear(2, 1) for _ in range(4)], "binary_logistic")
    x = torch.randn(5, 2)
    mean = torch.stack([member(x).sigmoid() for member in ensemble.members]).mean(dim=0)
    assert torch.allclose(ensemble(x).sigmoid(), mean, atol=1e-6)
    outputs = Ensemble(ensemble.members, "squared_error")(x)
    assert torch.allclose(outputs, torch.stack([member(x) for member in ensemble.members]).mean(dim=0))


def test_a_file_of_another_model_is_refused() -> None:
    tensors, _ = sharded(2)
    with pytest.raises(RuntimeError, match="Missing key"):
        ul.published(lambda: torch.nn.Linear(4, 2), tensors)
    with pytest.raises(RuntimeError, match="Missing key"):
        ul.published(network(samples()).model, {"weight": torch.zeros(2, 4)})
