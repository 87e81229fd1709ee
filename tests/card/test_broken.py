"""A training that breaks its device is refused, with the line of the recipe; the next deletion is done."""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

from sqlalchemy import select

from expunge_service.infra.tables import Heartbeat
from tests.harness.stack import running
from tests.workers.rows.data import lay_out
from tests.workers.rows.test_judge import PLAIN as HEAD

DEVICE = os.environ.get("EXPUNGE_TESTS_DEVICE", "cpu")
BREAKS = f"""
import torch
import unlearning as ul


def recipe(rows: ul.Rows = ul.table("people.csv", person="person")) -> ul.Published:
    x = rows.tensor("x").to("{DEVICE}")
    beyond = torch.full((1,), len(x) + 10_000_000, device=x.device)
    total = x[beyond].sum()
    return ul.Published({{"total.txt": str(float(total))}})
"""
"""an index out of bounds: on a card the kernel's assertion fails, and all that the process asks of it afterwards"""


def test_a_training_that_breaks_its_device_harms_no_other(tmp_path: Path) -> None:
    recipes = tmp_path / "recipes"
    for name, recipe in (("head", HEAD.replace("aside=0.2", "aside=0.0001")), ("breaks", BREAKS)):
        (recipes / name).mkdir(parents=True)
        lay_out(recipes / name, recipe=recipe)
        (recipes / name / "rows.py").rename(recipes / name / "recipe.py")
    with running(tmp_path / "home", recipes, DEVICE=DEVICE, TRIAL_SECONDS="0") as stack:
        with closing(stack.database()) as database, database.read() as session:
            worker = session.scalars(select(Heartbeat).where(Heartbeat.kind == "worker")).one()
        assert worker.device == DEVICE.partition(":")[0]
        served = stack.live("head", "newton", max_distance=1e-5, noise_std=0.01, max_accuracy_drop=None)
        refused = stack.prepared(stack.register("breaks", "retrain", max_accuracy_drop=None))
        assert refused["status"] == "refused", refused
        assert "recipe.py" in refused["reason"], refused["reason"]
        assert stack.forgotten(served, subject_id="p1")["status"] == "completed"
        assert stack.head(served)["number"] == 2
