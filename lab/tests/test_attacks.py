"""The attacks find what is there, and nothing where nothing is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from sklearn.svm import SVC

from expunge_lab.experiment.attacks import (
    auc,
    confidence,
    likelihood_ratio_auc,
    membership,
    relearn_epochs,
    shadows,
    signatures,
)
from unlearning import Problem, Recipe, Samples, Training
from unlearning.model.training import train


def svc(features: torch.Tensor, labels: torch.Tensor, judged: torch.Tensor) -> torch.Tensor:
    fitted = SVC(kernel="rbf").fit(features.numpy(), labels.numpy())
    return torch.from_numpy(fitted.decision_function(judged.numpy()))


def memorising(people: int = 30, each: int = 2, width: int = 80, decay: float = 3e-3) -> Recipe:
    """Random labels in more dimensions than samples: a model that remembers everyone it saw."""
    generator = torch.Generator().manual_seed(0)
    count = people * each
    x = torch.randn(count + 60, width, generator=generator) / width**0.5
    y = torch.randint(3, (count + 60,), generator=generator)
    return Recipe(
        model=lambda: torch.nn.Linear(width, 3, bias=False),
        samples=Samples(
            ids=[f"s{i}" for i in range(count)],
            subjects=[f"p{i // each:02d}" for i in range(count)],
            inputs=x[:count],
            targets=y[:count],
        ),
        holdout=(x[count:], y[count:]),
        loss="cross_entropy",
        training=Training(epochs=5, learning_rate=1.0, weight_decay=decay, converge=1e-8),
    )


@pytest.fixture(scope="module")
def scene():
    recipe = memorising()
    problem, examples = Problem(recipe), recipe.samples.examples()
    gone = torch.arange(20)
    forget, retain = examples.only(gone), examples.without(gone)
    untouched = train(problem, examples).weights
    retrained = train(problem, examples, omit=gone.tolist()).weights
    return recipe, problem, examples, forget, retain, untouched, retrained


@pytest.mark.parametrize("seed", range(5))
def test_auc_equals_scikit_learn_with_ties(seed: int) -> None:
    random = np.random.default_rng(seed)
    positives, negatives = random.integers(0, 6, 40), random.integers(0, 5, 30)
    expected = roc_auc_score([1] * 40 + [0] * 30, np.concatenate([positives, negatives]))
    assert auc(torch.tensor(positives), torch.tensor(negatives)) == pytest.approx(expected)


def test_auc_of_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="both classes"):
        auc(torch.zeros(0), torch.zeros(3))


def test_confidence_is_the_log_odds_of_the_true_class(scene) -> None:
    _, problem, examples, *_, untouched, _ = scene
    w, x, y = untouched.float(), examples.inputs, examples.targets
    p = problem.outputs(w, x).double().softmax(dim=1)[torch.arange(len(y)), y]
    assert torch.allclose(confidence(problem, w, x, y), torch.log(p / (1 - p)), atol=1e-4)


def test_the_likelihood_ratio_finds_the_remembered_and_not_the_retrained(scene) -> None:
    recipe, problem, _, forget, retain, untouched, retrained = scene
    shadow = shadows(problem, retain, forget, recipe.holdout_tensors, count=16, seed=0)
    assert shadow.inside.sum(dim=0).tolist() == [8] * 40  # in half of the models each
    assert likelihood_ratio_auc(problem, untouched, shadow) > 0.9
    assert abs(likelihood_ratio_auc(problem, retrained, shadow) - 0.5) < 0.25


def test_membership_inference_finds_the_remembered_and_not_the_retrained() -> None:
    recipe = memorising(width=300)
    problem, examples = Problem(recipe), recipe.samples.examples()
    forget, retain = examples.only(torch.arange(20)), examples.without(torch.arange(20))
    sets = {"forgotten": forget.inputs, "retained": retain.inputs, "holdout": recipe.holdout_tensors[0]}
    before = membership(problem, train(problem, examples).weights, svc, **sets, seed=0)
    after = membership(problem, train(problem, examples, omit=range(20)).weights, svc, **sets, seed=0)
    assert before.accuracy > 0.9 and before.auc > 0.9
    assert abs(after.accuracy - 0.5) < 0.15 and abs(after.auc - 0.5) < 0.15


def test_shadows_in_odd_or_tiny_numbers_are_refused(scene) -> None:
    recipe, problem, _, forget, retain, *_ = scene
    for count in (2, 5):
        with pytest.raises(ValueError, match="even number"):
            shadows(problem, retain, forget, recipe.holdout_tensors, count=count, seed=0)


def test_the_untouched_model_needs_no_relearning_and_the_retrained_does(scene) -> None:
    _, problem, _, forget, _, untouched, retrained = scene
    assert relearn_epochs(problem, untouched, untouched, forget, 50) == 0
    needed = relearn_epochs(problem, retrained, untouched, forget, 50)
    assert 0 < needed <= 50
    assert relearn_epochs(problem, retrained, untouched, forget, needed - 1) == needed - 1  # the limit


def test_two_versions_without_noise_name_the_deleted_and_enough_noise_hides_them(scene) -> None:
    _, problem, examples, *_, untouched, _ = scene
    people = sorted(examples.people.distinct())
    marks = signatures(problem, untouched, examples, people)
    named = hidden = 0
    for index, person in enumerate(people[:10]):
        omit = [i for i, owner in enumerate(examples.people) if owner == person]
        after = train(problem, examples, omit=omit).weights
        named += marks.named(untouched, after) == person
        noise = torch.Generator().manual_seed(index)
        hidden += marks.named(untouched, after + 5 * torch.randn(len(after), generator=noise)) == person
    assert named >= 9
    assert hidden <= 4
