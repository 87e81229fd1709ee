"""No answer that is called independent differs from that of a retraining within the bound, under the same noise."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.contract import retraining
from tests.unlearning.recipes import draw, recipe
from unlearning.features import Tangent
from unlearning.quality import unaffected
from unlearning.quality.unaffected import DOUBLE, Answering, is_independent, reach
from unlearning.recipe import Recipe
from unlearning.types import Refused

X = torch.cat([draw(40, 4), torch.ones(40, 1, dtype=torch.float64)], dim=1)
Y = (X[:, :3] + 0.8 * draw(40, 3, seed=1)).argmax(dim=1)
ASKED = draw(300, 5, seed=9)


def tangent() -> nn.Module:
    torch.manual_seed(3)
    network = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    return Tangent(network, network.state_dict())


def small(kind: str) -> Recipe:
    settings: dict[str, Any] = {"epochs": 0, "weight_decay": 1e-2, "converge": 1e-9}
    if kind == "tangent":
        return recipe(tangent, X, Y, **settings)
    outputs, y = (1, Y % 2) if kind == "binary_logistic" else (3, Y)
    return recipe(lambda: nn.Linear(5, outputs), X, y, kind, **settings)


def filled(written: Recipe, w: Tensor) -> nn.Module:
    module = written.model().float()
    retraining.put([value for value in module.parameters() if value.requires_grad], w.float())
    return module


def labels_of(module: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        scores = module.double()(x)
    return (scores[:, 0] > 0).long() if scores.shape[1] == 1 else scores.argmax(dim=1)


def worst_direction(module: nn.Module, x: Tensor) -> Tensor:
    """The unit direction of the weights in which the answer's smallest margin falls fastest."""
    trained = [value for value in module.parameters() if value.requires_grad]
    scores = module(x.float().unsqueeze(0))[0]
    top = scores.topk(min(2, len(scores))).values
    margin = top[0].abs() if len(top) == 1 else top[0] - top[1]
    slope = retraining.flat(torch.autograd.grad(margin, trained)).double()
    return -slope / slope.norm()


KINDS = ("cross_entropy", "binary_logistic", "squared_hinge", "tangent")


@pytest.mark.parametrize("kind", KINDS)
def test_no_independent_answer_is_another_after_retraining_without_the_forgotten(kind: str) -> None:
    written, counts = small(kind), [0, 0]
    asked, attempts = (ASKED[:6], 8) if kind == "tangent" else (ASKED, 20)
    examples = written.samples.examples()
    for seed in range(6):
        gone = torch.randperm(40, generator=torch.Generator().manual_seed(seed))[: 1 + 4 * seed].sort().values
        retrained, _ = retraining.of(written, examples.without(gone))
        noise = 0.05 * draw(len(retrained), seed=seed)
        reference = labels_of(filled(written, retrained + noise), asked)
        for attempt in range(attempts):
            distance = 10.0 ** -(1 + attempt % 4)
            place = (37 * seed + attempt) % len(asked)
            toward = worst_direction(filled(written, retrained + noise), asked[place])
            published = filled(written, retrained + distance * toward + noise)
            found = Answering(published, distance)(asked)
            assert torch.equal(found.labels, labels_of(published, asked))
            assert torch.equal(found.labels[found.independent], reference[found.independent])
            counts[0] += int(found.independent.sum())
            counts[1] += int((~found.independent & (found.labels != reference)).sum())
    assert counts[0] > 6 * attempts * len(asked) / 2, "it calls hardly any answer independent"
    assert counts[1] > 0, "no answer changed, so that the test could not have failed"


@pytest.mark.parametrize("kind", KINDS)
def test_the_inequality_is_tight(kind: str) -> None:
    """A hundredth more distance than an answer stands for it is no longer independent, and really can be another."""
    written = small(kind)
    w, _ = retraining.of(written, written.samples.examples())
    published = filled(written, w)
    for place in range(5):
        one = ASKED[place : place + 1]
        low, high = 0.0, 100.0
        for _ in range(30):
            middle = (low + high) / 2
            stands = bool(Answering(published, middle)(one).independent)
            low, high = (middle, high) if stands else (low, middle)
        moved = filled(written, w + 1.01 * high * worst_direction(published, one[0]))
        assert not torch.equal(labels_of(moved, one), labels_of(filled(written, w), one))


def test_a_head_behind_fixed_features_answers_on_the_features() -> None:
    head = nn.Sequential(nn.Flatten(), nn.Linear(4, 3, bias=False))
    found = Answering(head, 1e-6)(torch.randn(6, 2, 2))
    assert found.labels.shape == found.independent.shape == (6,)


def test_a_tangent_answers_by_blocks_and_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Jacobian has as many numbers as outputs times weights: 2,000 inputs of a small network took 23 GB at once."""
    module, sizes, rows = tangent(), [], Tangent.rows

    def counted(self: Tangent, inputs: Tensor) -> tuple[Tensor, Tensor]:
        sizes.append(len(inputs))
        return rows(self, inputs)

    whole = Answering(module, 1e-3)(ASKED)
    monkeypatch.setattr(Tangent, "rows", counted)
    monkeypatch.setattr(unaffected, "ROWS", 7 * 3 * 39)
    blocks = Answering(module, 1e-3)(ASKED)
    assert sizes == [7] * 42 + [6]
    assert torch.equal(whole.labels, blocks.labels) and torch.equal(whole.independent, blocks.independent)
    assert 0 < int(whole.independent.sum()) < len(ASKED)


def test_the_reach_holds_the_distance_and_the_rounding_of_both_sides() -> None:
    assert reach(1e-5, 8.0) == pytest.approx(1e-5 + 2 * 8 / 2**24, rel=2e-6)
    assert reach(1e-5, 8.0, DOUBLE) == pytest.approx(1e-5, rel=2e-6)
    with pytest.raises(ValueError, match="max_distance"):
        reach(-1e-5, 1.0)


def test_numbers_that_are_none_are_never_independent() -> None:
    assert is_independent([1.0, 2.0], [1.0, 1.0], 0.5, 0.1)
    assert not is_independent([1.0, 0.55], [1.0, 1.0], 0.5, 0.1)
    for margin in (math.nan, math.inf):
        assert not is_independent([margin], [1.0], 0.5, 0.1)
    assert not is_independent([1.0], [math.nan], 0.5, 0.1)
    with pytest.raises(ValueError, match="shorter"):
        is_independent([1.0, 2.0], [1.0], 0.5, 0.1)


@pytest.mark.parametrize(
    "module", [nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)), nn.Linear(3, 2).to(torch.bfloat16)]
)
def test_other_models_are_refused(module: nn.Module) -> None:
    with pytest.raises(Refused):
        Answering(module, 1e-5)
