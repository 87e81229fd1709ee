"""Recollections of many people at once: the direct part from the samples, what is left in a few shared directions.

Ours, no paper's. For models where ``recollection``'s vector for each person costs too much.

With ``M_t = I - eta_t D_t (H_t + Lambda)``, Lambda the weight decay and D_t the derivative of clipping, a person's
recollection is ``a_{t+1} = M_t a_t + (eta_t / |B_t|) D_t sum grad l_i(w_t)``. Split it: ``a = G + R`` with G the direct
part (``direct.py``). All recollections together have a flat spectrum. R, which is what curvature did to the gradients,
has few large directions where the training is smooth.

- Forward: the same recursion for k random mixtures of all people spans R's range: Q (r, d), orthonormal rows.
- Backward: the transposed recursion for the rows P of Q and of S (m, d), S Gaussian:
  ``P <- P - eta_t (H_t + Lambda) D_t P``. The slopes of a person's samples along D_t P add up to ``c = Q a`` and
  ``s = S a``; both are exact.
- Deletion: ``a~ = G + Q^T (c - Q G)`` with the sums of G and c, so ``a~ - a = -(I - Q^T Q) R``.
- Receipt: for requests that do not depend on S, ``||S a~ - s||^2 / ||a~ - a||^2`` is chi-squared with m degrees of
  freedom. It is an operator's alarm: who sees receipts can choose requests that they do not cover, so neither they nor
  S's seed may leave the sealed state.

Cost: k + r + m Hessian products a step instead of one for each person. Stored: Q once, r + m numbers for each person,
and what the direct part needs.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, cast

import torch
from scipy.special import gammaincinv
from torch import Tensor

from expunge_lab.methods.recollection_sketch.direct import Course, Factored, Replayed, direct_sum, form_of
from unlearning.methods.recollection.room import require_room
from unlearning.model.linear_head import head_of
from unlearning.model.method import Method, require_followed
from unlearning.model.problem import Problem
from unlearning.model.training import steps_per_epoch
from unlearning.types import (
    Examples,
    ForgetSet,
    Forgotten,
    Ineffective,
    Json,
    Learned,
    Need,
    Progress,
    Refused,
    State,
    Trajectory,
    VectorsMissing,
    silent,
)

CONFIDENCE = 0.99
"""that every receipt of a generation holds, over S"""
BLOCK = 2**16
"""columns of S that are drawn at once"""


@dataclass(frozen=True)
class RecollectionSketch(Method):
    """Keep a few numbers per person; an update computes the rest from the forgotten samples.

    Args:
        rank: r, directions kept; at most d and the number of people are used.
        probes: m, numbers for each person that pay for the receipt.
        tolerance: the greatest receipt, as a share of the cumulative correction's norm (itself read off the probes).
        updates: how many receipts share the confidence of 99 %; a further update is refused.
        oversampling: k / r, mixtures in the forward pass.
        stability: the greatest ``||R|| / ||G + R||`` (beyond it R cancels G, and small errors of R are large errors
            of the sum) and the greatest ``||G + R|| / ||G||`` (beyond it the training expands what a gradient did, and
            rounding with it).
        probe_seed: of S, which must be secret. None: drawn from the operating system. To be given only where a
            preparation is to repeat bit for bit; a policy cannot name it.
    """

    name: ClassVar[str] = "recollection_sketch"
    near: ClassVar[bool] = True
    needs: ClassVar[frozenset[Need]] = frozenset({Need.FORGOTTEN})
    secret_state: ClassVar[tuple[str, ...]] = (
        "The numbers and directions kept for the people who are left depend on those who were deleted.",
        "The weights before every step, where the model is no linear head, were trained on the deleted people.",
    )

    rank: int = 64
    probes: int = 32
    tolerance: float = 0.25
    updates: int = 100
    oversampling: float = 1.25
    stability: float = 10.0
    probe_seed: int | None = field(default=None, metadata={"internal": True})  # nosec B105

    def __post_init__(self) -> None:
        for name in ("rank", "probes", "updates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1.")
        if not self.oversampling >= 1.0 or not self.tolerance > 0.0 or not self.stability > 0.0:
            raise ValueError("oversampling must be at least 1, tolerance and stability above 0.")

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Compute the sketch with a secret seed.

        Raises:
            Refused: as ``sketched``; a training that converges or clips single samples; ``vectors_for``.
        """
        require_followed(self, problem.recipe)
        _require_sketchable(problem)
        seed = secrets.randbits(62) if self.probe_seed is None else self.probe_seed
        return self.sketched(problem, examples, learned, seed, progress)

    def require_size(self, problem: Problem, samples: int) -> None:
        """Raise Refused where the weights before each step do not fit into the free memory."""
        if problem.recipe.weights is None:
            require_steps_fit(problem, steps_per_epoch(problem, samples) * problem.training.epochs)

    def length(self, problem: Problem) -> int:
        """Return the numbers that every row has; each of the person's samples adds a few."""
        return self.rank + self.probes

    def holders(self, problem: Problem, examples: Examples) -> list[str]:
        return sorted(examples.people.distinct())

    def sketched(
        self, problem: Problem, examples: Examples, learned: Learned, seed: int, progress: Progress = silent
    ) -> State:
        """Compute the state of the sketch. ``seed`` is S's: it must be secret, and it is kept in ``facts``.

        ``vectors`` holds for each person c (r), s (m) and what the direct part keeps of its samples, by position.
        ``facts["report"]`` holds ``norm_ratio``, ||R|| / ||G + R||; ``growth``, ||G + R|| / ||G||; and ``left_out``,
        the share of ||R|| that the forward pass saw outside of Q: Frobenius norms over all people, estimated from
        the mixtures. What lies outside of all k mixtures is not in ``left_out``; the receipts see it.

        Raises:
            Refused: no trajectory, no room for the weights before every step, or ``norm_ratio`` or ``growth`` above
                ``stability`` or not finite.
        """
        trajectory = _recorded(learned)
        require_steps_fit(problem, len(trajectory))
        course = Course(problem, examples, trajectory)
        people = sorted(examples.people.distinct())
        owners = _owners(examples, people)
        mixtures = self._mixtures(problem, len(people))
        form = form_of(problem, examples, trajectory, mixtures[:, owners])
        basis, report = self._range(course, form, len(mixtures), lambda share: progress(0.5 * share))
        rows = torch.cat([basis, torch.cat(list(_probes(problem, self.probes, seed)), dim=1)])
        numbers = _adjoint(course, form, rows, lambda share: progress(0.5 + 0.5 * share))
        facts: dict[str, Json] = {
            "samples": len(examples),
            "forgotten": 0,
            "updates": 0,
            "seed": seed,
            "report": {"form": "sketch", "reference": "fixed-denominator", "rank": len(basis), **report},
        }
        tensors = {"basis": basis, "probed": torch.zeros(2, self.probes, dtype=torch.float64), **form.tensors()}
        return State(learned.weights, tensors, facts, _vectors(numbers, form.kept(), owners, people))

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """Add the recollections of ``forget.people``. ``evidence`` holds the receipt and must stay sealed.

        Raises:
            Ineffective: the receipt is above ``tolerance``, or all ``updates`` are used. The message holds no receipt,
                because it may be shown and the receipt may not.
            Refused: a person has no vector, the samples are missing, or no sample would be left.
        """
        if not forget:
            return Forgotten(state)
        count = cast(int, state.facts["updates"]) + 1
        if count > self.updates:
            raise Ineffective(f"All {self.updates} updates of this sketch are used.", "Take the fallback.")
        gone = cast(int, state.facts["forgotten"]) + len(forget.positions)
        if gone >= cast(int, state.facts["samples"]):
            raise Refused("No sample would be left.", "Retire the model instead.")
        correction, exact = self._correction(problem, state, forget)
        found = _probe(problem, correction, self.probes, cast(int, state.facts["seed"]))
        probed = state.tensors["probed"].cpu() + torch.stack([found, exact])
        receipt, size = self._receipt(probed)
        if not receipt <= self.tolerance * size:
            what = "The sketch does not follow these people closely enough: it is beyond its tolerance."
            raise Ineffective(what, "Raise the tolerance, or use another method.")
        facts = {**state.facts, "updates": count, "forgotten": gone}
        fresh = State(state.weights + correction.to(state.weights), {**state.tensors, "probed": probed}, facts)
        return Forgotten(fresh, {"recollection_norm": float(correction.norm()), "receipt": receipt})

    def _mixtures(self, problem: Problem, people: int) -> Tensor:
        """Draw the mixtures (k, people), Gaussian; not secret."""
        width = min(math.ceil(self.rank * self.oversampling), people, problem.dimension)
        generator = torch.Generator().manual_seed(problem.training.seed)
        return torch.randn(width, people, generator=generator, dtype=problem.dtype).to(problem.device)

    def _range(
        self, course: Course, form: Factored | Replayed, width: int, progress: Progress
    ) -> tuple[Tensor, dict[str, Json]]:
        """Return Q (r, d) with orthonormal rows, and what the forward pass measured."""
        problem = course.problem
        mixed = torch.zeros(width, problem.dimension, dtype=problem.dtype, device=problem.device)
        for done, step in enumerate(course.forward(), start=1):
            change = form.pull(step, mixed).add_(problem.decay * mixed)
            mixed.sub_(step.turned(change), alpha=step.rate)
            progress(done / len(course))
        direct = form.mixed()
        curved = mixed - direct
        report = {"norm_ratio": _share(curved.norm(), mixed.norm()), "growth": _share(mixed.norm(), direct.norm())}
        self._require_stable(**report)
        columns, triangle = torch.linalg.qr(curved.T)
        left, values, _ = torch.linalg.svd(triangle)
        rank = min(self.rank, width)
        basis = (columns @ left[:, :rank]).T.contiguous()
        return basis, {**report, "left_out": _share(values[rank:].norm(), values.norm())}

    def _require_stable(self, norm_ratio: float, growth: float) -> None:
        if norm_ratio <= self.stability and growth <= self.stability:
            return
        raise Refused(
            f"This training cannot be sketched: ||R|| / ||G + R|| is {norm_ratio:.3g} (large where curvature undoes "
            f"what the gradients did) and ||G + R|| / ||G|| is {growth:.3g} (large where steps expand); each must be "
            f"at most {self.stability:g}.",
            "Lower the learning rate, or use recollection or retrain.",
        )

    def _correction(self, problem: Problem, state: State, forget: ForgetSet) -> tuple[Tensor, Tensor]:
        """Return ``a~`` (d,), and ``s`` (m,) in float64, summed over the forgotten people in sorted order."""
        examples = forget.examples
        if examples is None or examples.positions.tolist() != list(forget.positions):
            raise Refused("The sketch needs the forgotten samples, and no others.", "Hand over exactly these.")
        basis = state.tensors["basis"].to(problem.device)
        names = sorted(forget.people)
        vectors = dict(forget.vectors.read(names))  # a few numbers each
        if len(vectors) < len(names):
            raise VectorsMissing(len(names) - len(vectors), len(names))
        width = len(basis) + self.probes
        total = torch.stack([vectors[name][:width].double() for name in names]).sum(dim=0)
        kept = _kept_of(vectors, examples, names, width)
        direct = direct_sum(problem, state.tensors, examples, kept.to(problem.device))
        inside = total[: len(basis)].to(direct) - basis @ direct
        return direct + basis.T @ inside, total[len(basis) :].cpu()

    def _receipt(self, probed: Tensor) -> tuple[float, float]:
        """Return a bound on the cumulative correction's distance from the exact one, and its probed norm."""
        quantile = 2.0 * float(gammaincinv(self.probes / 2, (1.0 - CONFIDENCE) / self.updates))
        gap = float((probed[0] - probed[1]).norm())
        return gap / math.sqrt(quantile), float(probed[0].norm()) / math.sqrt(self.probes)


def _recorded(learned: Learned) -> Trajectory:
    if learned.trajectory is None:
        raise Refused("The training's trajectory was not recorded.", "Record it with unlearning.Recorder.")
    return learned.trajectory


def _require_sketchable(problem: Problem) -> None:
    if problem.training.converge is not None:
        raise Refused("The training converges, and a sketch follows a trajectory.", "Use recollection.")
    if problem.training.sample_clip is not None:
        raise Refused("sample_clip is set: a sketch follows batch clipping only.", "Use rewind or retrain.")
    if problem.recipe.vectors_for is not None:
        raise Refused("vectors_for chooses among exact vectors, and a sketch keeps none.", "Use recollection.")


def require_steps_fit(problem: Problem, steps: int) -> None:
    """Raise Refused where the weights before each of ``steps`` do not fit. A linear head keeps none of them."""
    if head_of(problem) is not None:
        return
    size = steps * problem.dimension * problem.dtype.itemsize
    what = f"The sketch of a model that is no linear head keeps its {problem.dimension} weights before each of {steps} "
    what += "steps, which"
    require_room(what, size, problem.device, "Use rewind or retrain, or train fewer steps.")


def _adjoint(course: Course, form: Factored | Replayed, rows: Tensor, progress: Progress) -> Tensor:
    """Return the products of every row of ``rows`` (p, d) with every sample's recollection, (p, n), exactly."""
    problem = course.problem
    numbers = torch.zeros(len(rows), len(course.examples), dtype=rows.dtype, device=rows.device)
    vectors = rows.clone()
    for done, step in enumerate(course.backward(), start=1):
        turned = step.turned(vectors)
        products, slopes = form.push(step, turned)
        numbers.index_add_(1, step.rows, slopes, alpha=step.rate / len(step.rows))
        vectors = vectors - step.rate * (products + problem.decay * turned)
        progress(done / len(course))
    return numbers


def _owners(examples: Examples, people: Sequence[str]) -> Tensor:
    """Return for each sample the index of its person, (n,) int64."""
    index = {name: place for place, name in enumerate(people)}
    return examples.people.each(index.__getitem__).to(examples.positions.device)


def _vectors(numbers: Tensor, kept: Tensor, owners: Tensor, people: Sequence[str]) -> dict[str, Tensor]:
    """Return each person's row: the sums of its samples' ``numbers`` (p, n), then their ``kept`` (n, q) in turn."""
    owners, kept = owners.cpu(), kept.cpu()  # a scatter on a GPU adds in no fixed order
    totals = torch.zeros(len(people), len(numbers), dtype=numbers.dtype).index_add_(0, owners, numbers.T.cpu())
    order = torch.argsort(owners, stable=True)
    parts = torch.split(kept[order], torch.bincount(owners, minlength=len(people)).tolist())
    return {name: torch.cat([totals[row], parts[row].flatten()]) for row, name in enumerate(people)}


def _kept_of(vectors: Mapping[str, Tensor], examples: Examples, names: Sequence[str], width: int) -> Tensor:
    """Return what the direct part kept of ``examples``, (n, q), from the end of their people's rows."""
    owners = _owners(examples, names).cpu()
    counts = torch.bincount(owners, minlength=len(names)).tolist()
    tails = [vectors[name][width:].cpu().reshape(count, -1) for name, count in zip(names, counts, strict=True)]
    return torch.cat(tails)[torch.argsort(torch.argsort(owners, stable=True))]


def _probes(problem: Problem, count: int, seed: int) -> Iterator[Tensor]:
    """Yield S (count, d) in blocks of columns. Drawn on the CPU, so that it is the same on every device."""
    generator = torch.Generator().manual_seed(seed)
    for start in range(0, problem.dimension, BLOCK):
        width = min(BLOCK, problem.dimension - start)
        block = torch.randn(width, count, generator=generator, dtype=problem.dtype)
        yield block.T.to(problem.device)


def _probe(problem: Problem, vector: Tensor, count: int, seed: int) -> Tensor:
    """Return ``S v`` (count,) in float64 on the CPU."""
    parts = zip(_probes(problem, count, seed), torch.split(vector, BLOCK), strict=True)
    return torch.stack([block.double() @ part.double() for block, part in parts]).sum(dim=0).cpu()


def _share(part: Tensor, whole: Tensor) -> float:
    return float(part / whole) if float(whole) != 0.0 else 0.0
