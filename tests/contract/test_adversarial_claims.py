"""Recipes drawn at random, traps among them: every ``proved`` and ``exact`` claim against a retraining of our own.

A draw is a recipe, a policy and a few deletions. It goes the way that a registration and its updates go (``serve``):
the same checks, the same methods, the same bound. What is served is compared with a float64 retraining that shares no
formula with the project: plain modules, plain autograd, Newton's method on a dense Hessian, gradient descent in a loop
(``tests/contract/retraining.py``). What is drawn, traps too, is in ``tests/contract/drawn.py``.

Recipes with code of their own (``tests/contract/drawn_code.py``) go through a real worker, its trial and its fresh
processes. What is published after a deletion is compared, byte for byte, with what a worker publishes that has never
seen the person's rows. No innocent recipe may be refused.

``pytest -m drill tests/contract/test_adversarial_claims.py`` draws 2,000 of the first kind and 450 of the second.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import venv
from collections import Counter
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import Tensor

from expunge.service.infra.settings import Settings, ensure_secrets
from expunge.service.queue import ForgottenCount
from expunge.workers.guarantee.certify import Certified, certify, refine, require_certified
from expunge.workers.guarantee.dry_run import establish
from expunge.workers.guarantee.terms import guarantee_of, reference_of, require_closed_form, require_needs, terms_of
from expunge.workers.runtime.model import OpenModel, method_of
from expunge.workers.training.start import cold
from tests.contract import drawn_code, retraining
from tests.contract.drawn import TRAPS, Drawn, draw
from tests.harness.databases import sqlite_databases
from tests.service.conftest import sqlite_template
from tests.workers.worlds import World, open_world
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import PolicyError
from unlearning.model.parts import parts_of, require_declared
from unlearning.model.problem import Problem
from unlearning.model.training import learn
from unlearning.types import Examples, ForgetSet, Forgotten, RecipeError, Refused, State, Vectors

__all__ = ["sqlite_template"]

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
    why: list[str] = field(default_factory=list)
    """the reasons of refusals, where a worker gave them"""
    tightest: float = 0.0


def serve(drawn: Drawn) -> list[Served]:
    """Register and forget as the workers do. Raises Refused or RecipeError."""
    problem, method = Problem(drawn.recipe), method_of(drawn.policy)
    parts = parts_of(drawn.recipe)
    require_needs(drawn.policy, method, drawn.recipe)
    guarantee = guarantee_of(drawn.policy, problem, method)
    bench = OpenModel(drawn.recipe, problem, method, "drawn", "", parts).under(guarantee)
    method = bench.method
    if guarantee in (Guarantee.PROVED, Guarantee.EXACT):
        require_declared(drawn.recipe, parts)
    examples = drawn.recipe.samples.examples()
    require_closed_form(method, problem, examples)
    learned = (cold if guarantee is Guarantee.EXACT else learn)(drawn.recipe, problem, examples, lambda _: None)
    made = method.prepare(problem, examples, learned)
    terms = terms_of(drawn.policy, guarantee, reference_of(drawn.policy, made), len(examples))
    terms, _ = establish(bench, terms, examples, made)
    served, state, retain = [], made, examples
    for gone in drawn.deletions:
        forget = _forget_set(retain, gone)
        retain = retain.without(torch.tensor(forget.positions))
        if drawn.policy.method == "retrain":
            forgotten = Forgotten(State(cold(drawn.recipe, problem, retain, lambda _: None).weights))
        else:
            given = replace(forget, vectors=Vectors(state.vectors))
            forgotten = method.forget(problem, state, given, retain, torch.Generator().manual_seed(1))
        size = ForgottenCount(len(forget.positions), len(gone), len(forget.people))
        certified = require_certified(certify(bench, terms, refine(bench, terms, forgotten, retain), retain, size))
        terms = replace(
            terms,
            spent=terms.spent + certified.budget_cost,
            updates=terms.updates + 1,
            unlearned=terms.unlearned + len(gone),
        )
        state = replace(certified.state, vectors=state.vectors)
        served.append(Served(certified, retain))
    return served


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


# Recipes with code of their own, through a worker


@dataclass(frozen=True)
class Worlds:
    """Workers that share a pepper, so that they draw the same for the same people; each has its own home."""

    folder: Path
    template: Any

    def registered(self, number: str, text: str, drawn: drawn_code.Drawn) -> tuple[World, str]:
        """A new worker that has registered the recipe of this text, and the model's id."""
        home = self.folder / number
        recipes = home / "recipes"
        recipes.mkdir(parents=True)
        (recipes / "drawn.py").write_text(text)
        url = sqlite_databases(self.template)(home)
        settings = Settings(home=home / "home", database_url=url, recipes=recipes, device="cpu")
        ensure_secrets(settings)
        settings.pepper_file.write_text("5a" * 32)
        world = open_world(settings)
        model_id = world.register("drawn", drawn.method, options=drawn.options)
        world.work(model_id)
        return world, model_id


def judge_code(drawn: drawn_code.Drawn, worlds: Worlds, tally: Tally) -> None:
    """Register, delete and compare with a worker that never saw the person; what is refused is counted."""
    number = str(tally.drawn)
    tally.drawn += 1
    if drawn.trap is not None:
        tally.traps[drawn.trap] += 1
    world, model_id = worlds.registered(f"{number}-deleted", drawn.text, drawn)
    try:
        if world.model(model_id).status == "refused":
            reason = f"{drawn.words}: {world.model(model_id).reason}"
            tally.why.append(reason)
            (tally.refused_plain if drawn.trap is None else tally.refused)[drawn.trap or reason] += 1
            return
        request = world.delete(drawn.person)
        world.work(model_id)
        assert world.task(request).status == "completed", f"{drawn.words}: {world.task(request).reason}"
        never, cold_id = worlds.registered(f"{number}-never", drawn.without(drawn.person), drawn)
        one, other = _published(world, model_id), _published(never, cold_id)
        never.storage.close()
        tally.claims[world.head(model_id).claim["guarantee"]] += 1
        if one.keys() != other.keys() or not all(torch.equal(value, other[name]) for name, value in one.items()):
            tally.beaten.append(f"{drawn.words}: lies {_apart(one, other)} away")
    finally:
        world.storage.close()
        shutil.rmtree(worlds.folder / f"{number}-deleted", ignore_errors=True)
        shutil.rmtree(worlds.folder / f"{number}-never", ignore_errors=True)


def _published(world: World, model_id: str) -> dict[str, Tensor]:
    return load(world.storage.store.read(world.head(model_id).checkpoint))


def _apart(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return max(float((value.double() - other[name].double()).norm()) for name, value in one.items() if name in other)


@pytest.fixture
def worlds(tmp_path: Path, sqlite_template: Any) -> Worlds:
    return Worlds(tmp_path, sqlite_template)


def test_a_few_drawn_recipes_with_code_of_their_own_are_served_exactly(worlds: Worlds) -> None:
    generator, tally = random.Random(4), Tally()
    for _ in range(4):
        judge_code(drawn_code.draw(generator, honest=True), worlds, tally)
    assert not tally.refused_plain and not tally.beaten, tally
    assert tally.claims["exact"] == 4


@pytest.mark.parametrize(
    "trap",
    [
        pytest.param(
            each, marks=() if each in ("the table", "a helper", "a file that it goes on from") else pytest.mark.drill
        )
        for each in drawn_code.TRAPS
    ],
)
def test_a_training_that_reads_somebody_else_is_refused_or_makes_no_difference(trap: str, worlds: Worlds) -> None:
    tally = Tally()
    judge_code(drawn_code.draw(random.Random(trap), trap), worlds, tally)
    assert not tally.beaten, tally
    assert [each for each in tally.why if drawn_code.TRAPS[trap][1] in each], tally


@pytest.mark.drill
@pytest.mark.timeout(10800)
def test_no_innocent_recipe_with_code_of_its_own_is_refused_and_no_claim_is_beaten(worlds: Worlds) -> None:
    generator, tally = random.Random(20261124), Tally()
    for _ in range(320):
        judge_code(drawn_code.draw(generator, honest=True), worlds, tally)
    assert not tally.refused_plain, f"innocent recipes that were refused: {tally.refused_plain}"
    for _ in range(130):
        judge_code(drawn_code.draw(generator), worlds, tally)
    print(tally)
    assert not tally.refused_plain and not tally.beaten, tally
    assert tally.claims["exact"] >= 320


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where transformers and Lightning are installed, beside this environment and with its torch, for these tests.

    Where they cannot be installed, the tests fail.
    """
    place = tmp_path_factory.mktemp("libraries")
    venv.create(place / "venv", with_pip=True)
    [found] = (place / "venv").glob("lib/python*/site-packages")
    here = [each for each in sys.path if each.endswith("-packages")]
    (found / "outer.pth").write_text("\n".join(here))
    kept = place / "kept.txt"
    kept.write_text("\n".join(f"{each}=={version(each)}" for each in ("torch", "numpy", "safetensors")))
    wanted = ["transformers==5.23.0", "accelerate", "lightning==2.6.6"]
    command = [place / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", "--constraint", kept, *wanted]
    subprocess.run(command, check=True)
    assert not (found / "torch").exists(), "they came with a torch of their own"
    return found


@pytest.mark.drill
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("library", drawn_code.LIBRARIES)
def test_a_training_by_a_library_is_served_exactly(library: str, packages: Path, worlds: Worlds) -> None:
    tally = Tally()
    judge_code(drawn_code.by_library(library, str(packages)), worlds, tally)
    assert not tally.refused_plain and not tally.beaten, tally
    assert tally.claims["exact"] == 1
