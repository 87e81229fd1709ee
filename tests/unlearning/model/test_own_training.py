"""A recipe's own training: whole state, no pickle, and methods that repeat a part of it, byte for byte."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import unlearning as ul
from unlearning.methods.late import Late
from unlearning.methods.retrain import Retrain
from unlearning.methods.shards import Shards
from unlearning.methods.shards.ensemble import Ensemble
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.model.user_code.global_state import draws_from
from unlearning.model.user_code.own_training import packed, seed_of, train_by_recipe, unpacked
from unlearning.recipe import Run
from unlearning.types import Examples, ForgetSet, Learned, RecipeError, Refused, State

PEOPLE = tuple(f"person-{k:02}" for k in range(30))
HISTORIES = (4, pytest.param(100, marks=pytest.mark.drill))


def epochs(run: Run, count: int, size: int = 16) -> Any:
    """AdamW with a schedule, noise on the inputs, and whatever the module has: batch normalisation, dropout."""
    optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.01)
    if run.state is not None:
        optimizer.load_state_dict(run.state["optimizer"])
    steps = max(1, round(count * run.share))
    for epoch in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 0.01 if run.phase == "phase 1" else 0.01 * (1 - epoch / steps)
        for batch in torch.randperm(len(run.inputs)).split(size):
            if len(batch) > 1:
                x = run.inputs[batch] + 0.05 * torch.randn_like(run.inputs[batch])
                optimizer.zero_grad()
                F.cross_entropy(run.model(x), run.targets[batch]).backward()
                optimizer.step()
        run.progress(epoch / steps)
    return {"optimizer": optimizer.state_dict(), "epochs": steps}


def stopping_early(run: Run) -> Any:
    """Steps until the loss on the people who are set aside has risen twice, or after 20."""
    aside = run.validation(0.3)
    optimizer = torch.optim.SGD(run.model.parameters(), lr=0.5)
    best, risen = float("inf"), 0
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(run.model(run.inputs[~aside]), run.targets[~aside]).backward()
        optimizer.step()
        with torch.no_grad():
            loss = float(F.cross_entropy(run.model(run.inputs[aside]), run.targets[aside])) if aside.any() else best
        best, risen = min(best, loss), risen + (loss > best)
        if risen == 2:
            break
    return {"people": run.people, "aside": aside}


def samples() -> ul.Samples:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(120, 6, generator=generator)
    subjects = [(PEOPLE[index % len(PEOPLE)], *PEOPLE[index % 29 :: 31][: index % 8 == 0]) for index in range(120)]
    return ul.Samples([f"sample-{index}" for index in range(120)], subjects, x, x[:, :3].argmax(dim=1))


def own(**changes: Any) -> ul.Recipe:
    plain = ul.Recipe(
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3)),
        samples=samples(),
        holdout=samples().tensors(),
        loss="cross_entropy",
        train=lambda run: epochs(run, 8),
    )
    return replace(plain, **changes)


def built_in(**changes: Any) -> ul.Recipe:
    settings = {"epochs": 8, "batch_size": 16, "learning_rate": 0.3, "weight_decay": 1e-3, **changes}
    return ul.Recipe(
        model=lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)),
        samples=samples(),
        holdout=samples().tensors(),
        loss="cross_entropy",
        training=ul.Training(**settings),
    )


METHODS = [
    pytest.param(Retrain(), id="retrain"),
    pytest.param(Late(), id="late"),
    pytest.param(Late(early_share=(0.4, 0.7), phase_shares=(0.6, 0.2, 0.2)), id="late in three phases"),
    pytest.param(Shards(shards=3, slices=1), id="shards"),
    pytest.param(Shards(shards=2, slices=3), id="shards in slices"),
    pytest.param(Shards(shards=2, early_share=(0.4,), phase_shares=(0.8, 0.2)), id="shards with a core"),
    pytest.param(Shards(shards=3, slices=2, stacked=0.5), id="shards with a head"),
]
RECIPES = [
    pytest.param(lambda: own(train=lambda run: epochs(run, 3, 40)), id="own"),
    pytest.param(lambda: own(train=stopping_early), id="own that stops early"),
    pytest.param(lambda: built_in(epochs=3, batch_size=40), id="built in"),
]


def prepared(method: Method, recipe: ul.Recipe, examples: Examples) -> tuple[Problem, State]:
    problem = Problem(method.recipe(recipe))
    learned = Learned(problem.initial()) if method.trains else train(problem, examples)
    return problem, method.prepare(problem, examples, learned)


def without(examples: Examples, people: set[str]) -> tuple[ForgetSet, Examples]:
    """Forget every sample that one of ``people`` has a part in."""
    gone = [place for place, subjects in enumerate(examples.subjects) if not people.isdisjoint(subjects)]
    positions = examples.positions[gone]
    holders = frozenset(examples.people[place] for place in gone)
    return ForgetSet(holders, tuple(positions.tolist())), examples.without(positions)


def names(examples: Examples) -> list[str]:
    return sorted({person for subjects in examples.subjects for person in subjects})


@pytest.mark.parametrize("histories", HISTORIES)
@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("method", METHODS[1:])
def test_what_is_used_again_equals_a_cold_training_in_bytes(method: Method, recipe: Any, histories: int) -> None:
    """Random histories of deletions: at each update, the state is that of a training without everyone deleted."""
    everyone = recipe().samples.examples()
    problem, first = prepared(method, recipe(), everyone)
    draw = random.Random(1)
    reused = 0
    for _ in range(histories):
        state, kept = first, everyone
        for _ in range(draw.randint(1, 2)):
            people = set(draw.sample(names(kept), draw.randint(1, 3)))
            forget, kept = without(kept, people)
            state = method.forget(problem, state, forget, kept, torch.Generator()).state
        _, cold = prepared(method, recipe(), kept)
        assert torch.equal(state.weights, cold.weights)
        assert state.facts == cold.facts
        assert state.tensors.keys() == cold.tensors.keys()
        assert all(torch.equal(value, cold.tensors[name]) for name, value in state.tensors.items())
        reused += sum(torch.equal(value, first.tensors[name]) for name, value in state.tensors.items())
    assert reused > 0


@pytest.mark.parametrize("method", METHODS)
def test_forgetting_a_late_person_repeats_only_the_last_phase(method: Method) -> None:
    calls: list[str] = []

    def counted(run: Run) -> Any:
        calls.append(run.phase)
        return epochs(run, 1, 60)

    recipe = own(train=counted)
    everyone = recipe.samples.examples()
    problem, state = prepared(method, recipe, everyone)
    whole = len(calls)
    costs = []
    asked = PEOPLE[::4]
    for person in asked:
        calls.clear()
        forget, kept = without(everyone, {person})
        method.forget(problem, state, forget, kept, torch.Generator())
        costs.append(len(calls))
    assert max(costs) <= whole
    if not isinstance(method, Retrain):
        assert min(costs) < whole
        assert sum(costs) < 0.9 * whole * len(asked)


@pytest.mark.parametrize("method", METHODS)
def test_a_person_keeps_one_number_and_one_side_in_every_phase_and_without_somebody(method: Method) -> None:
    sides: dict[str, set[tuple[int, bool]]] = {}

    def noted(run: Run) -> None:
        aside = run.validation(0.3)
        for row, number, side in zip(run.inputs, run.people.tolist(), aside.tolist(), strict=True):
            sides.setdefault(repr(row.tolist()), set()).add((number, side))

    recipe = own(train=noted)
    everyone = recipe.samples.examples()
    problem, state = prepared(method, recipe, everyone)
    forget, kept = without(everyone, {PEOPLE[4]})
    method.forget(problem, state, forget, kept, torch.Generator())
    assert len(sides) == 120 and all(len(found) == 1 for found in sides.values())
    of_row = {repr(row.tolist()): people for row, people in zip(everyone.inputs, everyone.subjects, strict=True)}
    alone = {of_row[row][0]: next(iter(found)) for row, found in sides.items() if len(of_row[row]) == 1}
    assert len({number for number, _ in alone.values()}) == len(alone) == 30
    shared = [(next(iter(found)), of_row[row]) for row, found in sides.items() if len(of_row[row]) > 1]
    assert {side for _, side in alone.values()} == {True, False} and shared
    for (number, side), people in shared:
        assert number == max(alone[each][0] for each in people)
        assert side == all(alone[each][1] for each in people)


def test_the_share_that_is_set_aside_is_of_people_and_keyed_by_the_seed() -> None:
    masks: list[Tensor] = []

    def noted(run: Run) -> None:
        masks.append(run.validation(0.2))
        assert not run.validation(0.0).any() and run.validation(1.0).all()
        assert bool((run.validation(0.5) | ~run.validation(0.2)).all()), "who is aside stays so at a greater share"
        with pytest.raises(ValueError, match=r"share is 1\.5"):
            run.validation(1.5)

    people = [f"p{k // 2}" for k in range(4000)]
    many = ul.Samples([f"s{k}" for k in range(4000)], people, torch.zeros(4000, 6), torch.zeros(4000).long())
    for seed in (0, 1):
        recipe = own(train=noted, samples=many, seed=seed)
        train_by_recipe(Problem(recipe), recipe.samples.examples())
    assert all(torch.equal(mask[::2], mask[1::2]) for mask in masks), "both samples of a person are on one side"
    assert all(0.15 < float(mask.double().mean()) < 0.25 for mask in masks)
    assert not torch.equal(*masks)


def test_running_statistics_are_trained_published_and_loaded() -> None:
    recipe = own()
    problem = Problem(recipe)
    w = train(problem, recipe.samples.examples()).weights
    tensors = problem.tensors(w)
    module = recipe.model().eval()
    module.load_state_dict(tensors)
    assert int(tensors["1.num_batches_tracked"]) > 0
    assert tensors["1.num_batches_tracked"].dtype == torch.int64
    assert not torch.equal(tensors["1.running_mean"], torch.zeros(8))
    x, y = recipe.holdout
    assert torch.allclose(module(x), problem.outputs(w, x), atol=1e-6)
    assert problem.accuracy(w, x, y) > 0.6


def test_an_ensemble_is_loaded_from_what_was_published_and_averages_probabilities() -> None:
    recipe, method = own(), Shards(shards=3, slices=2)
    problem, state = prepared(method, recipe, recipe.samples.examples())
    served = Ensemble([recipe.model() for _ in range(3)], "cross_entropy").eval()
    served.load_state_dict(problem.tensors(state.weights))
    x, y = recipe.holdout
    mean = torch.stack([member(x).softmax(dim=1) for member in served.members]).mean(dim=0)
    assert torch.allclose(served(x).exp(), mean, atol=1e-6)
    assert torch.allclose(problem.outputs(state.weights, x), served(x), atol=1e-5)
    assert problem.accuracy(state.weights, x, y) > 0.5


def test_a_shard_that_nobody_is_in_keeps_its_start_and_can_be_trained_on() -> None:
    recipe, method = own(), Shards(shards=12, slices=3)
    everyone = recipe.samples.examples()
    few = everyone.without(everyone.positions[[person not in PEOPLE[:6] for person in everyone.people]])
    problem, state = prepared(method, recipe, few)
    forget, kept = without(few, {PEOPLE[0]})
    after = method.forget(problem, state, forget, kept, torch.Generator()).state
    assert torch.equal(after.weights, prepared(method, recipe, kept)[1].weights)


def test_an_ensemble_of_one_score_averages_probabilities_too() -> None:
    ensemble = Ensemble([nn.Linear(2, 1) for _ in range(4)], "binary_logistic")
    x = torch.randn(5, 2)
    mean = torch.stack([member(x).sigmoid() for member in ensemble.members]).mean(dim=0)
    assert torch.allclose(ensemble(x).sigmoid(), mean, atol=1e-6)
    outputs = Ensemble(ensemble.members, "squared_error")(x)
    assert torch.allclose(outputs, torch.stack([member(x) for member in ensemble.members]).mean(dim=0))


def test_the_global_random_state_is_put_back_and_does_not_matter() -> None:
    recipe = own()
    examples, problem = recipe.samples.examples(), Problem(recipe)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = train_by_recipe(problem, examples)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(train_by_recipe(problem, examples).weights, first.weights)


def test_what_a_training_sets_of_torch_ends_with_it() -> None:
    """A worker trains in a fresh process; a notebook and the laboratory train many times in theirs."""

    def double(run: Run) -> None:
        torch.set_default_dtype(torch.float64)
        torch.autograd.set_detect_anomaly(True)
        epochs(run, 1)

    recipe = own(train=double)
    train_by_recipe(Problem(recipe), recipe.samples.examples())
    assert torch.get_default_dtype() == torch.float32
    assert not torch.is_anomaly_enabled()


def test_a_training_function_cannot_change_the_samples_of_the_next_one() -> None:
    def spoil(run: Run) -> None:
        run.inputs.zero_()
        epochs(run, 1)

    recipe = own(train=spoil)
    examples, problem = recipe.samples.examples(), Problem(recipe)
    train_by_recipe(problem, examples)
    assert examples.inputs.abs().sum() > 0


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 2.5, float("inf"), -0.0, True, None, "text"], 3: (torch.arange(3), {"b": torch.ones(2, 2)})},
        torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9).state_dict(),
    ],
)
def test_a_state_comes_back_as_it_was_without_pickle(value: object) -> None:
    import json  # noqa: PLC0415

    tensors, facts = packed(value)
    assert same(unpacked(tensors, json.loads(json.dumps(facts, allow_nan=False))), value)


def same(one: object, other: object) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def test_a_state_with_an_object_is_refused_where_it_is() -> None:
    with pytest.raises(RecipeError, match=r"train returned a Linear at the state\['model'\]"):
        packed({"model": nn.Linear(1, 1)})


def test_a_recipe_gives_one_training() -> None:
    with pytest.raises(RecipeError, match="neither training nor train"):
        own(train=None)
    with pytest.raises(RecipeError, match="both training and train"):
        own(training=ul.Training(epochs=2))
    assert replace(own(), seed=5).training.seed == 5


def test_weights_that_are_not_finite_are_refused() -> None:
    def explode(run: Run) -> None:
        with torch.no_grad():
            next(run.model.parameters()).fill_(float("nan"))

    recipe = own(train=explode)
    with pytest.raises(RecipeError, match="NaN or infinity"):
        train_by_recipe(Problem(recipe), recipe.samples.examples())


@pytest.mark.parametrize("method", METHODS[1:])
def test_a_training_that_ends_in_a_minimiser_has_no_phases(method: Method) -> None:
    plain = built_in()
    recipe = replace(
        plain,
        model=lambda: nn.Linear(6, 3, bias=False),
        training=ul.Training(epochs=0, converge=1e-8, weight_decay=1e-2),
    )
    with pytest.raises(Refused, match="minimiser"):
        prepared(method, recipe, recipe.samples.examples())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Late(early_share=(0.5, 0.4), phase_shares=(0.5, 0.3, 0.2)), "increasing"),
        (lambda: Late(phase_shares=(0.9, 0.2)), "sum up to 1"),
        (lambda: Shards(shards=1), "at least 2 shards"),
    ],
)
def test_options_outside_their_range_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


@pytest.mark.parametrize("draw", [lambda: float(np.random.rand()), random.random, lambda: float(torch.rand(()))])
def test_what_a_training_draws_follows_from_its_seed_and_leaves_the_process_as_it_was(draw: Any) -> None:
    def fit(run: ul.Run) -> None:
        run.model.state_dict()[next(iter(run.model.state_dict()))].mul_(draw())

    recipe = own(train=fit)
    problem, examples = Problem(recipe), recipe.samples.examples()
    trained, after = [], []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        expected = draw()
        torch.manual_seed(seed)
        np.random.seed(seed)
        random.seed(seed)
        trained.append(train_by_recipe(problem, examples).weights)
        after.append(draw() == expected)
    assert torch.equal(*trained)
    assert after == [True, True]


def test_a_seed_is_one_that_numpy_and_every_library_take() -> None:
    """Below 2^31 in every phase, and another in each; the random states are set from all of its bits, as ever."""
    seeds: list[tuple[str, int, float]] = []

    def noting(run: Run) -> Any:
        np.random.RandomState(run.seed)
        seeds.append((run.phase, run.seed, float(torch.rand(1))))
        return epochs(run, 1)

    for seed in range(20):
        written = own(model=lambda: nn.Linear(6, 3), train=noting, seed=seed)
        problem, examples = Problem(written), written.samples.examples()
        for phase in ("phase 1", "phase 2"):
            train_by_recipe(problem, examples, phase)
            with draws_from(seed_of(problem, phase)):
                assert seeds[-1][2] == float(torch.rand(1))
    assert len({seed for _, seed, _ in seeds}) == 40
    assert all(0 <= seed < 2**31 for _, seed, _ in seeds)
