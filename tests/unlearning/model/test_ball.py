"""Training inside a ball, as CNS trains: against a loop written out, and what newton makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import unlearning as ul
from tests.contract.cases import everything, network
from unlearning.accounting.certificate import Guarantee
from unlearning.methods.newton import Newton
from unlearning.methods.retrain import Retrain
from unlearning.model.descent.ball import hold_within, norm_of
from unlearning.model.problem import Problem
from unlearning.model.training import schedule, train
from unlearning.types import ForgetSet, Learned, RecipeError, Refused

RADIUS = 1.5


def inside(**training: Any) -> ul.Recipe:
    return network(radius=RADIUS, clip=None, **training)


def by_hand(recipe: ul.Recipe) -> Tensor:
    """Plain descent, projected after every step, in float64."""
    training, problem = recipe.training, Problem(recipe, dtype=torch.float64)
    examples, w = recipe.samples.examples(), problem.initial()
    for batch in schedule(problem, examples.positions):
        v = w.clone().requires_grad_(True)
        loss = F.cross_entropy(problem.outputs(v, examples.inputs[batch]), examples.targets[batch])
        w = w - training.learning_rate * (torch.autograd.grad(loss, v)[0] + training.weight_decay * w)
        assert training.radius is not None
        w = w * min(1.0, training.radius / float(w.norm()))
    return w


def test_projected_descent_equals_the_loop_written_out() -> None:
    recipe = inside()
    problem = Problem(recipe, dtype=torch.float64)
    found = train(problem, recipe.samples.examples()).weights
    torch.testing.assert_close(found, by_hand(recipe), rtol=0, atol=1e-12)
    free = train(Problem(network(clip=None), dtype=torch.float64), recipe.samples.examples()).weights
    assert float(free.norm()) > RADIUS  # the ball is in the way


@pytest.mark.parametrize("make", [inside, lambda: everything(radius=RADIUS)])
def test_trained_weights_lie_inside_in_float32_too(make: Any) -> None:
    recipe = make()
    problem = Problem(recipe)
    parts = problem.tensors(train(problem, recipe.samples.examples()).weights)
    trained = [parts[name] for name, value in problem.module.named_parameters() if value.requires_grad]
    assert 0.999 * RADIUS < norm_of(trained) <= RADIUS


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_rounding_leaves_the_ball(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(1)
    for _ in range(200):
        parts = [
            torch.randn(7, generator=generator, dtype=dtype),
            3 * torch.randn(5, 2, generator=generator, dtype=dtype),
        ]
        hold_within(parts, 0.7)
        exact = torch.cat([part.double().reshape(-1) for part in parts])
        assert 0.699 < float(exact.norm()) <= 0.7
        before = [part.clone() for part in parts]
        hold_within(parts, 0.7)
        assert all(torch.equal(*pair) for pair in zip(before, parts, strict=True))


def test_a_factor_without_its_margin_would_leave_the_ball() -> None:
    """The planted bug: ``radius / norm`` alone, rounded, ends outside for some weights."""
    generator = torch.Generator().manual_seed(1)
    outside = 0
    for _ in range(200):
        w = 3 * torch.randn(17, generator=generator)
        w = w * (0.7 / norm_of([w]))
        outside += norm_of([w]) > 0.7
    assert outside > 0


def test_a_repeated_training_holds_it_too() -> None:
    recipe = inside()
    problem, examples = Problem(recipe), recipe.samples.examples()
    gone = examples.positions[:5]
    forget = ForgetSet(frozenset(examples.only(gone).people), tuple(gone.tolist()), examples.only(gone))
    start = Retrain().prepare(problem, examples, Learned(train(problem, examples).weights))
    done = Retrain().forget(problem, start, forget, examples.without(gone), torch.Generator()).state
    assert norm_of([done.weights]) <= RADIUS


def test_a_ball_does_not_go_with_convergence_or_clipped_samples() -> None:
    for other in ({"converge": 1e-8}, {"sample_clip": 0.1}):
        with pytest.raises(RecipeError, match="radius"):
            ul.Training(epochs=1, radius=1.0, **other)  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="radius is"):
        ul.Training(epochs=1, radius=-1.0)


METHOD = Newton(damping=5.0, radius=RADIUS, ball="enforced")


def test_an_enforced_ball_is_no_assumption() -> None:
    recipe = inside()
    problem, examples = Problem(recipe), recipe.samples.examples()
    state = METHOD.prepare(problem, examples, train(problem, examples))
    bound, assumed = METHOD.bound(Guarantee.ESTIMATED), replace(METHOD, ball="assumed").bound(Guarantee.ESTIMATED)
    assert bound is not None and assumed is not None
    assert "after every step" in bound.assumptions[0] and "lie in the ball" in assumed.assumptions[0]
    [radius] = [each for each in bound.constants(problem, examples, state) if each.name == "C"]
    assert (radius.value, radius.origin) == (
        RADIUS,
        "option radius: the training holds the weights in this ball after every step",
    )
    gone = examples.positions[:5]
    forget = ForgetSet(frozenset(examples.only(gone).people), tuple(gone.tolist()))
    done = METHOD.forget(problem, state, forget, examples.without(gone), torch.Generator()).state
    assert done.weights.dtype == torch.float32 and norm_of([done.weights]) <= RADIUS


@pytest.mark.parametrize("radius", [None, 2 * RADIUS])
def test_a_ball_that_the_training_does_not_enforce_is_refused(radius: float | None) -> None:
    """The planted bug: a certificate that says enforced of a training without the ball, or in a larger one."""
    recipe = network(radius=radius)
    problem, examples = Problem(recipe), recipe.samples.examples()
    learned = Learned(0.1 * problem.initial())
    with pytest.raises(Refused, match=r"does not hold the weights within 1\.5"):
        METHOD.prepare(problem, examples, learned)
    bound = METHOD.bound(Guarantee.ESTIMATED)
    assert bound is not None
    with pytest.raises(Refused, match="does not hold"):
        bound.require_possible(problem)
    replace(METHOD, ball="assumed").prepare(problem, examples, learned)


@pytest.mark.parametrize(
    ("held", "asked", "ball"),
    [
        (RADIUS, RADIUS, "enforced"),
        (RADIUS, 2 * RADIUS, "enforced"),
        (2 * RADIUS, RADIUS, "assumed"),
        (None, RADIUS, "assumed"),
        (RADIUS, None, "assumed"),
    ],
)
def test_the_ball_follows_from_the_training(held: float | None, asked: float | None, ball: str) -> None:
    served = Newton(damping=5.0, radius=asked).under(Guarantee.ESTIMATED, network(radius=held))
    assert served == Newton(damping=5.0, radius=asked, ball=ball)


def test_the_ball_of_a_training_elsewhere_is_assumed() -> None:
    recipe = network(radius=RADIUS)
    elsewhere = replace(recipe, weights=Problem(recipe).tensors(Problem(recipe).initial()))
    assert Newton(radius=RADIUS).under(Guarantee.ESTIMATED, elsewhere) == Newton(radius=RADIUS)


def test_a_model_trained_elsewhere_was_not_held_here() -> None:
    recipe = inside()
    problem = Problem(recipe)
    weights = problem.tensors(0.1 * problem.initial())
    problem.recipe = replace(recipe, weights=weights)
    with pytest.raises(Refused, match="train here"):
        METHOD.prepare(problem, recipe.samples.examples(), Learned(problem.flatten(weights)))
