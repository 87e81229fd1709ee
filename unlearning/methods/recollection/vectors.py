"""Where recollections come from: along a trajectory, or at a minimiser.

The equations are in ``unlearning/methods/recollection/__init__.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, cast

import torch
from torch import Tensor

from unlearning.model.convex import converge, require_strongly_convex
from unlearning.model.curvature import (
    Products,
    clipped_map,
    gauss_newton_at,
    hessian_at,
    hessian_products,
    own_gauss_newton_products,
    own_hessian_products,
    solve_rows,
    spectral_norm,
)
from unlearning.model.linear_head import head_of
from unlearning.model.problem import Problem
from unlearning.model.training import Batch, replay, retrace, step_gradient
from unlearning.types import (
    Examples,
    Json,
    Progress,
    Refused,
    State,
    Trajectory,
    VectorsMissing,
    VectorSource,
    silent,
)

CURVATURES = {"hessian": hessian_at, "gauss-newton": gauss_newton_at}
OWN_CURVATURES = {"hessian": own_hessian_products, "gauss-newton": own_gauss_newton_products}
CARRIED_BY = ("others", "everyone")
OWN_LIMIT = 2**22
"""elements of the products of samples with their own people's vectors that are made at once, for 256 samples at most"""
GROUP_LIMIT = 2**28
"""elements of all vectors that advance together; more people take further passes over the trajectory"""
MEMBERS_LIMIT = 2**22
"""elements of what is held while the gradients of some people's samples are summed"""
SPECTRUM_POINTS = 5
DENSE_LIMIT = 2048
"""up to this dimension the converged Hessian is factorised; above, conjugate gradients solve for all people at once"""
SOLVE_TOLERANCE = 1e-10


@dataclass(frozen=True)
class Followed:
    problem: Problem
    weights: Tensor
    trajectory: Trajectory
    curvature: str
    carried_by: str

    def state(self, examples: Examples, progress: Progress) -> State:
        return self.stated(examples, self.vectors(examples, holders(self.problem, examples), progress))

    def stated(self, examples: Examples, vectors: Mapping[str, Tensor]) -> State:
        return State(self.weights, {}, {"samples": len(examples), "forgotten": 0}, vectors)

    def vectors(self, examples: Examples, people: Sequence[str], progress: Progress) -> dict[str, Tensor]:
        """Compute the vectors of ``people``; ``examples`` are all."""
        groups = list(_groups(people, GROUP_LIMIT // self.problem.dimension))
        vectors: dict[str, Tensor] = {}
        for index, group in enumerate(groups):
            blank = torch.zeros(
                len(group), self.problem.dimension, dtype=self.problem.dtype, device=self.problem.device
            )
            stacked = self._advance(examples, group, blank, _part(progress, index, len(groups)))
            vectors |= {person: vector.clone() for person, vector in zip(group, stacked, strict=True)}
        return vectors

    def carried(self, examples: Examples, vectors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Carry these vectors, each (d,), through the trajectory's steps."""
        carried: dict[str, Tensor] = {}
        for group in _groups(sorted(vectors), GROUP_LIMIT // self.problem.dimension):
            start = torch.stack([vectors[person].to(self.weights) for person in group])
            stacked = self._advance(examples, group, start, silent)
            carried |= {person: vector.clone() for person, vector in zip(group, stacked, strict=True)}
        return carried

    def retrained(self, examples: Examples, omit: Sequence[int]) -> Tensor:
        return retrace(self.problem, examples, self.trajectory, omit)

    def report(self, examples: Examples) -> dict[str, Json]:
        values = self._spectrum(examples)
        return {
            "form": "trajectory",
            "reference": "fixed-denominator",
            "curvature": self.curvature,
            "carried_by": self.carried_by,
            "clipped_steps": sum(scale < 1.0 for scale in self.trajectory.scales),
            "eta_lambda_max": max(values),
            "eta_lambda_max_along": cast("list[Json]", values),
        }

    def _advance(self, examples: Examples, group: Sequence[str], vectors: Tensor, progress: Progress) -> Tensor:
        """Return the vectors of ``group``, (len(group), d), after all steps; those given are overwritten."""
        rows = _rows_of(examples, group)
        for step, w, batch in replay(self.problem, examples, self.trajectory):
            here = rows[torch.searchsorted(examples.positions.cpu(), self.trajectory.batches[step])]
            vectors = self._step(vectors, step, w, batch, here)
            progress((step + 1) / len(self.trajectory))
        return vectors

    def _step(self, vectors: Tensor, step: int, w: Tensor, batch: Batch, here: Tensor) -> Tensor:
        problem, scale = self.problem, self.trajectory.scales[step]
        products = CURVATURES[self.curvature](problem, w, batch.inputs, batch.targets)(vectors)
        touched = torch.unique(here[here >= 0])
        if self.carried_by == "others" and len(touched):  # torch.split of no place is a part without one
            self._leave_own_out(products, vectors, w, batch, here)
        change = products.add_(problem.decay * vectors)
        if len(touched):
            sums = _gradient_sums(problem, w, batch, here, touched)
            change[touched.to(change.device)] -= sums / batch.denominator
        if scale < 1.0:
            change = clipped_map(step_gradient(problem, w, batch), scale, change)
        return vectors.sub_(change, alpha=self.trajectory.rates[step])

    def _leave_own_out(self, products: Tensor, vectors: Tensor, w: Tensor, batch: Batch, here: Tensor) -> None:
        """Take from each row of ``products`` what its person's own samples put into it, in place."""
        present = (here >= 0).nonzero().squeeze(1)
        size = min(256, max(1, OWN_LIMIT // self.problem.dimension))
        for places in torch.split(present, size):
            rows = here[places]
            chosen, device = places.to(batch.inputs.device), vectors.device
            own = OWN_CURVATURES[self.curvature](
                self.problem, w, batch.inputs[chosen], batch.targets[chosen], vectors[rows.to(device)]
            )
            touched = torch.unique(rows)
            members = (touched.unsqueeze(1) == rows).to(own)
            products[touched.to(device)] -= members @ own / batch.denominator

    def _spectrum(self, examples: Examples) -> list[float]:
        """Return eta_t s_t lambda_max(H_t + decay), seen from below, at a few steps spread over the trajectory."""
        last = len(self.trajectory) - 1
        points = sorted({round(last * index / (SPECTRUM_POINTS - 1)) for index in range(SPECTRUM_POINTS)})
        generator = torch.Generator().manual_seed(self.problem.training.seed)
        start = torch.randn(self.problem.dimension, generator=generator, dtype=torch.float64)
        start = start.to(dtype=self.problem.dtype, device=self.problem.device)
        values: list[float] = []
        for point in points:
            step, w, batch = next(replay(self.problem, examples, self.trajectory, point))
            data = CURVATURES[self.curvature](self.problem, w, batch.inputs, batch.targets)
            largest, _ = spectral_norm(partial(self._product, data), start)
            values.append(self.trajectory.rates[step] * self.trajectory.scales[step] * largest)
        return values

    def _product(self, data: Products, v: Tensor) -> Tensor:
        return data(v.unsqueeze(0))[0] + self.problem.decay * v


@dataclass(frozen=True)
class Converged:
    problem: Problem
    weights: Tensor
    reference: str

    def state(self, examples: Examples, progress: Progress) -> State:
        require_strongly_convex(self.problem)
        group = holders(self.problem, examples)
        batch = Batch(examples.inputs, examples.targets, len(examples))
        rows = _rows_of(examples, group)
        sums = _gradient_sums(self.problem, self.weights, batch, rows, torch.arange(len(group)))
        if self.reference == "renormalised":
            sums = sums + torch.bincount(rows[rows >= 0], minlength=len(group)).to(sums).unsqueeze(1) * (
                self.problem.decay * self.weights
            )
        progress(0.2)
        stacked = self._solve(batch, sums / len(examples))
        progress(1.0)
        vectors = {person: vector.clone() for person, vector in zip(group, stacked, strict=True)}
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


Form: TypeAlias = Followed | Converged
"""where the vectors come from, and the retraining that they approximate"""


def holders(problem: Problem, examples: Examples) -> list[str]:
    """Return the people with a vector, sorted: all, or those who share a sample with ``Recipe.vectors_for``."""
    chosen = problem.recipe.vectors_for
    if chosen is None:
        return sorted(examples.people.distinct())
    theirs = examples.subjects.where(lambda subjects: not frozenset(chosen).isdisjoint(subjects))
    return sorted(examples.people.take(theirs.nonzero().squeeze(1)).distinct())


def _rows_of(examples: Examples, group: Sequence[str]) -> Tensor:
    """Return each sample's row of its person in ``group``, -1 where the person is not in it; (n,) int64 on the CPU."""
    row = {person: index for index, person in enumerate(group)}
    return examples.people.each(lambda person: row.get(person, -1))


def _gradient_sums(problem: Problem, w: Tensor, batch: Batch, here: Tensor, rows: Tensor) -> Tensor:
    """Return ``sum_{i in batch of row} grad l_i(w)``, (len(rows), d); ``here`` names each sample's row, ``rows`` rise.

    Some rows at a time, as a product of a 0/1 matrix with their own samples' gradients: over all samples the matrix
    would take people x samples numbers. A product and no scatter: on a GPU a scatter adds in no fixed order.
    """
    head = head_of(problem)
    features = batch.inputs if head is None else head.features(batch.inputs)
    places = torch.argsort(here, stable=True)
    starts = torch.searchsorted(here[places], torch.cat([rows, rows[-1:] + 1])).tolist()
    sums = torch.empty(len(rows), problem.dimension, dtype=problem.dtype, device=problem.device)
    for first, last in _blocks(
        starts, MEMBERS_LIMIT // (problem.dimension if head is None else head.layer.out_features)
    ):
        own = places[starts[first] : starts[last]]
        members = (rows[first:last].unsqueeze(1) == here[own]).to(dtype=problem.dtype, device=problem.device)
        x, y = features[own.to(features.device)], batch.targets[own.to(batch.targets.device)]
        if head is not None:
            sums[first:last] = head.sums(w, x, y, members)
        else:
            sums[first:last] = members @ problem.sample_gradients(w, x, y)
    return sums


def _blocks(starts: Sequence[int], limit: int) -> Iterator[tuple[int, int]]:
    """Return ranges of rows: as many as fit, so that their number times their samples' is at most ``limit``, or one.

    ``starts``: where each row's samples begin, and where those of the last end.
    """
    first = 0
    while first < len(starts) - 1:
        last = first + 1
        while last < len(starts) - 1 and (last + 1 - first) * (starts[last + 1] - starts[first]) <= limit:
            last += 1
        yield first, last
        first = last


def _groups(people: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    width = max(1, size)
    for start in range(0, len(people), width):
        yield people[start : start + width]


def _part(progress: Progress, index: int, count: int) -> Progress:
    return lambda share: progress((index + share) / count)


def sum_of(vectors: VectorSource, people: frozenset[str], weights: Tensor) -> Tensor:
    """Return the sum of these people's vectors, (d,) like ``weights`` but float64. Its bits depend on the order.

    Raises:
        VectorsMissing: a person has none.
    """
    total, count = torch.zeros(len(weights), dtype=torch.float64, device=weights.device), 0
    for _, vector in vectors.read(people):
        total += vector
        count += 1
    if count < len(people):
        raise VectorsMissing(len(people) - count, len(people))
    return total


def added_along(state: State, total: Tensor, gone: int) -> State:
    """Add the sum of the vectors (d,) of a trajectory; ``gone`` counts all people forgotten so far."""
    return State(state.weights + total.to(state.weights), state.tensors, {**state.facts, "forgotten": gone})


def added_at_minimiser(state: State, total: Tensor, gone: int) -> State:
    """Add the sum of a converged model's vectors (d,); ``gone`` counts all people forgotten so far.

    The correction inside the current weights is replaced, so that what a certificate polished since is kept.
    """
    samples, before = counts(state)
    fixed = state.facts["reference"] == "fixed-denominator"
    old, new = (1.0 if fixed else samples / (samples - m) for m in (before, gone))
    correction = state.tensors["correction"] + total
    weights = state.weights - old * state.tensors["correction"] + new * correction
    return State(weights, {**state.tensors, "correction": correction}, {**state.facts, "forgotten": gone})


def counts(state: State) -> tuple[int, int]:
    """Return how many samples the training had, and how many are forgotten."""
    return int(cast(int, state.facts["samples"])), int(cast(int, state.facts["forgotten"]))
