"""The comparators are what their papers say: each against a slow, obvious twin or a closed form."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from expunge_lab.experiment import comparators
from expunge_lab.experiment.comparators import kinds
from expunge_lab.experiment.comparators.deltagrad import DeltaGrad
from expunge_lab.experiment.comparators.fine_tune import FineTune
from expunge_lab.experiment.comparators.fisher import Fisher, information
from expunge_lab.experiment.comparators.l1_sparse import L1Sparse
from expunge_lab.experiment.comparators.neggrad_plus import NegGradPlus
from expunge_lab.experiment.comparators.scrub import Scrub, disagreement_slope
from expunge_workers.runtime.model import with_options
from unlearning import Problem, Recipe, Samples, Training
from unlearning.methods import NAMES
from unlearning.model.training import train
from unlearning.quality.simulate import forget_set, left_by, release
from unlearning.types import Refused

PEOPLE, EACH, WIDTH, CLASSES = 12, 4, 5, 3
KNOWN = tuple(kinds())
WHOLE = {"epochs": 1, "batch_size": 1000}


def recipe(training: Training, loss: str = "cross_entropy") -> Recipe:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(PEOPLE * EACH + 20, WIDTH, generator=generator)
    y = (x[:, :CLASSES] + 0.5 * torch.randn(len(x), CLASSES, generator=generator)).argmax(dim=1)
    count = PEOPLE * EACH
    return Recipe(
        model=lambda: torch.nn.Linear(WIDTH, CLASSES, bias=False),
        samples=Samples([f"s{i}" for i in range(count)], [f"p{i // EACH}" for i in range(count)], x[:count], y[:count]),
        holdout=(x[count:], y[count:]),
        loss=loss,
        training=training,
    )


class Scene:
    """A trained softmax regression; persons p1 and p5 are forgotten."""

    def __init__(self, **changes) -> None:
        plain = {"epochs": 6, "batch_size": 16, "learning_rate": 0.5, "weight_decay": 0.01} | changes
        self.recipe = recipe(Training(**plain))
        self.problem = Problem(self.recipe, dtype=torch.float64)
        self.examples = self.recipe.samples.examples()
        self.learned = train(self.problem, self.examples)
        self.forget = forget_set(self.examples, ["p1", "p5"])
        self.retain = left_by(self.examples, self.forget)
        self.gone = self.forget.examples

    def after(self, comparator, state=None, forget=None, retain=None):
        state = state or comparator.prepare(self.problem, self.examples, self.learned)
        generator = torch.Generator().manual_seed(3)
        return release(
            comparator, self.problem, state, forget or self.forget, retain or self.retain, generator=generator
        ).state


@pytest.fixture(scope="module")
def scene() -> Scene:
    return Scene()


def mean_gradient(scene: Scene, w: torch.Tensor, of) -> torch.Tensor:
    """Of the softmax regression, in closed form: (p - y) x'."""
    x, y = of.inputs.double(), of.targets
    p = (x @ w.reshape(CLASSES, WIDTH).T).softmax(dim=1)
    return ((p - F.one_hot(y, CLASSES)).T @ x / len(x)).reshape(-1)


def test_all_comparators_are_found_and_none_is_a_method() -> None:
    found = kinds()
    assert {"fine_tune", "neggrad_plus", "fisher", "scrub", "l1_sparse", "deltagrad"} <= set(found)
    assert not set(found) & set(NAMES)


JOINING = """
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar
from expunge_lab.experiment.comparator import Comparator

def half_way(problem, w, examples, gone, *, share=0.5):
    x, y = examples.only(__import__("torch").tensor(gone)).pick(__import__("torch").arange(len(gone)))
    return SimpleNamespace(change=share * problem.gradient(w, x.double(), y) * len(gone) / len(examples))

def _hidden(problem, w, examples, gone): ...

def helper(problem, w): ...

@dataclass(frozen=True)
class Still(Comparator):
    name: ClassVar[str] = "still"

    def unlearn(self, problem, w, forget, retain, generator):
        return w
"""


def test_a_file_of_the_folder_joins_without_another_change(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "joining.py").write_text(JOINING)
    monkeypatch.setattr(comparators, "__path__", [*comparators.__path__, str(tmp_path)])
    found = kinds()
    assert set(found) - set(KNOWN) == {"half_way", "still"}
    w, gone = scene.learned.weights, scene.gone
    expected = w + 0.5 * mean_gradient(scene, w, gone) * len(gone) / len(scene.examples)
    assert torch.allclose(scene.after(found["half_way"]()).weights, expected, atol=1e-12)
    assert torch.equal(scene.after(found["still"]()).weights, w)
    assert with_options(found["half_way"], "half_way", {}) == found["half_way"]()
    with pytest.raises(Refused, match="no option 'share'"):
        with_options(found["half_way"], "half_way", {"share": 1.0})


@pytest.mark.parametrize("name", sorted(kinds()))
def test_a_comparator_forgets_repeatably_and_an_empty_set_changes_nothing(scene: Scene, name: str) -> None:
    comparator = kinds()[name]()
    state = comparator.prepare(scene.problem, scene.examples, scene.learned)
    first, second = scene.after(comparator, state), scene.after(comparator, state)
    assert torch.allclose(first.weights, second.weights, rtol=1e-9, atol=1e-12) and not torch.equal(
        first.weights, state.weights
    )
    nobody = forget_set(scene.examples, [])
    unchanged = release(comparator, scene.problem, state, nobody, scene.examples, generator=torch.Generator())
    assert torch.equal(unchanged.state.weights, state.weights)


def test_fine_tuning_in_one_batch_is_one_step_of_the_training(scene: Scene) -> None:
    w = scene.learned.weights
    expected = w - 0.2 * 0.5 * (mean_gradient(scene, w, scene.retain) + 0.01 * w)
    assert torch.allclose(scene.after(FineTune(**WHOLE, rate=0.2)).weights, expected, atol=1e-12)


def test_fine_tuning_goes_over_each_retained_sample_once_an_epoch(scene: Scene) -> None:
    places = list(FineTune(batch_size=7).batches(scene.retain, 2, torch.Generator().manual_seed(0)))
    assert sorted(torch.cat(places).tolist()) == sorted(2 * list(range(len(scene.retain))))


def test_neggrad_plus_descends_and_climbs_by_its_equation(scene: Scene) -> None:
    w = scene.learned.weights
    kept, gone = mean_gradient(scene, w, scene.retain), mean_gradient(scene, w, scene.gone)
    expected = w - 0.05 * (0.7 * (kept + 0.01 * w) - 0.3 * gone)
    assert torch.allclose(scene.after(NegGradPlus(**WHOLE, beta=0.7)).weights, expected, atol=1e-12)
    only = scene.after(NegGradPlus(beta=1.0))
    assert torch.allclose(only.weights, scene.after(FineTune()).weights, atol=1e-12)


def test_l1_sparse_adds_the_signs_and_its_weight_falls_to_zero(scene: Scene) -> None:
    w = scene.learned.weights
    expected = w - 0.05 * (mean_gradient(scene, w, scene.retain) + 0.01 * w + 0.3 * w.sign())
    assert torch.allclose(scene.after(L1Sparse(**WHOLE, gamma=0.3)).weights, expected, atol=1e-12)
    assert torch.allclose(scene.after(L1Sparse(gamma=0.0)).weights, scene.after(FineTune()).weights, atol=1e-12)
    strong = scene.after(L1Sparse(epochs=40, gamma=0.5)).weights
    assert float((strong.abs() < 0.05).double().mean()) > float((w.abs() < 0.05).double().mean())


def test_scrub_climbs_then_descends_by_its_equation(scene: Scene) -> None:
    teacher = scene.learned.weights
    x, kept = scene.gone.inputs.double(), scene.retain
    # at the teacher itself nothing disagrees: the first pass over the forgotten cannot move
    assert torch.allclose(disagreement_slope(scene.problem, teacher, teacher, x), torch.zeros_like(teacher))
    w = teacher - 0.05 * (0.8 * mean_gradient(scene, teacher, kept) + 0.01 * teacher)
    up = w + 0.05 * kl_gradient(w, teacher, x)
    down = 0.4 * kl_gradient(up, teacher, kept.inputs.double()) + 0.8 * mean_gradient(scene, up, kept) + 0.01 * up
    got = scene.after(Scrub(epochs=2, batch_size=1000, alpha=0.4, gamma=0.8, max_epochs=2))
    assert torch.allclose(got.weights, up - 0.05 * down, atol=1e-12)


def kl_gradient(w: torch.Tensor, teacher: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Of mean KL(p_teacher || p_w) for a softmax regression, in closed form: (p_w - p_teacher) x'."""
    p, q = ((x @ each.reshape(CLASSES, WIDTH).T).softmax(dim=1) for each in (w, teacher))
    return ((p - q).T @ x / len(x)).reshape(-1)


def test_the_fisher_information_is_that_of_a_softmax_regression(scene: Scene) -> None:
    """In closed form F for the weight of class c and feature j is the mean of p_c (1 - p_c) x_j^2."""
    w, x = scene.learned.weights, scene.retain.inputs.double()
    p = (x @ w.reshape(CLASSES, WIDTH).T).softmax(dim=1)
    expected = ((p * (1 - p)).T @ x.square() / len(x)).reshape(-1)
    assert torch.allclose(information(scene.problem, w, x), expected, atol=1e-12)


def test_fisher_noise_has_the_published_size(scene: Scene) -> None:
    comparator, w = Fisher(strength=1e-4), scene.learned.weights
    state = comparator.prepare(scene.problem, scene.examples, scene.learned)
    moved = torch.stack(
        [
            comparator.forget(
                scene.problem, state, scene.forget, scene.retain, torch.Generator().manual_seed(seed)
            ).state.weights
            - w
            for seed in range(150)
        ]
    )
    expected = 0.1 * information(scene.problem, w, scene.retain.inputs).pow(-0.25)
    assert torch.allclose(moved.std(dim=0), expected, rtol=0.3)
    assert bool((moved.mean(dim=0).abs() < 4.5 * expected / 12).all())


def dense_bfgs(pairs: list, dimension: int) -> torch.Tensor:
    """Return B as a matrix, by the textbook's rank-two updates from (s'y / s's) I of the newest pair."""
    s, y = pairs[-1]
    matrix = (s @ y) / (s @ s) * torch.eye(dimension, dtype=torch.float64)
    for s, y in pairs:
        image = matrix @ s
        matrix = matrix - torch.outer(image, image) / (s @ image) + torch.outer(y, y) / (y @ s)
    return matrix


def slow_deltagrad(scene: Scene, burn_in: int, period: int, most: int) -> torch.Tensor:
    """Algorithm 1 with a matrix for H, sums for gradients, and the training followed beside it."""
    problem, decay, trajectory = scene.problem, 0.01, scene.learned.trajectory
    gone = set(scene.forget.positions)
    cached, w, pairs = problem.initial(), problem.initial(), []

    def total(at: torch.Tensor, positions: list[int]) -> torch.Tensor:
        of = scene.examples.only(torch.tensor(positions, dtype=torch.int64))
        return len(positions) * mean_gradient(scene, at, of) if positions else torch.zeros_like(at)

    for step, batch in enumerate(trajectory.batches):
        everyone = batch.tolist()
        kept = [each for each in everyone if each not in gone]
        leaving = [each for each in everyone if each in gone]
        whole = total(cached, everyone)
        if step < burn_in or (step - burn_in) % period == 0 or not pairs:
            true = total(w, everyone)
            if bool((w != cached).any()):
                pairs = [*pairs, (w - cached, (true - whole) / len(everyone))][-most:]
        else:
            true = whole + len(everyone) * dense_bfgs(pairs, len(w)) @ (w - cached)
        slope = (true - total(w, leaving)) / len(kept)
        cached = cached - trajectory.rates[step] * (whole / len(everyone) + decay * cached)
        w = w - trajectory.rates[step] * (slope + decay * w)
    return w


@pytest.mark.parametrize(("burn_in", "period", "pairs"), [(4, 3, 2), (2, 5, 1), (6, 2, 3)])
def test_deltagrad_equals_its_slow_twin(scene: Scene, burn_in: int, period: int, pairs: int) -> None:
    fast = scene.after(DeltaGrad(burn_in, period, pairs)).weights
    slow = slow_deltagrad(scene, burn_in, period, pairs)
    assert torch.allclose(fast, slow, atol=1e-9)
    retrained = train(scene.problem, scene.retain, planned=scene.examples.positions).weights
    assert 0 < float((fast - retrained).norm()) < 0.5 * float((scene.learned.weights - retrained).norm())


def test_deltagrad_that_computes_every_step_is_retraining_and_goes_on_from_it(scene: Scene) -> None:
    comparator = DeltaGrad(burn_in=1, period=1)
    first = scene.after(comparator)
    planned = scene.examples.positions
    assert torch.allclose(first.weights, train(scene.problem, scene.retain, planned=planned).weights, atol=1e-12)
    more = forget_set(scene.examples, ["p7"])
    left = left_by(scene.retain, more)
    second = scene.after(comparator, first, more, left)
    assert torch.allclose(second.weights, train(scene.problem, left, planned=planned).weights, atol=1e-12)
    assert not set(first.tensors["batches"].tolist()) & set(scene.forget.positions)


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"converge": 1e-8}, "went on after its recorded steps"), ({"clip": 0.01}, "clipped")],
)
def test_deltagrad_refuses_what_it_cannot_repeat(changes: dict, message: str) -> None:
    other = Scene(**changes)
    with pytest.raises(Refused, match=message):
        DeltaGrad().prepare(other.problem, other.examples, other.learned)
    with pytest.raises(Refused, match="there is none"):
        DeltaGrad().prepare(other.problem, other.examples, dataclasses.replace(other.learned, trajectory=None))


def test_class_probabilities_are_asked_for_where_there_are_none() -> None:
    problem = Problem(recipe(Training(epochs=1), loss="squared_hinge"))
    for comparator in (Scrub(), Fisher()):
        with pytest.raises(Refused, match="class probabilities"):
            comparator.require_defined(problem)


def test_a_walk_that_runs_away_is_refused_and_not_measured(scene: Scene) -> None:
    with pytest.raises(Refused, match="not finite"):
        scene.after(NegGradPlus(epochs=40, rate=1e308, beta=0.0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: FineTune(epochs=0),
        lambda: FineTune(rate=0.0),
        lambda: NegGradPlus(beta=1.5),
        lambda: L1Sparse(gamma=-1.0),
        lambda: Fisher(strength=-1.0),
        lambda: DeltaGrad(period=0),
    ],
)
def test_an_option_outside_its_range_is_refused(make) -> None:
    with pytest.raises(ValueError, match=r"( is | are )"):
        make()
