"""The examples whose model is convex, through a worker: published, one person deleted, and claimed as they say.

Those that get their rows are in ``tests/workers/rows/test_examples.py``.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from benchmarks.example_recipes import FOLDER, METHODS, PROVED
from expunge.workers.runtime import recipes
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim, Guarantee

INDEXES = {"index_faiss", "index_hnswlib"}
"""recipes with rows, which tests/workers/rows/test_index_examples.py trains"""
LEAST = {"tabular": 0.85, "estimator": 0.95, "scattering": 0.94}
"""accuracy"""


@pytest.fixture
def examples(world: World, tmp_path: Path) -> World:
    """A world whose recipes are the examples."""
    folder = tmp_path / "examples"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return world.configured(recipes=folder)


def somebody(world: World, name: str) -> str:
    samples = recipes.load(world.settings.recipes, name).recipe.samples
    return samples.people[len(samples) // 2][0]


def header(name: str) -> str:
    path = recipes.find(FOLDER, name)
    return path.read_text().split('"""')[1]


@pytest.mark.parametrize("name", PROVED)
def test_a_convex_example_is_proved_and_forgets(examples: World, name: str) -> None:
    model_id = examples.live(name, METHODS[name], guarantee="proved")
    assert (examples.head(model_id).holdout_accuracy or 0) >= LEAST[name]
    request = examples.delete(somebody(examples, name))
    examples.work(model_id)
    assert examples.task(request).status == "completed", examples.task(request).reason
    claim = Claim.from_json(examples.head(model_id).claim)
    assert (claim.method, claim.guarantee, claim.parts) == (METHODS[name], Guarantee.PROVED, ())
    assert 0 < claim.max_distance <= 1e-5
    assert (examples.head(model_id).holdout_accuracy or 0) >= LEAST[name]


@pytest.mark.parametrize("name", PROVED)
def test_an_example_says_its_guarantee_its_cost_and_what_is_declared(name: str) -> None:
    said = header(name)
    assert "Guarantee: `proved`." in said
    assert f"--method {METHODS[name]}" in said
    assert re.search(r"^Cost of a deletion: ", said, re.M)
    assert "You declare" in said


@pytest.mark.parametrize("name", [*PROVED, "digits"])
def test_the_person_that_an_example_deletes_is_one_that_it_trains_on(name: str) -> None:
    found = re.search(
        r"^Delete one person: `expunge delete --subject (\S+) --regulation gdpr --wait`", header(name), re.M
    )
    assert found and (found[1],) in set(recipes.load(FOLDER, name).recipe.samples.people)


def test_every_example_recipe_is_one_of_these() -> None:
    names = {name.partition("/")[0] for name in METHODS} | {*INDEXES, "digits"}
    assert {path.parent.name for path in FOLDER.glob("*/recipe.py")} == names
