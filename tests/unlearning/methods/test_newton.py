"""The Newton step against dense float64 solves, and every way in which it refuses."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from unlearning.methods.newton import METHOD, Newton
from unlearning.model.convex import converge, distance_bound
from unlearning.model.curvature import refined_conjugate_gradients
from unlearning.model.objective import Objective
from unlearning.model.problem import Problem
from unlearning.model.training import learn, train
from unlearning.quality.distance_left import calibration_sets, with_distance_left
from unlearning.recipe import Recipe, Samples
from unlearning.settings import Training
from unlearning.types import Examples, ForgetSet, Ineffective, Need, Refused, State, Vectors

CONVERGED = Training(epochs=0, weight_decay=0.05, converge=1e-11, seed=3)


def blobs(count: int = 60, width: int = 4, classes: int = 3, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.arange(count) % classes
    centres = torch.randn(classes, width, generator=generator)
    return centres[targets] + 0.7 * torch.randn(count, width, generator=generator), targets


def recipe(training: Training = CONVERGED, model: str = "linear", loss: str = "cross_entropy") -> Recipe:
    inputs, targets = blobs()
    if loss == "squared_error":
        targets = inputs @ torch.tensor([[1.0], [-2.0], [0.5], [0.0]]) + torch.sin(3 * inputs[:, :1])
    outputs = 1 if loss == "squared_error" else 3
    models = {
        "linear": lambda: nn.Linear(4, outputs),
        "tanh": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)),
    }
    names = [f"s{index}" for index in range(len(inputs))]
    return Recipe(models[model], Samples(names, names, inputs, targets), (inputs, targets), loss, training)


def prepared(made: Recipe, method: Newton = Newton()) -> tuple[Problem, Examples, State]:  # noqa: B008  (frozen)
    """A trained model and a state."""
    problem = Problem(made)
    examples = made.samples.examples()
    return problem, examples, method.prepare(problem, examples, train(problem, examples))


def without(examples: Examples, *positions: int) -> tuple[ForgetSet, Examples]:
    gone = examples.only(torch.tensor(positions))
    return ForgetSet(frozenset(gone.people), tuple(sorted(positions)), gone), examples.without(gone.positions)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(5)


def dense(problem: Problem, w: Tensor, examples: Examples) -> tuple[Tensor, Tensor]:
    """The Hessian (d, d) and gradient (d,) of F_D with weight decay, by nested automatic differentiation."""
    work = problem.double()

    def objective(v: Tensor) -> Tensor:
        return work.mean_loss(v, examples.inputs, examples.targets) + 0.5 * (work.decay * v * v).sum()

    v = w.double()
    return torch.func.hessian(objective)(v), torch.func.grad(objective)(v)


@pytest.mark.parametrize("damping", [0.0, 0.3])
@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error"])
def test_the_step_equals_a_dense_solve(loss: str, damping: float) -> None:
    method = Newton(damping=damping, residual=1e-11)
    problem, examples, state = prepared(recipe(loss=loss), method)
    forget, retain = without(examples, 0, 3, 17, 40)
    found = method.forget(problem, state, forget, retain, seeded()).state.weights
    hessian, gradient = dense(problem, state.weights, retain)
    step = torch.linalg.solve(hessian + damping * torch.eye(len(gradient), dtype=torch.float64), gradient)
    assert torch.allclose(found, state.weights - step, rtol=0, atol=1e-9 * float(step.norm()))
    assert float(step.norm()) > 1e-3


def test_the_step_of_a_network_equals_a_dense_solve() -> None:
    training = Training(epochs=30, learning_rate=0.3, weight_decay=0.01, seed=1)
    method = Newton(damping=2.0, residual=1e-10)
    problem, examples, state = prepared(recipe(training, "tanh"), method)
    forget, retain = without(examples, 1, 2, 30)
    found = method.forget(problem, state, forget, retain, seeded()).state.weights
    hessian, gradient = dense(problem, state.weights, retain)
    expected = state.weights.double() - torch.linalg.solve(
        hessian + 2.0 * torch.eye(len(gradient), dtype=torch.float64), gradient
    )
    assert found.dtype == torch.float32
    assert torch.allclose(found, expected.float(), atol=1e-6)


def test_pieces_of_the_samples_give_the_same_objective(monkeypatch: pytest.MonkeyPatch) -> None:
    made = recipe(Training(epochs=1, weight_decay=0.01), "tanh")
    problem, examples = Problem(made).double(), made.samples.examples()
    w, v = problem.initial(), torch.randn(problem.dimension, generator=seeded(), dtype=torch.float64)
    whole = Objective(problem, examples)
    monkeypatch.setattr("unlearning.model.objective.WORKING_SET", 7 * 4 * 20)
    pieces = Objective(problem, examples)
    hessian, gradient = dense(problem, w, examples)
    assert len(pieces._pieces) > 3
    for objective in (whole, pieces):
        here = objective.at(w)
        assert torch.allclose(here.gradient, gradient, atol=1e-13)
        assert torch.allclose(here.product(v), hessian @ v, atol=1e-12)
        assert torch.allclose(objective.products(w)(v), hessian @ v, atol=1e-12)
        assert torch.allclose(here.value, whole.at(w).value, atol=1e-13)


def test_one_step_on_a_quadratic_is_the_retrained_minimiser() -> None:
    method = Newton(residual=1e-12)
    problem, examples, state = prepared(recipe(loss="squared_error"), method)
    forget, retain = without(examples, *range(0, 30))
    found = method.forget(problem, state, forget, retain, seeded()).state.weights
    retrained = converge(problem.double(), problem.initial().double(), retain, 1e-12)
    assert float((found - retrained).norm()) < 1e-9
    assert float((state.weights - retrained).norm()) > 0.1


def test_a_step_comes_closer_to_retraining_and_more_steps_reach_the_asked_gradient() -> None:
    problem, examples, state = prepared(recipe())
    forget, retain = without(examples, 0, 3, 6, 9, 12, 15)
    retrained = converge(problem.double(), state.weights, retain, 1e-12)
    once = Newton().forget(problem, state, forget, retain, seeded())
    often = Newton(steps=20, gradient_norm=1e-9).forget(problem, state, forget, retain, seeded())
    distances = [float((w - retrained).norm()) for w in (state.weights, once.state.weights, often.state.weights)]
    assert distances[1] < 0.1 * distances[0]
    assert distances[2] <= 1e-9 / 0.05
    assert distance_bound(problem.double(), often.state.weights, retain) <= 1.1e-9 / 0.05
    assert 1 < len(often.evidence["steps"]) < 20  # type: ignore[arg-type]


def test_sequential_updates_follow_the_retained() -> None:
    method = Newton(steps=10, gradient_norm=1e-10)
    problem, examples, state = prepared(recipe(), method)
    left = examples
    for person in (4, 8, 15, 16, 23, 42):
        forget, left = without(left, person)
        state = method.forget(problem, state, forget, left, seeded()).state
    retrained = converge(problem.double(), problem.initial().double(), left, 1e-12)
    assert float((state.weights - retrained).norm()) <= 2.1e-10 / 0.05


def test_every_solve_states_its_recomputed_residual() -> None:
    problem, examples, state = prepared(recipe())
    forget, retain = without(examples, 0, 1)
    result = Newton(residual=1e-3).forget(problem, state, forget, retain, seeded())
    [step] = result.evidence["steps"]  # type: ignore[misc]
    hessian, gradient = dense(problem, state.weights, retain)
    residual = float((gradient - hessian @ (state.weights - result.state.weights)).norm() / gradient.norm())
    assert step["residual"] == pytest.approx(residual, rel=1e-6)  # type: ignore[index,call-overload]
    assert residual <= 1e-3


def test_the_result_is_projected_to_the_ball() -> None:
    problem, examples, state = prepared(recipe())
    losses = problem.double().sample_losses(state.weights, examples.inputs, examples.targets)
    # Without the worst fitted the classes separate better, and the weights grow.
    forget, retain = without(examples, *losses.topk(6).indices.tolist())
    radius = float(state.weights.norm())
    method = Newton(radius=radius)
    free = Newton().forget(problem, state, forget, retain, seeded()).state.weights
    held = method.forget(problem, state, forget, retain, seeded()).state.weights
    assert float(free.norm()) > 1.01 * radius
    assert torch.allclose(held, free * (radius / free.norm()))


def test_weights_outside_the_ball_are_refused() -> None:
    with pytest.raises(Refused, match=r"outside the ball of radius 0\.1"):
        prepared(recipe(), Newton(radius=0.1))


def test_lissa_equals_the_explicit_recursion() -> None:
    method = Newton(solver="lissa", damping=0.2, lissa_scale=4.0, lissa_depth=12, lissa_repeats=3, lissa_batch=9)
    problem, examples, state = prepared(recipe(), method)
    forget, retain = without(examples, 5, 6, 7)
    found = method.forget(problem, state, forget, retain, seeded()).state.weights

    w, generator = state.weights, seeded()
    _, gradient = dense(problem, w, retain)
    average = torch.zeros_like(w)
    for _ in range(3):
        v = gradient
        for _ in range(12):
            places = torch.randint(len(retain), (9,), generator=generator)
            batch = Examples.of(places, *retain.pick(places), ("-",) * 9)
            hessian, _ = dense(problem, w, batch)
            v = gradient + v - (hessian + 0.2 * torch.eye(len(w), dtype=torch.float64)) @ v / 4.0
        average += v / 4.0 / 3
    assert torch.allclose(found, w - average, atol=1e-12)


def test_lissa_with_its_own_scale_approaches_the_solve() -> None:
    problem, examples, state = prepared(recipe())
    forget, retain = without(examples, 5, 6, 7)
    exact = Newton(residual=1e-12).forget(problem, state, forget, retain, seeded()).state.weights
    close = Newton(solver="lissa", lissa_depth=2000).forget(problem, state, forget, retain, seeded()).state.weights
    assert float((close - exact).norm()) < 1e-6 * float((state.weights - exact).norm())


def test_a_lissa_scale_that_diverges_is_refused_with_the_numbers() -> None:
    problem, examples, state = prepared(recipe())
    hessian, _ = dense(problem, state.weights, examples)
    largest = float(torch.linalg.eigvalsh(hessian)[-1])
    with pytest.raises(Refused, match=f"largest eigenvalue is at least {largest:.3g}"):
        prepared(recipe(), Newton(solver="lissa", lissa_scale=0.49 * largest))
    prepared(recipe(), Newton(solver="lissa", lissa_scale=0.51 * largest))


def test_a_lissa_recursion_that_grows_on_its_batches_is_refused() -> None:
    problem, examples, state = prepared(recipe())
    hessian, _ = dense(problem, state.weights, examples)
    method = Newton(solver="lissa", lissa_scale=0.51 * float(torch.linalg.eigvalsh(hessian)[-1]), lissa_batch=1)
    forget, retain = without(examples, 0)
    with pytest.raises(Refused, match="recursion diverges"):
        method.forget(problem, state, forget, retain, seeded())


def test_a_lissa_recursion_whose_result_solves_nothing_is_refused() -> None:
    problem, examples, state = prepared(recipe())
    hessian, _ = dense(problem, state.weights, examples)
    largest = float(torch.linalg.eigvalsh(hessian)[-1])
    method = Newton(solver="lissa", lissa_scale=0.7 * largest, lissa_batch=1, lissa_depth=4)
    forget, retain = without(examples, 0)
    with pytest.raises(Refused, match=r"does not converge: its relative residual is .* after 4 products, above 1"):
        method.forget(problem, state, forget, retain, seeded())


def test_a_singular_hessian_is_refused_by_rule() -> None:
    plain = Training(epochs=5, learning_rate=0.1)
    with pytest.raises(Refused, match="weight decay leaves out every parameter"):
        prepared(recipe(plain))
    bias = Training(epochs=5, learning_rate=0.1, weight_decay=0.1, undecayed=("bias",))
    with pytest.raises(Refused, match="weight decay leaves out bias"):
        prepared(recipe(bias))
    prepared(recipe(bias), Newton(damping=1e-3))


def test_negative_curvature_is_refused_at_registration_with_the_damping_that_works() -> None:
    made = recipe(Training(epochs=3, learning_rate=0.1, weight_decay=1e-3), "tanh")
    problem, examples = Problem(made), made.samples.examples()
    learned = train(problem, examples)
    hessian, _ = dense(problem, learned.weights, examples)
    smallest = float(torch.linalg.eigvalsh(hessian)[0])
    assert smallest < -1e-3
    with pytest.raises(Refused, match=f"eigenvalue is at most {smallest:.3g}") as refusal:
        Newton().prepare(problem, examples, learned)
    assert f"Set damping above {-smallest:.3g}" in refusal.value.hint
    Newton(damping=-1.01 * smallest).prepare(problem, examples, learned)


def test_negative_curvature_met_by_a_release_is_refused() -> None:
    made = recipe(Training(epochs=3, learning_rate=0.1, weight_decay=1e-3), "tanh")
    problem, examples = Problem(made), made.samples.examples()
    state = State(train(problem, examples).weights)
    forget, retain = without(examples, 0, 1)
    with pytest.raises(Refused, match=r"met a curvature of -"):
        Newton().forget(problem, state, forget, retain, seeded())


def test_a_solve_that_does_not_converge_is_refused() -> None:
    problem, examples, state = prepared(recipe())
    forget, retain = without(examples, 0, 1)
    with pytest.raises(Refused, match=r"relative residual is .* after 4 products, above 1e-06"):
        Newton(iterations=2).forget(problem, state, forget, retain, seeded())


def test_float32_products_reach_a_float64_residual() -> None:
    generator = torch.Generator().manual_seed(0)
    guarantee, _ = torch.linalg.qr(torch.randn(60, 60, generator=generator, dtype=torch.float64))
    b = torch.randn(60, generator=generator, dtype=torch.float64)
    for condition, tolerance, quick_enough in ((1e2, 1e-11, True), (1e9, 1e-7, False)):
        matrix = (guarantee * torch.logspace(0, -math.log10(condition), 60, dtype=torch.float64)) @ guarantee.T
        rough = matrix.float()
        counted: list[int] = []

        def exact(v: Tensor, matrix: Tensor = matrix, counted: list[int] = counted) -> Tensor:
            counted.append(1)
            return matrix @ v

        found = refined_conjugate_gradients(exact, rough.__matmul__, b, tolerance, iterations=20_000)
        residual = float((b - matrix @ found.x).norm() / b.norm())
        assert residual == pytest.approx(found.residual, rel=1e-3)
        assert residual <= tolerance
        assert (len(counted) < 5) == quick_enough


def test_a_residual_beyond_float32_is_refused_there() -> None:
    problem, examples, state = prepared(recipe(Training(epochs=20, weight_decay=1e-3, learning_rate=0.5)))
    forget, retain = without(examples, 0, 1)
    with pytest.raises(Refused, match="does not converge"):
        Newton(precision="float32", residual=1e-12).forget(problem, state, forget, retain, seeded())
    Newton(precision="float32", residual=1e-3).forget(problem, state, forget, retain, seeded())


def test_a_step_that_raises_the_objective_is_refused() -> None:
    problem, examples, state = prepared(recipe(Training(epochs=0, weight_decay=1e-6, converge=1e-9)))
    forget, retain = without(examples, 0, 1)
    far = State(-20.0 * state.weights)
    with pytest.raises(Refused, match="objective of those who are left changes from"):
        Newton().forget(problem, far, forget, retain, seeded())


def test_training_that_clips_samples_has_no_objective() -> None:
    with pytest.raises(Refused, match="no loss has"):
        prepared(recipe(Training(epochs=2, weight_decay=0.1, sample_clip=1.0)))


def test_an_empty_forget_set_returns_the_state_itself() -> None:
    problem, examples, state = prepared(recipe())
    result = Newton().forget(problem, state, ForgetSet(frozenset(), ()), examples, seeded())
    assert result.state is state
    assert result.evidence == {}


def test_forgetting_everyone_is_refused() -> None:
    problem, examples, state = prepared(recipe())
    forget, retain = without(examples, *range(60))
    with pytest.raises(Refused, match="Nobody is left"):
        Newton().forget(problem, state, forget, retain, seeded())


def test_forgetting_someone_twice_changes_nothing_once_the_gradient_is_reached() -> None:
    method = Newton(steps=20, gradient_norm=1e-10)
    problem, examples, state = prepared(recipe(), method)
    forget, retain = without(examples, 7, 8)
    once = method.forget(problem, state, forget, retain, seeded())
    # The samples are gone, so a second request for the same people brings the same retain set.
    twice = method.forget(problem, once.state, forget, retain, seeded())
    assert torch.equal(once.state.weights, twice.state.weights)
    assert twice.evidence["steps"] == []


@pytest.mark.parametrize("left", [0, 1])
def test_a_class_may_vanish_or_shrink_to_one_sample(left: int) -> None:
    method = Newton(steps=50, gradient_norm=1e-8)
    problem, examples, state = prepared(recipe(), method)
    forget, retain = without(examples, *range(0, 60 - 3 * left, 3))
    assert int((retain.targets == 0).sum()) == left
    found = method.forget(problem, state, forget, retain, seeded()).state.weights
    assert distance_bound(problem.double(), found, retain) <= 1.1e-8 / 0.05


def test_one_class_left_is_solved_but_not_certified() -> None:
    method = Newton(steps=50, gradient_norm=1e-8)
    problem, examples, state = prepared(recipe(), method)
    forget, retain = without(examples, *(place for place in range(60) if place % 3))
    found = method.forget(problem, state, forget, retain, seeded()).state.weights
    assert float(dense(problem, found, retain)[1].norm()) <= 1e-8
    with pytest.raises(Refused, match="two classes must remain"):
        distance_bound(problem.double(), found, retain)


def test_repeats_bit_for_bit_and_ignores_the_order_of_the_forget_set() -> None:
    method = Newton(solver="lissa", lissa_batch=10, lissa_depth=50, damping=0.5)
    problem, examples, state = prepared(recipe(), method)
    forget, retain = without(examples, 3, 1, 2)
    turned = ForgetSet(frozenset(["s2", "s3", "s1"]), (1, 2, 3), None)
    first = method.forget(problem, state, forget, retain, seeded()).state.weights
    assert torch.equal(first, method.forget(problem, state, turned, retain, seeded()).state.weights)


def test_preparation_measures_how_near_a_step_comes_to_retraining() -> None:
    made = recipe()
    problem, examples = Problem(made), made.samples.examples()
    learned = train(problem, examples)
    method = Newton()
    left = []
    for chosen in calibration_sets(examples, 0.05, 3, made.training.seed):
        forget, retain = without(examples, *list(chosen.positions))
        found = method.forget(problem, State(learned.weights), forget, retain, seeded()).state.weights
        retrained = converge(problem.double(), problem.initial().double(), retain, 1e-11)
        left.append(float((found - retrained).norm() / (learned.weights - retrained).norm()))
    prepared = method.prepare(problem, examples, learned)
    state = with_distance_left(method, problem, examples, learned, prepared, vectors=Vectors({}))
    report = state.facts["report"]
    assert report["distance_left"] == pytest.approx(sum(left) / 3, rel=1e-4)  # type: ignore[index,call-overload]


def test_a_step_that_does_not_help_is_refused_at_registration() -> None:
    # Ten epochs are far from a minimum: the step goes where no retraining of ten epochs goes.
    made = recipe(Training(epochs=10, learning_rate=0.1, weight_decay=1e-3), "tanh")
    problem, examples = Problem(made), made.samples.examples()
    method, learned = Newton(damping=0.5), train(problem, examples)
    state = method.prepare(problem, examples, learned)
    with pytest.raises(Ineffective, match=r"After newton the weights are .* \(distance_left, must be below 0\.7"):
        with_distance_left(method, problem, examples, learned, state, vectors=Vectors({}))


def test_a_model_trained_elsewhere_is_not_measured() -> None:
    made = recipe()
    weights = Problem(made).tensors(torch.zeros(15))
    elsewhere = replace(made, weights=weights)
    problem, examples = Problem(elsewhere), made.samples.examples()
    state = Newton().prepare(problem, examples, learn(elsewhere, problem, examples))
    assert state.facts["report"] == {"damping": 0.0}


@pytest.mark.parametrize(
    "wrong",
    [
        {"damping": -1.0},
        {"solver": "magic"},
        {"residual": 0.0},
        {"iterations": 0},
        {"steps": 0},
        {"gradient_norm": 0.0},
        {"radius": -1.0},
        {"lissa_batch": 0},
        {"precision": "float16"},
        {"damping": math.nan},
    ],
)
def test_hyperparameters_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    [name] = wrong
    with pytest.raises(Refused, match=f"newton's {name} is"):
        Newton(**wrong)  # type: ignore[arg-type]


def test_the_state_is_the_weights_and_a_report() -> None:
    assert METHOD is Newton
    assert Newton.needs == {Need.RETAINED}
    problem, examples, state = prepared(recipe())
    forget, retain = without(examples, 0)
    after = Newton().forget(problem, state, forget, retain, seeded()).state
    assert not after.tensors
    assert not after.vectors
    assert after.facts == state.facts == {"report": {"damping": 0.0}}


def test_samples_that_are_retained_and_forgotten_at_once_are_refused() -> None:
    problem, examples, state = prepared(recipe())
    forget, _ = without(examples, 0)
    with pytest.raises(Refused, match="holds samples that are to be forgotten"):
        Newton().forget(problem, state, forget, examples, seeded())
    with pytest.raises(Refused, match="not readable"):
        Newton().forget(problem, state, forget, None, seeded())
