"""Methods that repeat a part of a training: who is in which part, what it may see, what is trained again."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import unlearning as ul
from tests.unlearning.trained_here import (
    PEOPLE,
    by_settings,
    epochs,
    names,
    network,
    prepared,
    problem_of,
    samples,
    without,
)
from unlearning.artefact import bytes_of
from unlearning.methods.late import Late
from unlearning.methods.retrain import Retrain
from unlearning.methods.shards import Shards
from unlearning.model.method import Method
from unlearning.model.phases import JoinOrder, seed_of
from unlearning.model.problem import Problem
from unlearning.types import Examples, Learned, Refused, State

HISTORIES = (4, pytest.param(100, marks=pytest.mark.drill))
METHODS = [
    pytest.param(Retrain(), id="retrain"),
    pytest.param(Late(), id="late"),
    pytest.param(Late(early_share=(0.4, 0.7), phase_shares=(0.6, 0.2, 0.2)), id="late in three phases"),
    pytest.param(Shards(shards=3), id="shards"),
]


def settings() -> ul.Recipe:
    """The network in evaluation, by plain gradient steps."""
    plain = network(samples())
    return replace(plain, model=lambda: plain.model().eval())


TRAININGS = [
    pytest.param(partial(network, samples()), epochs, id="own"),
    pytest.param(settings, by_settings(settings()), id="by settings"),
]


@pytest.mark.parametrize("histories", HISTORIES)
@pytest.mark.parametrize(("recipe", "training"), TRAININGS)
@pytest.mark.parametrize("method", METHODS[1:])
def test_what_is_used_again_equals_a_cold_training_in_bytes(
    method: Method, recipe: Any, training: Any, histories: int
) -> None:
    """Random histories of deletions: at each update, the state is that of a training without everyone deleted."""
    everyone = recipe().samples.examples()
    problem, first = prepared(method, recipe(), everyone, training)
    draw = random.Random(1)
    reused = 0
    for _ in range(histories):
        state, kept = first, everyone
        for _ in range(draw.randint(1, 2)):
            people = set(draw.sample(names(kept), draw.randint(1, 3)))
            forget, kept = without(kept, people)
            state = method.forget(problem, state, forget, kept, torch.Generator()).state
        _, cold = prepared(method, recipe(), kept, training)
        assert torch.equal(state.weights, cold.weights)
        assert state.facts == cold.facts
        assert state.tensors.keys() == cold.tensors.keys()
        assert all(torch.equal(value, cold.tensors[name]) for name, value in state.tensors.items())
        reused += sum(torch.equal(value, first.tensors[name]) for name, value in state.tensors.items())
    assert reused > 0


@pytest.mark.parametrize("method", METHODS)
def test_forgetting_a_late_person_repeats_only_the_last_phase(method: Method) -> None:
    member = network(samples())
    everyone = member.samples.examples()
    problem, here = problem_of(member, partial(epochs, count=1))
    state = method.prepare(problem, everyone, Learned(problem.initial()))
    whole = len(here.made) if method.trains else 1
    costs = []
    asked = PEOPLE[::4]
    for person in asked:
        here.made.clear()
        forget, kept = without(everyone, {person})
        method.forget(problem, state, forget, kept, torch.Generator())
        costs.append(len(here.made))
    assert max(costs) <= whole
    if not isinstance(method, Retrain):
        assert min(costs) < whole
        assert sum(costs) < 0.9 * whole * len(asked)


class Quota(JoinOrder):
    """The core is filled up by rank to half of those who are there, as it must not be."""

    def joined(self, problem: Problem, examples: Examples) -> Tensor:
        ranked = sorted(examples.people, key=lambda person: seed_of(problem, "core", person))
        core = set(ranked[: len(ranked) // 2])
        return torch.tensor([int(person not in core) for person in examples.people])


class Filled(Late):
    @property
    def order(self) -> JoinOrder:
        return Quota(self.early_share, self.phase_shares)


def crowd(count: int) -> ul.Recipe:
    """Return ``count`` people of one sample each."""
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(4))
    ids, people = [f"sample-{index}" for index in range(count)], [f"p{index}" for index in range(count)]
    return network(ul.Samples(ids, people, x, x[:, :3].argmax(dim=1)))


BRIEF = partial(epochs, count=2, size=64)


@pytest.mark.parametrize(("method", "equal"), [(Late(), 40), (Filled(), 0)], ids=["hash", "quota"])
def test_of_40_late_deletions_a_hash_gives_40_cold_trainings_and_a_quota_none(method: Late, equal: int) -> None:
    """Late people leave one after another; the core's checkpoint is used again each time."""
    everyone = crowd(200).samples.examples()
    problem, state = prepared(method, crowd(200), everyone, BRIEF)
    joined = method.order.joined(problem, everyone).tolist()
    late = [person for person, phase in zip(everyone.people, joined, strict=True) if phase]
    kept, same = everyone, 0
    for person in late[:40]:
        forget, kept = without(kept, {person})
        done = method.forget(problem, state, forget, kept, torch.Generator())
        assert done.evidence["first_phase"] == 1
        state = done.state
        same += torch.equal(state.weights, prepared(method, crowd(200), kept, BRIEF)[1].weights)
    assert same == equal


def test_a_thousand_requests_aimed_at_one_shard_leave_a_cold_training_and_the_other_shards_alone() -> None:
    """People who know the draws ask, all of one shard, until nobody is in it."""
    method, recipe = Shards(shards=2), crowd(2_100)
    everyone = recipe.samples.examples()
    problem, first = prepared(method, recipe, everyone, BRIEF)
    state, kept = first, everyone
    aimed = [person for person in everyone.people if seed_of(problem, "shard", person) % 2 == 0]
    assert len(aimed) > 1_000
    rounds = [aimed[place : place + 250] for place in range(0, len(aimed), 250)]
    for people in rounds:
        forget, kept = without(kept, set(people))
        state = method.forget(problem, state, forget, kept, torch.Generator()).state
        cold = prepared(method, recipe, kept, BRIEF)[1]
        assert torch.equal(state.weights, cold.weights)
        assert all(torch.equal(value, cold.tensors[name]) for name, value in state.tensors.items())
    assert not bool((state.tensors["shard_of"][1] == 0).any())
    assert len(state.tensors["shard 0"]) == 0
    assert torch.equal(state.tensors["shard 1"], first.tensors["shard 1"])


def test_a_sample_joins_in_the_latest_phase_of_its_people() -> None:
    """So a late person never costs more than the late phases, also where she shares a sample with the core."""
    member = network(samples())
    examples = member.samples.examples()
    problem, state = prepared(Late(), member, examples)
    assert any(len(people) > 1 for people in examples.subjects)
    order = JoinOrder((0.3, 0.6), (0.5, 0.3, 0.2))
    joined = order.joined(problem, examples)
    for phase, people in zip(joined.tolist(), examples.subjects, strict=True):
        drawn = [seed_of(problem, "core", person) / 2**63 for person in people]
        assert phase == max((number >= 0.3) + (number >= 0.6) for number in drawn)
    for person in PEOPLE:
        if seed_of(problem, "core", person) / 2**63 >= 0.5:
            forget, kept = without(examples, {person})
            assert Late().forget(problem, state, forget, kept, torch.Generator()).evidence["first_phase"] == 1


def files_of(state: State, shards: int) -> list[bytes]:
    return [bytes_of(state.tensors[f"shard {shard}"]) for shard in range(shards)]


def test_a_person_costs_every_shard_that_holds_a_sample_of_hers() -> None:
    method, member = Shards(shards=4), network(samples())
    examples = member.samples.examples()
    problem, state = prepared(method, member, examples)
    several = 0
    for person in PEOPLE:
        forget, kept = without(examples, {person})
        done = method.forget(problem, state, forget, kept, torch.Generator())
        mine = {seed_of(problem, "shard", *people) % 4 for people in examples.subjects if person in people}
        before, after = files_of(state, 4), files_of(done.state, 4)
        assert {shard for shard in range(4) if before[shard] != after[shard]} == mine
        assert done.evidence["phases"] == len(mine)
        several += len(mine) > 1
    assert several > 0


def test_two_versions_show_which_shard_changed_and_the_certificate_says_so() -> None:
    method, member = Shards(shards=3), network(samples())
    examples = member.samples.examples()
    problem, state = prepared(method, member, examples)
    forget, kept = without(examples, {PEOPLE[1]})
    after = method.forget(problem, state, forget, kept, torch.Generator()).state
    changed = [one != other for one, other in zip(files_of(state, 3), files_of(after, 3), strict=True)]
    assert any(changed) and not all(changed)
    assert any("compares two versions" in sentence for sentence in method.assumptions)


def test_a_shard_that_nobody_is_in_is_empty_and_can_be_trained_later() -> None:
    member, method = network(samples()), Shards(shards=12)
    everyone = member.samples.examples()
    few = everyone.without(everyone.positions[[person not in PEOPLE[:6] for person in everyone.people]])
    problem, state = prepared(method, member, few)
    assert b"" in files_of(state, 12)
    forget, kept = without(few, {PEOPLE[0]})
    after = method.forget(problem, state, forget, kept, torch.Generator()).state
    assert torch.equal(after.weights, prepared(method, member, kept)[1].weights)


def test_twenty_uniform_requests_hit_most_shards() -> None:
    """63 to 99 % of 20 to 5 shards: shards save for single requests, late for batches."""
    problem = Problem(network(samples()))
    for shards, share in ((5, 0.988), (20, 0.642)):
        hit = [
            len({seed_of(problem, "shard", f"{draw}-{person}") % shards for person in range(20)}) / shards
            for draw in range(200)
        ]
        assert sum(hit) / len(hit) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("method", [Late(), Shards(shards=3)], ids=["late", "shards"])
def test_a_class_may_vanish_with_its_people(method: Method) -> None:
    """What is left equals a cold training, is finite, and leans less towards the class that nobody shows."""
    member, training = crowd(90), partial(epochs, count=8, size=16)
    everyone = member.samples.examples()
    problem, state = prepared(method, member, everyone, training)
    gone = {everyone.people[place] for place in (everyone.targets == 0).nonzero().flatten().tolist()}
    forget, kept = without(everyone, gone)
    left = method.forget(problem, state, forget, kept, torch.Generator()).state
    _, cold = prepared(method, member, kept, training)
    assert torch.equal(left.weights, cold.weights)
    with torch.no_grad():
        answers = [problem.outputs(w, everyone.inputs).softmax(dim=1) for w in (state.weights, left.weights)]
    assert bool(torch.isfinite(answers[1]).all())
    assert float(answers[1][:, 0].mean()) < float(answers[0][:, 0].mean())


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_model_that_is_trained_by_its_samples_has_no_parts(method: Method) -> None:
    member = network(samples())
    problem, examples = Problem(member), member.samples.examples()
    with pytest.raises(Refused, match=r"in one piece.*check PATH --measure"):
        method.prepare(problem, examples, Learned(problem.initial()))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Late(early_share=(), phase_shares=(1.0,)), "early_share is empty"),
        (lambda: Late(early_share=(0.5, 0.4), phase_shares=(0.5, 0.3, 0.2)), "increasing"),
        (lambda: Late(early_share=(0.4, 0.6)), "one more entry"),
        (lambda: Late(phase_shares=(0.9, 0.2)), "sum up to 1"),
        (lambda: JoinOrder((0.5,), (0.9, 0.2)), "sum up to 1"),
        (lambda: Shards(shards=1), "at least 2"),
    ],
)
def test_options_outside_their_range_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()
