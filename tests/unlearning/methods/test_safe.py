"""SAFE against slow, dense float64 twins: loops over samples, recomputed moments, autograd of the KL divergence."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from unlearning import Problem, Recipe, Samples, Training
from unlearning.methods.safe import MODES, STEPS, Safe, class_probabilities, forgetting_gradient
from unlearning.methods.safe.moments import Moments
from unlearning.model.training import train
from unlearning.quality.distance_left import calibration_sets, with_distance_left
from unlearning.types import Examples, ForgetSet, Learned, Refused, State, Tensors, Vectors

CLASSES, WIDTH, N = 3, 5, 45
GENERATOR = torch.Generator().manual_seed(0)


def blobs(n: int = N, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(n) % CLASSES
    centres = 2 * torch.randn(CLASSES, WIDTH, generator=generator, dtype=torch.float64)
    return centres[y] + torch.randn(n, WIDTH, generator=generator, dtype=torch.float64), y


def recipe_of(x: Tensor, y: Tensor, loss: str = "cross_entropy", outputs: int = CLASSES) -> Recipe:
    names = [f"s{i}" for i in range(len(x))]
    return Recipe(
        model=lambda: nn.Sequential(nn.Linear(x.shape[1], 4), nn.Tanh(), nn.Linear(4, outputs)),
        samples=Samples(names, names, x, y),
        holdout=(x, y),
        loss=loss,
        training=Training(epochs=20, learning_rate=0.3, weight_decay=0.01),
    )


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(recipe_of(*blobs())).double()


@pytest.fixture(scope="module")
def everyone(problem: Problem) -> Examples:
    return problem.recipe.samples.examples()


@pytest.fixture(scope="module")
def learned(problem: Problem, everyone: Examples) -> Learned:
    return train(problem, everyone)


def ask(everyone: Examples, positions: list[int]) -> ForgetSet:
    examples = everyone.only(torch.tensor(positions, dtype=torch.int64))
    return ForgetSet(examples.people.distinct(), tuple(examples.positions.tolist()), examples)


def stream(method: Safe, problem: Problem, everyone: Examples, learned: Learned, rounds: list[list[int]]) -> State:
    state = method.prepare(problem, everyone, learned)
    for positions in rounds:
        state = method.forget(problem, state, ask(everyone, positions), None, GENERATOR).state
    return state


# --- class moments ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 7, 13, 14])
def test_the_down_date_equals_recomputation(k: int) -> None:
    x, y = blobs(45)
    of_class = (y == 1).nonzero().flatten()
    gone = torch.cat([of_class[:k], (y == 2).nonzero().flatten()[:3]])
    keep = torch.ones(45, dtype=torch.bool)
    keep[gone] = False
    down = Moments.of(x, y, CLASSES).without(x[gone], y[gone])
    again = Moments.of(x[keep], y[keep], CLASSES)
    assert torch.equal(down.counts, again.counts)
    torch.testing.assert_close(down.means, again.means, rtol=0, atol=1e-12)
    torch.testing.assert_close(down.covariances, again.covariances, rtol=0, atol=1e-12)


def test_moments_equal_torch_covariance() -> None:
    x, y = blobs(45)
    moments = Moments.of(x, y, CLASSES)
    for c in range(CLASSES):
        torch.testing.assert_close(moments.covariances[c], torch.cov(x[y == c].T), rtol=0, atol=1e-12)


def test_forty_down_dates_in_a_row_keep_covariances_positive() -> None:
    x, y = blobs(120)
    moments = Moments.of(x, y, CLASSES)
    for i in range(0, 80, 2):
        moments = moments.without(x[i : i + 2], y[i : i + 2])
    again = Moments.of(x[80:], y[80:], CLASSES)
    torch.testing.assert_close(moments.covariances, again.covariances, rtol=0, atol=1e-11)
    assert float(torch.linalg.eigvalsh(moments.covariances).min()) > 0


def test_a_class_with_one_sample_left_is_that_sample_with_covariance_zero() -> None:
    x, y = blobs(9)
    down = Moments.of(x, y, CLASSES).without(x[[0, 3]], y[[0, 3]])
    torch.testing.assert_close(down.means[0], x[6], rtol=0, atol=1e-12)
    assert float(down.covariances[0].abs().max()) == 0.0


def test_an_emptied_class_leaves_nothing_behind() -> None:
    x, y = blobs(9)
    down = Moments.of(x, y, CLASSES).without(x[[0, 3, 6]], y[[0, 3, 6]])
    assert float(down.counts[0]) == 0.0
    assert float(down.means[0].abs().max()) == 0.0
    assert float(down.covariances[0].abs().max()) == 0.0


def test_a_class_cannot_lose_more_than_it_has() -> None:
    x, y = blobs(9)
    with pytest.raises(Refused, match="more samples of a class"):
        Moments.of(x[:6], y[:6], CLASSES).without(x[[0, 3, 6]], y[[0, 3, 6]])


def dense_log_joint(x: Tensor, y: Tensor, points: Tensor, shrinkage: float, ridge: float) -> Tensor:
    """log n_y + log N(x; m_y, S_y) by torch.distributions, from the samples themselves."""
    pooled_scatter, free = torch.zeros(WIDTH, WIDTH, dtype=torch.float64), 0
    scatters = []
    for c in range(CLASSES):
        members = x[y == c]
        scatters.append(sum(torch.outer(v - members.mean(0), v - members.mean(0)) for v in members))
        pooled_scatter, free = pooled_scatter + scatters[c], free + len(members) - 1
    pooled = pooled_scatter / free + ridge * torch.eye(WIDTH, dtype=torch.float64)
    columns = []
    for c in range(CLASSES):
        members = x[y == c]
        covariance = (scatters[c] + shrinkage * pooled) / (len(members) - 1 + shrinkage)
        normal = torch.distributions.MultivariateNormal(members.mean(0), covariance)
        columns.append(math.log(len(members)) + normal.log_prob(points))
    return torch.stack(columns, dim=1)


def test_log_q_is_the_ratio_of_the_joint_densities(problem: Problem, everyone: Examples, learned: Learned) -> None:
    method = Safe(cut=1e9)
    gone = [0, 1, 2, 5, 8]
    state = method.prepare(problem, everyone, learned)
    x, y = everyone.inputs, everyone.targets
    after = Moments.of(x, y, CLASSES).without(x[gone], y[gone])
    keep = [i for i in range(N) if i not in gone]
    ridge = float(state.facts["ridge"])  # type: ignore[arg-type]
    dense = [dense_log_joint(*data, x[gone], method.shrinkage, ridge) for data in ((x[keep], y[keep]), (x, y))]
    torch.testing.assert_close(method.log_q(state, after, x[gone]), dense[0] - dense[1], rtol=0, atol=1e-11)


# --- gradients -------------------------------------------------------------------------------------------------


def test_the_forgetting_gradient_is_that_of_the_kl_divergence_at_w0(problem: Problem, learned: Learned) -> None:
    x, _ = blobs(11, seed=4)
    log_q = torch.randn(11, CLASSES, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    origin = class_probabilities(problem.outputs(learned.weights, x)).detach()
    target = (origin * log_q.exp()) / (origin * log_q.exp()).sum(1, keepdim=True)
    w = learned.weights.clone().requires_grad_(True)
    f = class_probabilities(problem.outputs(w, x))
    divergence = (f * (f.log() - target.log())).sum()
    expected = torch.autograd.grad(divergence, w)[0]
    torch.testing.assert_close(forgetting_gradient(problem, learned.weights, x, log_q), expected, rtol=0, atol=1e-12)
    assert float(expected.norm()) > 1e-3


def test_a_q_that_is_the_same_for_every_class_has_no_gradient(problem: Problem, learned: Learned) -> None:
    x, _ = blobs(7, seed=4)
    scalar = torch.randn(7, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(2)).expand(7, CLASSES)
    assert float(forgetting_gradient(problem, learned.weights, x, scalar).norm()) < 1e-12


def test_chunks_change_nothing(problem: Problem, learned: Learned, monkeypatch: pytest.MonkeyPatch) -> None:
    x, _ = blobs(11, seed=4)
    log_q = torch.randn(11, CLASSES, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    whole = forgetting_gradient(problem, learned.weights, x, log_q)
    monkeypatch.setattr("unlearning.methods.safe.CHUNK", 3)
    torch.testing.assert_close(forgetting_gradient(problem, learned.weights, x, log_q), whole, rtol=0, atol=1e-14)


def test_a_single_output_is_the_logit_of_the_second_class() -> None:
    z = torch.tensor([[0.3], [-2.0]], dtype=torch.float64)
    torch.testing.assert_close(class_probabilities(z)[:, 1], torch.sigmoid(z[:, 0]))


# --- the whole method ------------------------------------------------------------------------------------------

ROUNDS = [[0, 4, 5], [7], [2, 11, 20, 21, 22]]


def dense_stream(
    method: Safe, problem: Problem, everyone: Examples, learned: Learned, rounds: list[list[int]], ridge: float
) -> Tensor:
    """The module's equations, sample by sample, with every mean, covariance and Jacobian computed from scratch."""
    x, y, w0 = everyone.inputs, everyone.targets, learned.weights
    n, decay = len(x), problem.training.weight_decay
    before = dense_log_joint(x, y, x, method.shrinkage, ridge)
    jacobians = torch.autograd.functional.jacobian(lambda w: problem.outputs(w, x).softmax(1), w0)
    gone: list[int] = []
    frozen = torch.zeros_like(w0)
    for positions in rounds:
        gone = gone + positions
        keep = [i for i in range(n) if i not in gone]
        log_q = dense_log_joint(x[keep], y[keep], x, method.shrinkage, ridge) - before
        for i in positions:
            frozen = frozen - sum(log_q[i, c] * jacobians[i, c] for c in range(CLASSES))
    again = -sum(log_q[i, c] * jacobians[i, c] for i in gone for c in range(CLASSES))
    forgetting = frozen if method.mode == "freeze" else again
    retention = sum(problem.gradient(w0, x[i : i + 1], y[i : i + 1]) for i in keep) / len(keep)
    g = retention + decay * w0 + method.strength * forgetting / len(gone)
    return w0 - (method.reach or 0.0) * w0.norm() * (len(gone) / n) * g / g.norm()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("strength", [0.0, 1.0, 30.0])
def test_a_stream_equals_its_dense_twin(
    mode: str, strength: float, problem: Problem, everyone: Examples, learned: Learned
) -> None:
    method = Safe(mode=mode, strength=strength, cut=1e9, reach=0.1)
    state = stream(method, problem, everyone, learned, ROUNDS)
    ridge = float(state.facts["ridge"])  # type: ignore[arg-type]
    expected = dense_stream(method, problem, everyone, learned, ROUNDS, ridge)
    torch.testing.assert_close(state.weights, expected, rtol=0, atol=1e-10)
    assert float((state.weights - learned.weights).norm()) > 1e-2


def test_the_modes_agree_in_the_first_round_and_differ_later(
    problem: Problem, everyone: Examples, learned: Learned
) -> None:
    first = [stream(Safe(mode=mode), problem, everyone, learned, ROUNDS[:1]).weights for mode in MODES]
    later = [stream(Safe(mode=mode), problem, everyone, learned, ROUNDS).weights for mode in MODES]
    torch.testing.assert_close(first[0], first[1], rtol=0, atol=1e-12)
    assert float((later[0] - later[1]).norm()) > 1e-6


def test_the_step_has_length_gamma(problem: Problem, everyone: Examples, learned: Learned) -> None:
    method = Safe(reach=0.5)
    state = method.prepare(problem, everyone, learned)
    done = method.forget(problem, state, ask(everyone, [3, 4, 5]), None, GENERATOR)
    gamma = 0.5 * float(learned.weights.norm()) * 3 / N
    assert done.evidence["gamma"] == pytest.approx(gamma, rel=1e-12)
    assert float((done.state.weights - learned.weights).norm()) == pytest.approx(gamma, rel=1e-9)


def test_the_published_step_is_as_long_in_every_round(problem: Problem, everyone: Examples, learned: Learned) -> None:
    """Theorem 2: gamma = sqrt(W) / (K sqrt(T)), whatever was forgotten."""
    method = Safe(step="published", divisor=8.0, rounds=9, reach=123.0)
    state = method.prepare(problem, everyone, learned)
    gamma = math.sqrt(float(learned.weights.norm())) / (8.0 * 3.0)
    for gone in ([3, 4, 5], [6]):
        done = method.forget(problem, state, ask(everyone, gone), None, GENERATOR)
        assert done.evidence["gamma"] == pytest.approx(gamma, rel=1e-12)
        assert float((done.state.weights - learned.weights).norm()) == pytest.approx(gamma, rel=1e-9)
        state = done.state


def test_both_steps_go_the_same_way(problem: Problem, everyone: Examples, learned: Learned) -> None:
    ways = []
    for step in STEPS:
        moved = stream(Safe(step=step), problem, everyone, learned, [[3, 4, 5]]).weights - learned.weights
        ways.append(moved / moved.norm())
    torch.testing.assert_close(ways[0], ways[1], rtol=0, atol=1e-12)


def test_forgetting_raises_the_loss_of_the_forgotten(problem: Problem, everyone: Examples, learned: Learned) -> None:
    state = stream(Safe(), problem, everyone, learned, [[3, 4, 5]])
    gone = everyone.only(torch.tensor([3, 4, 5]))
    losses = [float(problem.mean_loss(w, gone.inputs, gone.targets)) for w in (learned.weights, state.weights)]
    assert losses[1] > losses[0]


def test_wide_inputs_are_read_through_a_seeded_projection(
    problem: Problem, everyone: Examples, learned: Learned
) -> None:
    states = [Safe(features=2, seed=seed).prepare(problem, everyone, learned) for seed in (0, 0, 1)]
    axes = [state.tensors["axes"] for state in states]
    torch.testing.assert_close(axes[0].T @ axes[0], torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-12)
    assert torch.equal(axes[0], axes[1])
    assert not torch.equal(axes[0], axes[2])
    assert states[0].tensors["now.covariances"].shape == (CLASSES, 2, 2)


def test_float32_work_stays_near_float64(problem: Problem, everyone: Examples, learned: Learned) -> None:
    coarse = stream(Safe(), Problem(problem.recipe), everyone, Learned(learned.weights.float()), ROUNDS).weights
    fine = stream(Safe(), problem, everyone, learned, ROUNDS).weights
    assert coarse.dtype == torch.float32
    torch.testing.assert_close(coarse.double(), fine, rtol=0, atol=1e-4)


# --- what stays in the state -----------------------------------------------------------------------------------


def holds(state: State, sample: Tensor) -> bool:
    """Are the bytes of ``sample``, in any float width, anywhere in the state?"""
    tensors = [state.weights, *state.tensors.values(), *state.vectors.values()]
    blob = b"".join(t.detach().cpu().contiguous().numpy().tobytes() for t in tensors)
    blob += json.dumps(dict(state.facts)).encode()
    return any(sample.to(kind).numpy().tobytes() in blob for kind in (torch.float16, torch.float32, torch.float64))


@pytest.mark.parametrize("mode", MODES)
def test_only_keep_holds_the_bytes_of_the_forgotten(
    mode: str, problem: Problem, everyone: Examples, learned: Learned
) -> None:
    state = stream(Safe(mode=mode), problem, everyone, learned, ROUNDS)
    found = [holds(state, everyone.inputs[i]) for positions in ROUNDS for i in positions]
    assert all(found) if mode == "keep" else not any(found)


def test_freeze_forgets_the_last_of_a_class_too(problem: Problem, everyone: Examples, learned: Learned) -> None:
    state = stream(Safe(), problem, everyone, learned, [list(range(0, N - 3, 3)), [N - 3]])
    assert float(state.tensors["now.counts"][0]) == 0.0
    assert not any(holds(state, everyone.inputs[i]) for i in range(0, N, 3))


def test_the_state_of_freeze_does_not_grow(problem: Problem, everyone: Examples, learned: Learned) -> None:
    states = [stream(Safe(), problem, everyone, learned, ROUNDS[:rounds]) for rounds in range(4)]
    assert len({sum(t.numel() for t in state.tensors.values()) for state in states}) == 1


@pytest.mark.parametrize("method", [Safe(mode=mode, features=features) for mode in MODES for features in (2, 64)])
def test_a_state_survives_storage(method: Safe, problem: Problem, everyone: Examples, learned: Learned) -> None:
    state = again = method.prepare(problem, everyone, learned)
    for positions in ROUNDS:
        stored = load(save({"weights": again.weights, **again.tensors}))
        again = State(stored.pop("weights"), stored, json.loads(json.dumps(dict(again.facts))))
        again = method.forget(problem, again, ask(everyone, positions), None, GENERATOR).state
        state = method.forget(problem, state, ask(everyone, positions), None, GENERATOR).state
        assert torch.equal(again.weights, state.weights)


# --- bad input -------------------------------------------------------------------------------------------------


def test_an_empty_forget_set_is_the_identity(problem: Problem, everyone: Examples, learned: Learned) -> None:
    state = Safe().prepare(problem, everyone, learned)
    assert Safe().forget(problem, state, ForgetSet(frozenset(), ()), None, GENERATOR).state is state


def test_forgetting_someone_twice_is_refused(problem: Problem, everyone: Examples, learned: Learned) -> None:
    state = stream(Safe(), problem, everyone, learned, [[3]])
    with pytest.raises(Refused, match="forgotten before"):
        Safe().forget(problem, state, ask(everyone, [3, 4]), None, GENERATOR)


def test_someone_who_was_never_trained_on_is_refused(problem: Problem, everyone: Examples, learned: Learned) -> None:
    state = Safe().prepare(problem, everyone.only(torch.arange(30)), learned)
    with pytest.raises(Refused, match="never trained on"):
        Safe().forget(problem, state, ask(everyone, [31]), None, GENERATOR)


def test_forgetting_everyone_is_refused(problem: Problem, everyone: Examples, learned: Learned) -> None:
    state = Safe().prepare(problem, everyone, learned)
    with pytest.raises(Refused, match="would be left"):
        Safe().forget(problem, state, ask(everyone, list(range(N))), None, GENERATOR)


def test_forgetting_everyone_of_one_class_pushes_its_probability_down(
    problem: Problem, everyone: Examples, learned: Learned
) -> None:
    method = Safe(cut=4.0)
    gone = list(range(0, N, 3))
    state = stream(method, problem, everyone, learned, [gone])
    after = Moments(*(state.tensors[f"now.{part}"] for part in ("counts", "means", "covariances")))
    x = everyone.inputs[gone]
    assert torch.equal(method.log_q(state, after, x)[:, 0], torch.full((len(gone),), -4.0, dtype=torch.float64))
    shares = [class_probabilities(problem.outputs(w, x))[:, 0].mean() for w in (learned.weights, state.weights)]
    assert shares[1] < shares[0]


def test_a_class_with_one_sample_left_gives_finite_weights(
    problem: Problem, everyone: Examples, learned: Learned
) -> None:
    state = stream(Safe(), problem, everyone, learned, [list(range(0, N - 3, 3))])
    assert float(state.tensors["now.counts"][0]) == 1.0
    assert bool(torch.isfinite(state.weights).all())


def test_a_class_with_a_single_sample_is_refused_at_preparation(
    problem: Problem, everyone: Examples, learned: Learned
) -> None:
    few = everyone.only(torch.tensor([0, 1, 2, 4, 5, 7, 8]))
    with pytest.raises(Refused, match="Class 0 has a single sample"):
        Safe().prepare(problem, few, learned)


def test_a_class_nobody_has_is_left_alone(problem: Problem, everyone: Examples, learned: Learned) -> None:
    two = everyone.only((everyone.targets > 0).nonzero().flatten())
    method = Safe()
    state = method.prepare(problem, two, learned)
    after = Moments.of(two.inputs[3:], two.targets[3:], CLASSES)
    assert float(method.log_q(state, after, two.inputs)[:, 0].abs().max()) == 0.0


def test_real_valued_targets_are_refused(problem: Problem, everyone: Examples, learned: Learned) -> None:
    with pytest.raises(Refused, match="not class indices"):
        Safe().prepare(problem, replace(everyone, rows=Tensors(everyone.inputs, everyone.targets.double())), learned)


def test_missing_samples_are_refused(problem: Problem, everyone: Examples, learned: Learned) -> None:
    state = Safe().prepare(problem, everyone, learned)
    with pytest.raises(Refused, match="needs the forgotten samples"):
        Safe().forget(problem, state, ForgetSet(frozenset({"s3"}), (3,)), None, GENERATOR)
    with pytest.raises(Refused, match="not those of the forget set"):
        Safe().forget(problem, state, replace(ask(everyone, [3, 4]), positions=(3,)), None, GENERATOR)


def test_weights_that_are_not_finite_are_refused(problem: Problem, everyone: Examples, learned: Learned) -> None:
    broken = Learned(torch.full_like(learned.weights, torch.nan))
    with pytest.raises(Refused, match="not finite"):
        Safe().prepare(problem, everyone, broken)
    state = Safe(reach=0.1).prepare(problem, everyone, broken)
    with pytest.raises(Refused, match="not finite"):
        Safe(reach=0.1).forget(problem, state, ask(everyone, [3]), None, GENERATOR)


def test_preparation_reports_how_near_retraining_it_comes(
    problem: Problem, everyone: Examples, learned: Learned
) -> None:
    method = Safe(reach=0.1)
    state = method.prepare(problem, everyone, learned)
    assert state.facts["report"] == {"mode": "freeze", "reach": 0.1}
    told = with_distance_left(method, problem, everyone, learned, state, vectors=Vectors({}), threshold=1e-9)
    sets = calibration_sets(everyone, 0.05, 3, problem.training.seed)
    measured = []
    for chosen in sets:
        positions = list(chosen.positions)
        retrained = train(problem, everyone, omit=positions).weights
        forgotten = stream(method, problem, everyone, learned, [positions]).weights
        measured.append(float((forgotten - retrained).norm() / (learned.weights - retrained).norm()))
    assert told.facts["report"] == {"mode": "freeze", "reach": 0.1, "distance_left": pytest.approx(sum(measured) / 3)}


def test_binary_logistic_models_are_served() -> None:
    x, y = blobs(30)
    problem = Problem(recipe_of(x, (y > 0).long(), "binary_logistic", outputs=1)).double()
    everyone = problem.recipe.samples.examples()
    learned = train(problem, everyone)
    state = stream(Safe(), problem, everyone, learned, [[0, 1]])
    assert float((state.weights - learned.weights).norm()) > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"mode": "both"},
        {"step": "long"},
        {"reach": 0.0},
        {"divisor": 0.0},
        {"rounds": 0},
        {"strength": -1.0},
        {"cut": float("inf")},
    ],
)
def test_hyperparameters_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(Refused, match=next(iter(wrong))):
        Safe(**wrong)  # type: ignore[arg-type]
