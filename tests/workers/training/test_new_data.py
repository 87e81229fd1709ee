"""Retrains on new data: what is counted first, who is left out, what is refused, and the schedule."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from expunge_service.infra.db import now
from expunge_service.infra.tables import Generation, Membership, Model
from expunge_service.models.retrain_plan import plan_new_data
from expunge_service.requests.states import RequestRefused
from expunge_workers.scheduler import run
from expunge_workers.storage import manifest
from expunge_workers.training.cohort import Changes, changes
from tests.workers.tables import Table, table_of
from tests.workers.training.test_retrain import entries, generations
from tests.workers.worlds import World, seconds
from unlearning.columns import Column

EVERYBODY = [f"p{number}" for number in range(40)]
NONE = Changes(served=0, samples=0, gone=0, changed=0, new=0, people_new=0, left_out=0, people_left_out=0)


@pytest.fixture
def scene(world: World, tmp_path: Path) -> tuple[World, Table, str]:
    """A live model on a table of 40 people."""
    world, table = table_of(world, tmp_path / "tables", 40)
    return world, table, world.live("people", guarantee="proved")


def plan(world: World, model_id: str, dry_run: bool = False) -> int:
    with world.database.write() as session:
        return plan_new_data(session, session.get_one(Model, model_id), dry_run=dry_run).id


def found(world: World, generation_id: int) -> dict[str, Any]:
    with world.database.read() as session:
        return session.get_one(Generation, generation_id).report or {}


def digests(*rows: tuple[str, str, str]) -> manifest.SampleIndex:
    """Samples by name, content and people ("ada eve"), at places from 0."""
    names, contents = (
        np.array([list(sha256(row[column].encode()).digest()) for row in rows], dtype=np.uint8).reshape(-1, 32)
        for column in (0, 1)
    )
    people = Column.of(tuple(row[2].split()) for row in rows)
    return manifest.SampleIndex(names, contents, torch.arange(len(rows)), people, people.map("+".join))


def test_changes_are_counted_by_sample_and_by_person() -> None:
    """Each kind of change once, in one table: the counts are those that a person would write down."""
    places = digests(
        ("same", "x", "ada"),
        ("other", "x", "ada"),
        ("gone", "x", "bob"),
        ("forgotten", "x", "cyd"),
        ("forgotten and gone", "x", "cyd"),
    )
    everyone = digests(
        ("same", "x", "ada"),
        ("other", "y", "ada"),
        ("forgotten", "x", "cyd"),
        ("fresh", "x", "dan eve"),
        ("more", "x", "ada"),
        ("shared", "x", "ada cyd"),
    )
    kept = everyone.take(everyone.subjects.where(lambda people: "cyd" not in people))
    expected = Changes(served=3, samples=4, gone=1, changed=1, new=2, people_new=2, left_out=2, people_left_out=1)
    out = everyone.take(everyone.subjects.where(lambda people: "cyd" in people))
    assert changes(places, {3, 4}, kept, out) == expected
    assert changes(digests(), set(), digests(), digests()) == NONE


def test_a_dry_run_counts_the_changes_and_changes_nothing(scene: tuple[World, Table, str]) -> None:
    world, table, model_id = scene
    forgotten, gone, late = EVERYBODY[:3]
    world.delete(forgotten)
    world.work(model_id)
    before, head = world.footprint(), world.head(model_id)
    fresh = table.grow(5)
    table.add(late, 1)
    table.drop(gone)
    table.write()
    generation = plan(world, model_id, dry_run=True)
    world.work(model_id)
    report = found(world, generation)["changes"]
    samples = world.generation(model_id).manifest["samples"]
    assert report == {
        "served": samples - 3,
        "samples": samples - 3 - 3 + 3 * len(fresh) + 1,
        "gone": 3,
        "changed": 0,
        "new": 3 * len(fresh) + 1,
        "people_new": len(fresh),
        "left_out": 3,
        "people_left_out": 1,
    }
    assert {**world.footprint(), "AuditEntry": 0} == {**before, "AuditEntry": 0}
    assert (world.head(model_id).id, world.model(model_id).reason) == (head.id, None)
    assert [each.status for each in generations(world, model_id)] == ["live", "ended"]
    assert world.count(Membership) == samples
    assert entries(world, "retrain.dry_run_ended")[0]["refused"] is False
    again = plan(world, model_id, dry_run=True)
    assert again != generation, "the ended dry run is over: another one may be asked for"


def test_a_retrain_on_new_data_trains_on_who_is_there_now(scene: tuple[World, Table, str]) -> None:
    world, table, model_id = scene
    first = world.head(model_id)
    asked = EVERYBODY[0]
    fresh = table.grow(5)
    table.write()
    request = world.delete(asked)
    world.work(model_id)
    early = world.delete(fresh[0])  # in the table, and not yet in the model
    assert (world.task(request).status, world.request(early).reason) == ("completed", "no_match")
    plan(world, model_id)
    world.work(model_id)
    model, head = world.model(model_id), world.head(model_id)
    assert (model.status, head.number) == ("live", first.number + 2)
    assert head.generation_id == generations(world, model_id)[1].id
    counts = found(world, head.generation_id)["changes"]
    assert (counts["left_out"], counts["people_left_out"], counts["people_new"]) == (6, 2, len(fresh) - 1)
    assert world.generation(model_id).spent == 0
    later = world.delete(fresh[1])
    world.work(model_id)
    assert (world.task(later).status, world.task(later).samples) == ("completed", 3)


def test_a_blocked_deletion_ends_with_the_retrain_on_the_new_data(scene: tuple[World, Table, str]) -> None:
    """Retained rows that went away without a request block an update; training on what is there is the way out."""
    world, table, model_id = scene
    asked, gone = EVERYBODY[:2]
    table.drop(gone)
    table.write()
    request = world.delete(asked)
    world.work(model_id)
    assert (world.task(request).status, world.task(request).reason) == ("blocked", "needs_retrain")
    plan(world, model_id)
    world.work(model_id)
    assert (world.task(request).status, world.task(request).samples) == ("completed", 3)
    assert world.head(model_id).number == 2


def test_a_dry_run_that_waits_becomes_the_retrain(scene: tuple[World, Table, str]) -> None:
    world, _, model_id = scene
    dry = plan(world, model_id, dry_run=True)
    assert plan(world, model_id, dry_run=True) == dry
    assert plan(world, model_id) == dry
    with pytest.raises(RequestRefused, match="planned or runs"):
        plan(world, model_id, dry_run=True)
    world.work(model_id)
    assert world.head(model_id).generation_id == dry
    assert plan(world, model_id) != dry


def test_a_model_that_is_not_served_is_not_retrained(world: World, tmp_path: Path) -> None:
    world, _ = table_of(world, tmp_path / "tables", 20)
    with pytest.raises(RequestRefused, match="preparing"):
        plan(world, world.register("people"))


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_recipe_whose_code_changed_is_refused(scene: tuple[World, Table, str], dry_run: bool) -> None:
    world, table, model_id = scene
    recipe = table.folder / "people.py"
    recipe.write_text(recipe.read_text().replace("epochs=5", "epochs=6"))
    generation = plan(world, model_id, dry_run=dry_run)
    world.work(model_id)
    assert "code is not the one" in found(world, generation)["refused"]["what"]
    reason = world.model(model_id).reason
    assert reason is None if dry_run else "code is not the one" in (reason or "")
    assert world.head(model_id).number == 1


def test_a_comment_in_the_recipe_blocks_no_update(scene: tuple[World, Table, str]) -> None:
    world, table, model_id = scene
    recipe = table.folder / "people.py"
    recipe.write_text(
        '"""The model of our customers."""\n'
        + recipe.read_text().replace("    inputs =", "    # a one beside them\n    inputs =")
    )
    request = world.delete(EVERYBODY[0])
    world.work(model_id)
    assert world.task(request).status == "completed"


WEEK = 7 * 86_400


def due(world: World, model_id: str) -> None:
    with world.database.write() as session:
        model = session.get_one(Model, model_id)
        assert model.retrain_at is not None
        model.retrain_at = now(session) - 1


def test_a_retrain_is_planned_when_it_is_due_and_the_next_one_after_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, table = table_of(world, tmp_path / "tables", 40)
    model_id = world.live("people", guarantee="proved", retrain_every=WEEK)
    rung: list[str] = []
    monkeypatch.setattr(run, "notify_one", lambda _, name, _place: rung.append(name))
    world.change(Model, model_id, notified_at=0)
    world.work(model_id)
    assert (world.head(model_id).number, run.sweep(world.database, world.process.notifier)) == (1, 0)
    table.grow(3)
    table.write()
    due(world, model_id)
    assert run.sweep(world.database, world.process.notifier) == 1
    assert rung == [model_id]
    world.work(model_id)
    model, head = world.model(model_id), world.head(model_id)
    assert (head.number, found(world, head.generation_id)["reason"]) == (2, "new_data")
    assert model.retrain_at is not None and model.retrain_at >= head.published_at + seconds(WEEK - 60)
    world.work(model_id)
    assert world.head(model_id).number == 2


def test_data_that_lost_many_samples_are_refused_and_looked_at_again_later(world: World, tmp_path: Path) -> None:
    world, table = table_of(world, tmp_path / "tables", 40)
    model_id = world.live("people", guarantee="proved", retrain_every=WEEK)
    for name in EVERYBODY[:6]:
        table.drop(name)
    table.write()
    due(world, model_id)
    world.work(model_id)
    model = world.model(model_id)
    assert (model.status, world.head(model_id).number) == ("live", 1)
    assert "18 of " in (model.reason or "") and "samples are missing" in (model.reason or "")
    assert model.retrain_at is not None and model.retrain_at > world.head(model_id).published_at
    plan(world, model_id)  # somebody looked at it, and wants it
    world.work(model_id)
    assert world.head(model_id).number == 2


def test_a_model_without_a_schedule_has_none(scene: tuple[World, Table, str]) -> None:
    world, _, model_id = scene
    assert world.model(model_id).retrain_at is None
