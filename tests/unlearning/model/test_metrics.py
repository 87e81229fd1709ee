"""What a holdout is measured by, against scikit-learn; and what is not measured."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, ndcg_score, r2_score, roc_auc_score
from torch import Tensor, nn
from torch.nn import functional as F

import unlearning as ul
from tests.unlearning.recipes import draw, recipe
from unlearning.accounting.policy import Policy
from unlearning.model.metrics import METRICS
from unlearning.model.problem import Problem

SCORES, LABELS = draw(200, 4), torch.arange(200) % 4
TIED = (3 * draw(200, seed=1)).round() / 3
GAINS = torch.from_numpy(np.random.default_rng(2).integers(0, 4, size=(200, 4))).double()
CASES: list[tuple[str, Tensor, Tensor, float]] = [
    ("accuracy", SCORES, LABELS, accuracy_score(LABELS, SCORES.argmax(dim=1))),
    ("accuracy", SCORES, F.one_hot(LABELS), accuracy_score(LABELS, SCORES.argmax(dim=1))),
    ("accuracy", TIED, (LABELS > 1).double(), accuracy_score(LABELS > 1, TIED > 0)),
    ("r2", SCORES, GAINS, r2_score(GAINS.reshape(-1), SCORES.reshape(-1))),
    ("auc", TIED, LABELS % 2, roc_auc_score(LABELS % 2, TIED)),
    ("auc", SCORES[:, :1], 2.0 * (LABELS % 2) - 1, roc_auc_score(LABELS % 2, SCORES[:, 0])),
    ("auc", SCORES[:, :2], LABELS % 2, roc_auc_score(LABELS % 2, SCORES[:, 1] - SCORES[:, 0])),
    ("ndcg", SCORES, GAINS, ndcg_score(GAINS[GAINS.any(dim=1)], SCORES[GAINS.any(dim=1)])),  # without a gain: no row
    ("ndcg", SCORES, LABELS, ndcg_score(F.one_hot(LABELS), SCORES)),
]


@pytest.mark.parametrize(("name", "outputs", "targets", "expected"), CASES)
def test_a_metric_is_what_scikit_learn_computes(name: str, outputs: Tensor, targets: Tensor, expected: float) -> None:
    assert METRICS[name](outputs, targets) == pytest.approx(expected, abs=1e-12)


def test_what_has_no_answer_is_not_measured() -> None:
    assert METRICS["auc"](TIED, torch.ones(200)) is None
    assert METRICS["ndcg"](SCORES, torch.zeros(200, 4)) is None
    partly = torch.cat([GAINS[:3], torch.zeros(5, 4).double()])
    assert METRICS["ndcg"](SCORES[:8], partly) == pytest.approx(ndcg_score(GAINS[:3], SCORES[:3]))


def contrastive(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets.unsqueeze(1)).square().sum(dim=1)


@pytest.mark.parametrize(
    ("loss", "outputs", "metric", "expected"),
    [
        ("cross_entropy", 4, None, "accuracy"),
        ("binary_logistic", 1, None, "accuracy"),
        ("squared_error", 1, None, "r2"),
        ("squared_hinge", 4, None, "accuracy"),
        ("cross_entropy", 4, "ndcg", "ndcg"),
        ("binary_logistic", 1, "auc", "auc"),
        (contrastive, 4, None, None),
        (contrastive, 4, "accuracy", "accuracy"),
    ],
)
def test_the_loss_says_what_is_usual_and_the_recipe_what_is_meant(
    loss: Any, outputs: int, metric: str | None, expected: str | None
) -> None:
    labels = LABELS % 2 if outputs == 1 else LABELS
    labels = labels.double().unsqueeze(1) if loss == "squared_error" else labels
    written = replace(recipe(lambda: nn.Linear(4, outputs), SCORES, labels, loss), metric=metric)
    problem = Problem(written).double()
    w = problem.initial().double()
    found = problem.accuracy(w, SCORES, labels)
    assert found == (None if expected is None else METRICS[expected](problem.outputs(w, SCORES), labels))


def test_a_callable_measures_and_an_unknown_name_is_refused() -> None:
    written = recipe(lambda: nn.Linear(4, 4), SCORES, LABELS)
    said = replace(written, metric=lambda outputs, targets: float(len(outputs) + len(targets)))
    assert Problem(said).accuracy(Problem(said).initial(), SCORES, LABELS) == 400.0
    with pytest.raises(ul.RecipeError, match="'f1' is not known"):
        replace(written, metric="f1")


def test_a_policy_withholds_only_what_is_measured() -> None:
    policy = Policy.from_json({"method": "retrain", "max_accuracy_drop": 0.1})
    assert policy.withholds(0.9, 0.79) and not policy.withholds(0.9, 0.81)
    assert not policy.withholds(None, 0.1) and not policy.withholds(0.9, None)
    assert not Policy.from_json({"method": "retrain", "max_accuracy_drop": None}).withholds(0.9, 0.0)
