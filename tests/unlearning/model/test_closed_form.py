"""The closed form of a head is compared with the recipe's own module and loss, and soft labels carry their sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from tests.unlearning.recipes import draw, recipe
from unlearning.model import convex
from unlearning.model.closed_form import require_agreement, require_own_weights
from unlearning.model.linear_head import CURVES, head_of
from unlearning.model.problem import Problem
from unlearning.types import Examples, Refused

X = draw(40, 5)
LABELS = torch.arange(40) % 3
MULTI_HOT = (draw(40, 3, seed=3) > 0).double()
TARGETS: dict[str, tuple[str, int, Tensor]] = {
    "classes": ("cross_entropy", 3, LABELS),
    "multi-hot": ("cross_entropy", 3, MULTI_HOT),
    "a float32 softmax": ("cross_entropy", 3, draw(40, 3, seed=4).float().softmax(dim=1)),
    "no label at all on some": ("cross_entropy", 3, MULTI_HOT * (LABELS > 0).unsqueeze(1)),
    "large sums": ("cross_entropy", 3, 50.0 * MULTI_HOT),
    "probabilities": ("binary_logistic", 1, draw(40, seed=5).sigmoid()),
    "numbers": ("squared_error", 2, 1e3 * draw(40, 2, seed=6)),
    "one against the rest": ("squared_hinge", 3, LABELS),
}


def problem_of(model: Callable[[], nn.Module], y: Tensor = LABELS, loss: Any = "cross_entropy", x: Tensor = X) -> Any:
    written = recipe(model, x, y, loss, epochs=0, weight_decay=1e-2, converge=1e-9)
    return Problem(written).double(), written.samples.examples()


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(7)


def plain_gradient(problem: Problem, w: Tensor, examples: Examples) -> Tensor:
    return problem.gradient(w, examples.inputs, examples.targets) + problem.decay * w


@pytest.mark.parametrize("case", TARGETS)
def test_the_minimiser_is_that_of_the_loss_as_autograd_sees_it(case: str) -> None:
    loss, outputs, y = TARGETS[case]
    problem, examples = problem_of(lambda: nn.Linear(5, outputs), y, loss)
    require_agreement(problem, examples, generator())
    w = convex.converge(problem, problem.initial(), examples, 1e-9)
    assert float(plain_gradient(problem, w, examples).norm()) <= 1.1e-9
    bound = convex.distance_bound(problem, w, examples)
    finer = convex.converge(problem, w, examples, 3e-12)
    assert float((finer - w).norm()) <= bound <= 1e-6


@pytest.mark.parametrize("case", TARGETS)
def test_steepness_times_weight_bounds_the_curvature(case: str) -> None:
    loss, outputs, y = TARGETS[case]
    curve = CURVES[loss]
    most = curve.steepness * curve.weight(y)
    for seed in range(10):
        z = 2.0 * draw(40, outputs, seed=seed)
        bent = curve.bend(z, y, torch.eye(outputs, dtype=torch.float64).expand(40, outputs, outputs))
        assert bool((torch.linalg.matrix_norm(bent, 2) <= most + 1e-12).all())


WRONG_TARGETS: dict[str, tuple[str, int, Tensor, str]] = {
    "a negative label": ("cross_entropy", 3, MULTI_HOT - 0.1, "below 0"),
    "rows that sum to -2": ("cross_entropy", 3, -2 * draw(40, 3).softmax(dim=1), "below 0"),
    "an ignored class": ("cross_entropy", 3, torch.where(LABELS == 2, -100, LABELS), "outside 0 to 2"),
    "a class too many": ("cross_entropy", 3, LABELS + 1, "outside 0 to 2"),
    "another shape": ("cross_entropy", 3, draw(40, 2).abs(), "soft labels have shape"),
    "above 1": ("binary_logistic", 1, 2.0 * LABELS, "outside 0 to 1"),
    "below 0": ("binary_logistic", 1, LABELS % 2 - 1.0, "outside 0 to 1"),
}


@pytest.mark.parametrize("case", WRONG_TARGETS)
def test_targets_that_make_the_loss_another_are_refused(case: str) -> None:
    loss, outputs, y, words = WRONG_TARGETS[case]
    problem, examples = problem_of(lambda: nn.Linear(5, outputs), y, loss)
    for refused in (
        lambda: require_agreement(problem, examples, generator()),
        lambda: convex.distance_bound(problem, problem.initial(), examples),
    ):
        with pytest.raises(Refused, match=words):
            refused()


def head(outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(5, outputs))


def with_hook(kind: str, place: int | None) -> Callable[[], nn.Module]:
    def model() -> nn.Module:
        made = head()
        part = made if place is None else made[place]
        getattr(part, kind)(lambda *_: None)
        return made

    return model


def replaced(name: str, place: int | None) -> Callable[[], nn.Module]:
    def model() -> nn.Module:
        made = head()
        part = made if place is None else made[place]
        was = getattr(part, name)
        setattr(part, name, lambda x: was(x) ** 3)
        return made

    return model


class Twice(nn.Module):
    def forward(self, value: Tensor) -> Tensor:
        return 2.0 * value


def parametrised() -> nn.Module:
    made = head()
    parametrize.register_parametrization(made[1], "weight", Twice())
    return made


def gradient_hook() -> nn.Module:
    made = head()
    made[1].weight.register_hook(lambda gradient: 2.0 * gradient)
    return made


class Special(nn.Parameter):
    pass


def special_parameter() -> nn.Module:
    made = head()
    made[1].weight = Special(made[1].weight.detach())
    return made


KINDS = (
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
)
TOUCHED = {
    **{f"{kind} {place}": with_hook(kind, place) for kind in KINDS for place in (None, 0, 1)},
    **{f"{name} {place}": replaced(name, place) for name in ("forward", "_call_impl") for place in (None, 0, 1)},
    "parametrised": parametrised,
    "a gradient's hook": gradient_hook,
    "a parameter's class": special_parameter,
}


@pytest.mark.parametrize("case", TOUCHED)
def test_hooks_and_replaced_methods_on_any_part_make_it_no_head(case: str) -> None:
    problem = Problem(recipe(TOUCHED[case], X, LABELS, weight_decay=1e-2))
    assert head_of(problem) is None
    with pytest.raises(Refused, match="not known to be convex"):
        convex.require_strongly_convex(problem)


def test_a_global_hook_makes_nothing_a_head() -> None:
    problem, _ = problem_of(head)
    assert head_of(problem) is not None
    handle = nn.modules.module.register_module_forward_hook(lambda _part, _inputs, out: out)
    try:
        assert head_of(problem) is None
    finally:
        handle.remove()
    assert head_of(problem) is not None


class Tied(nn.Module):
    """Reads the trained weight, in one of the ways in which code can."""

    def __init__(self, kept: Any, read: Callable[[Any], Tensor], rare: bool = False) -> None:
        super().__init__()
        self.kept, self.read, self.rare = (kept,), read, rare

    def forward(self, x: Tensor) -> Tensor:
        turned = x * (1.0 + self.read(self.kept[0]).mean())
        return torch.where(x[:, :1] > 1.5, turned, x) if self.rare else turned


def tied(through: str, rare: bool = False) -> Callable[[], nn.Module]:
    def model() -> nn.Module:
        layer = nn.Linear(5, 3)
        ways = {
            "the layer": Tied(layer, lambda kept: kept.weight, rare),
            "the parameter": Tied(layer.weight, lambda kept: kept, rare),
            "a closure": Tied(None, lambda _: layer.weight, rare),
        }
        return nn.Sequential(ways[through], layer)

    return model


class Part(nn.Module):
    def __init__(self, work: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.work = work

    def forward(self, x: Tensor) -> Tensor:
        return self.work(x)


def before(work: Callable[[Tensor], Tensor]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(Part(work), nn.Linear(5, 3))


DISGUISED: dict[str, Callable[[], nn.Module]] = {
    "tied through the layer": tied("the layer"),
    "tied through the parameter": tied("the parameter"),
    "tied through a closure": tied("a closure"),
    "tied on rare samples": tied("the parameter", rare=True),
    "mixes the batch": before(lambda x: x - x.mean(dim=0)),
    "draws random numbers": before(lambda x: x + torch.randn_like(x)),
    "single precision alone": before(lambda x: x.float()),
}


@pytest.mark.parametrize("case", DISGUISED)
def test_what_looks_like_a_head_and_computes_something_else_is_refused(case: str) -> None:
    problem, examples = problem_of(DISGUISED[case])
    assert head_of(problem) is not None
    with pytest.raises(Refused) as refused:
        require_agreement(problem, examples, generator())
    assert not any(letter.isdigit() for letter in refused.value.what.replace("float64", ""))


@pytest.mark.parametrize("case", ["tied through the layer", "mixes the batch", "draws random numbers"])
def test_the_bound_itself_compares_at_its_own_weights(case: str) -> None:
    problem, examples = problem_of(DISGUISED[case])
    with pytest.raises(Refused, match=r"looks like a linear head|cannot be run"):
        convex.distance_bound(problem, draw(problem.dimension), examples)


def test_a_frozen_backbone_agrees() -> None:
    def model() -> nn.Module:
        backbone = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU()).requires_grad_(False)
        return nn.Sequential(backbone.eval(), nn.Linear(6, 3, bias=False))

    problem, examples = problem_of(model)
    require_agreement(problem, examples, generator())
    assert convex.distance_bound(problem, problem.initial(), examples) > 0


@pytest.mark.parametrize("size", [1e-8, 1.0, 1e8])
def test_agreement_does_not_depend_on_the_scale_of_the_features(size: float) -> None:
    for loss, outputs, y in TARGETS.values():
        problem, examples = problem_of(lambda outputs=outputs: nn.Linear(5, outputs), y, loss, size * X)
        require_agreement(problem, examples, generator())


@pytest.mark.parametrize("size", [20.5, 30.0, 1000.0])
def test_a_logistic_score_far_from_0_keeps_its_gradient(size: float) -> None:
    """torch's softplus is the identity above 20: an update of a confident model would have been refused."""
    x = torch.cat([torch.full((20, 1), size), torch.full((20, 1), -size)]).double()
    problem, examples = problem_of(lambda: nn.Linear(1, 1, bias=False), (x[:, 0] > 0).long(), "binary_logistic", x)
    w = torch.ones(1, dtype=torch.float64)
    assert convex.distance_bound(problem, w, examples) > 0
    assert not bool(problem.sample_losses(w, x, (x[:, 0] > 0).long()).isnan().any())


def test_inputs_that_are_no_matrix_are_refused_with_the_layer_that_is_missing() -> None:
    problem, examples = problem_of(lambda: nn.Linear(5, 2), draw(40, 2), "squared_error", X.unsqueeze(1))
    with pytest.raises(Refused, match=r"nn\.Flatten"):
        require_agreement(problem, examples, generator())
    with pytest.raises(Refused, match=r"nn\.Flatten"):
        convex.converge(problem, problem.initial(), examples, 1e-9)


class _Scaled(nn.Module):
    def __init__(self, mean: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)

    def forward(self, x: Tensor) -> Tensor:
        return x - self.mean  # type: ignore[operator]


def test_a_constant_in_float64_is_refused_by_its_name() -> None:
    """A model is kept in float32: the head would be that of another constant."""
    mean = torch.full((5,), 0.1, dtype=torch.float64)
    problem, examples = problem_of(lambda: nn.Sequential(_Scaled(mean), nn.Linear(5, 3)))
    with pytest.raises(Refused, match=r"tensor '0\.mean' is given in float64, and kept in float32"):
        require_agreement(problem, examples, generator())
    problem, examples = problem_of(lambda: nn.Sequential(_Scaled(mean.float()), nn.Linear(5, 3)))
    require_agreement(problem, examples, generator())


def test_a_network_passes_it_has_no_closed_form() -> None:
    problem, examples = problem_of(lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)))
    require_agreement(problem, examples, generator())


def deep(through: str) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(tied(through)(), nn.Tanh(), nn.Linear(3, 3))


@pytest.mark.parametrize("model", [deep("the parameter"), before(lambda x: x + torch.randn_like(x))])
def test_a_part_that_keeps_a_parameter_of_its_own_accord_is_refused_in_any_model(
    model: Callable[[], nn.Module],
) -> None:
    problem = Problem(recipe(model, X.float(), LABELS))
    with pytest.raises(Refused, match="do not follow from its parameters"):
        require_own_weights(problem, problem.recipe.samples.examples(), generator())


@pytest.mark.parametrize("through", ["the layer", "a closure"])
def test_a_part_that_reads_the_layer_itself_is_another_network_and_trains_as_written(through: str) -> None:
    problem = Problem(recipe(deep(through), X.float(), LABELS))
    require_own_weights(problem, problem.recipe.samples.examples(), generator())
