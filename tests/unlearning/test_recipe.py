from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import nn

import unlearning as ul

X, Y = torch.randn(3, 2), torch.tensor([0, 1, 0])
IDS, PEOPLE = ["a", "b", "c"], ["p", "p", "q"]


def test_importing_the_package_and_naming_the_methods_does_not_load_torch() -> None:
    code = "import sys, unlearning, unlearning.methods; unlearning.methods.NAMES; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="Receipt"):
        _ = ul.Receipt  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((["a", "a", "c"], PEOPLE, X, Y), "position 1 occurs twice"),
        ((["a", "", "c"], PEOPLE, X, Y), "position 1 is not a string or empty"),
        ((["a", 2, "c"], PEOPLE, X, Y), "position 1 is not a string or empty"),
        ((IDS, ["p", "", "q"], X, Y), "empty subject"),
        ((IDS, [7, 8, 9], X, Y), r"of the type int, and a person's id is a text. Give texts, as in \[str\(number\)"),
        ((IDS, ["p", [], "q"], X, Y), "empty subject"),
        ((IDS, ["p", "q"], X, Y), "differ in length"),
        ((IDS, PEOPLE, X[:2], Y), "differ in length"),
        ((IDS, PEOPLE, X, Y[:2]), "differ in length"),
        ((IDS, PEOPLE, X, None), "a Tensor and a NoneType"),
        (([], [], X[:0], Y[:0]), "no samples"),
        ((IDS, PEOPLE, torch.tensor([[0.0, 1.0], [float("nan"), 0.0], [0.0, 0.0]]), Y), "first at index 1"),
        ((IDS, PEOPLE, X, torch.tensor([0.0, float("inf"), 1.0])), "targets hold NaN or infinity"),
    ],
)
def test_unusable_samples_are_refused_with_the_value(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ul.RecipeError, match=message):
        ul.Samples(*arguments)


def test_a_sample_may_name_several_subjects_in_any_order() -> None:
    samples = ul.Samples(IDS, ["p", ["r", "q", "r"], ("q",)], X, Y)
    assert samples.people == (("p",), ("q", "r"), ("q",))
    assert samples.examples().people == ("p", "q+r", "q")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("batch_size", 0),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("decay", 0.0),
        ("decay", 1.1),
        ("weight_decay", -1.0),
        ("clip", 0.0),
        ("sample_clip", -1.0),
        ("converge", float("inf")),
    ],
)
def test_a_training_value_outside_its_range_is_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(ul.RecipeError, match=name):
        ul.Training(**{"epochs": 1, name: value})


def test_no_epochs_are_allowed_where_the_training_converges() -> None:
    assert ul.Training(epochs=0, converge=1e-8).epochs == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loss": "mse"}, "'mse' is not known"),
        ({"model": nn.Linear(2, 2)}, "a Linear"),
        ({"model": None}, "a NoneType"),
        ({"holdout": (X, Y[:1])}, "holdout"),
        ({"holdout": (X[:0], Y[:0])}, "holdout"),
        ({"holdout": (X * float("nan"), Y)}, "holdout"),
        ({"trajectory": object()}, "without weights"),
    ],
)
def test_an_unusable_recipe_is_refused(changes: dict[str, Any], message: str) -> None:
    whole = {
        "model": lambda: nn.Linear(2, 2),
        "samples": ul.Samples(IDS, PEOPLE, X, Y),
        "holdout": (X, Y),
        "loss": "cross_entropy",
        "training": ul.Training(epochs=1),
    }
    with pytest.raises(ul.RecipeError, match=message):
        ul.Recipe(**{**whole, **changes})
