"""A row of several people leaves when one of them does, under every kind of method and however the people are named."""

from __future__ import annotations

import csv
import json
import random
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy.optimize import minimize

from tests.workers.rows.data import published
from tests.workers.worlds import World

PEOPLE, MEETINGS, DECAY, CAP = 24, 120, 0.05, 1e-5
SOURCES = {
    "columns": 'ul.table("meetings.csv", person=["doctor", "patient"]',
    "lists": 'ul.table("meetings.parquet", person="both"',
}
TRAINED = """
import json
import unlearning as ul


def recipe(rows: ul.Rows = {source}{more})) -> ul.Published:
    frame = rows.pandas()
    model = {{"mean": float(frame.x.mean()), "deviation": float(frame.x.std()), "rows": len(frame)}}
    return ul.Published({{"model.json": json.dumps(model)}})
"""
HEAD = f"""
import torch
import unlearning as ul


def recipe(rows: ul.Rows = {{source}}{{more}})) -> ul.Recipe:
    frame = rows.pandas()
    x = torch.tensor({{features}}.to_numpy())
    return ul.Recipe(
        model=lambda: torch.nn.Linear(1, 2).double(),
        samples=rows.samples(x, torch.tensor((frame.y > 0.5).to_numpy(dtype="int64")), at=frame["__row"]),
        holdout=(torch.zeros(2, 1, dtype=torch.float64), torch.tensor([0, 1])),
        loss="cross_entropy",
        training=ul.Training({{training}}weight_decay={DECAY}),
    )
"""
CONVERGING = "epochs=0, converge=1e-9, "
SCALED, PLAIN = "((frame[['x']] - frame.x.mean()) / frame.x.std())", "frame[['x']]"
STEPS = "epochs=4, batch_size=20, learning_rate=0.05, "


def meetings(without: Collection[str] = ()) -> list[dict[str, object]]:
    """Meetings of a doctor and a patient, who may be the same person, without those of some people."""
    draw = random.Random(3)
    rows: list[dict[str, object]] = []
    for number in range(MEETINGS):
        doctor, patient = f"p{number % 6}", f"p{draw.randrange(PEOPLE)}"
        row = {"id": number, "doctor": doctor, "patient": patient, "x": draw.gauss(number % 5, 1), "y": draw.random()}
        if not {doctor, patient} & {*without}:
            rows.append(row)
    return rows


def lay_out(folder: Path, kind: str, recipe: str, without: Collection[str] = (), more: str = "", **words: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "rows.py").write_text(recipe.format(source=SOURCES[kind], more=more, **words))
    rows = meetings(without)
    with (folder / "meetings.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0]])
        writer.writeheader()
        writer.writerows(rows)
    table = pa.Table.from_pylist([{**row, "both": [row["doctor"], row["patient"]]} for row in rows])
    parquet.write_table(table, folder / "meetings.parquet", row_group_size=17)


def gone(world: World, model_id: str, person: str) -> None:
    request = world.delete(person, models=(world.model(model_id).name,))
    world.work(model_id)
    assert world.task(request).status == "completed", world.task(request).reason


LEAVING = ("p2", "p9")
"""a doctor, who is a patient too, and one who is a patient alone"""


@pytest.mark.parametrize("kind", SOURCES)
def test_under_retrain(world: World, folder: Path, kind: str) -> None:
    lay_out(folder, kind, TRAINED)
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain", name="held")
    for person in LEAVING:
        gone(world, held, person)
    after = published(world, held)
    assert json.loads(after)["rows"] == len(meetings(LEAVING)) < len(meetings(LEAVING[1:])) < MEETINGS
    lay_out(folder, kind, TRAINED, LEAVING)
    assert published(world, world.live("rows", "retrain", name="never")) == after


@pytest.mark.parametrize("kind", SOURCES)
def test_under_proved(world: World, folder: Path, kind: str) -> None:
    """Against another library's minimiser on a table without the meetings of those who left."""
    lay_out(folder, kind, HEAD, training=CONVERGING, features=SCALED)
    world = world.configured(recipes=folder)
    held = world.live("rows", "newton", name="held", max_distance=CAP, noise_std=0.01)
    before = world.state(world.head(held)).weights.double().numpy()
    for person in LEAVING:
        gone(world, held, person)
    found = world.state(world.head(held)).weights.double().numpy()
    wanted = minimiser(LEAVING)
    assert float(np.linalg.norm(found - wanted)) <= CAP < float(np.linalg.norm(before - wanted))
    assert world.head(held).claim["guarantee"] == "proved"


def minimiser(without: Collection[str]) -> np.ndarray:
    """Weight (2, 1), then bias (2,)."""
    x, y = (np.array([row[name] for row in meetings(without)], dtype=float) for name in ("x", "y"))
    features = np.stack([(x - x.mean()) / x.std(ddof=1), np.ones(len(x))], axis=1)
    labels = (y > 0.5).astype(int)

    def objective(flat: np.ndarray) -> float:
        z = features @ flat.reshape(2, 2)
        return float((np.logaddexp(z[:, 0], z[:, 1]) - z[np.arange(len(z)), labels]).mean() + DECAY / 2 * flat @ flat)

    return np.asarray(minimize(objective, np.zeros(4), method="BFGS", options={"gtol": 1e-9}).x)


@pytest.mark.parametrize("method", ["recollection", "mini", "rewind", "cns"])
def test_under_a_method_that_goes_on(world: World, folder: Path, method: str) -> None:
    lay_out(folder, "columns", HEAD, training=STEPS, features=PLAIN)
    world = world.configured(recipes=folder).limited(distance_left=1e9)
    held = world.live("rows", method, name="held")
    samples = 0
    for person in LEAVING:
        gone(world, held, person)
        samples += world.head(held).samples
    assert samples == MEETINGS - len(meetings(LEAVING))


def test_a_row_of_several_people_leaves_by_its_id(world: World, folder: Path) -> None:
    lay_out(folder, "lists", TRAINED, more=', id="id"')
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain", granularity="sample")
    request = world.delete(samples=["5"])
    world.work(held)
    assert world.task(request).status == "completed", world.task(request).reason
    assert json.loads(published(world, held))["rows"] == MEETINGS - 1
