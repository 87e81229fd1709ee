"""A model that was trained elsewhere on everybody: imported for the first version alone, and forgotten from there."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from tests.workers.rows.data import EVERYBODY, forget, lay_out, published
from tests.workers.worlds import World
from unlearning.model.problem import Problem
from unlearning.model.training import train

RECIPE = """
import torch
import unlearning as ul
from safetensors.torch import load_file

FILE = ul.weights("elsewhere.safetensors", sha256="{sha256}")


def recipe(rows: ul.Rows = ul.table("people.csv", person="person"), file=FILE) -> ul.Recipe:
    frame = rows.pandas()
    inputs = torch.tensor(frame[["x", "y"]].to_numpy(), dtype=torch.float32) / 4.0
    return ul.Recipe(
        model=lambda: torch.nn.Linear(2, 2),
        samples=rows.samples(inputs, (frame.x > 3).astype("int64").to_numpy(), at=frame["__row"]),
        holdout=(torch.tensor([[1.0, 0.1], [0.2, 0.1]]), torch.tensor([1, 0])),
        loss="cross_entropy",
        training=ul.Training({training}, weight_decay=0.05),
        weights={weights},
    )
"""
ELSEWHERE = {"weight": torch.tensor([[-1.5, 0.1], [1.5, -0.1]]), "bias": torch.tensor([1.0, -1.0])}
GIVEN = "None if file is None else load_file(file)"
STEPS, CONVERGING = "epochs=4, batch_size=20, learning_rate=0.05", "epochs=0, converge=1e-9"
BY_NEWTON = {"max_distance": 1e-5, "noise_std": 0.01}


def written(training: str = STEPS, weights: str = GIVEN, sha256: str | None = None) -> str:
    digest = hashlib.sha256(save(ELSEWHERE)).hexdigest()
    return RECIPE.format(training=training, weights=weights, sha256=sha256 or digest)


@pytest.fixture
def world(world: World, folder: Path) -> World:
    lay_out(folder, recipe=written())
    (folder / "elsewhere.safetensors").write_bytes(save(ELSEWHERE))
    return world.configured(recipes=folder)


def weights(world: World, model_id: str) -> torch.Tensor:
    return world.state(world.head(model_id)).weights.double()


def test_an_update_starts_from_the_weights_that_came(world: World) -> None:
    model_id = world.live("rows", "cns")
    imported = torch.cat([ELSEWHERE["weight"].reshape(-1), ELSEWHERE["bias"]]).double()
    assert torch.equal(weights(world, model_id), imported)
    forget(world, model_id, 3)
    moved = float((weights(world, model_id) - imported).norm())
    assert 0 < moved < float(imported.norm())
    assert (world.head(model_id).number, world.head(model_id).claim["guarantee"]) == (2, "none")


def test_a_head_ends_in_its_minimiser_and_is_proved(world: World, folder: Path) -> None:
    lay_out(folder, recipe=written(CONVERGING))
    held = world.live("rows", "newton", name="held", **BY_NEWTON)
    (folder / "elsewhere.safetensors").unlink()
    forget(world, held, 3)
    assert world.head(held).claim["guarantee"] == "proved"
    trained_here = written(CONVERGING, "None").replace(", file=FILE", "")
    lay_out(folder, (person for person in EVERYBODY if person != 3), trained_here)
    never = world.live("rows", "newton", name="never", **BY_NEWTON)
    assert float((weights(world, held) - weights(world, never)).norm()) <= 2 * BY_NEWTON["max_distance"]


@pytest.mark.parametrize("method", ["recollection", "mini"])
def test_a_training_elsewhere_that_was_recorded_is_followed(world: World, folder: Path, method: str) -> None:
    lay_out(folder, recipe=written(weights="None").replace(", file=FILE", ""))
    here = world.live("rows", method, name="here")
    given = world.recipe("rows")
    trained = train(Problem(given), given.samples.examples())
    assert trained.trajectory is not None
    tensors = {f"w {name}": value for name, value in Problem(given).tensors(trained.weights).items()}
    file = save(tensors | trained.trajectory.tensors())
    (folder / "elsewhere.safetensors").write_bytes(file)
    forget(world, here, 3)
    read = "None if file is None else {name[2:]: value for name, value in load_file(file).items() if name[:2] == 'w '}"
    steps = "None if file is None else ul.Trajectory.from_tensors(load_file(file))"
    digest = hashlib.sha256(file).hexdigest()
    lay_out(folder, recipe=written(weights=f"{read},\n        trajectory={steps}", sha256=digest))
    elsewhere = world.live("rows", method, name="elsewhere")
    forget(world, elsewhere, 3)
    assert torch.allclose(weights(world, elsewhere), weights(world, here), atol=1e-6)


def test_an_exact_method_begins_with_a_training(world: World, folder: Path) -> None:
    held = world.live("rows", "retrain", name="held")
    claim = world.head(held).claim
    assert (claim["guarantee"], claim["noise_std"]) == ("exact", 0.0)
    (folder / "elsewhere.safetensors").unlink()
    lay_out(folder, recipe=written())
    assert published(world, world.live("rows", "retrain", name="again")) == published(world, held)


def test_who_asked_meanwhile_is_forgotten_in_the_first_version(world: World) -> None:
    """The weights know everybody, so nobody can be left out of them."""
    model_id = world.register("rows", "cns")
    request = world.delete("p3")
    world.work(model_id)
    assert world.model(model_id).status == "live", world.model(model_id).reason
    assert (world.task(request).samples, world.head(model_id).samples, world.head(model_id).number) == (3, 3, 1)


@pytest.mark.parametrize(
    ("recipe", "method", "words"),
    [
        (written(), "recollection", "trajectory was not recorded"),
        (written(weights="None"), "cns", "declares ul.weights, and gives no weights"),
        (written(sha256="0" * 64), "cns", "elsewhere.safetensors"),
        (written().replace('person="person"', 'person="person", aside=0.2'), "cns", "trained elsewhere on everybody"),
        (written(weights="{}").replace(", file=FILE", ""), "cns", "the service handed it none"),
    ],
    ids=["no trajectory", "not given", "another file", "people apart", "not declared"],
)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_weights_that_cannot_be_followed_are_refused(
    world: World, folder: Path, recipe: str, method: str, words: str
) -> None:
    lay_out(folder, recipe=recipe)
    model_id = world.register("rows", method)
    world.work(model_id)
    assert words in (world.model(model_id).reason or "")
