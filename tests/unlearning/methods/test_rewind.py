"""Rewind against slow, dense float64 twins, against retraining, and against its bound."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor, nn

from tests.contract.cases import jitter
from unlearning import SGD, AdamW, Problem, Recipe, Samples, Schedule, Training
from unlearning.accounting.certificate import Guarantee
from unlearning.methods.rewind import Rewind
from unlearning.model.training import Recorder, planned_by, train
from unlearning.quality.distance_left import calibration_sets, with_distance_left
from unlearning.types import Examples, ForgetSet, Learned, Refused, State, Vectors

CLASSES, WIDTH, N = 3, 4, 30
GENERATOR = torch.Generator().manual_seed(0)


def blobs() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(N) % CLASSES
    centres = torch.randn(CLASSES, WIDTH, generator=generator, dtype=torch.float64)
    x = centres[y] + torch.randn(N, WIDTH, generator=generator, dtype=torch.float64)
    return x / x.norm(dim=1, keepdim=True), y


def linear() -> nn.Module:
    return nn.Linear(WIDTH, CLASSES)


def deep() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def problem_of(training: Training, model: object = linear, dtype: torch.dtype = torch.float64) -> Problem:
    x, y = blobs()
    names = [f"s{i}" for i in range(N)]
    recipe = Recipe(model, Samples(names, names, x, y), (x, y), "cross_entropy", training)  # type: ignore[arg-type]
    return Problem(recipe).cast(dtype)


def everyone_of(problem: Problem) -> Examples:
    return problem.recipe.samples.examples()


def release(method: object, problem: Problem, state: State, gone: list[int], cumulative: list[int]) -> State:
    everyone = everyone_of(problem)
    forget = ForgetSet(frozenset(f"s{i}" for i in gone), tuple(sorted(gone)))
    retain = everyone.without(torch.tensor(sorted({*cumulative, *gone})))
    return method.forget(problem, state, forget, retain, GENERATOR).state  # type: ignore[attr-defined, no-any-return]


SETTINGS = {
    "full batch": Training(epochs=15, learning_rate=0.4),
    "decaying, with weight decay": Training(epochs=15, learning_rate=0.4, decay=0.9, weight_decay=0.05),
    "mini-batches": Training(epochs=5, batch_size=7, learning_rate=0.2, seed=3),
    "clipped steps": Training(epochs=15, learning_rate=0.4, clip=0.15, weight_decay=0.05),
    "clipped samples": Training(epochs=15, learning_rate=0.4, sample_clip=0.3, weight_decay=0.05),
}


def dense_run(problem: Problem, batches: list[list[int]], rates: list[float], gone: list[int], w: Tensor) -> Tensor:
    """Gradient descent sample by sample with autograd: the equations in the module's docstring."""
    x, y = problem.recipe.samples.tensors()
    training = problem.training
    for batch, rate in zip(batches, rates, strict=True):
        left = [i for i in batch if i not in gone]
        total = torch.zeros_like(w)
        for i in left:
            v = w.clone().requires_grad_(True)
            loss = nn.functional.cross_entropy(problem.outputs(v, x[i : i + 1]), y[i : i + 1])
            gradient = torch.autograd.grad(loss, v)[0]
            limit = training.sample_clip
            total += gradient if limit is None else gradient * min(1.0, limit / float(gradient.norm()))
        step = total / max(1, len(left)) + training.weight_decay * w
        scale = 1.0 if training.clip is None else min(1.0, training.clip / float(step.norm()))
        w = w - rate * scale * step
    return w


@pytest.mark.parametrize("name", SETTINGS)
def test_a_release_equals_its_dense_twin(name: str) -> None:
    problem = problem_of(SETTINGS[name], deep)
    learned = train(problem, everyone_of(problem))
    assert learned.trajectory is not None
    batches = [batch.tolist() for batch in learned.trajectory.batches]
    rates = list(learned.trajectory.rates)
    start = len(batches) - round(0.4 * len(batches))
    checkpoint = dense_run(problem, batches[:start], rates[:start], [], problem.initial())
    expected = dense_run(problem, batches[start:], rates[start:], [2, 3, 11], checkpoint)
    method = Rewind(fraction=0.4)
    state = method.prepare(problem, everyone_of(problem), learned)
    torch.testing.assert_close(state.tensors["checkpoint"], checkpoint, rtol=0, atol=1e-12)
    torch.testing.assert_close(release(method, problem, state, [2, 3, 11], []).weights, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("reference", ["renormalised", "fixed-denominator"])
@pytest.mark.parametrize("name", SETTINGS)
def test_rewinding_everything_is_same_order_retraining_bit_for_bit(name: str, reference: str) -> None:
    problem = problem_of(SETTINGS[name], deep, torch.float32)
    learned = train(problem, everyone_of(problem))
    rewind = Rewind(fraction=1.0, reference=reference)
    ours = rewind.prepare(problem, everyone_of(problem), learned)
    cumulative: list[int] = []
    for gone in ([4], [0, 17, 18]):
        ours = release(rewind, problem, ours, gone, cumulative)
        cumulative += gone
        retrained = train(problem, everyone_of(problem), omit=cumulative, reference=reference).weights
        assert torch.equal(ours.weights, retrained)


def test_the_gap_to_retraining_falls_to_zero_as_more_is_rewound() -> None:
    problem = problem_of(Training(epochs=50, learning_rate=0.4, weight_decay=0.01), deep)
    everyone = everyone_of(problem)
    learned = train(problem, everyone)
    gone = [1, 4, 7, 10]
    retrained = train(problem, everyone, omit=gone).weights
    gaps = []
    for fraction in (0.1, 0.22, 0.41, 0.61, 0.81, 1.0):
        method = Rewind(fraction=fraction)
        state = release(method, problem, method.prepare(problem, everyone, learned), gone, [])
        gaps.append(float((state.weights - retrained).norm()))
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[0] < float((learned.weights - retrained).norm())
    assert gaps[-1] == 0.0


def test_several_updates_equal_one_and_count_everyone_since_the_checkpoint() -> None:
    problem = problem_of(SETTINGS["full batch"], deep)
    method = Rewind(fraction=0.4)
    start = method.prepare(problem, everyone_of(problem), train(problem, everyone_of(problem)))
    stepwise = release(method, problem, release(method, problem, start, [3], []), [8, 9], [3])
    at_once = release(method, problem, start, [3, 8, 9], [])
    assert torch.equal(stepwise.weights, at_once.weights)
    assert stepwise.facts["forgotten"] == at_once.facts["forgotten"] == 3
    assert torch.equal(stepwise.tensors["checkpoint"], start.tensors["checkpoint"])


def test_a_full_batch_is_stored_once() -> None:
    problem = problem_of(SETTINGS["full batch"])
    state = Rewind(fraction=0.8).prepare(problem, everyone_of(problem), train(problem, everyone_of(problem)))
    assert state.tensors["batches"].numel() == N
    assert state.tensors["which"].tolist() == [0] * 12


def test_a_recorded_training_of_the_users_own_is_rewound() -> None:
    problem = problem_of(Training(epochs=1, learning_rate=1.0))
    everyone = everyone_of(problem)
    recorder = Recorder(every=4)
    rates = [0.5, 0.1, 0.4, 0.3, 0.2, 0.6]
    batches = [torch.arange(0, 20), torch.arange(10, 30)] * 3
    w = problem.initial()
    for positions, rate in zip(batches, rates, strict=True):
        recorder.step(w, positions, rate)
        w = w - rate * problem.gradient(w, everyone.inputs[positions], everyone.targets[positions])
    method = Rewind(fraction=0.5)
    state = method.prepare(problem, everyone, Learned(w, recorder.finish(w)))
    half = dense_run(problem, [b.tolist() for b in batches[:3]], rates[:3], [], problem.initial())
    expected = dense_run(problem, [b.tolist() for b in batches[3:]], rates[3:], [5, 15], half)
    torch.testing.assert_close(release(method, problem, state, [5, 15], []).weights, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", SETTINGS)
def test_a_state_survives_storage(name: str) -> None:
    problem = problem_of(SETTINGS[name], deep)
    method = Rewind(fraction=0.4)
    start = method.prepare(problem, everyone_of(problem), train(problem, everyone_of(problem)))
    tensors = load(save({"weights": start.weights, **start.tensors}))
    stored = State(tensors.pop("weights"), tensors, json.loads(json.dumps(dict(start.facts))))
    ahead, again = (release(method, problem, state, [3], []).weights for state in (start, stored))
    assert torch.equal(ahead, again)


@pytest.mark.parametrize("reference", ["renormalised", "fixed-denominator"])
def test_preparation_reports_how_near_retraining_it_comes(reference: str) -> None:
    problem = problem_of(SETTINGS["mini-batches"], deep)
    everyone = everyone_of(problem)
    learned = train(problem, everyone)
    method = Rewind(fraction=0.4, reference=reference)
    start = method.prepare(problem, everyone, learned)
    told = with_distance_left(method, problem, everyone, learned, start, vectors=Vectors({}), threshold=1e-9)
    measured = []
    for chosen in calibration_sets(everyone, 0.05, 3, problem.training.seed):
        gone = list(chosen.positions)
        retrained = train(problem, everyone, omit=gone, reference=reference).weights
        gap = (release(method, problem, start, gone, []).weights - retrained).norm()
        measured.append(float(gap / (learned.weights - retrained).norm()))
    mean = pytest.approx(sum(measured) / 3)
    assert told.facts["report"] == {"reference": reference, "steps": 25, "rewound": 10, "distance_left": mean}


def test_nothing_is_measured_of_a_model_trained_elsewhere() -> None:
    problem = problem_of(SETTINGS["full batch"])
    learned = train(problem, everyone_of(problem))
    problem.recipe = replace(problem.recipe, weights=problem.tensors(learned.weights))
    state = Rewind(source="proximal").prepare(problem, everyone_of(problem), Learned(learned.weights))
    assert state.facts["report"] == {"reference": "renormalised", "steps": 15, "rewound": 6}
    with pytest.raises(Refused, match="trained elsewhere"):
        Rewind(source="proximal", precision="float64").prepare(
            problem.cast(torch.float32), everyone_of(problem), Learned(learned.weights.float())
        )


# --- trainings of more than plain gradient steps ----------------------------------------------------------------


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, CLASSES))


def dropping() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 5), nn.Tanh(), nn.Dropout(0.3), nn.Linear(5, CLASSES))


STEPPED = Training(epochs=6, batch_size=8, learning_rate=0.1, weight_decay=0.02, seed=3)
INGREDIENTS: dict[str, tuple[Training, object]] = {
    "momentum": (replace(STEPPED, optimizer=SGD(0.9)), deep),
    "Nesterov's momentum": (replace(STEPPED, optimizer=SGD(0.9, nesterov=True), undecayed=("0.bias",)), deep),
    "AdamW": (replace(STEPPED, optimizer=AdamW()), deep),
    "AdamW, full batches": (replace(STEPPED, optimizer=AdamW(), batch_size=None), deep),
    "batch normalisation": (STEPPED, normalised),
    "dropout": (STEPPED, dropping),
    "augment": (replace(STEPPED, augment=jitter), deep),
    "a ball": (replace(STEPPED, radius=1.5), deep),
    "a schedule and clipping": (
        replace(STEPPED, optimizer=AdamW(), schedule=Schedule("cosine", warmup=0.2), clip=0.3),
        normalised,
    ),
    "accumulation": (replace(STEPPED, batch_size=4, accumulate=2, optimizer=SGD(0.9)), normalised),
}


def by_torch(problem: Problem, gone: list[int], start: int) -> Tensor:
    """Train as one would write it, with torch's optimiser, and leave ``gone`` out from step ``start`` on."""
    training, (x, y) = problem.training, problem.recipe.samples.tensors()
    with torch.random.fork_rng():
        torch.manual_seed(training.seed)
        module = problem.recipe.model().to(problem.dtype)
    module.train()
    plan = planned_by(problem, everyone_of(problem).positions)
    names = dict(module.named_parameters())
    decays = {name: 0.0 if name in training.undecayed else training.weight_decay for name in names}
    groups = [{"params": [value], "weight_decay": decays[name]} for name, value in names.items()]
    optimizer: torch.optim.Optimizer
    match training.optimizer:
        case AdamW():
            optimizer = torch.optim.AdamW(groups, lr=1.0)
        case SGD(momentum=momentum, nesterov=nesterov):
            optimizer = torch.optim.SGD(groups, lr=1.0, momentum=momentum, nesterov=nesterov)
    for step, (batch, rate) in enumerate(zip(plan.batches, plan.rates, strict=True)):
        left = [i for i in batch.tolist() if step < start or i not in gone]
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x[left]), y[left]).backward()
        optimizer.step()
    return problem.flatten(module.state_dict())


@pytest.mark.parametrize(
    "name", ["momentum", "Nesterov's momentum", "AdamW", "AdamW, full batches", "batch normalisation"]
)
def test_a_rewind_of_any_optimiser_equals_a_loop_over_torchs(name: str) -> None:
    problem = problem_of(*INGREDIENTS[name])
    everyone = everyone_of(problem)
    method = Rewind(fraction=0.4)
    state = method.prepare(problem, everyone, train(problem, everyone))
    start = int(state.facts["steps"]) - int(state.facts["rewound"])  # type: ignore[arg-type]
    assert 0 < start < state.facts["steps"]
    expected = by_torch(problem, [2, 3, 11], start)
    torch.testing.assert_close(release(method, problem, state, [2, 3, 11], []).weights, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("reference", ["renormalised", "fixed-denominator"])
@pytest.mark.parametrize("name", INGREDIENTS)
def test_rewinding_everything_repeats_any_training_bit_for_bit(name: str, reference: str) -> None:
    problem = problem_of(*INGREDIENTS[name], torch.float32)
    everyone = everyone_of(problem)
    learned = train(problem, everyone)
    rewind = Rewind(fraction=1.0, reference=reference)
    ours = rewind.prepare(problem, everyone, learned)
    cumulative: list[int] = []
    for gone in ([4], [0, 17, 18]):
        ours = release(rewind, problem, ours, gone, cumulative)
        cumulative += gone
        retrained = train(problem, everyone, omit=cumulative, reference=reference).weights
        assert torch.equal(ours.weights, retrained)
        assert not torch.equal(retrained, learned.weights)


@pytest.mark.parametrize("name", INGREDIENTS)
def test_the_checkpoint_of_any_training_leads_to_its_end_bit_for_bit(name: str) -> None:
    """With what was stored: the last steps on everyone, from where the checkpoint was taken."""
    problem = problem_of(*INGREDIENTS[name], torch.float32)
    everyone = everyone_of(problem)
    learned = train(problem, everyone)
    state = Rewind(fraction=0.4).prepare(problem, everyone, learned)
    tensors = load(save({"weights": state.weights, **state.tensors}))
    stored = State(tensors.pop("weights"), tensors, json.loads(json.dumps(dict(state.facts))))

    def end_of(state: State) -> Tensor:
        return Rewind(fraction=0.4).steps_again(problem, state, everyone)

    assert torch.equal(end_of(stored), learned.weights)
    bare = replace(stored, facts={**stored.facts, "optimizer": None})
    stateless = problem.training.optimizer == SGD()
    assert torch.equal(end_of(bare), learned.weights) is stateless, "the optimiser's state is a part of the checkpoint"


def test_under_adam_and_batch_normalisation_the_gap_falls_to_zero_too() -> None:
    problem = problem_of(replace(STEPPED, epochs=12, optimizer=AdamW(), learning_rate=0.02), normalised)
    everyone = everyone_of(problem)
    learned = train(problem, everyone)
    retrained = train(problem, everyone, omit=[1, 4, 7, 10]).weights
    gaps = []
    for fraction in (0.3, 0.7, 1.0):
        method = Rewind(fraction=fraction)
        state = release(method, problem, method.prepare(problem, everyone, learned), [1, 4, 7, 10], [])
        gaps.append(float((state.weights - retrained).norm()))
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] == 0.0


@pytest.mark.parametrize("name", INGREDIENTS)
def test_no_bound_is_claimed_beyond_plain_gradient_steps(name: str) -> None:
    problem = problem_of(*INGREDIENTS[name])
    for guarantee in (Guarantee.PROVED, Guarantee.ESTIMATED):
        bound = Rewind(feature_norm=2.0).bound(guarantee)
        assert bound is not None
        with pytest.raises(Refused, match="The bound of a rewind follows plain gradient steps, and this training has"):
            bound.require_possible(problem)


def test_what_needs_plain_steps_is_refused_by_name() -> None:
    problem = problem_of(*INGREDIENTS["AdamW"])
    everyone = everyone_of(problem)
    learned = train(problem, everyone)
    with pytest.raises(Refused, match=r"source proximal follows plain .* AdamW .*source=checkpoint"):
        Rewind(source="proximal").prepare(problem, everyone, learned)
    chosen = Rewind(steps_from="bound", epsilon=1.0, noise_std=0.1, forgotten=3)
    with pytest.raises(Refused, match=r"steps_from bound follows plain .* AdamW .*fraction"):
        chosen.prepare(problem, everyone, learned)
    problem.recipe = replace(problem.recipe, weights=problem.tensors(learned.weights))
    with pytest.raises(Refused, match="trained elsewhere"):
        Rewind().prepare(problem, everyone, Learned(learned.weights))


def test_an_update_that_diverges_is_refused_under_any_optimiser() -> None:
    problem = problem_of(*INGREDIENTS["AdamW"])
    state = Rewind().prepare(problem, everyone_of(problem), train(problem, everyone_of(problem)))
    rates = torch.full_like(state.tensors["rates"], 1e300)
    with pytest.raises(Refused, match="not finite"):
        release(Rewind(), problem, replace(state, tensors={**state.tensors, "rates": rates}), [3], [])


# --- the proximal-point method ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["full batch", "decaying, with weight decay", "clipped steps", "clipped samples"])
@pytest.mark.parametrize("model", [linear, deep])
def test_the_proximal_point_method_finds_the_recorded_checkpoint(name: str, model: object) -> None:
    problem = problem_of(SETTINGS[name], model)
    everyone = everyone_of(problem)
    learned = train(problem, everyone)
    recorded = Rewind(fraction=0.6).prepare(problem, everyone, learned)
    method = Rewind(fraction=0.6, source="proximal")
    elsewhere = method.prepare(problem, everyone, Learned(learned.weights))
    torch.testing.assert_close(elsewhere.tensors["checkpoint"], recorded.tensors["checkpoint"], rtol=0, atol=1e-8)
    assert elsewhere.facts["round_trip"] < 1e-8  # type: ignore[operator]
    ours, theirs = (release(method, problem, state, [3, 4], []).weights for state in (elsewhere, recorded))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-8)


def test_an_inverse_step_minimises_the_proximal_objective() -> None:
    problem = problem_of(Training(epochs=3, learning_rate=0.4))
    everyone = everyone_of(problem)
    after = train(problem, everyone).weights
    before = Rewind(fraction=0.01, source="proximal").prepare(problem, everyone, Learned(after)).tensors["checkpoint"]

    def objective(v: Tensor) -> Tensor:
        return -problem.mean_loss(v, everyone.inputs, everyone.targets) + (v - after).square().sum() / (2 * 0.4)

    slope = torch.autograd.functional.jacobian(objective, before)
    assert float(slope.norm()) < 1e-9
    assert float(torch.linalg.eigvalsh(torch.autograd.functional.hessian(objective, before)).min()) > 0


def test_a_learning_rate_beyond_the_curvature_cannot_be_undone() -> None:
    problem = problem_of(Training(epochs=10, learning_rate=40.0, weight_decay=0.05))
    everyone = everyone_of(problem)
    with pytest.raises(Refused, match="could not be undone"):
        Rewind(source="proximal").prepare(problem, everyone, train(problem, everyone))


def test_a_rewind_that_does_not_come_back_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_of(SETTINGS["full batch"])
    everyone = everyone_of(problem)
    monkeypatch.setattr("unlearning.methods.rewind.PRECISION", 1.0)
    with pytest.raises(Refused, match="of the way off"):
        Rewind(source="proximal").prepare(problem, everyone, Learned(train(problem, everyone).weights))


def test_mini_batches_cannot_be_undone() -> None:
    problem = problem_of(SETTINGS["mini-batches"])
    everyone = everyone_of(problem)
    with pytest.raises(Refused, match="mini-batches"):
        Rewind(source="proximal").prepare(problem, everyone, Learned(problem.initial()))


# --- the bound -------------------------------------------------------------------------------------------------

CLIPPED = Training(epochs=20, learning_rate=0.05, sample_clip=0.4, weight_decay=0.02)


BOUNDED = {
    "clipped samples": (CLIPPED, 0.2),
    "clipped samples, rewound further": (CLIPPED, 0.6),
    "clipped samples and steps": (replace(CLIPPED, clip=0.2), 0.6),
    "convex": (Training(epochs=60, learning_rate=0.5, weight_decay=0.05), 0.5),
    "convex, down to rounding": (Training(epochs=120, learning_rate=1.5, weight_decay=0.2), 0.8),
}


RARE = {
    ("clipped samples", "fixed-denominator"),
    ("clipped samples, rewound further", "renormalised"),
    ("convex, down to rounding", "fixed-denominator"),
}
"""drills: beside each stand the same settings with the other reference, and the same reference with other settings"""


@pytest.mark.parametrize(
    ("name", "reference", "count"),
    [
        pytest.param(
            name, reference, count, marks=[pytest.mark.drill] if count == 17 or (name, reference) in RARE else []
        )
        for name in BOUNDED
        for reference in ("renormalised", "fixed-denominator")
        for count in (4, 17)
    ],
)
def test_rewinds_stay_within_the_proved_distance_of_retraining(name: str, reference: str, count: int) -> None:
    """Forget each of the three classes, and ``count`` random sets."""
    training, fraction = BOUNDED[name]
    problem = problem_of(training)
    everyone = everyone_of(problem)
    method = Rewind(fraction=fraction, feature_norm=2**0.5, reference=reference)
    start = method.prepare(problem, everyone, train(problem, everyone))
    generator = torch.Generator().manual_seed(5)
    sets = [torch.randperm(N, generator=generator)[: 1 + 3 * i % 12].tolist() for i in range(count)]
    sets += [[i for i in range(N) if i % CLASSES == c] for c in range(CLASSES)]
    used = []
    for gone in sets:
        state = release(method, problem, start, gone, [])
        retrained = train(problem, everyone, omit=gone, reference=reference).weights
        used.append(
            float((state.weights - retrained).norm())
            / method.bound(Guarantee.PROVED).descent(problem, state, {}).distance()
        )
    assert max(used) <= 1.0
    if "rounding" not in name:  # the bound is not empty: some set uses more than a fiftieth of it
        assert max(used) > 0.02


def test_the_proof_reckons_with_features_a_millionth_longer_than_declared() -> None:
    problem = problem_of(Training(epochs=5, learning_rate=0.5))
    everyone = everyone_of(problem)
    longest = float((everyone.inputs.square().sum(dim=1) + 1.0).max().sqrt())
    method = Rewind(feature_norm=longest / (1 + 0.9e-6))
    state = method.prepare(problem, everyone, train(problem, everyone))
    proved = method.bound(Guarantee.PROVED).descent(problem, state, {})
    assert proved.gradient_bound >= 2**0.5 * longest and proved.curvature[1] >= 0.5 * longest**2


def test_a_proof_in_float64_is_about_weights_trained_in_float64() -> None:
    problem = problem_of(Training(epochs=60, learning_rate=0.5, weight_decay=0.05), dtype=torch.float32)
    everyone = everyone_of(problem)
    learned = train(problem, everyone)
    states = {}
    for precision in ("training", "float64"):
        method = Rewind(fraction=0.8, feature_norm=2**0.5, precision=precision)
        states[precision] = release(method, problem, method.prepare(problem, everyone, learned), [3, 4], [])
    fine = train(problem.double(), everyone, omit=[3, 4]).weights
    assert states["float64"].weights.dtype == torch.float64
    gap = float((states["float64"].weights - fine).norm())
    assert gap <= method.bound(Guarantee.PROVED).descent(problem, states["float64"], {}).require_useful() < 1.0
    coarse = method.bound(Guarantee.PROVED).descent(problem, states["training"], {}).distance()
    assert coarse > method.bound(Guarantee.PROVED).descent(problem, states["float64"], {}).distance()


def test_the_proof_names_each_missing_condition() -> None:
    everyone = everyone_of(problem_of(CLIPPED))
    cases = {
        "No bound of the features": (CLIPPED, Rewind()),
        "full-batch": (replace(CLIPPED, batch_size=10), Rewind(feature_norm=2.0)),
        "own checkpoint": (CLIPPED, Rewind(feature_norm=2.0, source="proximal")),
    }
    for words, (training, method) in cases.items():
        problem = problem_of(training)
        state = method.prepare(problem, everyone, train(problem, everyone))
        with pytest.raises(Refused, match=words):
            method.bound(Guarantee.PROVED).descent(problem, state, {})
    deep_problem = problem_of(CLIPPED, deep)
    with pytest.raises(Refused, match="no linear head"):
        Rewind(feature_norm=2.0).prepare(deep_problem, everyone, train(deep_problem, everyone))


def test_features_longer_than_declared_are_refused_at_preparation() -> None:
    problem = problem_of(CLIPPED)
    with pytest.raises(Refused, match="above feature_norm"):
        Rewind(feature_norm=1.0).prepare(problem, everyone_of(problem), train(problem, everyone_of(problem)))


# --- bad input -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ready() -> tuple[Problem, State]:
    problem = problem_of(SETTINGS["full batch"])
    return problem, Rewind().prepare(problem, everyone_of(problem), train(problem, everyone_of(problem)))


def test_an_empty_forget_set_is_the_identity(ready: tuple[Problem, State]) -> None:
    problem, state = ready
    assert Rewind().forget(problem, state, ForgetSet(frozenset(), ()), None, GENERATOR).state is state


def test_forgetting_everyone_is_refused(ready: tuple[Problem, State]) -> None:
    problem, state = ready
    with pytest.raises(Refused, match="Nobody is left"):
        release(Rewind(), problem, state, list(range(N)), [])


def test_forgetting_someone_twice_changes_nothing(ready: tuple[Problem, State]) -> None:
    problem, state = ready
    once = release(Rewind(), problem, state, [3, 4], [])
    twice = release(Rewind(), problem, once, [4], [3, 4])
    assert torch.equal(once.weights, twice.weights)
    assert twice.facts["forgotten"] == 2


def test_forgetting_everyone_of_one_class_or_all_but_one_of_it_is_done(ready: tuple[Problem, State]) -> None:
    problem, state = ready
    first = [i for i in range(N) if i % CLASSES == 0]
    for gone in (first, first[1:]):
        assert bool(torch.isfinite(release(Rewind(), problem, state, gone, []).weights).all())


def test_a_wrong_retain_set_is_refused(ready: tuple[Problem, State]) -> None:
    problem, state = ready
    everyone = everyone_of(problem)
    forget = ForgetSet(frozenset({"s3"}), (3,))
    with pytest.raises(Refused, match="not readable"):
        Rewind().forget(problem, state, forget, None, GENERATOR)
    with pytest.raises(Refused, match="that are to be forgotten"):
        Rewind().forget(problem, state, forget, everyone, GENERATOR)
    with pytest.raises(Refused, match="never trained on"):
        Rewind().forget(problem, state, ForgetSet(frozenset({"s99"}), (99,)), everyone, GENERATOR)


def test_a_model_without_a_trajectory_is_pointed_to_the_proximal_source() -> None:
    problem = problem_of(SETTINGS["full batch"])
    with pytest.raises(Refused, match="source=proximal"):
        Rewind().prepare(problem, everyone_of(problem), Learned(problem.initial()))


def test_a_converged_model_is_refused() -> None:
    problem = problem_of(Training(epochs=5, learning_rate=0.4, weight_decay=0.1, converge=1e-8))
    learned = train(problem, everyone_of(problem))
    with pytest.raises(Refused, match="convergence"):
        Rewind().prepare(problem, everyone_of(problem), learned)


def test_steps_that_diverge_are_refused(ready: tuple[Problem, State]) -> None:
    problem, state = ready
    broken = replace(state, tensors={**state.tensors, "checkpoint": state.tensors["checkpoint"] * torch.nan})
    with pytest.raises(Refused, match="not finite"):
        release(Rewind(), problem, broken, [3], [])


@pytest.mark.parametrize(
    "wrong",
    [
        {"fraction": 0.0},
        {"fraction": 1.1},
        {"source": "guess"},
        {"reference": "none"},
        {"precision": "half"},
    ],
)
def test_hyperparameters_are_checked(wrong: dict[str, object]) -> None:
    with pytest.raises(Refused, match=next(iter(wrong))):
        Rewind(**wrong)  # type: ignore[arg-type]
