"""What a world says of a recipe's samples, and what a judge keeps from one order to the next."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import pytest
import torch
from safetensors.torch import save

import unlearning as ul
from expunge_workers.runtime.model_tasks import FEATURES, OBJECTIVE, TARGETS, WEIGHTS, Judge, _contents
from expunge_workers.runtime.world_model import WorldModel
from unlearning.types import Refused

IDS = ["one", "zw\u00f6lf", "three"]
HEAD: dict[str, Any] = {
    "features": 2,
    "bias": False,
    "outputs": 2,
    "tangent": False,
    "drawn": False,
    "loss": "cross_entropy",
    "undecayed": [],
    "weight_decay": 0.1,
    "seed": 0,
    "converge": 1e-8,
    "sample_clip": None,
    "radius": None,
    "steps": None,
}


@pytest.mark.parametrize("weight", [None, torch.tensor([1.0, 2.0, 0.0])])
@pytest.mark.parametrize("inputs", [torch.randn(3, 2, 4), torch.arange(3), torch.ones(3, 1, dtype=torch.bool)])
def test_a_sample_s_digest_is_of_its_id_its_input_its_target_and_its_weight(
    inputs: torch.Tensor, weight: torch.Tensor | None
) -> None:
    samples = ul.Samples(IDS, IDS, inputs, torch.tensor([0, 1, 0]), weight=weight)
    recipe = ul.Recipe(torch.nn.Flatten, samples, (inputs, torch.zeros(3)), "cross_entropy", ul.Training(epochs=1))
    x, y = samples.tensors()
    kind = f"{x.dtype} {tuple(x.shape[1:])} {y.dtype} {tuple(y.shape[1:])} ".encode()
    each = [kind + x[row].numpy().tobytes() + y[row].numpy().tobytes() + IDS[row].encode() for row in range(3)]
    assert [row.numpy().tobytes() for row in _contents(recipe)] == [hashlib.sha256(row).digest() for row in each]


def test_a_judge_keeps_the_features_that_it_was_handed_last() -> None:
    objectives = [
        save({FEATURES: torch.randn(6, 2).double() * size, TARGETS: torch.tensor([0, 1] * 3)}) for size in (1, 2)
    ]
    words = {"head": HEAD, "metric": "accuracy", "task": "train", "device": "cpu", "guarantee": "none", "cold": True}
    words |= {"holders": ["all"], "method": {"name": "newton", "options": {}}}
    numbers = torch.arange(6)
    examples = memoryview(
        save({"numbers": numbers, "positions": numbers.clone(), "holders": torch.zeros_like(numbers)})
    )
    judge = Judge()
    with pytest.raises(ValueError, match="brings no features"):
        judge({"examples": examples}, words)
    answers = []
    for objective in objectives:
        files = {"examples": examples, OBJECTIVE: memoryview(objective)}
        _, brought = judge(files, words)
        _, kept = judge({"examples": examples}, words)
        assert torch.equal(brought["learned"], kept["learned"])
        assert torch.equal(brought["learned"], Judge()(files, words)[1]["learned"])
        answers.append(brought["learned"])
    assert not torch.equal(*answers) and WEIGHTS not in brought
    wrong = save({FEATURES: torch.randn(5, 2).double(), TARGETS: torch.tensor([0, 1] * 3)})
    with pytest.raises(ul.RecipeError):
        judge({"examples": examples, OBJECTIVE: memoryview(wrong)}, words)
    with pytest.raises(ValueError, match="brings no features"):
        judge({"examples": examples}, words)


def test_a_judge_that_failed_is_handed_the_features_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have kept none; after an answer it has them."""
    model, handed = WorldModel.__new__(WorldModel), list[bool]()
    features = {FEATURES: torch.ones(1, 2)}
    model.__dict__ |= {"_head": HEAD, "_metric": None, "_objective": features, "_judge": None, "_world": None}

    def ask(
        _model: WorldModel, _judge: object, _task: str, _words: object, files: Mapping[str, Any]
    ) -> tuple[Any, Any]:
        handed.append(OBJECTIVE in files)
        if len(handed) in (1, 4):
            raise (Refused("no", "no") if len(handed) == 1 else MemoryError)
        return {}, {}

    monkeypatch.setattr(WorldModel, "_ask", ask)
    for _ in range(6):
        with suppress(Refused, MemoryError):
            model._compute("measure", {"guarantee": "none"}, {})
    assert handed == [True, True, False, False, True, False]
