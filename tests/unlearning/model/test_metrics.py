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
from unlearning.model.problem import Problem, metric_name
from unlearning.types import RecipeError

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


def test_ndcg_ranks_the_rows_of_each_query() -> None:
    """A model with one score a row, as rankers have: against scikit-learn, query by query; no order of rows counts."""
    queries = torch.arange(200) % 7
    gains = GAINS[:, 0]
    scores = draw(200, seed=4)
    expected = np.mean([ndcg_score(gains[queries == q][None], scores[queries == q][None]) for q in range(7)])
    shuffled = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    for order in (torch.arange(200), shuffled):
        found = METRICS["ndcg"](scores[order].unsqueeze(1), gains[order], queries[order])
        assert found == pytest.approx(expected, abs=1e-12)
    problem = Problem(ranker(metric="ndcg", holdout_groups=queries[:20]))
    assert problem.score(scores[:20], gains[:20]) == METRICS["ndcg"](scores[:20], gains[:20], queries[:20])
    own = Problem(ranker(metric=lambda outputs, targets, groups: float(groups.sum()), holdout_groups=queries[:20]))
    assert own.score(scores[:20], gains[:20]) == float(queries[:20].sum())


def ranker(**fields: Any) -> ul.Recipe:
    written = recipe(lambda: nn.Linear(4, 1), draw(20, 4), draw(20, 1), loss="squared_error", epochs=1)
    return replace(written, holdout=(draw(20, 4), draw(20, 1)), **fields)


@pytest.mark.parametrize(
    ("name", "outputs", "targets"),
    [
        ("ndcg", (200,), (200,)),
        ("ndcg", (200, 1), (200,)),
        ("ndcg", (200, 4), (200, 3)),
        ("ndcg", (200, 4), (200,)),
        ("accuracy", (200, 4), (200, 2, 2)),
        ("accuracy", (200, 4, 2), (200, 2)),
        ("accuracy", (200,), (200, 2)),
        ("auc", (200,), (200, 2)),
        ("r2", (200, 2), (200,)),
    ],
)
def test_what_a_metric_does_not_take_is_refused_with_its_shapes(
    name: str, outputs: tuple[int, ...], targets: tuple[int, ...]
) -> None:
    """A mistake of the recipe's, and no IndexError in a file of ours."""
    with pytest.raises(RecipeError, match=f"The metric {name} "):
        METRICS[name](torch.zeros(outputs), torch.zeros(targets))


@pytest.mark.parametrize("groups", [[0] * 20, torch.zeros(20), torch.zeros(19, dtype=torch.int64)])
def test_groups_are_a_whole_number_for_each_row_of_the_holdout(groups: Any) -> None:
    with pytest.raises(RecipeError, match="holdout_groups are"):
        ranker(metric="ndcg", holdout_groups=groups)
    with pytest.raises(RecipeError, match="takes no holdout_groups"):
        ranker(metric="r2", holdout_groups=torch.zeros(20, dtype=torch.int64))


def minus_loss(outputs: Tensor, targets: Tensor) -> float:
    return -float((outputs - targets.unsqueeze(1)).square().mean())


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
    assert metric_name(written) == expected


def test_a_callable_measures_and_an_unknown_name_is_refused() -> None:
    written = recipe(lambda: nn.Linear(4, 4), SCORES, LABELS)
    said = replace(written, metric=lambda outputs, targets: float(len(outputs) + len(targets)))
    assert Problem(said).accuracy(Problem(said).initial(), SCORES, LABELS) == 400.0
    assert metric_name(said) == "metric" and metric_name(replace(written, metric=minus_loss)) == "minus_loss"
    with pytest.raises(ul.RecipeError, match="'f1' is not known"):
        replace(written, metric="f1")


def test_a_policy_withholds_only_what_is_measured() -> None:
    policy = Policy.from_json({"method": "retrain", "max_accuracy_drop": 0.1})
    assert policy.withholds(0.9, 0.79) and not policy.withholds(0.9, 0.81)
    assert not policy.withholds(None, 0.1) and not policy.withholds(0.9, None)
    assert not Policy.from_json({"method": "retrain", "max_accuracy_drop": None}).withholds(0.9, 0.0)
