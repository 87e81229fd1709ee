"""Hessian-free recollection (HF, arXiv 2404.01712): one vector per holder; forgetting is one addition.

Three forms; ``Training.converge`` and ``rank`` decide which applies.

**Trajectory** (eq. 8-10 of the paper). With g_t the full batch gradient, decay included, phi(g) = min(1, C/||g||) g the
clipped one and D_t its derivative at g_t (``curvature.clipped_map``; the identity where the step is not clipped):
``a_u <- a_u - eta_t D_t [(H_t + lambda I) a_u - (1/|B_t|) sum_{i in B_t of u} grad l_i(w_t)]``.
This is the exact derivative of the training with every gradient of u weighted by 1 - s, at s = 0; so ``w_T + a_u``
approximates retraining with |B_t| kept as denominator (eq. 5). Deviations from the reference code, with their reasons:
the batch is clipped and not each sample (as the training does); a sample's gradient is added after the product (the
code applies one factor too many); the derivative of clipping is used (a frozen scale is 1 % off); no noise is added
here, since the certificate's noise is fresh at every release; the samples of one holder share one vector, which the
linearity of the recursion allows; all holders advance together in batched products.

**Converged** (certificates.md). With w_0 the minimiser over n samples and H the Hessian of the objective there,
``a_u = (1/n) sum_{i of u} H^{-1} (grad l_i + lambda w_0)`` and the weights after m samples have gone are
``w_0 + n/(n-m) sum a_u`` (renormalised), or without ``lambda w_0`` and the factor (fixed denominator). The state keeps
S = sum a_u over everyone forgotten so far. S adds nothing to what the remaining vectors tell: all vectors of the
renormalised form sum to H^{-1} grad F(w_0) = 0.

**Sketch** (``unlearning/sketch.py``), chosen by ``rank``: a few numbers for each holder in place of a trajectory's
vectors, for models where one vector each costs too much. A release then needs the forgotten samples, and it is refused
as ``OutOfTolerance`` where the probes say that it is too far from the exact vectors.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Protocol, cast

import torch
from torch import Tensor

from unlearning.convex import converge, require_strongly_convex
from unlearning.curvature import (
    clipped_map,
    gauss_newton_products,
    hessian_products,
    solve_rows,
    spectral_norm,
)
from unlearning.effectiveness import CalibrationSet, calibration_sets, effectiveness
from unlearning.heads import head_of
from unlearning.problem import Problem
from unlearning.protocol import (
    Examples,
    ForgetSet,
    Forgotten,
    Json,
    Learned,
    Need,
    OutOfTolerance,
    Progress,
    Refused,
    State,
)
from unlearning.recipe import RecipeError
from unlearning.sketch import Sketch
from unlearning.training import REFERENCES, Batch, Trajectory, replay, retrace, silent, step_gradient

CURVATURES = {"hessian": hessian_products, "gauss-newton": gauss_newton_products}
GROUP_LIMIT = 2**28
"""elements of all vectors that advance together; more holders take further passes over the trajectory"""
SPECTRUM_POINTS = 5
DENSE_LIMIT = 2048
"""up to this dimension the converged Hessian is factorised; above, conjugate gradients solve for all holders at once"""
SOLVE_TOLERANCE = 1e-10


@dataclass(frozen=True)
class Recollection:
    """Keep one vector per holder, add the forgotten holders' vectors.

    Args:
        reference: which retraining is approximated. None: the form's own (trajectory: ``fixed-denominator``,
            converged: ``renormalised``).
        curvature: ``hessian``, or ``gauss-newton`` (no negative curvature; trajectory form).
        threshold: preparation refuses an effectiveness of this or more.
        calibration_count: how many sets of holders are really retrained without.
        calibration_share: the share of all holders in each set.
        rank: None for exact vectors; otherwise the sketch's directions, with ``probes``, ``tolerance``, ``releases``,
            ``oversampling`` and ``stability`` as ``unlearning.sketch.Sketch`` has them.
        probe_seed: of the sketch's probes, which must be secret. None: drawn from the operating system. To be given
            only where a preparation is to repeat bit for bit; a policy cannot name it.
    """

    name: ClassVar[str] = "recollection"
    reference: str | None = None
    curvature: str = "hessian"
    threshold: float = 0.7
    calibration_count: int = 3
    calibration_share: float = 0.05
    rank: int | None = None
    probes: int = 32
    tolerance: float = 0.25
    releases: int = 100
    oversampling: float = 1.25
    stability: float = 10.0
    probe_seed: int | None = field(default=None, metadata={"secret": True})

    @property
    def needs(self) -> frozenset[Need]:
        """The sketch finds the direct part again from the forgotten samples; exact vectors need nothing."""
        return frozenset() if self.rank is None else frozenset({Need.FORGOTTEN})

    def __post_init__(self) -> None:
        if self.reference not in (None, *REFERENCES):
            raise ValueError(f"reference is {self.reference!r}; it must be None or one of {REFERENCES}.")
        if self.curvature not in CURVATURES:
            raise ValueError(f"curvature is {self.curvature!r}; it must be one of {tuple(CURVATURES)}.")
        if self.calibration_count < 1 or not 0.0 < self.calibration_share < 1.0:
            raise ValueError("calibration_count must be at least 1 and calibration_share in (0, 1).")
        if self.rank is not None and self.curvature != "hessian":
            raise ValueError("rank goes with curvature hessian alone.")
        self._sketch(self.rank or 1)  # refuses values outside their range

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Compute every holder's vector and measure whether adding them helps.

        ``facts["report"]`` holds ``form``, ``reference``, ``effectiveness`` (the mean over the calibration sets),
        ``effectiveness_sets`` and, for trajectories, ``eta_lambda_max`` (the largest of a few sampled steps).

        Raises:
            Refused: no trajectory, a reference that the form does not approximate, clipped samples, one holder
                only, or an effectiveness of ``threshold`` or more; for the sketch also a converged or an unstable
                training, or a calibration set beyond the tolerance.
        """
        form = self._form(problem, learned)
        state = form.state(examples, lambda share: progress(0.7 * share))
        sets = calibration_sets(examples, self.calibration_share, self.calibration_count, problem.training.seed)
        try:
            measured = [self._measure(form, problem, state, examples, chosen) for chosen in sets]
        except OutOfTolerance:
            raise Refused(
                f"With rank {self.rank} a calibration set is beyond the tolerance of {self.tolerance:g}.",
                "Raise rank or tolerance, or leave rank out for exact vectors.",
            ) from None
        progress(1.0)
        mean = sum(measured) / len(measured)
        report: dict[str, Json] = {
            **form.report(examples),
            **cast("Mapping[str, Json]", state.facts.get("report", {})),
            "effectiveness": mean,
            "effectiveness_sets": cast("list[Json]", measured),
            "calibration_holders": len(sets[0].holders),
            "threshold": self.threshold,
        }
        if not mean < self.threshold:
            raise Refused(_harm(mean, self.threshold, report), "Use retrain, rewind or newton.")
        return State(state.weights, state.tensors, {**state.facts, "report": report}, state.vectors)

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,  # noqa: ARG002  (nothing is needed but the vectors)
        generator: torch.Generator,  # noqa: ARG002
    ) -> Forgotten:
        """Add the vectors of ``forget.holders``, in sorted order so that the bits do not depend on the order given.

        Raises:
            OutOfTolerance: the sketch's receipt exceeds its tolerance, or its releases are used up.
            Refused: a holder has no vector, or no sample would be left; for the sketch, the samples are missing.
        """
        if not forget:
            return Forgotten(state)
        if self.rank is not None:
            return self._sketch(self.rank).forget(problem, state, forget)
        total = _sum_of(state.vectors, forget.holders)
        samples, before = _counts(state)
        gone = before + len(forget.positions)
        if gone >= samples:
            raise Refused(f"None of the {samples} samples would be left.", "Retire the model instead.")
        release = _release_trajectory if problem.training.converge is None else _release_converged
        fresh = release(state, total, gone)
        left = {holder: vector for holder, vector in state.vectors.items() if holder not in forget.holders}
        evidence: dict[str, Json] = {
            "recollection_norm": float(total.norm()),
            "distance_moved": float((fresh.weights - state.weights).norm()),
        }
        return Forgotten(State(fresh.weights, fresh.tensors, fresh.facts, left), evidence)

    def _sketch(self, rank: int) -> Sketch:
        return Sketch(rank, self.probes, self.tolerance, self.releases, self.oversampling, self.stability)

    def _form(self, problem: Problem, learned: Learned) -> _Form:
        if problem.training.converge is not None:
            if self.rank is not None:
                raise Refused("The training converges, and a sketch follows a trajectory.", "Leave rank out.")
            return _Converged(problem.double(), learned.weights.double(), self.reference or "renormalised")
        if learned.trajectory is None:
            raise Refused(
                "The model was trained elsewhere and its trajectory was not recorded.",
                "Record it with unlearning.Recorder, or use retrain, newton or safe.",
            )
        if self.reference == "renormalised":
            raise Refused(
                "Along a trajectory, recollections approximate the retraining that keeps |B_t| as denominator.",
                "Ask for reference fixed-denominator, or use retrain or mini.",
            )
        if problem.training.sample_clip is not None:
            raise Refused("sample_clip is set: recollections follow batch clipping only.", "Use rewind or retrain.")
        if self.rank is None:
            return _Followed(problem, learned.weights, learned.trajectory, self.curvature)
        seed = secrets.randbits(62) if self.probe_seed is None else self.probe_seed
        return _Sketched(problem, learned.weights, learned.trajectory, self.curvature, self._sketch(self.rank), seed)

    def _measure(
        self, form: _Form, problem: Problem, state: State, examples: Examples, chosen: CalibrationSet
    ) -> float:
        given = examples.only(chosen.positions) if Need.FORGOTTEN in self.needs else None
        forget = ForgetSet(frozenset(chosen.holders), tuple(chosen.positions.tolist()), given)
        unlearned = self.forget(problem, state, forget, None, torch.Generator()).state.weights
        try:
            retrained = form.retrained(examples, forget.positions)
        except RecipeError:  # the reference itself diverges: nothing to approximate
            return float("inf")
        return effectiveness(state.weights, unlearned, retrained)


class _Form(Protocol):
    """Where the vectors come from, and the retraining that they approximate."""

    def state(self, examples: Examples, progress: Progress) -> State: ...

    def retrained(self, examples: Examples, omit: Sequence[int]) -> Tensor: ...

    def report(self, examples: Examples) -> dict[str, Json]: ...


@dataclass(frozen=True)
class _Followed:
    problem: Problem
    weights: Tensor
    trajectory: Trajectory
    curvature: str

    def state(self, examples: Examples, progress: Progress) -> State:
        groups = list(_groups(sorted(set(examples.holders)), GROUP_LIMIT // self.problem.dimension))
        vectors: dict[str, Tensor] = {}
        for index, group in enumerate(groups):
            stacked = self._advance(examples, group, _part(progress, index, len(groups)))
            vectors |= {holder: vector.clone() for holder, vector in zip(group, stacked, strict=True)}
        return State(self.weights, {}, {"samples": len(examples), "forgotten": 0}, vectors)

    def retrained(self, examples: Examples, omit: Sequence[int]) -> Tensor:
        return retrace(self.problem, examples, self.trajectory, omit)

    def report(self, examples: Examples) -> dict[str, Json]:
        values = self._spectrum(examples)
        return {
            "form": "trajectory",
            "reference": "fixed-denominator",
            "curvature": self.curvature,
            "clipped_steps": sum(scale < 1.0 for scale in self.trajectory.scales),
            "eta_lambda_max": max(values),
            "eta_lambda_max_along": cast("list[Json]", values),
        }

    def _advance(self, examples: Examples, group: Sequence[str], progress: Progress) -> Tensor:
        """The vectors of ``group``, (len(group), d), after all steps."""
        rows = _rows_of(examples, group)
        vectors = torch.zeros(len(group), self.problem.dimension, dtype=self.problem.dtype, device=self.problem.device)
        for step, w, batch in replay(self.problem, examples, self.trajectory):
            here = rows[torch.searchsorted(examples.positions.cpu(), self.trajectory.batches[step])]
            vectors = self._step(vectors, step, w, batch, here)
            progress((step + 1) / len(self.trajectory))
        return vectors

    def _step(self, vectors: Tensor, step: int, w: Tensor, batch: Batch, here: Tensor) -> Tensor:
        problem, scale = self.problem, self.trajectory.scales[step]
        products = CURVATURES[self.curvature](problem, w, batch.inputs, batch.targets, vectors)
        change = products.add_(problem.decay * vectors)
        touched = torch.unique(here[here >= 0])
        sums = _gradient_sums(problem, w, batch, here, touched)
        change[touched.to(change.device)] -= sums / batch.denominator
        if scale < 1.0:
            change = clipped_map(step_gradient(problem, w, batch), scale, change)
        return vectors.sub_(change, alpha=self.trajectory.rates[step])

    def _spectrum(self, examples: Examples) -> list[float]:
        """eta_t s_t lambda_max(H_t + decay) at a few steps spread over the trajectory; a measurement from below."""
        last = len(self.trajectory) - 1
        points = sorted({round(last * index / (SPECTRUM_POINTS - 1)) for index in range(SPECTRUM_POINTS)})
        generator = torch.Generator().manual_seed(self.problem.training.seed)
        start = torch.randn(self.problem.dimension, generator=generator, dtype=torch.float64)
        start = start.to(dtype=self.problem.dtype, device=self.problem.device)
        values: list[float] = []
        for point in points:
            step, w, batch = next(replay(self.problem, examples, self.trajectory, point))
            largest, _ = spectral_norm(lambda v, w=w, batch=batch: self._product(w, batch, v), start)  # type: ignore[misc]
            values.append(self.trajectory.rates[step] * self.trajectory.scales[step] * largest)
        return values

    def _product(self, w: Tensor, batch: Batch, v: Tensor) -> Tensor:
        data = CURVATURES[self.curvature](self.problem, w, batch.inputs, batch.targets, v.unsqueeze(0))[0]
        return data + self.problem.decay * v


@dataclass(frozen=True)
class _Sketched(_Followed):
    sketch: Sketch
    seed: int

    def state(self, examples: Examples, progress: Progress) -> State:
        learned = Learned(self.weights, self.trajectory)
        return self.sketch.prepare(self.problem, examples, learned, self.seed, progress)


@dataclass(frozen=True)
class _Converged:
    problem: Problem
    weights: Tensor
    reference: str

    def state(self, examples: Examples, progress: Progress) -> State:
        require_strongly_convex(self.problem)
        group = sorted(set(examples.holders))
        batch = Batch(examples.inputs, examples.targets, len(examples))
        rows = _rows_of(examples, group)
        sums = _gradient_sums(self.problem, self.weights, batch, rows, torch.arange(len(group)))
        if self.reference == "renormalised":
            sums = sums + torch.bincount(rows).to(sums).unsqueeze(1) * (self.problem.decay * self.weights)
        progress(0.2)
        stacked = self._solve(batch, sums / len(examples))
        progress(1.0)
        vectors = {holder: vector.clone() for holder, vector in zip(group, stacked, strict=True)}
        correction = torch.zeros_like(self.weights)
        facts: dict[str, Json] = {"samples": len(examples), "forgotten": 0, "reference": self.reference}
        return State(self.weights, {"correction": correction}, facts, vectors)

    def retrained(self, examples: Examples, omit: Sequence[int]) -> Tensor:
        kept = examples.without(torch.tensor(omit, dtype=torch.int64))
        count = len(examples) if self.reference == "fixed-denominator" else len(kept)
        return converge(self.problem, self.weights, kept, cast(float, self.problem.training.converge), count)

    def report(self, examples: Examples) -> dict[str, Json]:
        batch = Batch(examples.inputs, examples.targets, len(examples))
        generator = torch.Generator().manual_seed(self.problem.training.seed)
        start = torch.randn(self.problem.dimension, generator=generator, dtype=torch.float64).to(self.weights)
        largest, _ = spectral_norm(lambda v: self._products(batch, v.unsqueeze(0))[0], start)
        gradient = step_gradient(self.problem, self.weights, batch)
        return {
            "form": "converged",
            "reference": self.reference,
            "lambda_max": largest,
            "gradient_norm": float(gradient.norm()),
        }

    def _products(self, batch: Batch, vectors: Tensor) -> Tensor:
        data = hessian_products(self.problem, self.weights, batch.inputs, batch.targets, vectors)
        return data + self.problem.decay * vectors

    def _solve(self, batch: Batch, sides: Tensor) -> Tensor:
        if self.problem.dimension > DENSE_LIMIT:
            solution = solve_rows(lambda rows: self._products(batch, rows), sides, SOLVE_TOLERANCE)
            if solution.residual > SOLVE_TOLERANCE:
                raise Refused(
                    f"The Hessian's solve stopped at a relative residual of {solution.residual:.1e}.",
                    "Raise weight_decay, or use retrain.",
                )
            return solution.x
        identity = torch.eye(self.problem.dimension, dtype=torch.float64, device=self.problem.device)
        factor = torch.linalg.cholesky(self._products(batch, identity))
        return torch.cholesky_solve(sides.T, factor).T


def _release_trajectory(state: State, total: Tensor, gone: int) -> State:
    return State(state.weights + total.to(state.weights), state.tensors, {**state.facts, "forgotten": gone})


def _release_converged(state: State, total: Tensor, gone: int) -> State:
    """Replace the correction inside the current weights, so that what a certificate polished since is kept."""
    samples, before = _counts(state)
    fixed = state.facts["reference"] == "fixed-denominator"
    old, new = (1.0 if fixed else samples / (samples - m) for m in (before, gone))
    correction = state.tensors["correction"] + total
    weights = state.weights - old * state.tensors["correction"] + new * correction
    return State(weights, {**state.tensors, "correction": correction}, {**state.facts, "forgotten": gone})


def _counts(state: State) -> tuple[int, int]:
    """How many samples the training had, and how many are forgotten."""
    return int(cast(int, state.facts["samples"])), int(cast(int, state.facts["forgotten"]))


def _sum_of(vectors: Mapping[str, Tensor], holders: frozenset[str]) -> Tensor:
    missing = [holder for holder in holders if holder not in vectors]
    if missing:
        raise Refused(
            f"{len(missing)} of {len(holders)} holders have no recollection.", "Use retrain: their vectors are gone."
        )
    first, *others = (vectors[holder] for holder in sorted(holders))
    total = first.double()
    for other in others:
        total = total + other.double()
    return total


def _rows_of(examples: Examples, group: Sequence[str]) -> Tensor:
    """For each sample the row of its holder in ``group``, -1 where the holder is not in it; (n,) int64 on the CPU."""
    row = {holder: index for index, holder in enumerate(group)}
    return torch.tensor([row.get(holder, -1) for holder in examples.holders])


def _gradient_sums(problem: Problem, w: Tensor, batch: Batch, here: Tensor, rows: Tensor) -> Tensor:
    """``sum_{i in batch of row} grad l_i(w)``, (len(rows), d); ``here`` names each sample's row.

    A product with a 0/1 matrix instead of a scatter: on a GPU a scatter adds in no fixed order.
    """
    members = (rows.unsqueeze(1) == here).to(dtype=problem.dtype, device=problem.device)
    head = head_of(problem)
    if head is not None:
        return head.sums(w, head.features(batch.inputs), batch.targets, members)
    size = max(1, 2**24 // problem.dimension)
    total = torch.zeros(len(rows), problem.dimension, dtype=problem.dtype, device=problem.device)
    for start, stop in pairwise([*range(0, len(batch), size), len(batch)]):
        gradients = problem.sample_gradients(w, batch.inputs[start:stop], batch.targets[start:stop])
        total += members[:, start:stop] @ gradients
    return total


def _groups(holders: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    width = max(1, size)
    for start in range(0, len(holders), width):
        yield holders[start : start + width]


def _part(progress: Progress, index: int, count: int) -> Progress:
    return lambda share: progress((index + share) / count)


def _harm(mean: float, threshold: float, report: Mapping[str, Json]) -> str:
    cause = f" eta*lambda_max is {report['eta_lambda_max']:.2g}." if "eta_lambda_max" in report else ""
    return (
        f"After recollection the weights are {mean:.2f} times as far from retraining as before "
        f"(effectiveness, must be below {threshold:g}).{cause}"
    )


METHOD = Recollection
