"""The architectures and trainings of the five papers, served: five people leave each, one by one and together.

Small images by default. The drills take MNIST's 10,000 and as much of the papers' sizes as two cores train, one seed.
"""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load as load_tensors

from benchmarks.papers.images import folder as images_folder
from tests.harness.process import ANY_DISTANCE
from tests.harness.stack import Stack, running
from tests.stories.conftest import recipes_in
from tests.stories.test_deletions import expunge
from tests.stories.test_own_training import claims_of
from unlearning.methods import load
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.quality.simulate import forget_set, left_by
from unlearning.recipe import Recipe
from unlearning.types import ForgetSet, Need, Vectors

NOISE = 1e-4
LEAVE = tuple(f"drawn-{number}" for number in range(5))
RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class Story:
    """A paper's architecture with its training: the module of its recipe, its method, the method's options."""

    recipe: str
    method: str
    learned: tuple[float, float]
    """least accuracy on the holdout after the deletions: of small images (0: too few to learn), of MNIST"""
    reports: tuple[str, float, float] = ("distance_left", 0.0, 0.7)
    """a figure of registration's report, with what it is between on MNIST; 0.7 and more of the distance is refused"""
    options: dict[str, Any] = field(default_factory=dict)
    statistics: bool = False
    """the model has running statistics, which a certificate names as what no noise covers"""
    adds_up: bool = False
    """one update of five people computes what an update for each of them computes"""


STORIES = {
    "SAFE, a CNN by Adam": Story("safe_cnn", "safe", (0.3, 0.9), ("reach", 0.025, 0.5)),
    "SAFE, a ResNet-18 with batch normalisation": Story(
        "safe_resnet", "safe", (0.3, 0.9), ("reach", 0.025, 0.5), statistics=True
    ),
    "CNS, a perceptron by Adam with dropout": Story("cns_perceptron", "cns", (0.3, 0.8), ("damping", 0.0, 100.0)),
    "HF, logistic regression": Story(
        "hf_logistic", "recollection", (0.3, 0.55), ("distance_left", 0.0, 0.1), adds_up=True
    ),
    # At the published step size 0.69 of the distance is left. The service refuses 0.7, so the drill lifts the limit.
    "HF, a simple CNN": Story("hf_network", "recollection", (0.0, 0.5), ("distance_left", 0.5, 1.0), adds_up=True),
    "Mini, logistic regression": Story("mini_logistic", "mini", (0.3, 0.75), options={"epochs": 10}, adds_up=True),
    "R2D, a ResNet-18 with batch normalisation, by AdamW": Story(
        "r2d_resnet", "rewind", (0.0, 0.8), ("distance_left", 0.0, 1.2), statistics=True, adds_up=True
    ),
}


@pytest.mark.parametrize("stack", ["sqlite"], indirect=True)
@pytest.mark.parametrize("paper", STORIES)
def test_five_people_leave_a_paper_s_model(stack: Stack, paper: str, monkeypatch: pytest.MonkeyPatch) -> None:
    story = STORIES[paper]
    name = registered(stack, story.recipe, story)
    assert reported(stack, name, story) > 0
    five_leave(stack, name, story)
    assert stack.head(name)["holdout_accuracy"] > story.learned[0]
    if story.adds_up:
        monkeypatch.syspath_prepend(str(RECIPES))
        recipe: Recipe = importlib.import_module(story.recipe).recipe()
        problem, expected, untouched = computed(recipe, story)
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
    with on_mnist(tmp_path, story, monkeypatch) as stack:
        name = registered(stack, "whole", story)
        _, least, most = story.reports
        assert least <= reported(stack, name, story) < most
        five_leave(stack, name, story)
        assert stack.head(name)["holdout_accuracy"] > story.learned[1]


@contextmanager
def on_mnist(folder: Path, story: Story, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stack]:
    """Run a service whose recipe ``whole`` is the story's at the paper's size."""
    try:
        monkeypatch.setenv("MNIST10K", str(images_folder()))
    except FileNotFoundError as missing:
        pytest.skip(f"unverified here: {missing}")
    (folder / "recipes").mkdir()
    recipes = recipes_in(folder / "recipes")
    (recipes / "whole.py").write_text(f"from {story.recipe} import whole as recipe\n")
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


def five_leave(stack: Stack, name: str, story: Story) -> None:
    """Delete three people one by one and two with one call; look at each version, each certificate and the log."""
    requests = [stack.forgotten(name, subject_id=person)["id"] for person in LEAVE[:3]]
    orders = [
        {"subject_id": person, "models": [name], "suppress": "named_models", "regulation": "gdpr"}
        for person in LEAVE[3:]
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


def weights_of(stack: Stack, name: str, version: int) -> dict[str, torch.Tensor]:
    headers = {"Authorization": f"Bearer {stack.account.api_key}"}
    file = stack.http.get(f"/v1/models/{name}/versions/{version}/checkpoint", headers=headers)
    return load_tensors(file.raise_for_status().content)


def computed(recipe: Recipe, story: Story) -> tuple[Problem, torch.Tensor, torch.Tensor]:
    """Return what the library gives for the five at once, without noise, and the weights before."""
    problem, examples = Problem(recipe), recipe.samples.examples()
    learned = train(problem, examples)
    method = load(story.method)(**story.options)
    state = method.prepare(problem, examples, learned)
    forget = forget_set(examples, list(LEAVE))
    vectors = Vectors({person: state.vectors[person] for person in LEAVE if person in state.vectors})
    retain = left_by(examples, forget) if Need.RETAINED in method.needs else None
    asked = ForgetSet(forget.people, forget.positions, forget.examples, vectors)
    after = method.forget(problem, state, asked, retain, torch.Generator())
    return problem, after.state.weights, learned.weights
