"""A training step as a linear map, and the direct part of a recollection.

The direct part of sample i is what its gradients alone contributed: ``G_i = sum_t h_t grad l_i(w_t)`` with
``h_t = eta_t s_t / |B_t|`` and the weight decay of every later step applied. It has full rank over the samples, so no
sketch can hold it. It is found again from the sample itself, in one of two forms. Linear heads: a gradient is a
residual times the features, so the sum over steps is K numbers a sample (2 K where the bias is not decayed as the
matrix is). Any other model: the state keeps the weights before every step; from less they could not be had again
without the retained samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import cast

import torch
from torch import Tensor
from torch.func import grad, jvp, vjp, vmap

from unlearning.model.curvature import ACTIVATION_LIMIT, chunk_for, clipped_map, hessian_products
from unlearning.model.linear_head import Head, head_of
from unlearning.model.problem import Problem
from unlearning.model.training import Batch, batch_of, replay, step_gradient
from unlearning.types import Examples, Trajectory


@dataclass(frozen=True)
class Step:
    """Step t: ``w`` (d,) before it, the batch (b samples) and ``rows`` (b,), where these are among the examples.

    ``gradient`` is the batch gradient (d,), decay included, where the step was clipped; None elsewhere.
    """

    rate: float
    scale: float
    w: Tensor
    inputs: Tensor
    targets: Tensor
    rows: Tensor
    gradient: Tensor | None

    @property
    def share(self) -> float:
        """Return h_t, by which the step moves for one sample's gradient."""
        return self.rate * self.scale / len(self.rows)

    def turned(self, vectors: Tensor) -> Tensor:
        """Return D_t v for rows v (k, d): the derivative of clipping, symmetric; v itself where nothing was clipped."""
        return vectors if self.gradient is None else clipped_map(self.gradient, self.scale, vectors)


@dataclass(frozen=True)
class Course:
    """The steps of a training, in either direction, with the weights of the training bit for bit."""

    problem: Problem
    examples: Examples
    trajectory: Trajectory

    def __len__(self) -> int:
        return len(self.trajectory)

    def forward(self) -> Iterator[Step]:
        for step, w, batch in replay(self.problem, self.examples, self.trajectory):
            yield self._step(step, w, batch)

    def backward(self) -> Iterator[Step]:
        """Yield the last step first. The weights between two checkpoints are computed again and held together."""
        for start, stop in reversed(list(pairwise(self.trajectory.starts))):
            part = islice(replay(self.problem, self.examples, self.trajectory, start), stop - start)
            for step, w, batch in reversed(list(part)):
                yield self._step(step, w, batch)

    def _step(self, step: int, w: Tensor, batch: Batch) -> Step:
        rate, scale = self.trajectory.rates[step], self.trajectory.scales[step]
        known = self.examples.positions
        rows = torch.searchsorted(known, self.trajectory.batches[step].to(known.device))
        gradient = step_gradient(self.problem, w, batch) if scale < 1.0 else None
        return Step(rate, scale, w, batch.inputs, batch.targets, rows, gradient)


def form_of(problem: Problem, examples: Examples, trajectory: Trajectory, mixing: Tensor) -> Factored | Replayed:
    """Return the form that fits the model."""
    head = head_of(problem)
    return Replayed(problem, trajectory, mixing) if head is None else Factored(head, examples, mixing)


def direct_sum(problem: Problem, tensors: Mapping[str, Tensor], examples: Examples, kept: Tensor) -> Tensor:
    """Return ``sum_i G_i`` (d,) over ``examples``, from what the form kept of each, (n, q), and of all."""
    head = head_of(problem)
    return replayed_sum(problem, tensors, examples) if head is None else factored_sums(head, examples, kept, None)[0]


# Factored and Replayed are one model's products along its training, and its direct parts; mixing is (k, n).
# pull: H V - (1/b) sum_i mixing_i grad l_i, (k, d), called once for every step, in order; it takes in the direct part.
# push: H V, (k, d), and the slopes of every sample's loss along every vector, (k, b).
# mixed: sum_i mixing_i G_i, (k, d), once every step was pulled. kept: what is kept for each sample, (n, q).


class Factored:
    """Linear heads. Kept: ``rho_i = sum_t h_t r_i(w_t)`` with its decay, K numbers for each rate of decay."""

    def __init__(self, head: Head, examples: Examples, mixing: Tensor) -> None:
        self._head = head
        self._examples = examples
        self._mixing = mixing
        self._features = head.features(examples.inputs)
        decays = torch.stack([head.problem.decay[slot.start] for slot in head.problem.layout])
        self._decays = (decays[:1] if bool((decays == decays[0]).all()) else decays).unsqueeze(1)
        shape = (len(examples), len(self._decays), head.layer.out_features)
        self._rho = torch.zeros(shape, dtype=mixing.dtype, device=mixing.device)

    def pull(self, step: Step, vectors: Tensor) -> Tensor:
        features, residual, scores = self._linearised(step)
        self._rho *= 1.0 - step.rate * step.scale * self._decays
        self._rho.index_add_(0, step.rows, residual.unsqueeze(1).expand(-1, self._rho.shape[1], -1), alpha=step.share)
        mixing = _chosen(self._mixing.T, step.rows).T
        pulled = []
        for part, mixed in zip(self._parts(step, vectors), self._parts(step, mixing), strict=True):
            bent = self._head.curve.bend(scores, step.targets, self._directions(features, part))
            # One product for both terms: they share the features.
            bent.addcmul_(mixed.T.unsqueeze(2), residual.unsqueeze(1), value=-1.0)
            pulled.append(self._gather(bent, features))
        return torch.cat(pulled)

    def push(self, step: Step, vectors: Tensor) -> tuple[Tensor, Tensor]:
        features, residual, scores = self._linearised(step)
        products, slopes = [], []
        for part in self._parts(step, vectors):
            directions = self._directions(features, part)
            products.append(self._gather(self._head.curve.bend(scores, step.targets, directions), features))
            slopes.append((directions @ residual.unsqueeze(2)).squeeze(2).T)
        return torch.cat(products), torch.cat(slopes)

    def mixed(self) -> Tensor:
        return factored_sums(self._head, self._examples, self.kept(), self._mixing)

    def kept(self) -> Tensor:
        return self._rho.flatten(1)

    def tensors(self) -> dict[str, Tensor]:
        return {}

    def _linearised(self, step: Step) -> tuple[Tensor, Tensor, Tensor]:
        """Return the batch's features (b, D), residuals and scores (b, K)."""
        features = _chosen(self._features, step.rows)
        scores = features @ self._head.matrix(step.w).T
        return features, self._head.curve.residual(scores, step.targets), scores

    def _parts(self, step: Step, vectors: Tensor) -> tuple[Tensor, ...]:
        return torch.split(vectors, max(1, ACTIVATION_LIMIT // (len(step.rows) * self._head.layer.out_features)))

    def _directions(self, features: Tensor, vectors: Tensor) -> Tensor:
        """Return how every sample's scores change along every vector, (b, k, K)."""
        matrices = self._head.matrix(vectors).flatten(0, 1)
        return (features @ matrices.T).reshape(len(features), len(vectors), -1)

    def _gather(self, bent: Tensor, features: Tensor) -> Tensor:
        matrices = (bent.flatten(1).T @ features).reshape(bent.shape[1], bent.shape[2], -1)
        return self._head.vector(matrices).div_(len(features))


class Replayed:
    """Any model. Kept: nothing for a sample; the weights before every step, eta_t s_t, and the batches."""

    def __init__(self, problem: Problem, trajectory: Trajectory, mixing: Tensor) -> None:
        self._problem = problem
        self._trajectory = trajectory
        self._mixing = mixing
        self._weights = torch.empty(len(trajectory), problem.dimension, dtype=mixing.dtype, device=mixing.device)
        self._pulled = 0
        self._sums = torch.zeros(len(mixing), problem.dimension, dtype=mixing.dtype, device=mixing.device)

    def pull(self, step: Step, vectors: Tensor) -> Tensor:
        self._weights[self._pulled] = step.w
        self._pulled += 1
        sums = mixed_gradients(self._problem, step.w, step.inputs, step.targets, self._mixing[:, step.rows])
        self._sums -= (step.rate * step.scale) * (self._problem.decay * self._sums)
        self._sums.add_(sums, alpha=step.share)
        products = hessian_products(self._problem, step.w, step.inputs, step.targets, vectors)
        return products.sub_(sums, alpha=1.0 / len(step.rows))

    def push(self, step: Step, vectors: Tensor) -> tuple[Tensor, Tensor]:
        return sloped_products(self._problem, step.w, step.inputs, step.targets, vectors)

    def mixed(self) -> Tensor:
        return self._sums

    def kept(self) -> Tensor:
        return self._mixing.new_empty(self._mixing.shape[1], 0)

    def tensors(self) -> dict[str, Tensor]:
        path = self._trajectory
        batches, place = _distinct(path.batches)
        return {
            "step_weights": self._weights,
            "step_moves": torch.tensor(path.rates, dtype=torch.float64)
            * torch.tensor(path.scales, dtype=torch.float64),
            "step_batches": place,
            "batches": torch.cat(batches).to(torch.int32),
            "batch_sizes": torch.tensor([len(batch) for batch in batches]),
        }


def factored_sums(head: Head, examples: Examples, kept: Tensor, mixing: Tensor | None) -> Tensor:
    """Return ``sum_i mixing_i G_i`` (k, d) of a linear head, from ``kept`` (n, q) and ``mixing`` (k, n), None: ones."""
    weights = kept.new_ones(1, len(kept)) if mixing is None else mixing
    rho = kept.reshape(len(kept), -1, head.layer.out_features)
    wide = head.features(examples.inputs)[:, : head.layer.in_features]
    matrix = (weights.unsqueeze(2) * rho[:, 0]).transpose(1, 2).flatten(0, 1) @ wide
    matrix = matrix.reshape(len(weights), head.layer.out_features, -1)
    if head.layer.bias is not None:
        matrix = torch.cat([matrix, (weights @ rho[:, -1]).unsqueeze(2)], dim=2)
    return head.vector(matrix)


def replayed_sum(problem: Problem, tensors: Mapping[str, Tensor], examples: Examples) -> Tensor:
    """Return ``sum_i G_i`` (d,) over ``examples``: their gradients at the weights of every step that used them."""
    total = torch.zeros(problem.dimension, dtype=problem.dtype, device=problem.device)
    batches = torch.split(tensors["batches"].to(torch.int64), tensors["batch_sizes"].tolist())
    used = [batches[place] for place in tensors["step_batches"].tolist()]
    for positions, move, w in zip(used, tensors["step_moves"].tolist(), tensors["step_weights"], strict=True):
        total = total - move * (problem.decay * total)
        batch = batch_of(examples, positions, len(positions))
        if len(batch):
            mean = problem.gradient(w.to(problem.device), batch.inputs, batch.targets)
            total = total + (move * len(batch) / batch.denominator) * mean
    return total


def mixed_gradients(problem: Problem, w: Tensor, x: Tensor, y: Tensor, mixing: Tensor) -> Tensor:
    """Return ``sum_i mixing[j, i] grad l_i(w)`` for every row j of ``mixing`` (k, n): (k, d), without weight decay."""
    pair = cast("tuple[Tensor, Callable[[Tensor], tuple[Tensor]]]", vjp(lambda u: problem.sample_losses(u, x, y), w))
    sums: Tensor = vmap(lambda row: pair[1](row)[0], chunk_size=chunk_for(problem, w, x))(mixing)
    return sums.detach()


def sloped_products(problem: Problem, w: Tensor, x: Tensor, y: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return H v (k, d) of the mean data loss, and ``grad l_i . v`` (k, n), for rows v of ``vectors`` (k, d).

    The slopes cost nothing: the loss of every sample is carried along as a second output of the gradient, and its
    tangent comes with that of the gradient.
    """

    def mean(u: Tensor) -> tuple[Tensor, Tensor]:
        losses = problem.sample_losses(u, x, y)
        return losses.mean(), losses

    def tangent(v: Tensor) -> tuple[Tensor, Tensor]:
        return cast("tuple[object, tuple[Tensor, Tensor]]", jvp(grad(mean, has_aux=True), (w,), (v,)))[1]

    products, slopes = vmap(tangent, chunk_size=chunk_for(problem, w, x))(vectors)
    return products.detach(), slopes.detach()


def _distinct(batches: Sequence[Tensor]) -> tuple[list[Tensor], Tensor]:
    """Return the batches without those that repeat the one before, and each step's place among them."""
    kept = [batches[0]]
    places = []
    for batch in batches:
        if not torch.equal(batch, kept[-1]):
            kept.append(batch)
        places.append(len(kept) - 1)
    return kept, torch.tensor(places)


def _chosen(values: Tensor, rows: Tensor) -> Tensor:
    """Return ``values[rows]``; without a copy for a full batch."""
    full = len(rows) == len(values) and bool((rows == torch.arange(len(values), device=rows.device)).all())
    return values if full else values[rows]
