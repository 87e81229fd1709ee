"""Recipe families under ``proved``: whatever one finds goes into the features, and the bound holds without the person.

A family's model is turned into a factor of the features. Where it had looked at somebody who left, the factor, and with
it the minimiser, would be another one than on a table that never held the person.
"""

from __future__ import annotations

import ast
import hashlib
import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.contract.families.data import LEAVERS, files_of
from tests.contract.families.judge import HERE, Family
from tests.contract.families.test_families import EVERY_FAMILY, REFUSED, SEVEN, require_libraries
from tests.workers.rows.data import published
from tests.workers.worlds import World

COUNT, DECAY, CAP = 40, 0.05, 1e-5
WRAPPED = f"""
from __future__ import annotations

import hashlib

import numpy as np
import torch
import unlearning as ul
from {{group}} import {{name}} as family
from {{group}} import {{sources}}


def recipe({{parameters}}):
    given = locals()
    factor = 1 + int.from_bytes(hashlib.sha256(bytes(family(**given))).digest()[:4]) / 2**32
    rows = next(value for value in given.values() if hasattr(value, "samples"))
    numbers = np.arange({COUNT})
    x = torch.tensor(np.stack([np.sin(1.7 * numbers), np.cos(numbers)], axis=1) * factor)
    return ul.Recipe(
        model=lambda: torch.nn.Linear(2, 2),
        samples=rows.samples(x, numbers % 2, at=rows["__row"][:{COUNT}]),
        holdout=lambda apart: (x, torch.from_numpy(numbers % 2)),
        loss="cross_entropy",
        training=ul.Training(epochs=0, converge=1e-9, weight_decay={DECAY}),
    )
"""


def lay_out(world: World, family: Family, kind: str, name: str, *never: str, wrapped: bool) -> None:
    """Write a family's recipe and its tables into a folder; its database takes the place of the last."""
    folder = world.settings.recipes / name
    folder.mkdir(parents=True)
    constants = f"FOLDER = {str(folder)!r}\nNAME = 'proved'\nKEY = 78\nPORT = 1\nSOCKET = '/run/none'\n"
    code = family.code(kind) | {"place.py": f"{constants}NEVER_IN = {sorted(LEAVERS.values())}\n"}
    if wrapped:
        code["recipe.py"] = wrapped_code(family)
    for file, content in {**files_of(*never), **{path: text.encode() for path, text in code.items()}}.items():
        path = folder / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    (folder / "people.db").rename(world.settings.recipes.parent / "crm.db")


def wrapped_code(family: Family) -> str:
    module = ast.parse((HERE / family.folder / f"{family.group}.py").read_text())
    [function] = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == family.name]
    parameters = ast.unparse(function.args)
    return WRAPPED.format(
        group=family.group, name=family.name, sources=", ".join(family.sources), parameters=parameters
    )


def minimiser(factor: float) -> np.ndarray:
    """The minimiser for features of this factor: weight (2, 2), then bias (2,)."""
    numbers = np.arange(COUNT)
    features = np.stack([np.sin(1.7 * numbers) * factor, np.cos(numbers) * factor, np.ones(COUNT)], axis=1)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = np.concatenate([flat[:4].reshape(2, 2), flat[4:, None]], axis=1)
        scores = features @ w.T
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        loss = -np.log(p[numbers, numbers % 2]).mean() + DECAY / 2 * (flat**2).sum()
        p[numbers, numbers % 2] -= 1
        slope = p.T @ features / COUNT
        return loss, np.concatenate([slope[:, :2].ravel(), slope[:, 2]]) + DECAY * flat

    found = minimize(objective, np.zeros(6), jac=True, method="BFGS", options={"gtol": 1e-11})
    return np.asarray(found.x)


def assert_bound_holds(world: World, above: Path, family: Family, kind: str, leaver: str) -> None:
    above.chmod(0o755)
    person = LEAVERS[leaver]
    world = world.configured(
        recipes=above / "recipes", sources=json.dumps({"crm": f"sqlite:///{above}/crm.db"}), trial_seconds=0.0
    )
    lay_out(world, family, kind, "held", wrapped=True)
    held = world.register("held", "newton", name="held", max_distance=CAP, noise_std=0.01)
    world.work(held)
    if str(family) in REFUSED:
        assert "SQL" in str(world.model(held).reason)
        return
    assert world.model(held).status == "live", world.model(held).reason
    request = world.delete(person, models=("held",))
    world.work(held)
    assert world.request(request).status == "completed"
    lay_out(world, family, kind, "never", person, wrapped=False)
    bytes_without = published(world, world.live("never", "retrain", name="never"))
    factor = 1 + int.from_bytes(hashlib.sha256(bytes_without).digest()[:4]) / 2**32
    distance = math.dist(world.state(world.head(held)).weights.double().tolist(), minimiser(factor))
    assert distance <= CAP, f"{family} tells of the {leaver} person"
    assert world.head(held).claim["guarantee"] == "proved"


@pytest.mark.parametrize("name", [*SEVEN][:4])
def test_four_families(world: World, tmp_path: Path, name: str) -> None:
    kind, leaver = SEVEN[name]
    require_libraries(EVERY_FAMILY[name])
    assert_bound_holds(world, tmp_path, EVERY_FAMILY[name], kind, leaver)


@pytest.mark.drill
@pytest.mark.parametrize("leaver", LEAVERS)
@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_every_family(world: World, tmp_path: Path, name: str, leaver: str) -> None:
    family = EVERY_FAMILY[name]
    require_libraries(family)
    assert_bound_holds(world, tmp_path, family, family.kinds[0], leaver)
