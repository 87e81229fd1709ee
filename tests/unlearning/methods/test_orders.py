"""The rules of an order of people: who joins when, what a phase may see, what is trained again."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import unlearning as ul
import unlearning.model.fit
from tests.unlearning.model.test_own_training import PEOPLE, built_in, epochs, own, prepared, without
from unlearning.methods.late import Late
from unlearning.methods.shards import Shards
from unlearning.methods.shards.ensemble import Ensemble, Stacked, averaging
from unlearning.methods.shards.head import RIDGE, answers_of, fit_head
from unlearning.model.fit import JoinOrder
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.model.user_code.own_training import seed_of
from unlearning.recipe import Run
from unlearning.types import Examples, Refused


def crowd(count: int, **changes: Any) -> ul.Recipe:
    """Return ``count`` people of one sample each, a network with batch normalisation and dropout, AdamW, two passes."""
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(4))
    samples = ul.Samples(
        [f"sample-{index}" for index in range(count)],
        [f"p{index}" for index in range(count)],
        x,
        x[:, :3].argmax(dim=1),
    )
    return own(samples=samples, holdout=samples.tensors(), train=lambda run: epochs(run, 2, 64), **changes)


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


@pytest.mark.parametrize(("method", "equal"), [(Late(), 40), (Filled(), 0)], ids=["hash", "quota"])
def test_of_40_late_deletions_a_hash_gives_40_cold_trainings_and_a_quota_none(method: Late, equal: int) -> None:
    """Late people leave one after another; the core's checkpoint is used again each time."""
    everyone = crowd(200).samples.examples()
    problem, state = prepared(method, crowd(200), everyone)
    late = [person for person, phase in zip(everyone.people, _phases(method, problem, everyone), strict=True) if phase]
    kept, same = everyone, 0
    for person in late[:40]:
        forget, kept = without(kept, {person})
        done = method.forget(problem, state, forget, kept, torch.Generator())
        assert done.evidence["first_phase"] == 1
        state = done.state
        same += torch.equal(state.weights, prepared(method, crowd(200), kept)[1].weights)
    assert same == equal


def _phases(method: Late, problem: Problem, examples: Examples) -> list[int]:
    return method.order.joined(problem, examples).tolist()


def test_a_thousand_requests_aimed_at_one_shard_leave_a_cold_training_and_the_other_shards_alone() -> None:
    """People who know the draws ask, all of one shard, until nobody is in it."""
    method, recipe = Shards(shards=2, slices=2), crowd(2_100)
    everyone = recipe.samples.examples()
    problem, state = prepared(method, recipe, everyone)
    first, kept = state, everyone
    aimed = [person for person in everyone.people if seed_of(problem, "shard", person) % 2 == 0]
    assert len(aimed) > 1_000
    rounds = [aimed[place : place + 250] for place in range(0, len(aimed), 250)]
    for people in rounds:
        forget, kept = without(kept, set(people))
        state = method.forget(problem, state, forget, kept, torch.Generator()).state
        cold = prepared(method, recipe, kept)[1]
        assert torch.equal(state.weights, cold.weights)
        assert all(torch.equal(value, cold.tensors[name]) for name, value in state.tensors.items())
    assert not bool((state.tensors["joined"][1] == 0).any())
    others = [name for name in first.tensors if name.startswith("shard 1 ")]
    assert others
    assert all(torch.equal(state.tensors[name], first.tensors[name]) for name in others)


def test_a_sample_joins_in_the_latest_phase_of_its_people() -> None:
    """So a late person never costs more than the late phases, also where she shares a sample with the core."""
    recipe = built_in()
    problem, examples = Problem(recipe), recipe.samples.examples()
    assert any(len(people) > 1 for people in examples.subjects)
    order = JoinOrder((0.3, 0.6), (0.5, 0.3, 0.2))
    joined = order.joined(problem, examples)
    for phase, people in zip(joined.tolist(), examples.subjects, strict=True):
        drawn = [seed_of(problem, "core", person) / 2**63 for person in people]
        assert phase == max((each >= 0.3) + (each >= 0.6) for each in drawn)
    state = prepared(Late(), built_in(epochs=1), examples)[1]
    for person in PEOPLE:
        if seed_of(problem, "core", person) / 2**63 >= 0.5:
            forget, kept = without(examples, {person})
            assert Late().forget(problem, state, forget, kept, torch.Generator()).evidence["first_phase"] == 1


def test_a_person_costs_every_shard_that_holds_a_sample_of_hers() -> None:
    method, recipe = Shards(shards=4, slices=1), built_in(epochs=1)
    examples = recipe.samples.examples()
    problem, state = prepared(method, recipe, examples)
    several = 0
    for person in PEOPLE:
        forget, kept = without(examples, {person})
        after = method.forget(problem, state, forget, kept, torch.Generator()).state
        mine = {seed_of(problem, "shard", *people) % 4 for people in examples.subjects if person in people}
        changed = {
            shard
            for shard in range(4)
            if not torch.equal(state.tensors[f"shard {shard} 0.weights"], after.tensors[f"shard {shard} 0.weights"])
        }
        assert changed == mine
        several += len(mine) > 1
    assert several > 0


def test_two_versions_show_which_shard_changed_and_the_certificate_says_so() -> None:
    method, recipe = Shards(shards=3, slices=1), built_in()
    examples = recipe.samples.examples()
    problem, state = prepared(method, recipe, examples)
    forget, kept = without(examples, {PEOPLE[1]})
    after = method.forget(problem, state, forget, kept, torch.Generator()).state
    one, other = problem.tensors(state.weights), problem.tensors(after.weights)
    changed = {name.split(".")[1] for name in one if not torch.equal(one[name], other[name])}
    assert changed < {"0", "1", "2"}
    assert any("compares two versions" in sentence for sentence in method.assumptions)


def test_twenty_uniform_requests_hit_most_shards() -> None:
    """63 to 99 % of 20 to 5 shards: shards save for single requests, late for batches."""
    problem = Problem(built_in())
    for shards, share in ((5, 0.988), (20, 0.642)):
        hit = [
            len({seed_of(problem, "shard", f"{draw}-{person}") % shards for person in range(20)}) / shards
            for draw in range(200)
        ]
        assert sum(hit) / len(hit) == pytest.approx(share, abs=0.02)


def test_the_step_size_is_constant_until_the_last_phase_and_falls_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """One cosine over all phases hardly learns the late people."""
    rates: list[float] = []
    advance = unlearning.model.fit.advance

    def seen(problem: Problem, kept: Examples, positions: Tensor, w: Tensor, rate: float) -> Any:
        rates.append(rate)
        return advance(problem, kept, positions, w, rate)

    monkeypatch.setattr("unlearning.model.fit.advance", seen)
    examples = built_in().samples.examples()
    last = 8
    prepared(Late(early_share=(0.4, 0.7), phase_shares=(0.6, 0.2, 0.2)), built_in(), examples)
    falling = [rate for rate in rates if rate != 0.3]
    assert rates[: -2 * last + 1] == [0.3] * (len(rates) - 2 * last + 1)
    assert falling == sorted(falling, reverse=True)
    assert 0.0 < min(falling) < 0.03


@pytest.mark.parametrize(
    ("method", "told"),
    [
        (Late(), {"phase 1": False, "phase 2": True}),
        (Shards(shards=2, slices=1), {"shard 0 slice 1": True, "shard 1 slice 1": True}),
        (
            Shards(shards=2, early_share=(0.5,), phase_shares=(0.9, 0.1)),
            {f"shard {s} slice {p}": p == 2 for s in (0, 1) for p in (1, 2)},
        ),
    ],
)
def test_your_own_training_is_told_which_phase_is_the_last(method: Method, told: dict[str, bool]) -> None:
    seen: dict[str, bool] = {}

    def fit(run: Run) -> Any:
        seen[run.phase] = run.last
        return epochs(run, 1)

    prepared(method, own(train=fit), own().samples.examples())
    assert seen == told


def test_passes_follow_from_the_settings_and_never_from_who_is_there() -> None:
    seen: dict[str, set[float]] = {}

    def fit(run: Run) -> Any:
        seen.setdefault(run.phase, set()).add(run.share)
        return epochs(run, 1)

    everyone = own().samples.examples()
    for gone in range(0, 20, 4):
        _, kept = without(everyone, set(PEOPLE[:gone]))
        prepared(Late(early_share=(0.4, 0.7), phase_shares=(0.6, 0.2, 0.2)), own(train=fit), kept)
    assert {phase: sorted(shares) for phase, shares in seen.items()} == {
        "phase 1": [pytest.approx(1.5)],
        "phase 2": [pytest.approx(0.2 / 0.7)],
        "phase 3": [pytest.approx(0.2)],
    }


def test_slices_are_an_order_of_equal_parts() -> None:
    order = Shards(slices=4).order
    assert order.early_share == (0.25, 0.5, 0.75)
    assert order.phase_shares == pytest.approx((0.1, 0.2, 0.3, 0.4))
    assert len(Shards(slices=1).order) == 1


def test_a_head_that_is_not_fitted_averages_the_log_probabilities() -> None:
    members = [nn.Linear(4, 3) for _ in range(5)]
    x = torch.randn(7, 4)
    mean = torch.stack([member(x).log_softmax(dim=1) for member in members]).mean(dim=0)
    assert torch.allclose(Stacked(members, 3)(x), mean, atol=1e-6)


def test_a_head_is_the_minimiser_and_serves_as_one_module() -> None:
    recipe, method = own(), Shards(shards=4, slices=2, stacked=1.0)
    examples = recipe.samples.examples()
    problem, state = prepared(method, recipe, examples)
    served = Stacked([recipe.model() for _ in range(4)], 3).eval()
    served.load_state_dict(problem.tensors(state.weights))
    x, y = recipe.holdout
    assert torch.allclose(served(x), problem.outputs(state.weights, x), atol=1e-5)
    plain = Ensemble(served.members, "cross_entropy")
    with torch.no_grad():
        assert nn.functional.cross_entropy(served(x), y) < nn.functional.cross_entropy(plain(x), y)
    answers = torch.cat([*state.tensors["answers"]], dim=1).double()
    weight = served.head.weight.detach().double().requires_grad_()
    bias = served.head.bias.detach().double().requires_grad_()
    away = (weight - averaging(4, 3)).square().sum() + bias.square().sum()
    loss = nn.functional.cross_entropy(answers @ weight.T + bias, examples.targets) + 0.5 * RIDGE * away
    assert all(float(each.abs().max()) < 1e-4 for each in torch.autograd.grad(loss, [weight, bias]))
    assert torch.equal(fit_head(state.tensors["answers"], examples.targets)["head.weight"].float(), served.head.weight)


def test_nobodys_answers_depend_on_who_else_is_there() -> None:
    """The head's inputs that are kept are those that a cold training computes, to the last bit."""
    recipe = own()
    problem, examples = Problem(recipe), recipe.samples.examples()
    everyones = answers_of(problem, problem.initial(), examples)
    assert torch.allclose(everyones, problem.outputs(problem.initial(), examples.inputs).log_softmax(dim=1), atol=1e-6)
    for person in PEOPLE:
        forget, kept = without(examples, {person})
        stay = ~torch.isin(examples.positions, torch.tensor(forget.positions))
        assert torch.equal(answers_of(problem, problem.initial(), kept), everyones[stay])


def test_a_head_without_a_sample_or_a_classifier_is_refused() -> None:
    with pytest.raises(Refused, match="no sample to be fitted on"):
        prepared(Shards(shards=2, stacked=1e-9), own(), own().samples.examples())
    with pytest.raises(Refused, match="squared_error"):
        Shards(stacked=0.5).recipe(replace(own(), loss="squared_error"))


def test_parameters_without_weight_decay_are_those_of_each_member() -> None:
    plain = built_in()
    recipe = replace(plain, training=replace(plain.training, undecayed=("0.bias",)))
    problem, state = prepared(Shards(shards=2, slices=1), recipe, recipe.samples.examples())
    other = prepared(Shards(shards=2, slices=1), plain, plain.samples.examples())[1]
    assert not torch.equal(state.weights, other.weights)
    assert problem.accuracy(state.weights, *recipe.holdout) > 0.6


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Late(early_share=(), phase_shares=(1.0,)), "early_share is empty"),
        (lambda: Shards(early_share=(0.5, 0.4), phase_shares=(0.5, 0.3, 0.2)), "increasing"),
        (lambda: Shards(early_share=(0.5,)), "one more entry"),
        (lambda: Shards(phase_shares=(0.5, 0.5)), "one more entry"),
        (lambda: Shards(stacked=1.5), "share of the people"),
        (lambda: JoinOrder((0.5,), (0.9, 0.2)), "sum up to 1"),
    ],
)
def test_options_outside_their_range_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize(
    "method",
    [Late(), Shards(shards=3, slices=2), Shards(shards=3, slices=2, stacked=0.5)],
    ids=["late", "shards", "shards with a head"],
)
def test_a_class_may_vanish_with_its_people(method: Method) -> None:
    """What is left equals a cold training, is finite, and leans less towards the class that nobody shows."""
    recipe = replace(crowd(90), train=lambda run: epochs(run, 8, 16))
    everyone = recipe.samples.examples()
    problem, state = prepared(method, recipe, everyone)
    gone = {everyone.people[place] for place in (everyone.targets == 0).nonzero().flatten().tolist()}
    forget, kept = without(everyone, gone)
    left = method.forget(problem, state, forget, kept, torch.Generator()).state
    _, cold = prepared(method, recipe, kept)
    assert torch.equal(left.weights, cold.weights)
    assert bool(torch.isfinite(left.weights).all())
    answers = [problem.outputs(weights, everyone.inputs).softmax(dim=1) for weights in (state.weights, left.weights)]
    assert float(answers[1][:, 0].mean()) < float(answers[0][:, 0].mean())
