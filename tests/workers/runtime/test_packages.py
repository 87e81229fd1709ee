"""Packages that are replaced under a running worker: it is to be restarted, and no recipe corrected."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from expunge_workers.runtime import packages
from expunge_workers.runtime.failures import RESTART, facts_of, reason_of, refusal
from tests.workers.worlds import World


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages with two, which this process found when it started."""
    place = tmp_path / "site-packages"
    for name in ("pandas-2.2.0", "my_tools-1.0"):
        (place / f"{name}.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(place)
    monkeypatch.setattr(packages, "AT_START", packages.installed())
    return place


def test_a_package_that_is_replaced_removed_or_written_again_is_noticed(folder: Path) -> None:
    assert packages.replaced() == []
    (folder / "new-1.0.dist-info").mkdir()
    assert packages.replaced() == [], "what comes in addition replaces nothing"
    (folder / "pandas-2.2.0.dist-info").rename(folder / "pandas-2.3.0.dist-info")
    assert packages.replaced() == ["pandas 2.2.0"]
    time.sleep(0.01)
    (folder / "my_tools-1.0.dist-info" / "RECORD").touch()
    assert packages.replaced() == ["my_tools 1.0", "pandas 2.2.0"]


RECIPE = """
import unlearning as ul


def recipe(rows: ul.Rows = ul.table("people.csv", person="person")) -> ul.Published:
    import pandas.no_such_part
"""


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_recipe_that_fails_then_is_not_blamed(world: World, folder: Path) -> None:
    (world.settings.recipes / "r.py").write_text(RECIPE)
    (folder / "pandas-2.2.0.dist-info").rename(folder / "pandas-2.3.0.dist-info")
    model_id = world.register("r", "retrain")
    world.work(model_id)
    reason = str(world.model(model_id).reason)
    assert reason.startswith("Packages were replaced under the running worker, which had pandas 2.2.0.")
    assert reason.endswith(RESTART) and "orrect" not in reason


def test_a_blocked_task_says_which_package(folder: Path, tmp_path: Path) -> None:
    (folder / "my_tools-1.0.dist-info").rmdir()
    reason, facts = reason_of(refusal(ImportError("no_such_part"), tmp_path))
    assert reason.says(facts, ["models:read"]) == (
        "Packages were replaced under the running worker, which had my_tools 1.0: restart it."
    )
    assert facts == facts_of(refusal(ImportError("another"), tmp_path)), "no message is in it"
