"""One method, forget set and seed: every figure of a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from expunge_lab.experiment.attacks import likelihood_ratio_auc, membership, relearn_epochs
from expunge_lab.experiment.metrics import CertifiedWeights, Row
from expunge_lab.experiment.replicas import noisy
from expunge_lab.experiment.rulers.loss_changes import pearson, spearman
from expunge_lab.experiment.rulers.quantise import quantised
from expunge_lab.experiment.rulers.streams import average_ranks, risk
from expunge_lab.experiment.rulers.unseen_people import Side, auc_by_folds, output_features, two_model_features
from expunge_lab.experiment.stage import Case, Stage
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.quality.distance_left import distance_left
from unlearning.types import Examples

UNTOUCHED, RETRAIN = "untouched", "retrain"
RANKED = ("retained_accuracy", "forgotten_accuracy", "test_accuracy", "mia_accuracy")
BEFORE = 500_000
"""added to the seed of the noise on the version before an update"""


@dataclass(frozen=True)
class Outcome:
    """One update to be measured. ``weights`` (d,) are the method's own, before certification."""

    name: str
    reference: str
    weights: Tensor
    certified: CertifiedWeights
    size: int
    method: Method | None = None
    prepare_seconds: float | None = None
    forget_seconds: float | None = None
    certify_seconds: float | None = None
    top1: float | None = None
    round: int = 1


@dataclass(frozen=True)
class _Seen:
    """What is looked at: the method's weights with and without noise, the retrained ones, and the forgotten samples."""

    stage: Stage
    case: Case
    outcome: Outcome
    gone: Examples
    shown: Tensor
    retrained: Tensor

    @property
    def problem(self) -> Problem:
        return self.stage.problem

    @property
    def noise_std(self) -> float:
        return self.outcome.certified.noise_std


def measured(stage: Stage, case: Case, outcome: Outcome) -> Row:
    """Measure an update. Each figure says in docs/measure.md what it counts and where it is from."""
    gone = stage.examples.only(torch.tensor(case.forget.positions))
    retrained, seconds = stage.retrained(outcome.reference, case.forget)
    shown = noised(replace(outcome.certified, weights=outcome.weights), stage.seed)
    seen = _Seen(stage, case, outcome, gone, shown, retrained)
    return Row(
        method=outcome.name,
        forget_fraction=case.fraction,
        seed=stage.seed,
        n=len(stage.examples),
        m=len(gone),
        reference=outcome.reference,
        round=outcome.round,
        difference_attack_top1=outcome.top1,
        prepare_seconds=outcome.prepare_seconds,
        forget_seconds=outcome.forget_seconds,
        certify_seconds=outcome.certify_seconds,
        retrain_seconds=seconds,
        state_bytes=outcome.size,
        claim=outcome.certified.claim,
        **_geometry(stage.learned.weights, outcome.weights, retrained),
        **_accuracies(seen),
        **_attacks(seen),
        **_by_people(seen),
        **_loss_changes(seen),
        **_replicated(seen),
    )


def ranked(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Return the rows with their average ranks, among the methods of the same share, seed and round.

    Rows are ranked where ``retrain`` was measured as well; it and the untouched model have no rank.
    """
    groups: dict[tuple[float, int, int], list[Row]] = {}
    for row in rows:
        groups.setdefault(_beside(row), []).append(row)
    ranks = {place: _ranks_in(group) for place, group in groups.items()}
    return tuple(replace(row, average_rank=ranks[_beside(row)].get(row.method)) for row in rows)


def noised(certified: CertifiedWeights, seed: int) -> Tensor:
    """Return the weights with the noise of an update, by a seed."""
    return noisy(certified.weights, certified.noise_std, seed)


def _beside(row: Row) -> tuple[float, int, int]:
    return row.forget_fraction, row.seed, row.round


def _ranks_in(rows: Sequence[Row]) -> dict[str, float]:
    whole = {row.method: [getattr(row, name) for name in RANKED] for row in rows if row.mia_accuracy is not None}
    retrained = whole.pop(RETRAIN, None)
    whole.pop(UNTOUCHED, None)
    return average_ranks(whole, retrained) if retrained is not None and whole else {}


def _geometry(untouched: Tensor, unlearned: Tensor, retrained: Tensor) -> dict[str, Any]:
    before, after = (retrained.double() - untouched.double()), (unlearned.double() - untouched.double())
    lengths = float(before.norm()) * float(after.norm())
    return {
        "distance_to_retrain": float((retrained.double() - unlearned.double()).norm()),
        "distance_untouched": float(before.norm()),
        "distance_left": distance_left(untouched, unlearned, retrained),
        "cosine": float(before.dot(after)) / lengths if lengths else math.nan,
    }


def _accuracies(seen: _Seen) -> dict[str, Any]:
    problem, shown, (x, y) = seen.problem, seen.shown, seen.stage.holdout
    found = {
        "retained_accuracy": _accuracy(problem, shown, seen.case.retain.inputs, seen.case.retain.targets),
        "forgotten_accuracy": _accuracy(problem, shown, seen.gone.inputs, seen.gone.targets),
        "test_accuracy": _accuracy(problem, shown, x, y),
        "published_accuracy": _accuracy(problem, noised(seen.outcome.certified, seen.stage.seed), x, y),
    }
    if seen.stage.label is None:
        return found
    here = y == seen.stage.label
    return found | {
        "class_accuracy": _accuracy(problem, shown, x[here], y[here]),
        "other_classes_accuracy": _accuracy(problem, shown, x[~here], y[~here]),
    }


def _attacks(seen: _Seen) -> dict[str, Any]:
    stage, problem = seen.stage, seen.problem
    shadow = seen.case.shadow
    sets = {"forgotten": seen.gone.inputs, "retained": seen.case.retain.inputs, "holdout": stage.holdout[0]}
    guess = membership(problem, seen.shown, stage.instruments.classifier, **sets, seed=stage.seed)
    rounded = quantised(problem, seen.shown)
    again = relearn_epochs(problem, seen.shown, stage.learned.weights, seen.gone, stage.plan.relearn_limit)
    return {
        "mia_accuracy": guess.accuracy,
        "mia_auc": guess.auc,
        "lira_auc": None if shadow is None else likelihood_ratio_auc(problem, seen.shown, shadow),
        "quantised_lira_auc": None if shadow is None else likelihood_ratio_auc(problem, rounded, shadow),
        "relearn_epochs": again,
    }


def _by_people(seen: _Seen) -> dict[str, Any]:
    """Run the attacks with labelled people, by folds: one version, two versions, and one version in 4 bits."""
    stage, problem = seen.stage, seen.problem
    before = noisy(stage.learned.weights, seen.noise_std, BEFORE + stage.seed)
    rounded = quantised(problem, seen.shown)

    def found(features: Callable[[Side], Tensor]) -> float | None:
        folds = [(features(mine), features(theirs)) for mine, theirs in seen.case.folds]
        return auc_by_folds(folds, stage.instruments.classifier)

    return {
        "unseen_auc": found(lambda side: output_features(problem, seen.shown, side)),
        "two_model_auc": found(lambda side: two_model_features(problem, before, seen.shown, side)),
        "quantised_unseen_auc": found(lambda side: output_features(problem, rounded, side)),
    }


def _loss_changes(seen: _Seen) -> dict[str, Any]:
    """Compare losses and class probabilities with the retrained model's, both without noise."""
    problem, (x, y) = seen.problem, (seen.gone.inputs, seen.gone.targets)
    with torch.no_grad():
        before, after, goal = (
            problem.sample_losses(w.to(problem.dtype), x, y).double()
            for w in (seen.stage.learned.weights, seen.outcome.weights, seen.retrained)
        )
    found: dict[str, Any] = {
        "loss_pearson": pearson(after - before, goal - before),
        "loss_spearman": spearman(after - before, goal - before),
    }
    if problem.recipe.loss == "cross_entropy":
        found["divergence"] = risk(_scores(seen, seen.case.retain.inputs), _scores(seen, x))
    return found


def _scores(seen: _Seen, x: Tensor) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        mine, goal = (seen.problem.outputs(w.to(seen.problem.dtype), x) for w in (seen.outcome.weights, seen.retrained))
    return goal, mine


def _replicated(seen: _Seen) -> Mapping[str, Any]:
    replicas, outcome = seen.case.replicas, seen.outcome
    if replicas is None:
        return {}
    return {
        "u_lira_accuracy": replicas.u_lira(outcome.method, seen.noise_std),
        "klom": replicas.klom(outcome.method, outcome.reference, seen.noise_std),
    }


def _accuracy(problem: Problem, w: Tensor, x: Tensor, y: Tensor) -> float | None:
    return problem.accuracy(w.to(problem.dtype), x, y)
