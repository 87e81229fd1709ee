"""What an evaluation measures, and with what: instruments, the plan, the row, the spread over seeds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, TypeAlias

from torch import Tensor

from expunge_lab.experiment.attacks import Classifier
from unlearning.model.problem import Problem
from unlearning.types import Examples, ForgetSet, Forgotten, Json, Progress, silent


@dataclass(frozen=True)
class CertifiedWeights:
    """An update as certified: w~ (d,), the noise it is published with, and the claim as JSON."""

    weights: Tensor
    noise_std: float = 0.0
    claim: Mapping[str, Any] = field(default_factory=lambda: {"guarantee": "none"})


Certify: TypeAlias = "Callable[..., CertifiedWeights]"
"""Turns a method's result into an update, called as ``uncertified`` is. Raises Refused where the required guarantee
cannot be had. ``forget`` is who this update forgets, ``updates`` the number of updates before it."""


def uncertified(
    problem: Problem,  # noqa: ARG001  (the signature of Certify)
    method: str,  # noqa: ARG001
    forgotten: Forgotten,
    *,
    forget: ForgetSet,  # noqa: ARG001
    retain: Examples,  # noqa: ARG001
    updates: int,  # noqa: ARG001
) -> CertifiedWeights:
    """Return the update without claim and noise: y is w~."""
    return CertifiedWeights(forgotten.state.weights)


@dataclass(frozen=True)
class Instruments:
    """What measuring needs from outside: a clock in seconds, and the classifier of the membership attack."""

    clock: Callable[[], float]
    classifier: Classifier
    certify: Certify = uncertified
    progress: Progress = silent
    trained: Callable[[float], None] = silent
    """called once, with the seconds that the first training took"""


@dataclass(frozen=True)
class Plan:
    """What is measured.

    ``fractions`` of all samples are forgotten (whole people, drawn at random, until the fraction is reached).
    ``shadows`` models are trained for the likelihood-ratio attack (even; 0: left out); ``trials`` single people are
    deleted for the difference attack, each among ``candidates`` (0 trials: left out). ``u_lira`` models (even, at least
    8) are trained and unlearned for U-LiRA, and ``klom`` (at least 3) for KLoM, with as many that are retrained; 0:
    left out.
    """

    fractions: tuple[float, ...] = (0.05,)
    seeds: tuple[int, ...] = (0, 1, 2)
    reference: str = "renormalised"
    shadows: int = 16
    trials: int = 10
    candidates: int = 100
    relearn_limit: int = 100
    u_lira: int = 0
    klom: int = 0

    def __post_init__(self) -> None:
        if self.u_lira and (self.u_lira < 8 or self.u_lira % 2):
            raise ValueError(f"u_lira is {self.u_lira}. Use an even number of at least 8, or 0 to leave it out.")
        if self.klom and self.klom < 3:
            raise ValueError(f"klom is {self.klom}. Use at least 3 models of each kind, or 0 to leave it out.")
        if not self.fractions or not all(0.0 < fraction < 1.0 for fraction in self.fractions):
            raise ValueError(f"fractions is {self.fractions}. Each must lie between 0 and 1.")
        if not self.seeds:
            raise ValueError("seeds is empty. Give at least one.")

    def trainings(self, rounds: int = 0) -> int:
        """Count the trainings that this plan needs, without what the methods do themselves.

        ``rounds`` are those of a stream; 0: there is none.
        """
        if rounds:
            return len(self.seeds) * (1 + rounds)
        each_share = 1 + self.shadows + self.u_lira + self.klom
        return len(self.seeds) * (1 + self.klom + len(self.fractions) * each_share)


@dataclass(frozen=True)
class Row:
    """One method, forget set and seed. None: not measured (left out, or the method refused: see ``refused``).

    n samples before, m forgotten. ``cosine`` is between the method's step and the retraining's. ``round`` counts
    the updates of a stream from 1. ``published_accuracy`` is the holdout accuracy of what an update would publish.
    The other fields are described, with their sources, in docs/measure.md.
    """

    method: str
    forget_fraction: float
    seed: int
    n: int
    m: int
    reference: str
    round: int = 1
    distance_to_retrain: float | None = None
    distance_untouched: float | None = None
    distance_left: float | None = None
    cosine: float | None = None
    retained_accuracy: float | None = None
    forgotten_accuracy: float | None = None
    test_accuracy: float | None = None
    published_accuracy: float | None = None
    mia_accuracy: float | None = None
    mia_auc: float | None = None
    lira_auc: float | None = None
    loss_pearson: float | None = None
    loss_spearman: float | None = None
    unseen_auc: float | None = None
    two_model_auc: float | None = None
    quantised_unseen_auc: float | None = None
    quantised_lira_auc: float | None = None
    u_lira_accuracy: float | None = None
    klom: float | None = None
    average_rank: float | None = None
    divergence: float | None = None
    dynamic_regret: float | None = None
    class_accuracy: float | None = None
    other_classes_accuracy: float | None = None
    relearn_epochs: int | None = None
    difference_attack_top1: float | None = None
    prepare_seconds: float | None = None
    forget_seconds: float | None = None
    certify_seconds: float | None = None
    retrain_seconds: float | None = None
    state_bytes: int | None = None
    claim: Mapping[str, Any] = field(default_factory=dict)
    refused: str | None = None

    def to_json(self) -> dict[str, Json]:
        """Return plain JSON values; infinities and NaN become None."""
        return {name: _plain(value) for name, value in asdict(self).items()}


def spread(rows: Sequence[Row], name: str) -> dict[tuple[str, float, int], tuple[float, float]]:
    """Return mean and standard deviation over seeds of the field ``name``, by (method, fraction, round).

    Rows without the field are left out; the deviation of one seed is 0.
    """
    if name not in {each.name for each in fields(Row)}:
        raise ValueError(f"A row has no field {name!r}.")
    groups: dict[tuple[str, float, int], list[float]] = {}
    for row in rows:
        value = getattr(row, name)
        if value is not None and math.isfinite(value):
            groups.setdefault((row.method, row.forget_fraction, row.round), []).append(float(value))
    return {key: _spread_of(values) for key, values in groups.items()}


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _spread_of(values: Sequence[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    squares = sum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (len(values) - 1)) if len(values) > 1 else 0.0
