"""Recipes drawn at random, traps among them: every ``proved`` and ``exact`` claim against a retraining of our own.

A draw is a recipe, a policy and a few deletions. It goes the way that a registration and its updates go (``serve``):
the same checks, the same methods, the same bound. What is served is compared with a float64 retraining that shares no
formula with the project: plain modules, plain autograd, Newton's method on a dense Hessian, gradient descent in a loop
(``tests/contract/retraining.py``). What is drawn, traps too, is in ``tests/contract/drawn.py``.

``pytest -m drill tests/contract/test_adversarial_claims.py`` draws 2,000.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial

import pytest
import torch
from torch import Tensor

from expunge_service.queue import ForgottenCount
from expunge_workers.guarantee.certify import BOUND, Certified, certify, require_certified
from expunge_workers.guarantee.terms import guarantee_of, guarantee_without_judge, reference_of, terms_of
from expunge_workers.runtime.model import OpenModel, method_of
from expunge_workers.runtime.model_tasks import FEATURES, START, TARGETS, carry_out, linear_recipe
from tests.contract import retraining
from tests.contract.drawn import TRAPS, Drawn, draw
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import PolicyError
from unlearning.model.method import require_followed
from unlearning.model.problem import Problem
from unlearning.model.training import learn, train
from unlearning.recipe import Recipe, Samples
from unlearning.types import Examples, ForgetSet, Forgotten, RecipeError, Refused, State, Vectors

torch.set_num_threads(1)


@dataclass(frozen=True)
class Served:
    """One update: what was certified, the realised bound, and who is left."""

    certified: Certified
    retain: Examples

    @property
    def weights(self) -> Tensor:
        return self.certified.state.weights

    @property
    def guarantee(self) -> Guarantee:
        return self.certified.claim.guarantee


@dataclass
class Tally:
    """What came of many draws."""

    drawn: int = 0
    traps: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    refused_plain: Counter[str] = field(default_factory=Counter)
    claims: Counter[str] = field(default_factory=Counter)
    beaten: list[str] = field(default_factory=list)
    tightest: float = 0.0


def serve(drawn: Drawn) -> list[Served]:
    """Register and forget as the workers do. Raises Refused or RecipeError."""
    method = method_of(drawn.policy)
    require_followed(method, drawn.recipe)
    recipe = drawn.recipe if method.exact else for_judge(drawn)
    problem = Problem(recipe)
    guarantee = guarantee_of(drawn.policy, problem, method)
    bench = OpenModel(recipe, problem, method, "drawn", "").under(guarantee)
    method = bench.method
    everyone, examples = drawn.recipe.samples.examples(), recipe.samples.examples()
    learned = (train if guarantee is Guarantee.EXACT else partial(learn, recipe))(problem, examples)
    made = method.prepare(problem, examples, learned)
    terms = terms_of(drawn.policy, guarantee, reference_of(drawn.policy, made), len(examples))
    bound = terms.bound(method)
    if bound is not None:
        bound.require_useful(problem, examples, made, terms.max_distance, {})
    served, state, retain = [], made, examples
    for gone in drawn.deletions:
        forget = _forget_set(retain, gone)
        retain = retain.without(torch.tensor(forget.positions))
        if drawn.policy.method == "retrain":
            forgotten = Forgotten(State(train(problem, retain).weights))
        else:
            given = replace(forget, vectors=Vectors(state.vectors))
            forgotten = method.forget(problem, state, given, retain, torch.Generator().manual_seed(1))
        if bound is not None:
            moved, distance = bound.refine(problem, forgotten, retain, terms.max_distance, {})
            forgotten = replace(forgotten, state=replace(forgotten.state, weights=moved), evidence={BOUND: distance})
        size = ForgottenCount(len(forget.positions), len(gone), len(forget.people))
        certified = require_certified(certify(bench, terms, forgotten, size))
        terms = replace(
            terms,
            spent=terms.spent + certified.budget_cost,
            updates=terms.updates + 1,
            unlearned=terms.unlearned + len(gone),
        )
        state = replace(certified.state, vectors=state.vectors)
        served.append(Served(certified, everyone.only(retain.positions)))
    return served


def for_judge(drawn: Drawn) -> Recipe:
    """Return the linear layer that a world without the recipe's code trains. Raises Refused or RecipeError."""
    words = {"task": "describe", "device": "cpu", "weights": {}, "methods": [drawn.policy.method], "again": False}
    words |= {"method": {"name": drawn.policy.method, "options": drawn.policy.options}}
    facts, tensors = carry_out(drawn.recipe, {}, words, {})
    if "refused" in facts and "head" not in facts and isinstance(facts["refused"], list):
        raise Refused(*facts["refused"])
    if "head" not in facts:
        guarantee_without_judge(drawn.policy, Problem(drawn.recipe), method_of(drawn.policy))
        raise AssertionError("no model without a judge gets the claim that is drawn")
    given = drawn.recipe.samples
    samples = Samples(given.names, [*given.people], tensors[FEATURES], tensors[TARGETS])
    holdout = tensors[FEATURES][:1], tensors[TARGETS][:1]
    return linear_recipe(facts["head"], samples, holdout, metric=None, start=tensors.get(START))


def _forget_set(examples: Examples, gone: frozenset[str]) -> ForgetSet:
    mask = torch.tensor([person in gone for person in examples.people])
    theirs = examples.only(examples.positions[mask])
    return ForgetSet(gone, tuple(theirs.positions.tolist()), theirs)


def judge(drawn: Drawn, tally: Tally) -> None:
    """Serve one draw and compare its claims; what is refused is counted."""
    tally.drawn += 1
    if drawn.trap is not None:
        tally.traps[drawn.trap] += 1
    try:
        served = serve(drawn)
    except (Refused, RecipeError, PolicyError) as error:
        (tally.refused_plain if drawn.trap is None else tally.refused)[drawn.trap or str(error)[:90]] += 1
        return
    for each in served:
        if each.guarantee in (Guarantee.PROVED, Guarantee.EXACT):
            tally.claims[each.guarantee.value] += 1
            share = _used(drawn, each)
            tally.tightest = max(tally.tightest, share)
            if not share <= 1.0:
                tally.beaten.append(f"{drawn} uses {share:.3g} of its claim")


def _used(drawn: Drawn, served: Served) -> float:
    """The true distance to retraining over what is claimed: at most 1 where the claim holds."""
    reference, slack = retraining.of(drawn.recipe, served.retain)
    distance = float((served.weights.double() - reference).norm())
    if served.guarantee is Guarantee.EXACT:
        # No bound is claimed: both are the same training, in float32 and in float64.
        converged = drawn.recipe.training.converge or 0.0
        allowed = 1e-4 * (1.0 + float(reference.norm())) + converged / max(drawn.recipe.training.weight_decay, 1e-9)
        return distance / (allowed + slack)
    bound = served.certified.evidence["bound"]
    assert isinstance(bound, float) and bound <= drawn.policy.max_distance
    return distance / (bound + slack)


def run(count: int, seed: int) -> Tally:
    generator, tally = random.Random(seed), Tally()
    for _ in range(count):
        judge(draw(generator), tally)
    return tally


def require_sound(tally: Tally) -> None:
    assert not tally.beaten, tally.beaten[:5]
    missed = {name: count - tally.refused[name] for name, count in tally.traps.items() if tally.refused[name] < count}
    assert not missed, f"traps that were served: {missed}"
    assert tally.refused.total() + tally.refused_plain.total() >= tally.traps.total()


def test_no_claim_of_a_few_dozen_drawn_recipes_is_beaten() -> None:
    tally = run(40, seed=12)
    require_sound(tally)
    assert tally.claims["proved"] >= 12 and tally.claims["exact"] >= 2, tally


@pytest.mark.parametrize("trap", TRAPS)
def test_every_trap_is_refused(trap: str) -> None:
    generator, tally = random.Random(trap), Tally()
    judge(draw(generator, trap), tally)
    require_sound(tally)


@pytest.mark.drill
@pytest.mark.timeout(7200)
def test_no_claim_of_two_thousand_drawn_recipes_is_beaten() -> None:
    tally = run(2000, seed=20261122)
    print(tally)
    require_sound(tally)
    assert tally.claims["proved"] >= 1000 and tally.claims["exact"] >= 100, tally
    assert len(tally.traps) == len(TRAPS)
    assert tally.tightest > 0.01, "a bound that nothing comes near shows little"
