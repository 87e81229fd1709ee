"""A network's tangent by a judge, which is given values and Jacobians and runs no network."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from scipy.optimize import minimize

from expunge_workers.check.checks import check
from expunge_workers.runtime import model_tasks
from tests.workers.rows.data import forget, lay_out, published, rows_of, trained_on
from tests.workers.worlds import World
from unlearning.model.problem import Problem

DECAY, CAP = 0.05, 1e-5
RECIPE = """
import torch
import unlearning as ul
from safetensors.torch import load_file
from unlearning.features import Tangent

WEIGHTS = ul.public("public.safetensors", sha256="{sha256}")


def network():
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))


def recipe(rows: ul.Rows = ul.table("people.csv", person="person", aside=0.2), public=WEIGHTS) -> ul.Recipe:
    frame, weights = rows.pandas(), load_file(public)
    mean, deviation = frame.x.mean(), frame.x.std()

    def features(some):
        return torch.tensor(((some[["x"]] - mean) / deviation).assign(y=some.y).to_numpy())

    def labels(some):
        return torch.tensor((some.x + some.y > 3).to_numpy(dtype="int64"))

    return ul.Recipe(
        model=lambda: Tangent(network(), at=weights),
        samples=rows.samples(features(frame), labels(frame), at=frame["__row"]),
        holdout=lambda aside: (features(aside.pandas()), labels(aside.pandas())),
        loss="cross_entropy",
        training=ul.Training(epochs=0, converge=1e-9, weight_decay=0.05),
    )
"""
POLICY = {"max_distance": CAP, "noise_std": 0.01}


def network() -> torch.nn.Sequential:
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))


@pytest.fixture
def world(world: World, folder: Path) -> World:
    weights = save(network().state_dict())
    lay_out(folder, recipe=RECIPE.format(sha256=hashlib.sha256(weights).hexdigest()))
    (folder / "public.safetensors").write_bytes(weights)
    return world.configured(recipes=folder)


def minimiser(people: Iterable[int]) -> np.ndarray:
    """The displacement (d,) at the minimum on the rows of these people: Jacobians by autograd, and another's solver."""
    rows = [*rows_of(people)]
    x, y = np.array([row["x"] for row in rows]), np.array([row["y"] for row in rows])
    inputs = torch.tensor(np.stack([(x - x.mean()) / x.std(ddof=1), y], axis=1))
    labels, module = (x + y > 3).astype(int), network().double()
    parameters = list(module.parameters())
    values = module(inputs)
    slopes = [torch.autograd.grad(one, parameters, retain_graph=True) for one in values.reshape(-1)]
    jacobian = torch.stack([torch.cat([part.reshape(-1) for part in each]) for each in slopes]).reshape(len(x), 2, -1)
    start, jacobian = values.detach().numpy(), jacobian.numpy()

    def objective(u: np.ndarray) -> tuple[float, np.ndarray]:
        z = start + jacobian @ u
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        loss = -np.log(p[np.arange(len(p)), labels]).mean() + DECAY / 2 * u @ u
        p[np.arange(len(p)), labels] -= 1
        return float(loss), np.einsum("nk,nkd->d", p, jacobian) / len(p) + DECAY * u

    found = minimize(objective, np.zeros(jacobian.shape[2]), jac=True, method="BFGS", options={"gtol": 1e-10})
    return np.asarray(found.x)


def distance(world: World, model_id: str, people: Iterable[int]) -> float:
    weights = world.state(world.head(model_id)).weights.double().numpy()
    return float(np.linalg.norm(weights - minimiser(people)))


def test_a_deletion_from_a_tangent_is_proved_though_the_scaler_moves(world: World) -> None:
    model_id = world.live("rows", "newton", **POLICY)
    everybody = trained_on(world)
    report = world.report(model_id)
    assert (report["linearised_around"], report["accuracy_there"] > 0) == ("the given weights", True)
    first, second, third, *staying = everybody
    forget(world, model_id, first)
    forget(world, model_id, second, third)
    assert distance(world, model_id, staying) <= CAP < distance(world, model_id, everybody)
    head = world.head(model_id)
    assert (head.claim["guarantee"], head.claim["world"]["walls"]) == ("proved", "new root")
    assert head.holdout_accuracy is not None
    tensors = load(published(world, model_id))
    assert torch.equal(tensors["base.0.weight"], network()[0].weight) and tensors["displacement"].shape == (17,)


def test_check_says_that_a_tangent_is_proved(world: World, folder: Path) -> None:
    methods = {method["method"]: method["guarantee"] for method in check(folder, "rows")["methods"]}
    assert (methods["newton"], methods["retrain"]) == ("proved", "exact")


def test_jacobians_that_are_too_large_to_write_out_have_no_judge(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_tasks, "MOST_WRITTEN", 1000)
    recipe = world.recipe("rows")
    assert model_tasks.affine_for_judge(Problem(recipe), recipe) is None
    monkeypatch.undo()
    assert model_tasks.affine_for_judge(Problem(recipe), recipe) is not None
