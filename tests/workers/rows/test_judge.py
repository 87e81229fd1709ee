"""A judge, a process without the recipe's code, trains a linear head on features and computes its bound."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.optimize import minimize

from expunge_workers.check.checks import check
from expunge_workers.runtime import world_model
from expunge_workers.runtime.world import Code
from expunge_workers.runtime.world_model import WorldModel
from expunge_workers.runtime.worlds import make_world
from tests.workers.rows.data import EVERYBODY, forget, lay_out, rows_of, trained_on
from tests.workers.worlds import World

DECAY = 0.05
CAP = 1e-5
RECIPE = """
import torch
import unlearning as ul
{before}

def recipe(rows: ul.Rows = ul.table("people.csv", person="person", aside=0.2)) -> ul.Recipe:
    frame = rows.pandas()
    mean, deviation = frame.x.mean(), frame.x.std()

    def features(some):
        return torch.tensor(((some[["x"]] - mean) / deviation).assign(y=some.y).to_numpy())

    def labels(some):
        return torch.tensor((some.x + some.y > 3).to_numpy(dtype="int64"))

    return ul.Recipe(
        model=lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2)).double(),
        samples=rows.samples(features(frame), labels(frame), at=frame["__row"]),
        holdout=lambda aside: (features(aside.pandas()), labels(aside.pandas())),
        loss="cross_entropy",
        training=ul.Training(epochs=0, converge=1e-9, weight_decay={decay}),
    )
"""
PLAIN = RECIPE.format(before="", decay=DECAY)


def minimiser(people: Iterable[int]) -> np.ndarray:
    """The minimiser on the rows of these people, by a solver of another library: weight (2, 2), then bias (2,)."""
    rows = [*rows_of(people)]
    x, y = np.array([row["x"] for row in rows]), np.array([row["y"] for row in rows])
    features = np.stack([(x - x.mean()) / x.std(ddof=1), y, np.ones(len(x))], axis=1)
    labels = (x + y > 3).astype(int)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = np.concatenate([flat[:4].reshape(2, 2), flat[4:, None]], axis=1)
        z = features @ w.T
        z -= z.max(axis=1, keepdims=True)
        p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
        loss = -np.log(p[np.arange(len(p)), labels]).mean() + DECAY / 2 * (flat**2).sum()
        p[np.arange(len(p)), labels] -= 1
        slope = p.T @ features / len(p)
        return loss, np.concatenate([slope[:, :2].ravel(), slope[:, 2]]) + DECAY * flat

    found = minimize(objective, np.zeros(6), jac=True, method="BFGS", options={"gtol": 1e-11})
    return np.asarray(found.x)


def distance(world: World, model_id: str, people: Iterable[int]) -> float:
    weights = world.state(world.head(model_id)).weights.double().numpy()
    return float(np.linalg.norm(weights - minimiser(people)))


def test_a_deletion_is_proved_though_the_scaler_moves(world: World, folder: Path) -> None:
    lay_out(folder, recipe=PLAIN)
    world = world.configured(recipes=folder)
    model_id = world.live("rows", "newton", max_distance=CAP, noise_std=0.01)
    everybody = trained_on(world)
    assert distance(world, model_id, everybody) <= CAP
    staying = list(everybody)
    for leaving in ((everybody[0],), (everybody[1], everybody[2]), (everybody[3],)):
        forget(world, model_id, *leaving)
        staying = [person for person in staying if person not in leaving]
        assert distance(world, model_id, staying) <= CAP < distance(world, model_id, everybody)
    head = world.head(model_id)
    assert (head.number, head.claim["guarantee"], head.claim["world"]["walls"]) == (4, "proved", "new root")
    assert any("bound" in sentence for sentence in head.claim["checked"])
    assert head.holdout_accuracy is not None


def test_a_judge_is_asked_once_to_move_the_weights_and_bound_them(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step of ``newton`` before those of the bound would be lost. The judge measures accuracy besides."""
    lay_out(folder, recipe=PLAIN)
    world = world.configured(recipes=folder)
    model_id = world.live("rows", "newton", max_distance=CAP, noise_std=0.01)
    before = world.state(world.head(model_id))
    tasks, compute = [], WorldModel._compute

    def noted(model: WorldModel, task: str, *given: Any, **named: Any) -> Any:
        tasks.append(task)
        return compute(model, task, *given, **named)

    monkeypatch.setattr(WorldModel, "_compute", noted)
    forget(world, model_id, trained_on(world)[0])
    assert tasks == ["refine", "measure"]
    after = world.state(world.head(model_id))
    assert float((after.weights - before.weights).norm()) > CAP
    assert after.tensors == before.tensors == {} and after.facts == before.facts


def test_a_proved_update_makes_one_world_of_two_parts(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One part describes the samples, one the people kept apart; a third would be forked for nothing."""
    lay_out(folder, recipe=PLAIN)
    world = world.configured(recipes=folder)
    model_id = world.live("rows", "newton", max_distance=CAP, noise_std=0.01)
    counts: list[int] = []

    def counted(job: str, code: Code, count: int, **more: Any) -> Any:
        counts.append(count)
        return make_world(job, code, count, **more)

    monkeypatch.setattr(world_model, "make_world", counted)
    forget(world, model_id, trained_on(world)[0])
    assert counts == [2]


PATCHES = """
from unlearning.bounds import minimiser
from unlearning.methods import newton
from unlearning.model import convex

convex.distance_bound = lambda *_, **__: 0.0
convex.approach = lambda problem, w, *rest: (w, 0.0)
minimiser.Minimiser.distance = lambda *_, **__: 0.0
minimiser.Minimiser.refine = lambda _, problem, forgotten, *rest: (forgotten.state.weights, 0.0)
newton.Newton.forget = lambda self, problem, state, *rest: __import__("unlearning").types.Forgotten(state)
"""


def test_check_says_what_each_method_can_have(folder: Path) -> None:
    lay_out(folder, recipe=PLAIN)
    checked = check(folder, "rows")
    assert all(finding["well"] for finding in checked["findings"])
    methods = {method["method"]: method["guarantee"] for method in checked["methods"]}
    assert (methods["retrain"], methods["newton"], methods["rewind"]) == ("exact", "proved", "none")
    assert [method["guarantee"] for method in checked["methods"]][:2] == ["exact", "exact"]


def test_a_recipe_that_patches_the_bound_gains_nothing(world: World, folder: Path) -> None:
    lay_out(folder, recipe=RECIPE.format(before=PATCHES, decay=DECAY))
    world = world.configured(recipes=folder)
    model_id = world.live("rows", "newton", max_distance=CAP, noise_std=0.01)
    everybody = trained_on(world)
    forget(world, model_id, everybody[0])
    assert distance(world, model_id, everybody[1:]) <= CAP


SEARCH = """
import gc
import sys


def search():
    # raises where a caller holds a file of earlier weights, or a vector as long as the model's lies in memory
    frame = sys._getframe()
    while frame is not None:
        for held in (value for value in frame.f_locals.values() if isinstance(value, dict)):
            if any(isinstance(held.get(name), memoryview) for name in ("state", "weights")):
                raise LookupError
        frame = frame.f_back
    if any(isinstance(each, torch.Tensor) and each.shape == (6,) for each in gc.get_objects()):
        raise LookupError

"""


@pytest.mark.parametrize(("method", "finds"), [("newton", False), ("cns", True)])
def test_a_recipe_that_looks_for_earlier_weights_finds_none_beside_a_judge(
    world: World, folder: Path, method: str, finds: bool
) -> None:
    """Where it trains by steps there is no judge, and its process is handed them: the search finds what is there."""
    looking = RECIPE.format(before=SEARCH, decay=DECAY).replace("frame = rows", "search()\n    frame = rows")
    if finds:
        looking = looking.replace("epochs=0, converge=1e-9", "epochs=5")
    lay_out(folder, recipe=looking)
    world = world.configured(recipes=folder).limited(distance_left=1e9)
    if finds:
        model_id = world.register("rows", method)
        world.work(model_id)
        assert "LookupError" in str(world.model(model_id).reason)
        return
    model_id = world.live("rows", method, max_distance=CAP, noise_std=0.01)
    everybody = trained_on(world)
    forget(world, model_id, everybody[0])
    assert distance(world, model_id, everybody[1:]) <= CAP


def test_a_decay_that_is_chosen_by_the_rows_moves_with_who_leaves(world: World, folder: Path) -> None:
    """The settings of the bound are those that the recipe finds in the rows of those who stay."""
    chosen = RECIPE.format(before="", decay="0.01 + 0.0001 * len(frame)")
    lay_out(folder, recipe=chosen)
    world = world.configured(recipes=folder)
    held = world.live("rows", "newton", name="held", max_distance=CAP, noise_std=0.01)
    leaving = trained_on(world)[0]
    forget(world, held, leaving)
    lay_out(folder, (person for person in EVERYBODY if person != leaving), chosen)
    never = world.live("rows", "newton", name="never", max_distance=CAP, noise_std=0.01)
    found = [world.state(world.head(model_id)).weights.double() for model_id in (held, never)]
    assert float((found[0] - found[1]).norm()) <= 2 * CAP


def test_a_holdout_that_the_recipe_gives_is_measured(world: World, folder: Path) -> None:
    given = PLAIN.replace(", aside=0.2", "").replace(
        "holdout=lambda aside: (features(aside.pandas()), labels(aside.pandas()))",
        "holdout=(features(frame)[:9], labels(frame)[:9])",
    )
    lay_out(folder, recipe=given)
    world = world.configured(recipes=folder)
    for method, policy in (("newton", {"max_distance": CAP, "noise_std": 0.01}), ("retrain", {})):
        model_id = world.live("rows", method, name=method, **policy)
        assert world.head(model_id).holdout_accuracy is not None


def test_a_model_that_is_no_head_without_the_person_is_not_proved(world: World, folder: Path) -> None:
    """Or the recipe's own code would say the bound."""
    bent = RECIPE.format(before=PATCHES, decay=DECAY).replace("torch.nn.Linear(2, 2))", "torch.nn.Linear(2, 2), *bend)")
    bent = bent.replace(
        "    return ul.Recipe(",
        "    bend = [] if (frame.person == 'p0').any() else [torch.nn.Tanh()]\n    return ul.Recipe(",
    )
    assert bent.count("bend") == 2
    lay_out(folder, recipe=bent.replace("aside=0.2", "aside=0.0001"))  # nobody is kept apart
    world = world.configured(recipes=folder)
    model_id = world.live("rows", "newton", max_distance=CAP, noise_std=0.01)
    assert world.head(model_id).claim["guarantee"] == "proved"
    request = world.delete("p0")
    world.work(model_id)
    assert (world.request(request).status, world.request(request).reason) == ("blocked", "needs_retrain")
    assert world.head(model_id).number == 1
