"""The bounds of a rewound descent: hand-evaluated numbers, closed forms, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from tests.unlearning.rewind_theorem import distance_of, lipschitz_ratio, published_h, published_noise_std, tight_h
from unlearning import Problem, Recipe, Samples, Training
from unlearning.bounds.gradients import (
    admitted,
    closed_form_gradient_bound,
    closed_form_smoothness,
    measured_constants,
    proved_constants,
    require_within,
    rounding_errors,
)
from unlearning.bounds.rewind import (
    Descent,
)
from unlearning.model.training import advance
from unlearning.types import Refused, Tensors


def test_theorem_3_1_by_hand() -> None:
    # T = 10, K = 4, eta = 0.1, L = 2, n = 100, m = 20: eta L n/(n-m) = 0.25;
    # (1.25^6 - 1) 1.2^4 = 2.814697265625 * 2.0736 = 5.83655625
    h = published_h(10, 4, rate=0.1, smoothness=2.0, samples=100, forgotten=20)
    assert h == pytest.approx(5.83655625, rel=1e-12)
    # 2 m G h / (L n) with G = 3: 120 * 5.83655625 / 200
    distance = distance_of(h, samples=100, forgotten=20, gradient_bound=3.0, smoothness=2.0)
    assert distance == pytest.approx(3.50193375, rel=1e-12)
    # sqrt(2 ln(1.25e5)) = 4.844805262605389, epsilon = 0.5
    assert published_noise_std(distance, 0.5, 1e-5) == pytest.approx(3.50193375 * 4.844805262605389 / 0.5, rel=1e-12)


def test_the_tighter_h_by_hand() -> None:
    # (1.2^6 - 1) 1.2^4 = 1.985984 * 2.0736
    assert tight_h(10, 4, rate=0.1, smoothness=2.0) == pytest.approx(4.1181364224, rel=1e-12)


@pytest.mark.parametrize("rewound", [1, 3, 9, 20])
@pytest.mark.parametrize("forgotten", [1, 10, 90])
def test_the_tighter_h_is_never_above_the_published_one(rewound: int, forgotten: int) -> None:
    tight = tight_h(20, rewound, rate=0.3, smoothness=1.5)
    published = published_h(20, rewound, rate=0.3, smoothness=1.5, samples=100, forgotten=forgotten)
    assert tight <= published
    assert (tight == published) == (rewound == 20)


def test_h_is_infinite_instead_of_an_overflow() -> None:
    assert published_h(10_000, 5_000, rate=1.0, smoothness=4.0, samples=10, forgotten=1) == math.inf


@pytest.mark.parametrize(("steps", "rewound", "samples", "forgotten"), [(5, 0, 9, 1), (5, 6, 9, 1), (5, 2, 9, 9)])
def test_impossible_counts_are_refused(steps: int, rewound: int, samples: int, forgotten: int) -> None:
    with pytest.raises(ValueError, match=r"K is|m is"):
        published_h(steps, rewound, rate=0.1, smoothness=1.0, samples=samples, forgotten=forgotten)


def descent(**changes: object) -> Descent:
    given: dict[str, object] = {
        "rates": [0.05] * 10,
        "rewound": 4,
        "samples": 100,
        "forgotten": 2,
        "gradient_bound": 1.0,
        "curvature": (-2.0, 2.0),
    }
    return Descent(**(given | changes))  # type: ignore[arg-type]


def test_the_recursion_equals_the_closed_form() -> None:
    h = tight_h(10, 4, rate=0.05, smoothness=2.0)
    assert descent().distance() == pytest.approx(distance_of(h, 100, 2, 1.0, 2.0), rel=1e-12)


def test_the_fixed_denominator_halves_the_distance() -> None:
    assert descent(reference="fixed-denominator").distance() == pytest.approx(descent().distance() / 2, rel=1e-12)


def test_varying_step_sizes_and_decay_by_hand() -> None:
    # c = 2 m G/n = 0.04. Step 0 (eta .5): .02. Step 1 (eta .25, repeated): growth |1 - .25*.4| + .25*2 = 1.4 -> .028
    done = descent(rates=[0.5, 0.25], rewound=1, decay=(0.4, 0.4))
    assert done.distance() == pytest.approx(0.028, rel=1e-12)
    # an undecayed coordinate does not shrink: growth 1 + .5 -> .03
    assert descent(rates=[0.5, 0.25], rewound=1, decay=(0.0, 0.4)).distance() == pytest.approx(0.03, rel=1e-12)
    # a clipped step mixes decay and data: growth 1 + .25 (.4 + 2) -> .032
    clipped = descent(rates=[0.5, 0.25], rewound=1, decay=(0.4, 0.4), step_clip=10.0)
    assert clipped.distance() == pytest.approx(0.032, rel=1e-12)


def test_convex_steps_shrink_by_hand() -> None:
    # .5, then growth max(|1 - .25*.4|, |1 - .25*2.4|) = .9: .02 * .9
    shrinking = descent(rates=[0.5, 0.25], rewound=1, decay=(0.4, 0.4), curvature=(0.0, 2.0))
    assert shrinking.distance() == pytest.approx(0.018, rel=1e-12)
    # a step beyond 2/(lambda + L) expands again: |1 - 1.25 * 2.4| = 2
    wild = descent(rates=[0.5, 1.25], rewound=1, decay=(0.4, 0.4), curvature=(0.0, 2.0))
    assert wild.distance() == pytest.approx(0.04, rel=1e-12)


def test_what_is_known_without_a_theorem_by_hand() -> None:
    assert descent().ignorance() == pytest.approx(10 * 2 * 0.05)
    # .5: 2*.5 = 1; .25: |1 - .25*.4| * 1 + .5 = 1.4
    assert descent(rates=[0.5, 0.25], rewound=1, decay=(0.4, 0.4)).ignorance() == pytest.approx(1.4)
    assert descent(rates=[0.5, 0.25], rewound=1, decay=(0.4, 0.4), step_clip=0.1).ignorance() == pytest.approx(0.15)


@pytest.mark.parametrize("steps", [50, 5_000])
def test_a_vacuous_bound_is_refused_in_words(steps: int) -> None:
    with pytest.raises(Refused, match="vacuous: any two data sets"):
        descent(rates=[1.0] * steps, rewound=1, curvature=(-50.0, 50.0)).require_useful()
    assert descent().require_useful() == descent().distance()


def test_retraining_and_an_empty_set_have_distance_zero() -> None:
    assert descent(rewound=10).distance() == 0.0, "in exact arithmetic"
    assert descent(forgotten=0).require_useful() == 0.0


def test_the_distance_falls_as_more_is_rewound_and_grows_with_the_forgotten() -> None:
    by_rewound = [descent(rewound=k).distance() for k in range(1, 11)]
    assert by_rewound == sorted(by_rewound, reverse=True)
    by_forgotten = [descent(forgotten=m).distance() for m in range(10)]
    assert by_forgotten == sorted(by_forgotten)


# --- constants -------------------------------------------------------------------------------------------------


def linear(loss: str, outputs: int, bias: bool = True, **training: float | None) -> Problem:
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.arange(12) % max(2, outputs)
    names = [f"s{i}" for i in range(12)]
    recipe = Recipe(
        lambda: nn.Linear(3, outputs, bias=bias),
        Samples(names, names, x, y),
        (x, y),
        loss,
        Training(epochs=1, **training),
    )
    return Problem(recipe).double()


@pytest.mark.parametrize(("loss", "outputs", "factor"), [("cross_entropy", 4, 0.5), ("binary_logistic", 1, 0.25)])
@pytest.mark.parametrize("bias", [True, False])
def test_no_sample_is_rougher_than_the_closed_form(loss: str, outputs: int, factor: float, bias: bool) -> None:
    problem = linear(loss, outputs, bias)
    everyone = problem.recipe.samples.examples()
    squares = everyone.inputs.square().sum(1) + (1.0 if bias else 0.0)
    generator = torch.Generator().manual_seed(1)
    for i in range(len(everyone)):
        smoothness = closed_form_smoothness(problem, float(squares[i].sqrt()))
        assert smoothness == pytest.approx(factor * float(squares[i]))
        x, y = everyone.inputs[i : i + 1], everyone.targets[i : i + 1]
        worst = 0.0
        for _ in range(6):
            w = torch.randn(problem.dimension, generator=generator, dtype=torch.float64) * 0.3
            hessian = torch.autograd.functional.hessian(lambda v, x=x, y=y: problem.mean_loss(v, x, y), w)
            worst = max(worst, float(torch.linalg.matrix_norm(hessian, 2)))
        assert 0.2 * smoothness < worst <= smoothness * (1 + 1e-12)


@pytest.mark.parametrize(("loss", "outputs"), [("cross_entropy", 4), ("binary_logistic", 1)])
def test_no_gradient_is_longer_than_the_closed_form(loss: str, outputs: int) -> None:
    problem = linear(loss, outputs)
    everyone = problem.recipe.samples.examples()
    longest = float((everyone.inputs.square().sum(1) + 1).max().sqrt())
    bound = closed_form_gradient_bound(problem, longest)
    w = torch.randn(problem.dimension, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    norms = [problem.sample_gradients(s * w, everyone.inputs, everyone.targets).norm(dim=1).max() for s in (1, 30)]
    assert 0.5 * bound < float(max(norms)) <= bound


@pytest.mark.parametrize(
    ("loss", "outputs", "clip", "gradient_bound", "least"),
    [
        ("cross_entropy", 4, None, 2**0.5 * 3, 0.0),
        ("cross_entropy", 4, 0.5, 0.5, -4.5),
        ("cross_entropy", 4, 9.0, 2**0.5 * 3, 0.0),
        ("binary_logistic", 1, 0.5, 0.5, 0.0),
    ],
)
def test_proved_constants_say_what_is_convex(
    loss: str, outputs: int, clip: float | None, gradient_bound: float, least: float
) -> None:
    problem = linear(loss, outputs, sample_clip=clip)
    curvature, bound = proved_constants(problem, 3.0)
    assert curvature == (pytest.approx(least), closed_form_smoothness(problem, 3.0))
    assert bound == pytest.approx(gradient_bound)


def test_a_loss_without_a_gradient_bound_is_refused() -> None:
    with pytest.raises(Refused, match="no bounded gradient"):
        proved_constants(linear("squared_error", 1), 3.0)


def test_a_clipped_logistic_gradient_stays_monotone() -> None:
    problem = linear("binary_logistic", 1)
    everyone = problem.recipe.samples.examples()
    generator = torch.Generator().manual_seed(3)
    for i in range(len(everyone)):
        x, y = everyone.inputs[i : i + 1], everyone.targets[i : i + 1]
        for _ in range(30):
            pair = [torch.randn(problem.dimension, generator=generator, dtype=torch.float64) for _ in range(2)]
            grads = [problem.gradient(w, x, y) for w in pair]
            clipped = [g * min(1.0, 0.4 / float(g.norm())) for g in grads]
            assert float((clipped[0] - clipped[1]) @ (pair[0] - pair[1])) >= -1e-12


@pytest.mark.parametrize(("loss", "outputs"), [("cross_entropy", 4), ("binary_logistic", 1)])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_float32_steps_err_less_than_the_rounding_bound(loss: str, outputs: int, clip: float | None) -> None:
    problem = linear(loss, outputs, sample_clip=clip, weight_decay=0.05)
    everyone = problem.recipe.samples.examples()
    coarse = problem.cast(torch.float32)
    longest = float((everyone.inputs.square().sum(1) + 1).max().sqrt())
    errors = rounding_errors(coarse, len(everyone), longest, [0.5] * 40)
    assert rounding_errors(problem, len(everyone), longest, [0.5])[0] == pytest.approx(errors[0] * 2**-29, rel=1e-6)
    rounded = replace(
        everyone, rows=Tensors(everyone.inputs.float(), everyone.targets)
    )  # features are data: the same in both precisions
    exact = replace(everyone, rows=Tensors(rounded.inputs.double(), everyone.targets))
    w = coarse.initial()
    worst = 0.0
    for error in errors:
        fine, _ = advance(problem, exact, exact.positions, w.double(), 0.5)
        w, _ = advance(coarse, rounded, rounded.positions, w, 0.5)
        worst = max(worst, float((w.double() - fine).norm()) / error)
    assert 1e-5 < worst <= 1.0


def test_rounding_adds_up_by_hand() -> None:
    # 0.02, then growth .9 and two roundings of .003 before and after: (.02 + .006) * .9 + .006
    done = descent(rates=[0.5, 0.25], rewound=1, decay=(0.4, 0.4), curvature=(0.0, 2.0), rounding=(0.003, 0.003))
    assert done.distance() == pytest.approx(0.0294, rel=1e-12)


def test_retraining_ends_within_its_own_rounding_of_exact_arithmetic() -> None:
    # K = T: .006, then growth .9 and .006 more; nothing is forgotten: nothing is claimed
    done = descent(rates=[0.5, 0.25], rewound=2, decay=(0.4, 0.4), curvature=(0.0, 2.0), rounding=(0.003, 0.003))
    assert done.distance() == pytest.approx(0.0114, rel=1e-12)
    assert replace(done, forgotten=0).distance() == 0.0


def test_the_bound_reckons_with_the_longest_features_that_are_let_through() -> None:
    problem = linear("cross_entropy", 4)
    everyone = problem.recipe.samples.examples()
    longest = float((everyone.inputs.square().sum(1) + 1).max().sqrt())
    declared = longest / (1 + 0.9e-6)
    require_within(problem, everyone, declared)
    assert longest <= admitted(declared)


def test_soft_targets_have_no_closed_form() -> None:
    problem = linear("cross_entropy", 4)
    everyone = problem.recipe.samples.examples()
    with pytest.raises(Refused, match="one class"):
        require_within(problem, replace(everyone, rows=Tensors(everyone.inputs, torch.full((12, 4), 0.25))), 9.0)
    logistic = linear("binary_logistic", 1)
    with pytest.raises(Refused, match="one class"):
        require_within(logistic, replace(everyone, rows=Tensors(everyone.inputs, 2 * everyone.targets - 1)), 9.0)


def test_clipping_a_sample_keeps_its_lipschitz_constant() -> None:
    problem = linear("cross_entropy", 4)
    everyone = problem.recipe.samples.examples()
    generator = torch.Generator().manual_seed(3)
    x, y = everyone.inputs[:1], everyone.targets[:1]
    smoothness = closed_form_smoothness(problem, float((x.square().sum() + 1).sqrt()))
    clip = 0.4
    clipped = 0
    for _ in range(300):
        pair = [torch.randn(problem.dimension, generator=generator, dtype=torch.float64) for _ in range(2)]
        grads = [problem.gradient(w, x, y) for w in pair]
        clipped += sum(float(g.norm()) > clip for g in grads)
        projected = [g * min(1.0, clip / float(g.norm())) for g in grads]
        assert lipschitz_ratio(projected[0] - projected[1], pair[0] - pair[1]) <= smoothness * (1 + 1e-12)
    assert clipped > 100


def dense_norms(problem: Problem, points: list[torch.Tensor]) -> list[float]:
    """The spectral norm of every sample's data Hessian at every point."""
    everyone = problem.recipe.samples.examples()
    x, y = everyone.inputs, everyone.targets

    def norm(w: torch.Tensor, i: int) -> float:
        hessian = torch.autograd.functional.hessian(lambda v: problem.mean_loss(v, x[i : i + 1], y[i : i + 1]), w)
        return float(torch.linalg.matrix_norm(hessian, 2))

    return [norm(w, i) for w in points for i in range(len(x))]


def points_of(problem: Problem) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(problem.dimension, generator=generator, dtype=torch.float64) for _ in range(3)]


def test_no_samples_hessian_is_above_the_measured_smoothness_of_a_head() -> None:
    problem = linear("cross_entropy", 4)
    everyone, points = problem.recipe.samples.examples(), points_of(problem)
    x, y = everyone.inputs, everyone.targets
    lengths = [problem.gradient(w, x[i : i + 1], y[i : i + 1]).norm() for w in points for i in range(len(x))]
    smoothness, gradient_bound = measured_constants(problem, everyone, points)
    assert smoothness == pytest.approx(0.5 * float((x.square().sum(dim=1) + 1).max()))
    assert max(dense_norms(problem, points)) <= smoothness
    assert gradient_bound == pytest.approx(float(max(lengths)), rel=1e-12)


def test_the_smoothness_of_a_network_is_that_of_its_roughest_sample() -> None:
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    x[4] *= 6.0
    names = [f"s{i}" for i in range(9)]
    recipe = Recipe(
        lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)),
        Samples(names, names, x, torch.arange(9) % 2),
        (x, torch.arange(9) % 2),
        "cross_entropy",
        Training(epochs=1),
    )
    problem = Problem(recipe).double()
    points = points_of(problem)
    smoothness, _ = measured_constants(problem, problem.recipe.samples.examples(), points)
    roughest = max(dense_norms(problem, points))
    assert 0.9 * roughest <= smoothness <= roughest * (1 + 1e-9)


def test_one_rough_sample_of_twenty_makes_the_bound_vacuous_instead_of_false() -> None:
    """Theorem 3.1's L is every sample's. That of the mean is 20 times less, and its bound was beaten 8,000 times."""
    x = torch.full((20, 1), 0.05, dtype=torch.float64)
    x[0] = 4.0
    names = [f"s{i}" for i in range(20)]
    recipe = Recipe(
        lambda: nn.Linear(1, 1, bias=False),
        Samples(names, names, x, torch.zeros(20, 1, dtype=torch.float64)),
        (x, torch.zeros(20, 1, dtype=torch.float64)),
        "squared_error",
        Training(epochs=60, learning_rate=2.2),
    )
    problem = Problem(recipe).double()
    everyone = problem.recipe.samples.examples()
    kept = everyone.without(torch.arange(1, 19))
    smoothness, longest = measured_constants(problem, everyone, [problem.initial()])
    assert smoothness == pytest.approx(16.0)
    done = Descent([2.2] * 60, 20, 20, 18, longest, (0.0, smoothness))
    rewound, retrained = problem.initial(), problem.initial()
    for step in range(60):
        rewound, _ = advance(problem, everyone if step < 40 else kept, everyone.positions, rewound, 2.2)
        retrained, _ = advance(problem, kept, everyone.positions, retrained, 2.2)
    distance = float((rewound - retrained).norm())
    assert replace(done, curvature=(0.0, smoothness / 20)).distance() < distance <= done.distance()
    with pytest.raises(Refused, match="vacuous"):
        done.require_useful()


def test_random_perturbations_read_the_smoothness_low() -> None:
    problem = linear("cross_entropy", 4)
    everyone = problem.recipe.samples.examples()
    x, y = everyone.inputs, everyone.targets
    w = problem.initial()
    generator = torch.Generator().manual_seed(2)
    ratios = []
    for _ in range(20):
        step = 1e-4 * torch.randn(problem.dimension, generator=generator, dtype=torch.float64)
        ratios.append(lipschitz_ratio(problem.gradient(w + step, x, y) - problem.gradient(w, x, y), step))
    assert max(ratios) < 0.8 * measured_constants(problem, everyone, [w])[0]


def test_the_ratio_is_gradients_over_weights() -> None:
    assert lipschitz_ratio(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0])) == pytest.approx(2.5)


def test_a_sample_longer_than_declared_is_refused() -> None:
    problem = linear("cross_entropy", 4)
    everyone = problem.recipe.samples.examples()
    longest = float((everyone.inputs.square().sum(1) + 1).max().sqrt())
    require_within(problem, everyone, longest)
    with pytest.raises(Refused, match="above feature_norm"):
        require_within(problem, everyone, longest * 0.99)


def test_a_deep_model_has_no_closed_form() -> None:
    x, y = torch.randn(6, 3), torch.arange(6) % 2
    names = [f"s{i}" for i in range(6)]
    deep = Problem(
        Recipe(
            lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 2)),
            Samples(names, names, x, y),
            (x, y),
            "cross_entropy",
            Training(epochs=1),
        )
    )
    with pytest.raises(Refused, match="no linear head"):
        closed_form_smoothness(deep, 1.0)
