from __future__ import annotations

from typing import Any

import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from torch import nn

import unlearning as ul
from tests.unlearning.recipes import draw, network, recipe
from unlearning.model.problem import Problem

X, Y = draw(12, 4), torch.arange(12) % 3


def problem(model: Any, loss: Any = "cross_entropy", y: torch.Tensor = Y, **training: Any) -> Problem:
    return Problem(recipe(model, X, y, loss, **training), dtype=torch.float64)


def test_initial_weights_follow_from_the_seed_and_leave_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    first, again, other = (Problem(network(seed=seed)).initial() for seed in (3, 3, 4))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), before)


def test_weights_go_to_named_tensors_and_back() -> None:
    built = Problem(network())
    w = torch.randn(built.dimension)
    tensors = built.tensors(w)
    assert list(tensors) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert torch.equal(built.flatten(tensors), w)
    tensors["0.weight"].zero_()
    assert bool(w.all())


def test_a_checkpoint_loads_into_the_plain_module_and_gives_the_same_outputs() -> None:
    def build() -> nn.Module:
        frozen = nn.Linear(4, 5).requires_grad_(False)
        return nn.Sequential(frozen, nn.BatchNorm1d(5).eval(), nn.Linear(5, 3))

    built = problem(build)
    w = draw(built.dimension, seed=4)
    module = build().double()
    module.load_state_dict(built.tensors(w))
    assert torch.equal(module.eval()(X), built.outputs(w, X))
    assert built.dimension == 5 + 5 + 15 + 3


def test_tied_parameters_are_one_slot_and_both_names_in_a_checkpoint() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4, bias=False)
            self.second = nn.Linear(4, 4, bias=False)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    built = problem(Tied)
    w = draw(16, seed=2)
    tensors = built.tensors(w)
    assert built.dimension == 16
    assert torch.equal(tensors["first.weight"], w.reshape(4, 4))
    assert torch.equal(tensors["second.weight"], w.reshape(4, 4))
    assert torch.allclose(built.outputs(w, X), X @ w.reshape(4, 4).T @ w.reshape(4, 4).T)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("0.bias"), "lack '0.bias'"),
        (lambda tensors: tensors.update({"0.bias": torch.zeros(5)}), r"shape \(5,\)"),
        (lambda tensors: tensors["0.bias"].fill_(float("nan")), "NaN"),
    ],
)
def test_weights_of_another_model_are_refused(change: Any, message: str) -> None:
    built = Problem(network())
    tensors = built.tensors(built.initial())
    change(tensors)
    with pytest.raises(ul.RecipeError, match=message):
        built.flatten(tensors)


def test_what_a_model_sets_of_torch_ends_with_it() -> None:
    """The laboratory and a notebook build many models in one process."""

    def model() -> nn.Module:
        torch.set_default_dtype(torch.float64)
        torch.autograd.set_detect_anomaly(True)
        return nn.Linear(4, 3)

    problem(model)
    assert torch.get_default_dtype() == torch.float32
    assert not torch.is_anomaly_enabled()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: nn.Sequential(nn.BatchNorm1d(4, track_running_stats=False), nn.Linear(4, 3)), "running statistics"),
        (lambda: nn.Sequential(nn.Linear(4, 3), nn.RReLU()), "random numbers"),
        (lambda: nn.LSTM(4, 3, num_layers=2, dropout=0.2), "dropout"),
        (lambda: nn.Linear(4, 3).requires_grad_(False), "no trainable parameter"),
        (lambda: "model", "returned a str"),
        (RandomForestClassifier, "returned a RandomForestClassifier.* ul.Published"),
    ],
)
def test_a_model_that_cannot_be_replayed_is_refused_with_the_reason(model: Any, message: str) -> None:
    with pytest.raises(ul.RecipeError, match=message):
        problem(model)


@pytest.mark.parametrize(
    "model",
    [
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)),
        lambda: nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5).eval()),
        lambda: nn.Sequential(nn.BatchNorm1d(4).eval(), nn.Linear(4, 3)),
    ],
)
def test_inactive_dropout_and_batch_normalisation_in_evaluation_mode_are_accepted(model: Any) -> None:
    built = problem(model)
    assert torch.equal(built.outputs(built.initial(), X), built.outputs(built.initial(), X))


def test_sample_gradients_average_to_the_gradient() -> None:
    built = Problem(network(), dtype=torch.float64)
    inputs, targets = built.recipe.samples.tensors()
    w = draw(built.dimension, seed=5)
    each = built.sample_gradients(w, inputs, targets)
    assert each.shape == (40, built.dimension)
    assert torch.allclose(each.mean(dim=0), built.gradient(w, inputs, targets), atol=1e-14)
    alone = built.gradient(w, inputs[7:8], targets[7:8])
    assert torch.allclose(each[7], alone, atol=1e-14)


@pytest.mark.parametrize(
    ("loss", "outputs", "y", "expected"),
    [
        ("cross_entropy", [[0.0, 0.0]], [1], [0.6931471805599453]),
        ("binary_logistic", [[2.0], [2.0]], [1, 0], [0.12692801104297263, 2.1269280110429727]),
        ("squared_error", [[1.0, 3.0]], [[0.0, 1.0]], [2.5]),
        ("squared_hinge", [[0.5], [0.5], [2.0]], [1, 0, 1], [0.125, 1.125, 0.0]),
        ("squared_hinge", [[0.5, -2.0, 0.0]], [0], [0.125 + 0.0 + 0.5]),
    ],
)
def test_losses_by_name_have_their_stated_values(loss: str, outputs: Any, y: Any, expected: list[float]) -> None:
    built = problem(lambda: nn.Linear(4, 3), loss)
    values = built.losses(torch.tensor(outputs, dtype=torch.float64), torch.tensor(y))
    assert values.tolist() == pytest.approx(expected, abs=1e-15)


def test_a_callable_loss_is_used_as_it_is() -> None:
    built = problem(lambda: nn.Linear(4, 1), lambda outputs, targets: (outputs[:, 0] - targets).abs(), Y.double())
    w = draw(5)
    expected = (X @ w[:4] + w[4] - Y).abs()
    assert torch.allclose(built.sample_losses(w, X, Y.double()), expected)


def test_weight_decay_covers_every_coordinate_but_the_undecayed() -> None:
    model = perceptron_with_bias
    assert problem(model, weight_decay=0.3).decay.tolist() == [0.3] * 15
    assert problem(model, weight_decay=0.3, undecayed=("bias",)).decay.tolist() == [0.3] * 12 + [0.0] * 3
    assert problem(model, weight_decay=0.3, undecayed=("bias",)).double().decay.dtype == torch.float64


def test_an_unknown_undecayed_name_is_refused() -> None:
    with pytest.raises(ul.RecipeError, match="nias"):
        problem(perceptron_with_bias, undecayed=("nias",))


def perceptron_with_bias() -> nn.Module:
    return nn.Linear(4, 3)


@pytest.mark.parametrize(
    ("loss", "outputs", "y", "expected"),
    [
        ("cross_entropy", [[1.0, 0.0], [0.0, 1.0]], [0, 0], 0.5),
        ("binary_logistic", [[1.0], [-1.0], [1.0], [1.0]], [1, 0, 0, 1], 0.75),
        ("squared_hinge", [[1.0], [-1.0]], [1, -1], 1.0),
        ("squared_error", [[1.0], [2.0], [3.0]], [[1.0], [2.0], [3.0]], 1.0),
        ("squared_error", [[2.0], [2.0], [2.0]], [[1.0], [2.0], [3.0]], 0.0),
        ("squared_error", [[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], -1.0),
    ],
)
def test_accuracy_counts_classes_or_explains_variance(loss: str, outputs: Any, y: Any, expected: float) -> None:
    fixed = torch.tensor(outputs, dtype=torch.float64)

    class Fixed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return fixed + self.shift

    built = problem(Fixed, loss)
    assert built.accuracy(built.initial(), X, torch.tensor(y)) == pytest.approx(expected)
