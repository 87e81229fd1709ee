from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

import unlearning as ul
from tests.unlearning.recipes import draw, network, recipe, softmax
from unlearning.model.problem import Problem
from unlearning.model.training import learn, replay, retrace, retrained, train, verify
from unlearning.types import Examples, Learned, Trajectory


def trained(dtype: torch.dtype = torch.float32, **training: float) -> tuple[Problem, Examples, Learned, Trajectory]:
    written = network(**training)
    problem, examples = Problem(written, dtype=dtype), written.samples.examples()
    learned = train(problem, examples)
    assert learned.trajectory is not None
    return problem, examples, learned, learned.trajectory


def weights_along(problem: Problem, examples: Examples, trajectory: Trajectory) -> Iterator[Tensor]:
    return (w for _, w, _ in replay(problem, examples, trajectory))


def by_hand(
    problem: Problem, examples: Examples, learned: Trajectory, keep: Tensor, denominators: list[float]
) -> Tensor:
    """The training written out: autograd on the batch's loss, clipping, weight decay, the step."""
    training = problem.training
    w = problem.initial()
    for step, positions in enumerate(learned.batches):
        batch = positions[keep[positions]]
        v = w.clone().requires_grad_()
        loss = problem.sample_losses(v, examples.inputs[batch], examples.targets[batch]).sum() / denominators[step]
        (gradient,) = torch.autograd.grad(loss, v)
        gradient = gradient + training.weight_decay * w
        scale = min(1.0, training.clip / float(gradient.norm())) if training.clip else 1.0
        w = w - training.learning_rate * training.decay**step * scale * gradient
    return w


def test_the_same_training_repeats_bit_for_bit_and_another_seed_does_not() -> None:
    first, second, other = trained()[2], trained()[2], trained(seed=1)[2]
    assert torch.equal(first.weights, second.weights)
    assert not torch.equal(first.weights, other.weights)


@pytest.mark.parametrize("settings", [{}, {"clip": 0.55}, {"decay": 0.9}, {"batch_size": None, "clip": 0.25}])
def test_training_is_the_written_recursion(settings: dict[str, float]) -> None:
    problem, examples, learned, trajectory = trained(torch.float64, **settings)
    everyone = torch.ones(40, dtype=torch.bool)
    sizes = [float(len(batch)) for batch in trajectory.batches]
    expected = by_hand(problem, examples, trajectory, everyone, sizes)
    assert torch.allclose(learned.weights, expected, atol=1e-13)


@pytest.mark.parametrize("reference", ["renormalised", "fixed-denominator"])
def test_omitted_samples_leave_order_and_initialisation_as_they_were(reference: str) -> None:
    problem, examples, _, trajectory = trained(torch.float64, clip=0.55)
    omit = (0, 7, 14, 21, 35)
    keep = torch.ones(40, dtype=torch.bool)
    keep[list(omit)] = False
    whole = reference == "fixed-denominator"
    sizes = [float(len(batch) if whole else keep[batch].sum()) for batch in trajectory.batches]
    learned = train(problem, examples, omit=omit, reference=reference)
    assert torch.allclose(learned.weights, by_hand(problem, examples, trajectory, keep, sizes), atol=1e-13)


def test_omitting_and_never_having_had_the_samples_are_the_same_training() -> None:
    problem, examples, _, _ = trained()
    gone = torch.tensor([3, 11])
    omitted = train(problem, examples, omit=gone.tolist()).weights
    absent = train(problem, examples.without(gone), planned=examples.positions).weights
    assert torch.equal(omitted, absent)


def test_a_batch_left_empty_steps_by_weight_decay_alone() -> None:
    problem, examples, _, _ = trained(torch.float64, batch_size=40, epochs=1)
    alone = examples.only(torch.tensor([0]))
    lonely = train(problem, alone, planned=torch.tensor([0, 1])).trajectory
    assert lonely is not None
    problem = Problem(network(batch_size=1, epochs=1, weight_decay=0.5), dtype=torch.float64)
    learned = train(problem, alone, planned=torch.tensor([0, 1]))
    start, order = problem.initial(), [int(batch) for batch in learned.trajectory.batches]  # type: ignore[union-attr]
    shrunk = start * (1 - 0.2 * 0.5)
    first = problem.gradient(start, alone.inputs, alone.targets)
    second = problem.gradient(shrunk, alone.inputs, alone.targets)
    expected = {
        (0, 1): (shrunk - 0.2 * first) * (1 - 0.2 * 0.5),
        (1, 0): shrunk * (1 - 0.2 * 0.5) - 0.2 * second,
    }[tuple(order)]  # type: ignore[index]
    assert torch.allclose(learned.weights, expected, atol=1e-14)


def test_nobody_left_is_refused() -> None:
    problem, examples, _, _ = trained()
    with pytest.raises(ul.RecipeError, match="No sample is left"):
        train(problem, examples, omit=range(40))


def test_an_unknown_reference_is_refused() -> None:
    problem, examples, _, _ = trained()
    with pytest.raises(ValueError, match="renormalized"):
        train(problem, examples, reference="renormalized")


def test_a_diverging_training_is_refused_with_the_step() -> None:
    x = 1e3 * draw(20, 3)
    written = recipe(lambda: torch.nn.Linear(3, 1), x, draw(20, 1), "squared_error", epochs=60, learning_rate=1e6)
    with pytest.raises(ul.RecipeError, match="not finite after"):
        train(Problem(written), written.samples.examples())


def test_every_epoch_visits_every_sample_once_in_an_order_of_its_own() -> None:
    _, _, _, trajectory = trained()
    epochs = [torch.cat(trajectory.batches[start : start + 3]) for start in range(0, 12, 3)]
    assert all(sorted(epoch.tolist()) == list(range(40)) for epoch in epochs)
    assert not torch.equal(epochs[0], epochs[1])
    assert trajectory.starts == (0, 3, 6, 9, 12)


def test_replay_gives_every_weight_again_from_any_checkpoints() -> None:
    problem, examples, learned, trajectory = trained(clip=0.55)
    sparse = replace(trajectory, checkpoints=trajectory.checkpoints[::4], starts=trajectory.starts[::4])
    dense = list(weights_along(problem, examples, trajectory))
    again = list(weights_along(problem, examples, sparse))
    assert len(dense) == 12
    assert all(torch.equal(left, right) for left, right in zip(dense, again, strict=True))
    late = [(step, w) for step, w, _ in replay(problem, examples, sparse, start=7)]
    assert [step for step, _ in late] == [7, 8, 9, 10, 11]
    assert torch.equal(late[0][1], dense[7])
    assert torch.equal(trajectory.checkpoints[-1], learned.weights)


def test_replay_without_a_sample_of_some_batch_is_refused() -> None:
    problem, examples, _, trajectory = trained()
    with pytest.raises(ul.RecipeError, match="1 of them are missing"):
        list(replay(problem, examples.without(torch.tensor([5])), trajectory))


def test_a_trajectory_goes_to_tensors_and_back() -> None:
    _, _, _, trajectory = trained(clip=0.55)
    again = Trajectory.from_tensors(trajectory.tensors())
    assert (again.rates, again.scales, again.starts) == (trajectory.rates, trajectory.scales, trajectory.starts)
    assert all(map(torch.equal, again.batches, trajectory.batches))
    assert all(map(torch.equal, again.checkpoints, trajectory.checkpoints))


def test_retracing_without_the_omitted_is_the_fixed_denominator_training() -> None:
    problem, examples, learned, trajectory = trained(clip=0.55)
    assert torch.equal(retrace(problem, examples, trajectory, ()), learned.weights)
    omit = (2, 9, 30)
    expected = train(problem, examples, omit=omit, reference="fixed-denominator").weights
    assert torch.equal(retrace(problem, examples, trajectory, omit), expected)


def test_clipped_samples_have_gradients_of_bounded_norm_with_decay_outside() -> None:
    problem, examples, _, _ = trained(torch.float64, sample_clip=1.2, batch_size=None, epochs=1)
    start = problem.initial()
    each = problem.sample_gradients(start, examples.inputs, examples.targets)
    norms = each.norm(dim=1, keepdim=True)
    assert bool((norms > 1.2).any())
    assert bool((norms < 1.2).any())
    mean = torch.where(norms > 1.2, 1.2 * each / norms, each).mean(dim=0)
    expected = start - 0.2 * (mean + 1e-2 * start)
    assert torch.allclose(train(problem, examples).weights, expected, atol=1e-14)


def test_a_convex_training_ends_in_a_gradient_below_the_stated_norm() -> None:
    written = softmax(epochs=3, learning_rate=0.5)
    problem, examples = Problem(written), written.samples.examples()
    learned = train(problem, examples)
    double = problem.double()
    gradient = double.gradient(learned.weights, examples.inputs, examples.targets) + 1e-2 * learned.weights
    assert learned.weights.dtype == torch.float64
    assert float(gradient.norm()) <= 1e-10
    assert learned.trajectory is not None
    assert len(learned.trajectory) == 3


def test_a_converged_training_without_some_has_the_denominator_of_its_reference() -> None:
    written = softmax()
    problem, examples = Problem(written).double(), written.samples.examples()
    omit = tuple(range(0, 60, 5))
    kept = examples.without(torch.tensor(omit))
    for reference, share in (("renormalised", 1.0), ("fixed-denominator", 48 / 60)):
        w = train(problem, examples, omit=omit, reference=reference).weights
        gradient = share * problem.gradient(w, kept.inputs, kept.targets) + 1e-2 * w
        assert float(gradient.norm()) <= 1e-10


@pytest.mark.parametrize("reference", ["renormalised", "fixed-denominator"])
def test_a_retraining_begins_at_a_minimiser_and_ends_where_one_from_the_start_does(
    reference: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(softmax())
    examples, omit = problem.recipe.samples.examples(), tuple(range(0, 60, 5))
    everyone = train(problem, examples).weights
    from_the_start = train(problem, examples, omit=omit, reference=reference).weights
    monkeypatch.setattr(Problem, "initial", lambda _: pytest.fail("it begins at the start"))
    found = retrained(problem, examples, everyone, omit, reference=reference)
    assert float((found - from_the_start).norm()) <= 2 * 1e-10 / 1e-2  # each gradient over weight_decay
    assert float((found - everyone).norm()) > 1e-3


def test_a_retraining_that_ends_in_no_minimiser_is_the_whole_training() -> None:
    problem = Problem(network())
    examples, omit = problem.recipe.samples.examples(), (1, 2, 7)
    everyone = train(problem, examples).weights
    assert torch.equal(retrained(problem, examples, everyone, omit), train(problem, examples, omit=omit).weights)


def test_progress_rises_to_one() -> None:
    shares: list[float] = []
    written = network()
    train(Problem(written), written.samples.examples(), progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def recorded(momentum: float = 0.0) -> tuple[ul.Recipe, Learned]:
    """A user's own loop over the recipe of ``network``, recorded."""
    written = network(clip=0.55)
    problem, examples = Problem(written), written.samples.examples()
    recorder = ul.Recorder(every=3)
    w, velocity = problem.initial(), torch.zeros(problem.dimension)
    for step in range(10):
        positions = torch.arange(4 * step, 4 * step + 8) % 40
        gradient = problem.gradient(w, examples.inputs[positions], examples.targets[positions]) + 1e-2 * w
        scale = min(1.0, 0.55 / float(gradient.norm()))
        recorder.step(w, positions, rate=0.3, scale=scale)
        velocity = momentum * velocity + scale * gradient
        w = w - 0.3 * velocity
    trajectory = recorder.finish(w)
    imported = replace(written, weights=problem.tensors(w), trajectory=trajectory)
    return imported, Learned(w, trajectory)


def test_a_recorded_loop_is_learned_as_it_was_run() -> None:
    written, expected = recorded()
    learned = learn(written, Problem(written), written.samples.examples())
    assert torch.equal(learned.weights, expected.weights)
    assert learned.trajectory is expected.trajectory
    assert learned.trajectory is not None
    assert learned.trajectory.starts == (0, 3, 6, 9, 10)


def test_a_recorded_loop_with_momentum_is_refused() -> None:
    written, _ = recorded(momentum=0.9)
    with pytest.raises(ul.RecipeError, match="not a gradient step"):
        learn(written, Problem(written), written.samples.examples())


def test_a_recorded_loop_that_ends_elsewhere_is_refused() -> None:
    written, learned = recorded()
    problem = Problem(written)
    assert learned.trajectory is not None
    with pytest.raises(ul.RecipeError, match="does not end in the given weights"):
        verify(problem, written.samples.examples(), learned.trajectory, learned.weights + 1e-3)


def test_imported_weights_of_a_convex_recipe_are_converged() -> None:
    plain = softmax()
    expected = train(Problem(plain), plain.samples.examples()).weights
    written = replace(plain, weights={"weight": torch.ones(3, 6)})
    learned = learn(written, Problem(written), written.samples.examples())
    assert float((learned.weights - expected).norm()) < 1e-7
    assert learned.trajectory is None


def test_scales_say_which_steps_were_clipped() -> None:
    _, _, _, trajectory = trained(clip=0.55)
    assert any(scale < 1.0 for scale in trajectory.scales)
    assert any(scale == 1.0 for scale in trajectory.scales)
    assert all(scale == 1.0 for scale in trained()[3].scales)
    assert math.isclose(trained(decay=0.9)[3].rates[4], 0.2 * 0.9**4)
