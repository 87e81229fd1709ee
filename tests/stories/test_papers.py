"""The architectures and trainings of the five papers, served: five people leave each, one by one and together.

Small images by default. The drills take MNIST's 10,000 and as much of the papers' sizes as two cores train, one seed.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors

from benchmarks.papers.images import mnist
from expunge_lab.recipe import load_recipe
from expunge_service.infra.settings import Settings
from tests.harness.process import ANY_DISTANCE
from tests.harness.stack import Stack, running
from tests.stories.conftest import recipes_in
from tests.stories.test_deletions import expunge
from tests.stories.test_own_training import claims_of
from tests.workers.rows.data import write_csv
from unlearning.methods import load
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.quality.simulate import forget_set, left_by
from unlearning.recipe import Recipe
from unlearning.types import ForgetSet, Need, Vectors

NOISE = 1e-4
ASIDE = 0.25
"""of the people, by whom SAFE chooses its step; all methods on MNIST are judged by them"""
RECIPES = Path(__file__).parent / "recipes"
WHOLE = """
import unlearning as ul
from {story} import whole


def recipe(
    rows: ul.Rows = ul.arrays(
        names="mnist.csv", person="person", id="image", aside={aside}, x="x.npy", y="y.npy"
    ),
) -> ul.Recipe:
    return whole(rows)
"""


@dataclass(frozen=True)
class Story:
    """A paper's architecture with its training: the module of its recipe, its method, the method's options."""

    recipe: str
    method: str
    learned: tuple[float, float]
    """least accuracy on the holdout after the deletions: of small images (0: too few to learn), of MNIST"""
    whole: tuple[int, int] = (8000, 100)
    """at the paper's size: the images of MNIST that are trained on, and the people to whom they are dealt"""
    reports: tuple[str, float, float] = ("distance_left", 0.0, 0.7)
    """a figure of registration's report, with what it is between on MNIST; 0.7 and more of the distance is refused"""
    options: dict[str, Any] = field(default_factory=dict)
    statistics: bool = False
    """the model has running statistics, which a certificate names as what no noise covers"""
    adds_up: bool = False
    """one update of five people computes what an update for each of them computes"""


STORIES = {
    "SAFE, a CNN by Adam": Story("safe_cnn", "safe", (0.3, 0.9), reports=("reach", 0.025, 0.5)),
    "SAFE, a ResNet-18 with batch normalisation": Story(
        "safe_resnet", "safe", (0.3, 0.9), reports=("reach", 0.025, 0.5), statistics=True
    ),
    "CNS, a perceptron by Adam with dropout": Story(
        "cns_perceptron", "cns", (0.3, 0.8), reports=("damping", 0.0, 100.0)
    ),
    "HF, logistic regression": Story(
        "hf_logistic", "recollection", (0.3, 0.55), (1000, 200), ("distance_left", 0.0, 0.1), adds_up=True
    ),
    # At the published step size 0.69 of the distance is left. The service refuses 0.7, so the drill lifts the limit.
    "HF, a simple CNN": Story(
        "hf_network", "recollection", (0.0, 0.5), (1000, 50), ("distance_left", 0.5, 1.0), adds_up=True
    ),
    "Mini, logistic regression": Story(
        "mini_logistic", "mini", (0.3, 0.75), (8000, 400), options={"epochs": 10}, adds_up=True
    ),
    "R2D, a ResNet-18 with batch normalisation, by AdamW": Story(
        "r2d_resnet", "rewind", (0.0, 0.8), reports=("distance_left", 0.0, 1.2), statistics=True, adds_up=True
    ),
}


@pytest.mark.parametrize("stack", ["sqlite"], indirect=True)
@pytest.mark.parametrize("paper", STORIES)
def test_five_people_leave_a_paper_s_model(stack: Stack, paper: str) -> None:
    story = STORIES[paper]
    name = registered(stack, story.recipe, story)
    assert reported(stack, name, story) > 0
    five = five_leave(stack, name, story)
    assert stack.head(name)["holdout_accuracy"] > story.learned[0]
    if story.adds_up:
        recipe = load_recipe(RECIPES / f"{story.recipe}.py", Settings()).recipe
        problem, expected, untouched = computed(recipe, story, five)
        published = problem.flatten(weights_of(stack, name, 5))
        assert float((published - expected).abs().max()) < 10 * NOISE
        assert float((expected - untouched).norm()) > 3 * float((published - expected).norm()), "the model has moved"


@pytest.mark.drill
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("paper", STORIES)
def test_five_people_leave_a_paper_s_model_of_mnist(
    tmp_path: Path, paper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.harness.stack.PATIENCE_SECONDS", 3600.0)
    story = STORIES[paper]
    with on_mnist(tmp_path, story) as stack:
        name = registered(stack, "whole", story)
        _, least, most = story.reports
        assert least <= reported(stack, name, story) < most
        five_leave(stack, name, story)
        assert stack.head(name)["holdout_accuracy"] > story.learned[1]


@contextmanager
def on_mnist(folder: Path, story: Story) -> Iterator[Stack]:
    """Run a service whose recipe ``whole`` is the story's at the paper's size."""
    try:
        images = mnist()
    except FileNotFoundError as missing:
        pytest.skip(f"unverified here: {missing}")
    (folder / "recipes").mkdir()
    recipes = recipes_in(folder / "recipes")
    count, people = story.whole
    for name, tensor in (("x", images.inputs), ("y", images.targets)):
        np.save(recipes / f"{name}.npy", tensor[:count].numpy())
    names = [{"image": f"image-{place}", "person": f"drawn-{place % people}"} for place in range(count)]
    write_csv(recipes / "mnist.csv", names)
    (recipes / "whole.py").write_text(WHOLE.format(story=story.recipe, aside=ASIDE))
    with running(folder / "home", recipes, limits=ANY_DISTANCE, GRACE="0.5") as stack:
        yield stack


def registered(stack: Stack, recipe: str, story: Story) -> str:
    """Register the model, wait until it is live, and return its name."""
    return stack.live(
        recipe, story.method, options=story.options, noise_std=NOISE, max_accuracy_drop=None, fallback="hold"
    )


def reported(stack: Stack, name: str, story: Story) -> float:
    """Return the figure of registration's report. It is gone with the first deletion, like all that were measured."""
    value: float = stack.prepared(name)["preparation"]["report"][story.reports[0]]
    return value


def five_who_are_trained_on(stack: Stack) -> list[str]:
    """The first five people whom the service never keeps apart, at a share of ``ASIDE``."""
    everybody = (f"drawn-{number}" for number in itertools.count())
    return list(itertools.islice((name for name in everybody if not stack.keeps_apart(name, ASIDE)), 5))


def five_leave(stack: Stack, name: str, story: Story) -> list[str]:
    """Delete three people one by one and two with one call; look at each version, each certificate and the log."""
    five = five_who_are_trained_on(stack)
    requests = [stack.forgotten(name, subject_id=person)["id"] for person in five[:3]]
    orders = [
        {"subject_id": person, "models": [name], "suppress": "named_models", "regulation": "gdpr"}
        for person in five[3:]
    ]
    together = stack.client.post("/v1/deletion-requests/batch", {"requests": orders}, str(uuid.uuid4()))
    for outcome in together["outcomes"]:
        request = stack.ended(outcome["request"])
        assert request["status"] == "completed", f"{request}\n{stack.logs()}"
        requests.append(request["id"])
    versions = {version["number"]: version for version in stack.client.pages(f"/v1/models/{name}/versions")}
    assert {number: versions[number]["people"] for number in sorted(versions)} == {1: 0, 2: 1, 3: 1, 4: 1, 5: 2}
    assert len({version["checkpoint_sha256"] for version in versions.values()}) == 5
    of_one_person = versions[2]["samples"]
    shares = {number: version["samples"] / of_one_person for number, version in versions.items()}
    assert shares == {1: 0, 2: 1, 3: 1, 4: 1, 5: 2}
    for request, updates in zip(requests, (1, 2, 3, 4, 4), strict=True):
        (claim,) = claims_of(stack, request)
        assert (claim["method"], claim["guarantee"]) == (story.method, "none")
        assert claim["epsilon"] is None and claim["updates"] == updates
        assert any("running statistics" in sentence for sentence in claim["secret_state"]) == story.statistics
    expunge(stack, "audit", "verify")
    return five


def weights_of(stack: Stack, name: str, version: int) -> dict[str, torch.Tensor]:
    headers = {"Authorization": f"Bearer {stack.account.api_key}"}
    file = stack.http.get(f"/v1/models/{name}/versions/{version}/checkpoint", headers=headers)
    return load_tensors(file.raise_for_status().content)


def computed(recipe: Recipe, story: Story, five: Sequence[str]) -> tuple[Problem, torch.Tensor, torch.Tensor]:
    """Return what the library gives for the five at once, without noise, and the weights before."""
    problem, examples = Problem(recipe), recipe.samples.examples()
    learned = train(problem, examples)
    method = load(story.method)(**story.options)
    state = method.prepare(problem, examples, learned)
    forget = forget_set(examples, list(five))
    vectors = Vectors({person: state.vectors[person] for person in five if person in state.vectors})
    retain = left_by(examples, forget) if Need.RETAINED in method.needs else None
    asked = ForgetSet(forget.people, forget.positions, forget.examples, vectors)
    after = method.forget(problem, state, asked, retain, torch.Generator())
    return problem, after.state.weights, learned.weights
