"""Every example recipe, through a worker: published, one person deleted, and claimed as its first lines say."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load as load_tensors

from benchmarks.example_recipes import FOLDER, METHODS, PROVED
from expunge.workers.runtime import recipes
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim, Guarantee

INDEXES = {"index_faiss": "shards", "index_hnswlib": "shards"}
"""recipes with rows, which tests/workers/rows/test_index_examples.py trains: each, and the method that it names"""
EXACT = [name for name in METHODS if name not in PROVED]
LEAST = {
    "tabular": 0.85,
    "estimator": 0.95,
    "scattering": 0.94,
    "batchnorm": 0.97,
    "text": 0.5,
    "text/adapters": 0.5,
    "recommender": 0.08,
    "trees": 0.93,
    "embeddings": 0.85,
    "mixed": 0.84,
}
"""accuracy; texts with a quarter of their passes, from four topics; the recommender's is one item of 200, and of the
embeddings R2"""


@pytest.fixture
def examples(world: World, tmp_path: Path) -> Iterator[World]:
    """A world whose recipes are the examples, those of texts with a quarter of their passes."""
    folder = tmp_path / "examples"
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (folder / "text" / "recipe.py", folder / "text" / "adapters.py"):
        text = path.read_text()
        assert "PASSES, BATCH, RATE = 8," in text
        path.write_text(text.replace("PASSES, BATCH, RATE = 8,", "PASSES, BATCH, RATE = 2,"))
    return world.configured(recipes=folder)


def somebody(world: World, name: str) -> str:
    samples = recipes.load(world.settings.recipes, name).recipe.samples
    return samples.people[len(samples) // 2][0]


def published(world: World, model_id: str) -> dict[str, torch.Tensor]:
    return load_tensors(world.storage.store.read(world.head(model_id).checkpoint))


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


# of smaller networks it is shown in test_own_training.py
@pytest.mark.parametrize(
    "name", [pytest.param(each, marks=() if each == "trees" else pytest.mark.drill) for each in EXACT]
)
def test_an_example_with_its_own_training_equals_one_that_never_saw_the_person(examples: World, name: str) -> None:
    deleted = examples.live(name, METHODS[name], name="deleted")
    person = somebody(examples, name)
    request = examples.delete(person, models=("deleted",))
    examples.work(deleted)
    assert examples.task(request).status == "completed", examples.task(request).reason
    claim = Claim.from_json(examples.head(deleted).claim)
    assert (claim.method, claim.guarantee) == (METHODS[name], Guarantee.EXACT)
    assert (examples.head(deleted).holdout_accuracy or 0) >= LEAST[name]
    examples.delete(person)
    never = examples.register(name, METHODS[name], name="never", leave_out_forgotten=True)
    examples.work(never)
    assert examples.head(deleted).checkpoint == examples.head(never).checkpoint


def test_the_adapters_certificate_lists_the_frozen_transformer_as_declared(examples: World) -> None:
    model_id = examples.live("text/adapters", "shards")
    parts = Claim.from_json(examples.head(model_id).claim).parts
    assert {part.name.partition(".")[0] for part in parts} == {"base"}
    assert all(part.public and part.kind == "frozen" for part in parts)


def test_no_row_of_a_person_is_in_the_recommenders_file(examples: World) -> None:
    model_id = examples.live("recommender", "late")
    (items,) = published(examples, model_id).values()
    assert items.shape == (200, 12)


@pytest.mark.parametrize("name", [*METHODS, *INDEXES])
def test_an_example_says_its_guarantee_its_cost_and_what_is_declared(name: str) -> None:
    said = header(name)
    guarantee = "proved" if name in PROVED else "exact"
    assert f"Guarantee: `{guarantee}`." in said
    assert f"--method {(METHODS | INDEXES)[name]}" in said
    assert re.search(r"^Cost of a deletion: ", said, re.M)
    assert "You declare" in said


@pytest.mark.parametrize("name", [*METHODS, "digits"])
def test_the_person_that_an_example_deletes_is_one_that_it_trains_on(name: str) -> None:
    found = re.search(
        r"^Delete one person: `expunge delete --subject (\S+) --regulation gdpr --wait`", header(name), re.M
    )
    assert found and (found[1],) in set(recipes.load(FOLDER, name).recipe.samples.people)


def test_every_example_recipe_is_one_of_these() -> None:
    names = {each.partition("/")[0] for each in METHODS} | {*INDEXES, "digits"}
    assert {path.parent.name for path in FOLDER.glob("*/recipe.py")} == names
