"""Mini-Unlearning against the paper's recursion with explicit Hessians, and against real retraining."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from unlearning.methods.mini import METHOD, NOBODY, Mini
from unlearning.methods.mini.secant import secant_product
from unlearning.model.curvature import hessian_products
from unlearning.model.problem import Problem
from unlearning.model.training import Recorder, replay, train
from unlearning.quality.distance_left import calibration_sets, with_distance_left
from unlearning.recipe import Recipe, Samples
from unlearning.settings import Training
from unlearning.types import Examples, ForgetSet, Ineffective, Learned, Need, Refused, State, Trajectory, Vectors

COUNT = 48


def recipe(training: Training, model: str = "linear", loss: str = "cross_entropy") -> Recipe:
    generator = torch.Generator().manual_seed(0)
    targets = torch.arange(COUNT) % 3
    inputs = torch.randn(3, 4, generator=generator)[targets] + 0.8 * torch.randn(COUNT, 4, generator=generator)
    if loss == "squared_error":
        targets = inputs[:, :2] - torch.sin(2 * inputs[:, 2:])
    outputs = 2 if loss == "squared_error" else 3
    models = {
        "linear": lambda: nn.Linear(4, outputs),
        "tanh": lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs)),
    }
    names = [f"s{index}" for index in range(COUNT)]
    return Recipe(models[model], Samples(names, names, inputs, targets), (inputs, targets), loss, training)


def trained(made: Recipe) -> tuple[Problem, Examples, Learned]:
    """In float64: what is compared is the mathematics."""
    problem = Problem(made).double()
    examples = made.samples.examples()
    return problem, examples, train(problem, examples)


def without(examples: Examples, *positions: int) -> tuple[ForgetSet, Examples]:
    gone = examples.only(torch.tensor(positions))
    return ForgetSet(frozenset(gone.people), tuple(sorted(positions)), gone), examples.without(gone.positions)


def forgotten(method: Mini, made: Recipe, *positions: int) -> Tensor:
    problem, examples, learned = trained(made)
    state = method.prepare(problem, examples, learned)
    return release(method, problem, examples, state, *positions).weights


def release(method: Mini, problem: Problem, examples: Examples, state: State, *positions: int) -> State:
    forget, retain = without(examples, *positions)
    return method.forget(problem, state, forget, retain, torch.Generator()).state


def recursion(made: Recipe, steps: int, gone: set[int]) -> Tensor:
    """The paper's eq. 4 as the module's docstring has it: explicit sums over forgotten and batch, dense Hessians."""
    problem, examples, learned = trained(made)
    trajectory = learned.trajectory
    assert trajectory is not None

    def loss(v: Tensor, place: int) -> Tensor:
        x, y = examples.inputs[place : place + 1], examples.targets[place : place + 1]
        return problem.sample_losses(v, x, y)[0] + 0.5 * (problem.decay * v * v).sum()

    dw = torch.zeros(problem.dimension, dtype=torch.float64)
    for step, w, _ in replay(problem, examples, trajectory, max(0, len(trajectory) - steps)):
        eta, batch = trajectory.rates[step], trajectory.batches[step].tolist()
        size, lost = len(batch), len(gone & set(batch))
        gradients = {place: torch.func.grad(loss)(w, place) for place in batch}
        hessian = sum(torch.func.hessian(loss)(w, place) for place in batch if place not in gone)
        fresh = dw - eta / (size - lost) * (hessian @ dw)
        for place in batch:
            if place in gone:
                fresh = fresh + eta / (size - lost) * gradients[place]
            fresh = fresh - eta * lost / (size * (size - lost)) * gradients[place]
        dw = fresh
    return learned.weights + dw


MINIBATCH = Training(epochs=4, batch_size=16, learning_rate=0.3, decay=0.98, weight_decay=0.02, seed=4)


@pytest.mark.parametrize("model", ["linear", "tanh"])
@pytest.mark.parametrize("steps", [1, 5, pytest.param(100, marks=pytest.mark.drill)])
def test_it_equals_the_recursion_of_the_paper(model: str, steps: int) -> None:
    made = recipe(MINIBATCH, model)
    gone = (0, 7, 21, 22)
    found = forgotten(Mini(steps=steps, amplification=1e6), made, *gone)
    assert torch.allclose(found, recursion(made, steps, set(gone)), atol=1e-13)


def in_parallel(made: Recipe, steps: int, gone: set[int]) -> Tensor:
    """The paper's algorithm 3: each step by itself, its whole Hessian by d products; then eq. 10, multiplied out."""
    problem, examples, learned = trained(made)
    assert learned.trajectory is not None
    basis = torch.eye(problem.dimension, dtype=torch.float64)
    maps, sources = [], []
    for step, w, batch in replay(problem, examples, learned.trajectory, max(0, len(learned.trajectory) - steps)):
        eta = learned.trajectory.rates[step]
        kept = [index for index, place in enumerate(learned.trajectory.batches[step].tolist()) if place not in gone]
        x, y = batch.inputs[kept], batch.targets[kept]
        hessian = hessian_products(problem, w, x, y, basis) + torch.diag(problem.decay)
        before, after = (
            problem.gradient(w, *these) + problem.decay * w for these in ((batch.inputs, batch.targets), (x, y))
        )
        maps.append(basis - eta * hessian)
        sources.append(eta * (before - after))
    total = torch.zeros(problem.dimension, dtype=torch.float64)
    for number, source in enumerate(sources):
        product = basis
        for later in maps[number + 1 :]:
            product = later @ product
        total += product @ source
    return learned.weights + total


@pytest.mark.parametrize("model", ["linear", "tanh"])
def test_it_equals_the_paper_s_parallel_form(model: str) -> None:
    made = recipe(MINIBATCH, model)
    gone = (0, 7, 21, 22)
    found = forgotten(Mini(steps=9, amplification=1e6), made, *gone)
    assert torch.allclose(found, in_parallel(made, 9, set(gone)), atol=1e-13)


@pytest.mark.parametrize("reference", ["renormalised", "fixed-denominator"])
def test_the_whole_trajectory_of_a_quadratic_is_the_retraining(reference: str) -> None:
    made = recipe(MINIBATCH, loss="squared_error")
    gone = (*range(20), 30)
    problem, examples, learned = trained(made)
    retrained = train(problem, examples, omit=gone, reference=reference).weights
    found = forgotten(Mini(steps=1000, reference=reference), made, *gone)
    assert float((found - retrained).norm()) < 1e-13 * COUNT
    assert float((learned.weights - retrained).norm()) > 0.05


def test_a_batch_that_lost_everyone_steps_as_retraining_does() -> None:
    made = recipe(Training(epochs=2, batch_size=8, learning_rate=0.2, weight_decay=0.1, seed=1), loss="squared_error")
    problem, examples, learned = trained(made)
    assert learned.trajectory is not None
    gone = tuple(learned.trajectory.batches[-2].tolist())
    retrained = train(problem, examples, omit=gone).weights
    assert float((forgotten(Mini(steps=1000), made, *gone) - retrained).norm()) < 1e-13 * COUNT


def test_the_error_falls_with_the_square_of_what_is_forgotten() -> None:
    # Copies of one sample beside it: forgetting one of m+1 copies shrinks the perturbation as the data grow.
    errors, effects = [], []
    for copies in (1, 4):
        made = recipe(Training(epochs=30, learning_rate=0.5, weight_decay=0.01))
        inputs, targets = made.samples.tensors()
        inputs = torch.cat([inputs] + [inputs[1:]] * (copies - 1))
        targets = torch.cat([targets] + [targets[1:]] * (copies - 1))
        names = [str(index) for index in range(len(inputs))]
        made = Recipe(made.model, Samples(names, names, inputs, targets), made.holdout, made.loss, made.training)
        problem, examples, learned = trained(made)
        state = Mini(steps=1000).prepare(problem, examples, learned)
        found = release(Mini(steps=1000), problem, examples, state, 0).weights
        retrained = train(problem, examples, omit=(0,)).weights
        errors.append(float((found - retrained).norm()))
        effects.append(float((learned.weights - retrained).norm()))
    assert effects[1] == pytest.approx(effects[0] / 4, rel=0.2)
    assert errors[1] == pytest.approx(errors[0] / 16, rel=0.3)


def test_a_longer_tail_comes_closer_to_retraining() -> None:
    made = recipe(Training(epochs=60, learning_rate=0.5, weight_decay=0.01))
    problem, examples, _ = trained(made)
    gone = (3, 9)
    retrained = train(problem, examples, omit=gone).weights
    distances = [float((forgotten(Mini(steps=steps), made, *gone) - retrained).norm()) for steps in (1, 5, 15, 60)]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.1 * distances[0]


def test_after_convergence_it_descends_from_the_minimiser() -> None:
    training = Training(epochs=2, learning_rate=0.2, weight_decay=0.05, converge=1e-12)
    made = recipe(training, loss="squared_error")
    problem, examples, learned = trained(made)
    _, retain = without(examples, *range(9))
    descent = learned.weights
    for _ in range(30):
        descent = descent - 0.2 * (problem.gradient(descent, retain.inputs, retain.targets) + 0.05 * descent)
    found = forgotten(Mini(steps=30), made, *range(9))
    retrained = train(problem, examples, omit=range(9)).weights
    assert float((found - descent).norm()) < 1e-11
    assert float((found - retrained).norm()) < 0.2 * float((learned.weights - retrained).norm())


def test_it_works_in_the_precision_of_the_weights() -> None:
    made = recipe(Training(epochs=1, learning_rate=0.2, weight_decay=0.05, converge=1e-10))
    problem, examples = Problem(made), made.samples.examples()
    state = Mini().prepare(problem, examples, train(problem, examples))
    assert release(Mini(), problem, examples, state, 3).weights.dtype == torch.float64


@pytest.mark.parametrize(("epochs", "steps", "kept"), [(7, None, 3), (1, None, 1), (7, 5, 5), (7, 99, 7)])
def test_the_tail_is_half_the_training_unless_told(epochs: int, steps: int | None, kept: int) -> None:
    made = recipe(Training(epochs=epochs, learning_rate=0.1))
    problem, examples, learned = trained(made)
    state = Mini(steps=steps).prepare(problem, examples, learned)
    assert state.tensors["tail"].shape == (kept + 1, problem.dimension)
    assert state.facts["report"] == {"steps": kept, "trajectory_steps": epochs, "reference": "renormalised"}


def test_epochs_count_passes_as_the_paper_does() -> None:
    made = recipe(Training(epochs=4, batch_size=20, learning_rate=0.1))
    problem, examples, learned = trained(made)
    passes, steps = (Mini(**k).prepare(problem, examples, learned) for k in ({"epochs": 2}, {"steps": 6}))
    assert passes.tensors["sizes"].tolist() == [20, 20, 8, 20, 20, 8]
    assert torch.equal(passes.tensors["tail"], steps.tensors["tail"])
    whole = Mini(epochs=9).prepare(problem, examples, learned)
    assert len(whole.tensors["rates"]) == len(learned.trajectory or ()) == 12


def test_an_epoch_of_a_converged_training_is_one_full_batch() -> None:
    made = recipe(Training(epochs=1, batch_size=20, learning_rate=0.2, weight_decay=0.05, converge=1e-8))
    problem, examples, learned = trained(made)
    assert Mini(epochs=3).prepare(problem, examples, learned).tensors["sizes"].tolist() == [48, 48, 48]


def test_steps_and_epochs_together_are_refused() -> None:
    with pytest.raises(Refused, match="It must be None where epochs is given"):
        Mini(steps=3, epochs=2)
    with pytest.raises(Refused, match="epochs is 0"):
        Mini(epochs=0)


def test_the_tail_stays_within_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unlearning.methods.mini.TAIL_LIMIT", 4 * 15)
    problem, examples, learned = trained(recipe(Training(epochs=9, learning_rate=0.1)))
    assert Mini().prepare(problem, examples, learned).tensors["tail"].shape == (4, 15)


def test_preparation_measures_how_near_the_tail_comes_to_retraining() -> None:
    made = recipe(Training(epochs=40, learning_rate=0.5, weight_decay=0.01))
    problem, examples, learned = trained(made)
    method, left = Mini(steps=40), []
    for chosen in calibration_sets(examples, 0.05, 3, made.training.seed):
        retrained = train(problem, examples, omit=chosen.positions).weights
        found = forgotten(method, made, *chosen.positions)
        left.append(float((found - retrained).norm() / (learned.weights - retrained).norm()))

    def measured(method: Mini) -> State:
        state = method.prepare(problem, examples, learned)
        return with_distance_left(method, problem, examples, learned, state, vectors=Vectors({}))

    report = measured(method).facts["report"]
    assert report["distance_left"] == pytest.approx(sum(left) / 3)  # type: ignore[index,call-overload]
    with pytest.raises(Ineffective, match=r"After mini the weights are 0\.9.* times as far"):
        measured(Mini(steps=1))


CLIPPED = Training(epochs=3, batch_size=16, learning_rate=0.4, weight_decay=0.05, clip=0.5, seed=2)


def test_clipped_steps_follow_the_derivative_of_the_clipped_step() -> None:
    made = recipe(CLIPPED, "tanh")
    problem, examples, learned = trained(made)
    trajectory = learned.trajectory
    assert trajectory is not None
    assert 0 < sum(scale < 1 for scale in trajectory.scales) < len(trajectory)
    gone = (0, 5, 6, 11)
    _, retain = without(examples, *gone)
    dw = torch.zeros(problem.dimension, dtype=torch.float64)
    weights = [w for _, w, _ in replay(problem, examples, trajectory)] + [learned.weights]
    for step, w in enumerate(weights[:-1]):
        kept = retain.only(trajectory.batches[step])

        def stepped(v: Tensor, kept: Examples = kept, step: int = step) -> Tensor:
            g = torch.func.grad(problem.mean_loss)(v, kept.inputs, kept.targets) + problem.decay * v
            return v - trajectory.rates[step] * torch.clamp(0.5 / g.norm(), max=1.0) * g

        dw = torch.func.jacfwd(stepped)(w) @ dw + (stepped(w) - weights[step + 1])
    assert torch.allclose(forgotten(Mini(steps=1000, amplification=1e6), made, *gone), learned.weights + dw, atol=1e-12)


def test_it_helps_on_a_clipped_training() -> None:
    made = recipe(CLIPPED)
    problem, examples, learned = trained(made)
    retrained = train(problem, examples, omit=(0, 5)).weights
    found = forgotten(Mini(steps=1000), made, 0, 5)
    assert float((found - retrained).norm()) < 0.3 * float((learned.weights - retrained).norm())


def test_scales_of_a_recorded_loop_are_taken_as_they_are() -> None:
    made = recipe(Training(epochs=1, learning_rate=0.2, weight_decay=0.05), loss="squared_error")
    problem, examples = Problem(made).double(), made.samples.examples()
    forget, retain = without(examples, 2, 3)

    def loop(who: Examples) -> tuple[Tensor, Trajectory]:
        recorder, w = Recorder(), problem.initial()
        for scale in (1.0, 0.5, 0.25, 1.0):
            recorder.step(w, examples.positions, 0.2, scale)
            w = w - 0.2 * scale * (problem.gradient(w, who.inputs, who.targets) + problem.decay * w)
        return w, recorder.finish(w)

    learned = Learned(*loop(examples))
    state = Mini(steps=4).prepare(problem, examples, learned)
    found = Mini().forget(problem, state, forget, retain, torch.Generator()).state.weights
    assert torch.allclose(found, loop(retain)[0], atol=1e-13)


def test_the_order_and_grouping_of_requests_do_not_matter() -> None:
    problem, examples, learned = trained(recipe(MINIBATCH, "tanh"))
    state = Mini().prepare(problem, examples, learned)
    together = release(Mini(), problem, examples, state, 1, 2, 40)
    for order in ((1, 2, 40), (40, 1, 2)):
        stepwise, left = state, examples
        for person in order:
            forget, left = without(left, person)
            stepwise = Mini().forget(problem, stepwise, forget, left, torch.Generator()).state
        assert torch.equal(stepwise.weights, together.weights)
        assert all(torch.equal(stepwise.tensors[name], together.tensors[name]) for name in state.tensors)


def test_someone_outside_the_last_steps_leaves_the_weights_as_they_were() -> None:
    training = Training(epochs=2, batch_size=16, learning_rate=0.3, weight_decay=0.02)
    made = recipe(training)
    problem, examples = Problem(made), made.samples.examples()
    learned = train(problem, examples)
    assert learned.trajectory is not None
    [outside, *_] = sorted(set(range(COUNT)) - set(learned.trajectory.batches[-1].tolist()))
    state = Mini(steps=1).prepare(problem, examples, learned)
    assert torch.equal(release(Mini(steps=1), problem, examples, state, outside).weights, learned.weights)


def test_the_state_is_storable_and_keeps_no_place_of_the_forgotten(tmp_path: Path) -> None:
    problem, examples, learned = trained(recipe(MINIBATCH))
    state = Mini(steps=7).prepare(problem, examples, learned)
    assert state.tensors["tail"].shape == (8, problem.dimension)
    assert 11 in state.tensors["batches"]
    after = release(Mini(steps=7), problem, examples, state, 11)
    assert 11 not in after.tensors["batches"]
    assert NOBODY in after.tensors["batches"]
    save_file(dict(after.tensors), tmp_path / "state")
    loaded = State(after.weights, load_file(tmp_path / "state"), after.facts)
    left = examples.without(torch.tensor([11]))
    assert torch.equal(
        release(Mini(steps=7), problem, left, loaded, 12).weights,
        release(Mini(steps=7), problem, examples, state, 11, 12).weights,
    )


def rank_two_updates(moves: Tensor, changes: Tensor) -> Tensor:
    """The BFGS matrix (d, d) by its textbook updates, oldest pair first."""
    s, y = moves[-1], changes[-1]
    b = (s @ y) / (s @ s) * torch.eye(len(s), dtype=torch.float64)
    for s, y in zip(moves, changes, strict=True):
        b = b - torch.outer(b @ s, b @ s) / (s @ b @ s) + torch.outer(y, y) / (s @ y)
    return b


@pytest.mark.parametrize("pairs", [1, 2, 5])
def test_the_compact_secant_product_equals_the_rank_two_updates(pairs: int) -> None:
    generator = torch.Generator().manual_seed(pairs)
    root = torch.randn(9, 9, generator=generator, dtype=torch.float64)
    moves = torch.randn(pairs, 9, generator=generator, dtype=torch.float64)
    changes = moves @ (root @ root.T + torch.eye(9, dtype=torch.float64))
    v = torch.randn(9, generator=generator, dtype=torch.float64)
    product = secant_product(moves, changes, v)
    assert product is not None
    assert torch.allclose(product, rank_two_updates(moves, changes) @ v, rtol=1e-10)
    newest = secant_product(moves, changes, moves[-1])
    assert newest is not None
    assert torch.allclose(newest, changes[-1], rtol=1e-9)


def test_pairs_without_positive_curvature_are_left_out() -> None:
    moves = torch.eye(3, dtype=torch.float64)[:2]
    changes = torch.stack([2.0 * moves[0], -moves[1]])
    v = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    only = secant_product(moves[:1], changes[:1], v)
    both = secant_product(moves, changes, v)
    assert only is not None
    assert both is not None
    assert torch.equal(both, only)
    assert secant_product(moves[1:], changes[1:], v) is None
    assert secant_product(moves[:0], changes[:0], v) is None


@pytest.mark.parametrize("reference", ["renormalised", "fixed-denominator"])
def test_secant_products_enter_the_recursion_as_their_dense_matrix(reference: str) -> None:
    training = Training(epochs=12, learning_rate=0.4, weight_decay=0.02)
    made = recipe(training)
    share = 1.0 if reference == "renormalised" else 46 / 48
    problem, examples, learned = trained(made)
    trajectory = learned.trajectory
    assert trajectory is not None
    _, retain = without(examples, 3, 9)
    weights = [w for _, w, _ in replay(problem, examples, trajectory)] + [learned.weights]
    gradients = [problem.gradient(w, retain.inputs, retain.targets) for w in weights]
    dw = torch.zeros(problem.dimension, dtype=torch.float64)
    for t, w in enumerate(weights[:-1]):
        first = max(0, t - 2)
        bent = torch.zeros_like(dw)
        if t:
            moves = torch.stack(weights[first : t + 1]).diff(dim=0)
            changes = torch.stack(gradients[first : t + 1]).diff(dim=0)
            bent = rank_two_updates(moves, changes) @ dw
        arrived = w - 0.4 * (share * gradients[t] + problem.decay * w)
        dw = dw - 0.4 * (share * bent + problem.decay * dw) + (arrived - weights[t + 1])
    found = forgotten(Mini(steps=1000, products="secant", reference=reference), made, 3, 9)
    assert torch.allclose(found, learned.weights + dw, atol=1e-12)


def test_an_empty_forget_set_returns_the_state_itself() -> None:
    problem, examples, learned = trained(recipe(MINIBATCH))
    state = Mini().prepare(problem, examples, learned)
    result = Mini().forget(problem, state, ForgetSet(frozenset(), ()), examples, torch.Generator())
    assert result.state is state


def test_forgetting_everyone_is_refused() -> None:
    problem, examples, learned = trained(recipe(MINIBATCH))
    state = Mini().prepare(problem, examples, learned)
    with pytest.raises(Refused, match="Nobody is left"):
        release(Mini(), problem, examples, state, *range(COUNT))


def test_forgetting_someone_twice_changes_nothing() -> None:
    problem, examples, learned = trained(recipe(MINIBATCH))
    state = Mini().prepare(problem, examples, learned)
    once = release(Mini(), problem, examples, state, 7)
    assert torch.equal(release(Mini(), problem, examples, once, 7).weights, once.weights)


@pytest.mark.parametrize("left", [0, 1])
def test_a_class_may_vanish_or_shrink_to_one_sample(left: int) -> None:
    made = recipe(MINIBATCH)
    problem, examples, learned = trained(made)
    gone = tuple(range(0, COUNT - 3 * left, 3))
    retrained = train(problem, examples, omit=gone).weights
    found = forgotten(Mini(steps=1000), made, *gone)
    assert float((found - retrained).norm()) < 0.5 * float((learned.weights - retrained).norm())


def test_a_recursion_that_does_not_contract_is_refused() -> None:
    made = recipe(Training(epochs=60, learning_rate=9.0, weight_decay=0.01))
    with pytest.raises(Refused, match="recursion does not contract"):
        forgotten(Mini(steps=1000), made, 0, 1)


def test_a_model_without_a_trajectory_is_refused() -> None:
    problem, examples, learned = trained(recipe(MINIBATCH))
    with pytest.raises(Refused, match="there is none"):
        Mini().prepare(problem, examples, Learned(learned.weights))


def test_weights_that_the_trajectory_does_not_end_in_are_refused() -> None:
    problem, examples, learned = trained(recipe(MINIBATCH))
    with pytest.raises(Refused, match="not those that the trajectory ends in"):
        Mini().prepare(problem, examples, Learned(learned.weights + 1e-3, learned.trajectory))


def test_training_that_clips_samples_is_refused() -> None:
    made = recipe(Training(epochs=2, learning_rate=0.1, sample_clip=1.0))
    with pytest.raises(Refused, match="sample_clip"):
        forgotten(Mini(), made, 0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": 0},
        {"products": "guess"},
        {"pairs": 0},
        {"reference": "none"},
        {"amplification": 0.5},
    ],
)
def test_hyperparameters_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    [name] = wrong
    with pytest.raises(Refused, match=f"mini's {name} is"):
        Mini(**wrong)  # type: ignore[arg-type]


def test_what_it_declares() -> None:
    assert METHOD is Mini
    assert Mini.needs == {Need.TRAJECTORY, Need.RETAINED}


def test_samples_that_are_retained_and_forgotten_at_once_are_refused() -> None:
    problem, examples, learned = trained(recipe(MINIBATCH))
    state = Mini().prepare(problem, examples, learned)
    forget, _ = without(examples, 0)
    with pytest.raises(Refused, match="holds samples that are to be forgotten"):
        Mini().forget(problem, state, forget, examples, torch.Generator())
