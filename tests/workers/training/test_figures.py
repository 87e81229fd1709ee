"""What registration measured on everyone is in no database, and is gone with the first deletion."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from expunge_service.api.views.versions import version_views, versions_of
from expunge_service.infra.tables import Generation, Model
from expunge_service.models.figures import DATA_FREE, DELETED, FIGURES
from expunge_service.queue import Preparation
from expunge_workers.training.prepare import prepare
from tests.workers.update.test_switch import before
from tests.workers.worlds import World, database_text

SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def files(world: World) -> list[Path]:
    return sorted((world.settings.store / FIGURES).glob("*.json"))


def numbers(world: World, model_id: str) -> list[str]:
    """The figures that were measured, as they would be written; short ones would be found anywhere."""
    (file,) = files(world)
    measured = json.loads(file.read_text())
    texts = [repr(value) for value in measured.values() if isinstance(value, float)]
    texts += [repr(row["accuracy"]) for row in measured["dry_run"]]
    assert measured.items() <= world.report(model_id).items()
    return [text for text in texts if len(text) > 6]


def test_measured_figures_are_shown_until_the_first_deletion_and_are_never_in_the_database(world: World) -> None:
    model_id = world.live()
    before = world.report(model_id)
    assert {"distance_left", "dry_run"} <= before.keys()
    told = numbers(world, model_id)
    assert told and not [number for number in told if number in database_text(world)]
    world.delete("p3")
    world.work(model_id)
    after = world.report(model_id)
    assert after[FIGURES] == DELETED and after.keys() - {FIGURES} <= DATA_FREE
    assert after["seconds"] == before["seconds"]
    assert files(world) == []


@SQLITE
def test_a_report_names_the_metric_also_after_a_deletion(world: World) -> None:
    model_id = world.live("ridge", "newton")
    assert world.report(model_id)["metric"] == "r2"
    world.delete("p3")
    world.work(model_id)
    assert world.report(model_id)["metric"] == "r2"
    with world.database.read() as session:
        model = session.get_one(Model, model_id)
        views = version_views(session, model, versions_of(session, model))
    assert {view.metric for view in views} == {"r2"} and len(views) == 2


@SQLITE
def test_whoever_is_forgotten_in_version_1_takes_the_figures_along(world: World) -> None:
    model_id = world.register()
    job = world.claim(model_id)
    assert isinstance(job, Preparation)
    prepare(world.process, job, before("unlearn", world, lambda: world.delete("p3")))
    assert world.head(model_id).number == 1 and world.report(model_id)[FIGURES] == DELETED
    assert files(world) == []


@SQLITE
def test_the_scheduler_deletes_the_figures_that_a_dead_worker_left(world: World) -> None:
    model_id = world.live()
    with world.database.write() as session:
        generation = session.get_one(Generation, world.generation(model_id).id)
        generation.report = (generation.report or {}) | {FIGURES: DELETED}
    assert len(files(world)) == 1 and "distance_left" not in world.report(model_id)
    assert world.storage.figures.sweep(world.database) == 1
    assert files(world) == []
