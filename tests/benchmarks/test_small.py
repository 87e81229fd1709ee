"""Every benchmark, run small: what takes a second or two with the tests, the others as drills.

A benchmark whose recipe the service refuses, or that calls what is gone, fails here.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import select

from benchmarks.release import delete, live, worker
from expunge_service.infra.tables import Version

FOLDER = Path(__file__).parents[2] / "benchmarks"
ELSEWHERE = {"gpu", "not_built"}
"""run small by a test file of their own"""
RECIPE = re.compile(r"^def recipe\((?P<parameters>.*?)\)(?: -> [\w.| ]+)?:", re.MULTILINE | re.DOTALL)

pytestmark = pytest.mark.usefixtures("one_thread")


@dataclass(frozen=True)
class Small:
    """The module's constants to set, and what yields its rows; a drill where it makes worlds or starts servers."""

    sizes: Mapping[str, Any] = field(default_factory=dict)
    rows: Callable[[Any], Iterable[Mapping[str, Any]]] = lambda module: module.rows()
    drill: bool = True


def rewind_and_safe(module: Any) -> Iterable[Mapping[str, Any]]:
    updates, steps = module.safe_update_rows(1), module.safe_step_rows(1)
    return chain(module.rewind_rows(20, 1), module.proved_rows(2, 1), module.safe_rows(), updates, steps)


def newton_and_mini(module: Any) -> Iterable[Mapping[str, Any]]:
    name, softmax = next(module.descents())
    return chain(module.newton_rows("digits", module.digits()), module.lissa_rows(), module.mini_rows(name, softmax))


SMALL = {
    "accept": Small({"MODELS": (1, 20), "TIMES": 1, "PEOPLE": 10}),
    "beside_peer": Small(
        {
            "PEOPLE": 40,
            "ROUNDS": 1,
            "DELETIONS": 1,
            "CAMPAIGNS": 1,
            "CAMPAIGN": 4,
            "CLIENTS": (2,),
            "WINDOWS": 1,
            "WINDOW_SECONDS": 1,
            "QUIET_SECONDS": 10,
        }
    ),
    "beside_registration": Small({"SAMPLES": 500, "IDLE_SECONDS": 1}),
    "bounds_hold": Small(rows=lambda module: module.rows(1), drill=False),
    "certificates": Small({"REQUESTS": 20}),
    "converged_update": Small({"SAMPLES": (100,), "UPDATES": 1}),
    "deletion_feed": Small(rows=lambda module: module.rows(200, 1000, 50)),
    "example_recipes": Small({"PEOPLE": 2}, lambda module: module.rows(("estimator", "trees"))),
    "fairness": Small({"POSTS": 2, "WARM_UP": 1}),
    "history": Small({"FINISHED": (40, 80), "MODELS": (1, 2), "PEOPLE": (20, 40), "TIMES": 1}),
    "keyed_dropout": Small({"ROUNDS": 1, "STEPS": 1, "BATCH": 8}, drill=False),
    "latency": Small({"POSTS": 2, "STARTS": 1}),
    "many_people": Small(
        {"UPDATES": 2, "TOGETHER": 5}, lambda module: module.reported("sqlite", module.measured("sqlite", 100, 2))
    ),
    "memory": Small({"PEOPLE": 160}),
    "methods_newton_mini": Small({"REPEATS": 1, "SHARES": (0.1,)}, newton_and_mini),
    "methods_rewind_safe": Small({"SHARES": (0.5,), "PER_ROUND": 2}, rewind_and_safe),
    "near_misses": Small({"PEOPLE": 500, "ASKED": 20, "TIMED": 2, "WARM": 1}),
    "orders_together": Small({"ORDERS": 5, "TIMES": 1}),
    "over_http": Small({"SAMPLES": 100, "WARM": 1, "FRESH": 1, "REST_SECONDS": 1}),
    "proofs": Small({"SHORT": 50, "LONG": 100, "ASKED": 20}),
    "proved_features_mnist": Small(rows=lambda module: module.rows(("digits",)), drill=False),
    "recollection_speed": Small({"REPEATS": 1, "SUBSET": 2}, lambda module: module.digits_rows()),
    "release": Small({"BACKLOGS": (5, 10), "DRAINS": 1}, lambda module: chain(module.counted(), module.backlog_rows())),
    "rest": Small({"MODELS": 5}),
    "row_bytes": Small({"COUNT": 1000, "BATCH": 500}),
    "scaling": Small(
        {
            "SAMPLES": (64, 128),
            "DIMENSIONS": (200, 2000),
            "PEOPLE": (30, 60),
            "RETAINED": (60, 120),
            "BACKLOGS": (5, 10),
            "UPDATES": 1,
        }
    ),
    "sharded_trees": Small({"PEOPLE": 60, "DELETIONS": 1}),
    "sizing": Small({"PEOPLE": 1000, "MODELS": 2, "FORGOTTEN": 3, "ASKED": 10, "REAL": 50}),
    "start": Small({"RUNS": 1}),
    "torch_speed": Small({"REPEATS": 1}, lambda module: module.measured("perceptron")),
    "trainings_a_year": Small({"SEEDS": range(1)}, drill=False),
    "who_is_touched": Small({"ON_SQLITE": 1000, "ON_POSTGRESQL": 1000}),
    "wide_heads": Small({"FEATURES": 1000}, drill=False),
    "workers": Small(
        {"COUNTS": (1, 2), "SIZES": (("sharded", 200, 20, 20), ("small", 60, 20, 2)), "MODELS": 2, "REQUESTS": 2}
    ),
    "worlds": Small({"TIMES": 1}, lambda module: [module.of_a_world()]),
}


def test_every_benchmark_is_run_small() -> None:
    files = {file.stem for file in FOLDER.glob("[a-z]*.py") if "def rows(" in file.read_text()}
    assert SMALL.keys() | ELSEWHERE == files


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.drill] if small.drill else []) for name, small in SMALL.items()]
)
def test_it_runs_and_gives_figures(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module: ModuleType = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of worlds, and put back what a benchmark sets
    for constant, value in SMALL[name].sizes.items():
        monkeypatch.setattr(module, constant, value)
    found = list(SMALL[name].rows(module))
    assert found and all(isinstance(row["value"], int | float) for row in found)


def test_no_benchmark_holds_a_recipe_without_rows_or_trains_by_a_function_of_the_recipe() -> None:
    """One of the old form is imported without an error, and refused by the service minutes into the benchmark."""
    texts = {file.relative_to(FOLDER): file.read_text() for file in FOLDER.rglob("*.py")}
    recipes = [(place, found["parameters"]) for place, text in texts.items() for found in RECIPE.finditer(text)]
    assert {str(place) for place, _ in recipes} >= {"crowd.py", "fairness.py"}
    for place, parameters in recipes:
        assert re.search(r"= ?ul\.(table|query|folder|arrays)\(", parameters), place
    for place, text in texts.items():
        assert "recipe import Run" not in text and not re.search(r"Recipe\([^)]*\btrain=", text), place


def test_the_recipe_of_most_benchmarks_forgets_a_person(tmp_path: Path) -> None:
    process, model_id = live(tmp_path, people=12, features=3, classes=2)
    delete(process, "p3")
    worker(process).work(model_id)
    with process.storage.database.read() as session:
        assert sorted(session.scalars(select(Version.number))) == [1, 2]
    process.storage.close()
