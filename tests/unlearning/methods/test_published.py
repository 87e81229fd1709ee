"""One line loads a published file and serves it, whatever the method."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import unlearning as ul
from tests.unlearning.model.test_own_training import prepared
from tests.workers.recipes import own_training
from unlearning.methods.late import Late
from unlearning.methods.shards import Shards
from unlearning.model.method import Method

ROOT = Path(__file__).parents[3]
SCRIPT = """
import json, sys, torch, safetensors.torch, unlearning
from tests.workers.recipes.own_training import recipe
torch.load = None
model = unlearning.published(recipe(), safetensors.torch.load_file(sys.argv[1]))
print(json.dumps(model(recipe().holdout[0]).tolist()))
"""


def test_one_line_loads_and_serves_a_sharded_model_in_another_process(tmp_path: Path) -> None:
    tensors, expected = version(Shards(shards=3, slices=2))
    save_file(tensors, tmp_path / "version.safetensors")
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "version.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert torch.allclose(torch.tensor(json.loads(done.stdout)), expected, atol=1e-6)


@pytest.mark.parametrize("method", [Late(), Shards(shards=2, slices=1), Shards(shards=2, slices=1, stacked=0.5)])
def test_what_is_loaded_answers_as_the_service_measured(method: Method) -> None:
    tensors, expected = version(method)
    inputs, _ = own_training.recipe().holdout
    for model in (own_training.recipe(), own_training.build):
        module = ul.published(model, tensors)
        assert not module.training and torch.allclose(module(inputs), expected, atol=1e-6)


def test_a_file_of_another_model_is_refused() -> None:
    tensors, _ = version(Shards(shards=2, slices=1))
    with pytest.raises(RuntimeError, match="Missing key"):
        ul.published(lambda: torch.nn.Linear(4, 2), tensors)
    with pytest.raises(RuntimeError, match="Missing key"):
        ul.published(own_training.build, {"weight": torch.zeros(2, 4)})


def version(method: Method) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return what the method publishes, and what it answers on the holdout."""
    recipe = own_training.recipe()
    problem, state = prepared(method, recipe, recipe.samples.examples())
    tensors = {name: value.clone() for name, value in problem.views(state.weights).items()}
    with torch.no_grad():
        return tensors, problem.outputs(state.weights, recipe.holdout[0])
