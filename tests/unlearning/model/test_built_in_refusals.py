"""What the built-in training refuses, and what a method says that it cannot follow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from torch import nn

import unlearning as ul
from tests.contract.cases import everything, jitter, network, scheduled, softmax
from unlearning.bounds.minimiser import Minimiser
from unlearning.methods.cns import Cns
from unlearning.methods.late import Late
from unlearning.methods.mini import Mini
from unlearning.methods.newton import Newton
from unlearning.methods.recollection import Recollection
from unlearning.methods.retrain import Retrain
from unlearning.methods.safe import Safe
from unlearning.methods.shards import Shards
from unlearning.model.method import Method, require_followed
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import Learned, RecipeError, Refused

FOLLOWERS: list[tuple[Method, set[str]]] = [
    (Recollection(), set()),
    (Mini(), set()),
    (Newton(), {"momentum", "ball"}),
]
BEYOND: dict[str, tuple[Callable[[], ul.Recipe], str, str]] = {
    "momentum": (lambda: network(optimizer=ul.SGD(0.9)), "momentum 0.9", "leave Training.optimizer out"),
    "AdamW": (lambda: network(optimizer=ul.AdamW()), "AdamW", "leave Training.optimizer out"),
    "dropout": (
        lambda: replace(network(), model=lambda: nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.1))),
        "the dropout of 1 (Dropout)",
        "call .eval() on it",
    ),
    "normalisation": (
        lambda: replace(network(), model=lambda: nn.Sequential(nn.BatchNorm1d(6), nn.Linear(6, 3))),
        "0 (BatchNorm1d)",
        "use GroupNorm",
    ),
    "augment": (lambda: network(augment=jitter), "Training.augment", "leave Training.augment out"),
    "mixed precision": (
        lambda: network(mixed_precision=True),
        "Training.mixed_precision",
        "leave Training.mixed_precision out",
    ),
    "ball": (lambda: network(radius=2.0), "a ball of radius 2 (Training.radius)", "leave Training.radius out"),
}


@pytest.mark.parametrize("used", BEYOND)
def test_a_method_that_needs_no_steps_starts_from_any_training(used: str) -> None:
    for method in (Safe(), Cns()):
        require_followed(method, BEYOND[used][0]())


@pytest.mark.parametrize("used", BEYOND)
@pytest.mark.parametrize(("method", "followed"), FOLLOWERS, ids=lambda value: getattr(value, "name", ""))
def test_a_method_says_what_it_cannot_follow(method: Method, followed: set[str], used: str) -> None:
    make, where, instead = BEYOND[used]
    recipe = make()
    if used in followed:
        require_followed(method, recipe)
        return
    problem, examples = Problem(recipe), recipe.samples.examples()
    with pytest.raises(Refused) as refused:
        method.prepare(problem, examples, Learned(problem.initial()))
    assert refused.value.what.startswith(f"{method.name} follows plain gradient steps")
    assert where in refused.value.what
    assert refused.value.hint.startswith("Choose late, shards or retrain") and instead in refused.value.hint
    for repeats in (Retrain(), Late(), Shards()):
        require_followed(repeats, recipe)


def test_a_repair_does_not_go_on_after_the_end_of_a_schedule() -> None:
    recipe = scheduled()
    problem, examples = Problem(recipe), recipe.samples.examples()
    with pytest.raises(Refused, match="'cosine' ends with the training"):
        Recollection(repair_epochs=1).prepare(problem, examples, train(problem, examples))


def test_mixed_precision_without_a_gpu_is_refused() -> None:
    recipe = network(mixed_precision=True)
    with pytest.raises(RecipeError, match="needs a GPU"):
        train(Problem(recipe), recipe.samples.examples())


def test_weights_that_stop_being_finite_are_refused() -> None:
    recipe = network(optimizer=ul.SGD(0.9), learning_rate=1e30, clip=None)
    with pytest.raises(RecipeError, match="not finite after 20 steps"):
        train(Problem(recipe), recipe.samples.examples())


@pytest.mark.parametrize("changed", [lambda x, draw: x[:-1], lambda x, draw: "x"])
def test_an_augmentation_returns_a_row_for_each_sample(changed: Any) -> None:
    recipe = network(augment=changed)
    with pytest.raises(RecipeError, match="row for each sample"):
        train(Problem(recipe), recipe.samples.examples())


def test_an_augmentation_cannot_change_the_samples() -> None:
    recipe = network(augment=lambda x, draw: x.zero_())
    examples = recipe.samples.examples()
    train(Problem(recipe), examples)
    assert examples.inputs.abs().sum() > 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ul.SGD(1.0), "momentum is 1.0"),
        (lambda: ul.SGD(nesterov=True), "nesterov"),
        (lambda: ul.AdamW((0.9, 1.0)), "betas"),
        (lambda: ul.AdamW(eps=0.0), "eps"),
        (lambda: ul.Schedule("linear"), "constant, step, cosine, exponential"),  # type: ignore[arg-type]
        (lambda: ul.Schedule(warmup=1.5), "warmup"),
        (lambda: ul.Schedule("cosine", factor=2.0), "factor"),
        (lambda: ul.Schedule("step", milestones=(0.5, 0.2)), "milestones"),
        (lambda: ul.Training(1, optimizer="adamw"), "ul.AdamW"),  # type: ignore[arg-type]
        (lambda: ul.Training(1, accumulate=2), "accumulate is 2"),
        (lambda: ul.Training(1, augment=3), "augment"),  # type: ignore[arg-type]
        (lambda: ul.Training(1, converge=1e-8, optimizer=ul.AdamW()), "minimiser.*optimizer"),
        (lambda: ul.Training(1, sample_clip=1.0, augment=jitter), "sample_clip.*augment"),
        (lambda: Problem(everything(sample_clip=1.0, optimizer=ul.SGD(), augment=None)), "one sample at a time"),
    ],
)
def test_settings_outside_their_range_are_refused(make: Any, said: str) -> None:
    with pytest.raises(RecipeError, match=said):
        make()


def test_a_minimiser_is_no_reference_where_dropout_acts_in_the_training() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Dropout(0.1), nn.Linear(6, 3, bias=False))

    recipe = replace(softmax(converge=1e-8), model=model)
    with pytest.raises(Refused, match="minimises another loss"):
        Minimiser().require_possible(Problem(recipe))
    Minimiser().require_possible(Problem(replace(recipe, model=lambda: model().eval())))
