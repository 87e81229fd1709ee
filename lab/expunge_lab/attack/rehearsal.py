"""Updates as the service makes them, without the service: train, forget, refine, certify; and the retraining beside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from expunge_lab.experiment.two_worlds import Worlds
from expunge_lab.in_process import certify, establish, generator, refine
from expunge_service.queue import ForgottenCount
from expunge_workers.guarantee.certify import Certified
from expunge_workers.guarantee.terms import Terms, guarantee_of, reference_of, terms_of
from expunge_workers.runtime.model import OpenModel
from expunge_workers.storage import checkpoint_format
from unlearning.accounting.certificate import Claim, Guarantee
from unlearning.accounting.policy import Policy
from unlearning.bounds.minimiser import Minimiser
from unlearning.model.method import require_followed
from unlearning.model.training import learn, train
from unlearning.quality.simulate import forget_set, left_by, release
from unlearning.types import Examples, Forgotten, Refused, State

CLOSER = 1024.0
"""the reference is computed to the greatest distance over this, where its distance can be bounded"""
ATTACKED = (Guarantee.EXACT, Guarantee.PROVED)


@dataclass(frozen=True)
class Update:
    """One update before its noise is drawn. ``retrained`` (d,) float64 never had who left, and was computed to within
    ``unsure``; ``terms`` are those before the update."""

    bench: OpenModel
    terms: Terms
    forgotten: Forgotten
    retain: Examples
    size: ForgottenCount
    retrained: Tensor
    unsure: float
    claim: Claim

    @property
    def weights(self) -> Tensor:
        """Return w~ (d,) in float64, on the CPU."""
        return self.forgotten.state.weights.detach().cpu().double()

    @property
    def distance(self) -> float:
        """Return how far w~ is from the retraining, at least."""
        return max(0.0, float((self.weights - self.retrained).norm()) - self.unsure)

    def certified(self) -> Certified:
        """Bound, add fresh noise, claim: what a worker does."""
        return certify(self.bench, self.terms, self.forgotten, self.size)

    def published(self) -> Tensor:
        """Certify once more and read the weights (d,) back from the checkpoint's bytes, float64."""
        made = self.certified().published
        if isinstance(made, bytes):
            raise TypeError("a model of tensors publishes tensors")
        data = checkpoint_format.encode(made, {"format": "pt"})
        return self.bench.problem.flatten(checkpoint_format.decode(data)[0]).cpu().double()


@dataclass(frozen=True)
class Prepared:
    """A model with canaries, trained and registered in memory."""

    bench: OpenModel
    terms: Terms
    examples: Examples
    state: State
    policy: Policy


def prepare(bench: OpenModel, policy: Policy) -> Prepared:
    """Train, prepare the method and fix the terms, as registration does.

    Raises:
        Refused: registration would refuse, or the method has no guarantee that could be attacked here.
    """
    require_followed(bench.method, bench.recipe)
    guarantee = guarantee_of(policy, bench.problem, bench.method)
    bench = bench.under(guarantee)
    method, problem = bench.method, bench.problem
    if guarantee not in ATTACKED:
        raise Refused(f"The guarantee is {guarantee.value}: no claim that trials could refute.", "")
    examples = bench.recipe.samples.examples(device=problem.device)
    state = method.prepare(problem, examples, learn(bench.recipe, problem, examples))
    terms = terms_of(policy, guarantee, reference_of(policy, state), len(examples))
    terms = establish(bench, terms, examples, state)
    return Prepared(bench, terms, examples, state, policy)


def rehearse(made: Prepared, people: Sequence[str], progress: Callable[[], None]) -> tuple[Update, ...]:
    """Forget these people one after the other; return an update for each. Raises Refused."""
    return tuple(_updates(made, people, progress))


def _updates(made: Prepared, people: Sequence[str], progress: Callable[[], None]) -> Iterator[Update]:
    bench, terms, state, left = made.bench, made.terms, made.state, made.examples
    for person in people:
        forget = forget_set(left, [person])
        left = left_by(left, forget)
        draws = generator(torch.device(bench.problem.device))
        forgotten = release(bench.method, bench.problem, state, forget, left, generator=draws)
        forgotten = refine(bench, terms, forgotten, left)
        size = ForgottenCount(len(forget.positions), 1, 1)
        certified = certify(bench, terms, forgotten, size)
        yield Update(bench, terms, forgotten, left, size, *_retrained(made, left), certified.claim)
        progress()
        terms = replace(terms, spent=terms.spent + certified.budget_cost, updates=terms.updates + 1)
        state = forgotten.state


def _retrained(made: Prepared, left: Examples) -> tuple[Tensor, float]:
    """Return the reference (d,), a cold training on who is left, and how far off the computed one may be.

    Where the reference is a minimiser, which no training reaches quite, it is approached and its distance bounded.
    """
    problem, method = made.bench.problem, made.bench.method
    # an exact update draws its batches anew over who stays; others are held to the first training's order
    planned = None if method.exact else made.examples.positions
    weights = train(problem, left, planned=planned, reference=made.terms.reference).weights
    bound, unsure = made.terms.bound(method), 0.0
    if isinstance(bound, Minimiser):
        weights, unsure = bound.refine(problem, Forgotten(State(weights)), left, made.terms.max_distance / CLOSER, {})
    return weights.detach().cpu().double(), unsure


def worlds_of(updates: Sequence[Update]) -> Worlds:
    """Return both worlds of a sequence of updates, all weights."""
    never = torch.stack([each.retrained for each in updates])
    return Worlds(never, torch.stack([each.weights for each in updates]) - never)
