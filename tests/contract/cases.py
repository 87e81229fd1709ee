"""What each method is tested with. A method that is not named in ``CASES`` is tested with ``DEFAULT``.

To state a recipe, hyperparameters or an accuracy for a method, add its cases here; the suite in
``test_contract.py`` needs no change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

import unlearning as ul
from tests.unlearning.trained_here import TrainedHere, by_settings, in_files
from unlearning.methods import NAMES, load
from unlearning.methods.recollection import vectors
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.types import Examples, ForgetSet, Need

vectors.SPECTRUM_POINTS = 2
"""a report measures the curvature at five steps of a training: most of what the preparation of a small model takes"""
PEOPLE = tuple(f"person-{letter}" for letter in "abcdefghijkl")


def _samples(targets: Callable[[torch.Tensor], torch.Tensor], width: int = 6) -> ul.Samples:
    """60 samples of 12 people: random inputs with a constant last feature."""
    generator = torch.Generator().manual_seed(11)
    x = torch.randn(60, width, generator=generator)
    x[:, -1] = 1.0
    subjects = [PEOPLE[index % len(PEOPLE)] for index in range(60)]
    return ul.Samples([f"sample-{index}" for index in range(60)], subjects, x, targets(x))


def _linear(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(12)
    truth = torch.randn(x.shape[1], 2, generator=generator)
    return x @ truth + 0.3 * torch.randn(len(x), 2, generator=generator)


def _classes(x: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(13)
    return (x[:, :3] + 0.5 * torch.randn(len(x), 3, generator=generator)).argmax(dim=1)


def quadratic(**training: Any) -> ul.Recipe:
    """Least squares by full-batch gradient descent: the objective is a quadratic."""
    settings = {"epochs": 40, "learning_rate": 0.2, "weight_decay": 1e-2, **training}
    samples = _samples(_linear)
    return ul.Recipe(
        model=lambda: nn.Linear(6, 2, bias=False),
        samples=samples,
        holdout=samples.tensors(),
        loss="squared_error",
        training=ul.Training(**settings),
    )


def network(**training: Any) -> ul.Recipe:
    """A small tanh network under cross entropy, shuffled batches that are clipped now and then."""
    settings = {"epochs": 5, "batch_size": 16, "learning_rate": 0.2, "weight_decay": 1e-2, "clip": 0.5, **training}
    samples = _samples(_classes)
    return ul.Recipe(
        model=lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3)),
        samples=samples,
        holdout=samples.tensors(),
        loss="cross_entropy",
        training=ul.Training(**settings),
    )


def convolution(**training: Any) -> ul.Recipe:
    """Return ``network`` with a convolution, which takes no batch of no sample."""
    written = network(**training)

    def model() -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (1, 6)), nn.Conv1d(1, 2, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3))

    return replace(written, model=model)


def softmax(**training: Any) -> ul.Recipe:
    """Softmax regression, every coordinate decayed."""
    settings = {"epochs": 30, "learning_rate": 0.5, "weight_decay": 1e-2, **training}
    samples = _samples(_classes)
    return ul.Recipe(
        model=lambda: nn.Linear(6, 3, bias=False),
        samples=samples,
        holdout=samples.tensors(),
        loss="cross_entropy",
        training=ul.Training(**settings),
    )


def jitter(x: torch.Tensor, draw: Any) -> torch.Tensor:
    """Move each number by up to .05, and turn the sign of the first feature of half the samples."""
    moved = x + 0.1 * (draw(x.shape[1]) - 0.5)
    moved[:, 0] *= torch.where(draw(1)[:, 0] < 0.5, -1.0, 1.0)
    return moved


def everything(**training: Any) -> ul.Recipe:
    """Return a network with all that the built-in training knows: AdamW, warm-up, cosine, dropout, augmentation, batch
    normalisation, accumulation, clipping."""
    settings = {
        "epochs": 5,
        "batch_size": 8,
        "accumulate": 2,
        "learning_rate": 0.02,
        "weight_decay": 1e-2,
        "clip": 1.0,
        "undecayed": ("0.bias",),
        "optimizer": ul.AdamW(),
        "schedule": ul.Schedule("cosine", warmup=0.2),
        "augment": jitter,
        **training,
    }
    samples = _samples(_classes)
    return ul.Recipe(
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)),
        samples=samples,
        holdout=samples.tensors(),
        loss="cross_entropy",
        training=ul.Training(**settings),
    )


def scheduled(**training: Any) -> ul.Recipe:
    """Train ``quadratic`` by steps that warm up, fall along a cosine, and each average over two half batches."""
    settings = {"schedule": ul.Schedule("cosine", warmup=5), "batch_size": 30, "accumulate": 2, **training}
    return quadratic(**settings)


@dataclass(frozen=True)
class Case:
    """One setting in which a method must keep the contract.

    ``near``: forgetting two of the twelve people leaves at most this share of the distance to same-order retraining by
    ``reference``; None where the method claims no such thing, and of an exact one, which draws batches anew
    (``tests/workers/rows/test_exact.py``). ``remembers``: names (prefixes) of state tensors in
    which the method declares to keep forgotten samples. ``parts``: the method works on the parts of a training, which
    are made in this process as worlds make them in the service. ``drill``: another case of the method shows the same,
    or a unit test does; ``make test`` leaves this one out.
    """

    method: str
    label: str
    recipe: Callable[[], ul.Recipe]
    options: Mapping[str, Any] = field(default_factory=dict)
    near: float | None = 0.9
    reference: str = "renormalised"
    remembers: tuple[str, ...] = ()
    parts: bool = False
    drill: bool = False

    def build(self) -> Method:
        built: Method = load(self.method)(**self.options)
        return built

    def problem(self, recipe: ul.Recipe, device: torch.device | str, dtype: torch.dtype = torch.float32) -> Problem:
        if not self.parts:
            return Problem(self.build().recipe(recipe), device, dtype)
        problem = Problem(self.build().recipe(in_files(recipe)), device)
        problem.fresh = TrainedHere(recipe, by_settings(recipe))
        return problem

    def forget_set(self, examples: Examples, people: tuple[str, ...]) -> ForgetSet:
        """The forget set of ``people``, with their samples only where the method needs them."""
        chosen = [place for place, person in enumerate(examples.people) if person in people]
        positions = examples.positions[chosen]
        given = examples.only(positions) if Need.FORGOTTEN in self.build().needs else None
        return ForgetSet(frozenset(people), tuple(positions.tolist()), given)

    def retain_set(self, examples: Examples, forget: ForgetSet) -> Examples | None:
        """Everyone else, where the method needs them."""
        if Need.RETAINED not in self.build().needs:
            return None
        return examples.without(torch.tensor(forget.positions, dtype=torch.int64))


DEFAULT = Case(method="", label="quadratic", recipe=quadratic)

CASES: dict[str, tuple[Case, ...]] = {
    "retrain": (
        Case("retrain", "quadratic", quadratic, near=1e-6),
        Case("retrain", "network", network, near=None, drill=True),
        Case("retrain", "everything", everything, near=None),
        Case("retrain", "converged", lambda: softmax(converge=1e-10), near=1e-6),
    ),
    "late": (
        Case("late", "network", network, near=None, parts=True),
        Case(
            "late",
            "three-phases",
            network,
            {"early_share": (0.5, 0.8), "phase_shares": (0.6, 0.2, 0.2)},
            near=None,
            parts=True,
        ),
    ),
    "shards": (
        Case("shards", "network", network, {"shards": 3}, near=None, parts=True, drill=True),
        Case("shards", "quadratic", quadratic, {"shards": 2}, near=None, parts=True),
    ),
    "recollection": (
        Case("recollection", "quadratic", quadratic, near=0.4, reference="fixed-denominator"),
        Case("recollection", "network", network, near=0.6, reference="fixed-denominator"),
        Case("recollection", "convolution", convolution, near=0.6, reference="fixed-denominator"),
        Case("recollection", "scheduled", scheduled, near=0.5, reference="fixed-denominator", drill=True),
        Case(
            "recollection",
            "gauss-newton",
            network,
            {"curvature": "gauss-newton"},
            near=0.7,
            reference="fixed-denominator",
            drill=True,
        ),
        Case(
            "recollection",
            "repaired",
            quadratic,
            {"repair_epochs": 2},
            near=0.5,
            reference="fixed-denominator",
        ),
        Case("recollection", "converged", lambda: softmax(converge=1e-10), near=0.4),
        Case(
            "recollection",
            "converged-fixed-denominator",
            lambda: softmax(converge=1e-10),
            {"reference": "fixed-denominator"},
            near=0.4,
            reference="fixed-denominator",
            drill=True,
        ),
    ),
    "recollection_sketch": (
        Case(
            "recollection_sketch",
            "of-full-rank",
            quadratic,
            {"rank": 12, "probes": 8, "tolerance": 2.0, "stability": 20.0, "probe_seed": 7},
            near=0.4,
            reference="fixed-denominator",
        ),
        Case(
            "recollection_sketch",
            "of-a-network",
            network,
            {"rank": 10, "probes": 8, "tolerance": 2.0, "probe_seed": 7},
            near=0.6,
            reference="fixed-denominator",
            drill=True,
        ),
    ),
    "rewind": (
        Case("rewind", "quadratic", quadratic),
        Case("rewind", "network", network),
        Case("rewind", "all-of-it", network, {"fraction": 1.0}, near=1e-6),
        Case("rewind", "everything", everything, {"fraction": 0.7}, near=1.0),
        Case("rewind", "all-of-everything", everything, {"fraction": 1.0}, near=1e-12, drill=True),
        Case("rewind", "scheduled", scheduled, {"fraction": 1.0}, near=1e-6, drill=True),
        Case("rewind", "scheduled-proximal", scheduled, {"source": "proximal"}, drill=True),
        Case("rewind", "proximal", quadratic, {"source": "proximal"}),
        Case(
            "rewind",
            "fixed-denominator",
            network,
            {"reference": "fixed-denominator"},
            reference="fixed-denominator",
        ),
    ),
    "safe": (
        Case("safe", "softmax", softmax, near=None),
        Case("safe", "network", network, near=None),
        Case("safe", "keep", softmax, {"mode": "keep"}, near=None, remembers=("kept",)),
        Case("safe", "projected", network, {"features": 2}, near=None),
    ),
    "newton": (
        Case("newton", "quadratic", quadratic, near=0.3),
        Case("newton", "momentum", lambda: quadratic(optimizer=ul.SGD(0.5), epochs=80), near=0.3, drill=True),
        Case("newton", "converged", lambda: softmax(converge=1e-10), near=0.3),
        Case("newton", "network", network, {"damping": 1.0}, near=None),
        Case(
            "newton",
            "lissa",
            quadratic,
            {"solver": "lissa", "damping": 0.1, "lissa_batch": 20, "lissa_depth": 200},
            near=0.9,
        ),
    ),
    "cns": (
        Case("cns", "network", network, {"damping": 0.5}, near=None),
        Case("cns", "quadratic", quadratic, {"rank": 12}, near=0.6),
        Case("cns", "everything", everything, near=None),
        Case("cns", "converged", lambda: softmax(converge=1e-10), {"rank": 18}, near=0.5),
    ),
    "mini": (
        Case("mini", "quadratic", quadratic, {"steps": 40}, near=1e-9),
        Case("mini", "scheduled", scheduled, {"steps": 40}, near=1e-9, drill=True),
        Case("mini", "network", network, {"steps": 20}, near=0.4),
        Case(
            "mini",
            "fixed-denominator",
            quadratic,
            {"steps": 40, "reference": "fixed-denominator"},
            near=1e-9,
            reference="fixed-denominator",
        ),
        Case("mini", "secant", softmax, {"products": "secant", "steps": 15}, near=0.7),
    ),
}


def all_cases() -> list[Case]:
    """Every method's cases, so that a method is tested by existing."""
    return [case for name in NAMES for case in CASES.get(name, (replace(DEFAULT, method=name),))]
