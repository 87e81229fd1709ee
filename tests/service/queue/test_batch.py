"""Deletions of a model with a batch wait for its next update, and share it."""

from __future__ import annotations

import re
import time
from datetime import timedelta
from importlib import import_module
from types import SimpleNamespace

import pytest
from alembic.migration import MigrationContext
from alembic.operations import Operations

from expunge_service.access import Scope
from expunge_service.api.views.models import model_view
from expunge_service.api.views.requests import request_view
from expunge_service.infra.db import now
from expunge_service.infra.tables import DeletionRequest, Generation, Model, Task, Version
from expunge_service.infra.time import SECOND, instant
from expunge_service.models.policy import change_policy
from expunge_service.requests import intake
from expunge_service.requests.cancellation import cancel
from expunge_service.requests.deadlines import Regulation
from expunge_service.requests.legal_holds import retry
from expunge_service.requests.states import RequestRefused, Suppress
from expunge_workers.scheduler.run import sweep
from tests.faults.invariants import broken
from tests.workers.test_crashes import die_at
from tests.workers.worlds import TENANT, World
from unlearning.accounting.certificate import Claim, Guarantee

WEEK = 7 * 86_400
DAY = 86_400 * SECOND
REPAIR = 3 * DAY
POINTS = ("worker-after-compute", "store-half-file", "publish-after-audit", "worker-after-commit", "worker-before-ack")


def in_batches(world: World, seconds: int = WEEK, name: str = "m", method: str = "late") -> str:
    return world.live("own_training" if method == "late" else "means", method, name, batch=seconds)


def time_passes(world: World, model_id: str) -> None:
    """A week passes since the last update, and the scheduler notifies."""
    world.change(Version, world.head(model_id).id, published_at=1)
    world.change(Model, model_id, due_at=1)


def test_everybody_waits_for_the_models_next_update(world: World) -> None:
    model_id = in_batches(world)
    requests = [world.delete("p1"), world.delete("p2")]
    world.work(model_id)
    requests.append(world.delete("p3"))
    world.work(model_id)
    assert {(world.task(each).status, world.task(each).reason) for each in requests} == {("queued", "awaiting_batch")}
    assert world.model(model_id).due_at == world.head(model_id).published_at + WEEK * SECOND
    time_passes(world, model_id)
    world.work(model_id)
    assert {world.task(each).status for each in requests} == {"completed"}
    assert Claim.from_json(world.head(model_id).claim).guarantee is Guarantee.EXACT
    assert len(world.versions(model_id)) == 2


@pytest.mark.both_engines
def test_a_clock_that_jumped_ahead_when_a_version_was_published_lengthens_no_wait(world: World) -> None:
    """Looked at again and again, the batch ends a week after the request came, not a week after each look."""
    model_id = in_batches(world, method="retrain")
    world.change(Version, world.head(model_id).id, published_at=int(time.time() + 365 * 86_400) * SECOND)
    request = world.delete("p1")
    world.work(model_id)
    first = world.task(request)
    assert (first.status, first.reason) == ("queued", "awaiting_batch")
    assert world.model(model_id).due_at == first.not_before + WEEK * SECOND
    a_day_less = first.not_before - 6 * DAY
    world.change(Task, first.id, not_before=a_day_less, created_at=a_day_less)
    world.change(Model, model_id, due_at=1)
    world.work(model_id)
    assert world.model(model_id).due_at == a_day_less + WEEK * SECOND
    a_week_ago = first.not_before - 7 * DAY
    world.change(Task, first.id, not_before=a_week_ago, created_at=a_week_ago)
    world.change(Model, model_id, due_at=1)
    world.work(model_id)
    assert world.task(request).status == "completed"


def test_one_retraining_serves_all_who_wait_and_equals_a_cold_one(world: World) -> None:
    model_id = in_batches(world, name="deleted")
    gone = ["p1", "p4", "p7", "p9"]
    requests = [world.delete(person, models=("deleted",)) for person in gone]
    world.work(model_id)
    time_passes(world, model_id)
    world.work(model_id)
    assert {world.task(each).status for each in requests} == {"completed"}
    assert [version.people for version in world.versions(model_id)] == [0, 4]
    for person in gone:
        world.delete(person)
    never = world.register("own_training", "late", name="never", leave_out_forgotten=True)
    world.work(never)
    assert world.head(never).checkpoint == world.head(model_id).checkpoint


def test_the_legal_deadline_comes_before_the_batch(world: World) -> None:
    """Three days and two trainings before it the deletion is due, and takes along everybody who waits."""
    model_id = in_batches(world, seconds=60 * 86_400)
    measured(world, model_id, 16)
    calm, hurried = world.delete("p1"), ordered(world, "p2", timedelta(days=20))
    world.work(model_id)
    due_at, moment = world.request(hurried).due_at, world.model(model_id).due_at
    assert due_at is not None and moment == due_at - REPAIR - 2 * 16 * SECOND
    urgent = ordered(world, "p3", timedelta(days=42, hours=12))
    assert sweep(world.database, world.process.notifier) == 1, "its notification may be lost: nobody has seen it"
    world.work(model_id)
    assert {world.task(each).status for each in (calm, hurried, urgent)} == {"completed"}
    assert len(world.versions(model_id)) == 2


@pytest.mark.both_engines
def test_a_deletion_that_waited_before_there_was_a_reason_gets_it_after_the_migration(world: World) -> None:
    model_id = in_batches(world)
    request = world.delete("p1")
    planned = world.head(model_id).published_at + WEEK * SECOND
    world.change(Model, model_id, due_at=planned)  # as the code before migration 0008 left it
    assert sweep(world.database, world.process.notifier) == 0, "the request shows neither reason nor moment"
    with world.database.engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        import_module("expunge_migrations.versions.v0016_waiting").upgrade()
    assert sweep(world.database, world.process.notifier) == 1
    world.work(model_id)
    assert (world.task(request).reason, world.model(model_id).due_at) == ("awaiting_batch", planned)


def test_a_request_without_a_deadline_is_planned_for_thirty_days(world: World) -> None:
    model_id = in_batches(world, seconds=60 * 86_400)
    measured(world, model_id, 16)
    request = world.delete("p1")
    world.work(model_id)
    row = world.request(request)
    planned = row.received_at + 30 * DAY - REPAIR - 2 * 16 * SECOND
    assert row.due_at is None and world.model(model_id).due_at == planned


def measured(world: World, model_id: str, seconds: float) -> None:
    """Say that the model's training took so long, by the wall and of work."""
    generation = world.generation(model_id)
    world.change(
        Generation, generation.id, report=(generation.report or {}) | {"seconds": seconds, "work_seconds": seconds}
    )


def test_by_default_whoever_repeats_a_training_of_over_a_minute_waits_a_week(world: World) -> None:
    model_id = world.live("means", "retrain", batch=None)
    measured(world, model_id, 8)
    assert world.model(model_id).policy["batch"] is None
    with world.database.read() as session:
        said = model_view(session, session.get_one(Model, model_id)).updates
    assert said is not None and said.endswith("Each deletion is carried out at once, with all who wait.")
    measured(world, model_id, 3 * 3600)
    request = world.delete("p1")
    world.work(model_id)
    assert world.task(request).reason == "awaiting_batch"
    assert world.model(model_id).due_at == world.head(model_id).published_at + WEEK * SECOND
    with world.database.read() as session:
        said = model_view(session, session.get_one(Model, model_id)).updates
        (part,) = request_view(session, session.get_one(DeletionRequest, request), {Scope.DELETIONS_READ}).models
    assert said == (
        "A training takes at most 3 h. Deletions wait for the next update, at most one in 7 d. That makes about 52 "
        "trainings a year, whole or in part. There are more where requests come or are decided with less than 10 d and "
        "two trainings left. A deletion is usually done within 7 d and two trainings."
    )
    title = r"Waits for the model's next update on .* UTC, with all who wait; it will be done by \d+ \w+ 20\d\d\."
    assert re.fullmatch(title, part.title or "")
    assert [step.verb for step in part.actions] == ["hurry"]


@pytest.mark.parametrize(("days", "by_deadline"), [(45, False), (46, True), (365, True)])
def test_of_a_batch_beyond_every_deadline_no_rate_is_said(world: World, days: int, by_deadline: bool) -> None:
    model_id = world.live("means", "retrain", batch=days * 86_400)
    with world.database.read() as session:
        said = model_view(session, session.get_one(Model, model_id)).updates or ""
    waits = "Deletions wait until 3 d and two trainings before the earliest deadline, and share that update."
    assert said.endswith(waits) is by_deadline and ("a year" in said) is not by_deadline


def test_a_training_that_is_too_long_for_a_law_is_said(world: World) -> None:
    model_id = world.live("means", "retrain")
    for days, laws in ((5.0, []), (7.0, ["lgpd"]), (14.0, ["gdpr", "uk-gdpr", "lgpd", "pipeda"])):
        measured(world, model_id, days * 86_400)
        with world.database.read() as session:
            said = model_view(session, session.get_one(Model, model_id)).updates or ""
        assert ("longer than the deadline" in said) == bool(laws)
        assert f"deadline of {', '.join(laws)}: deletions may be late" in said or not laws


def ordered(world: World, person: str, ago: timedelta) -> str:
    """A request that was received so long ago, and has 45 days from then."""
    with world.database.write() as session:
        received = instant(now(session)) - ago
        order = intake.Order(
            subject_id=person,
            models=("m",),
            suppress=Suppress.NAMED_MODELS,
            regulation=Regulation.CCPA,
            received_at=received,
        )
        return intake.accept(session, world.storage.pepper, TENANT, order).request.id


def test_by_default_nobody_waits_where_a_training_is_short(world: World) -> None:
    model_id = world.live("own_training", "late", batch=None)
    measured(world, model_id, 64)
    request = world.delete("p1")
    world.work(model_id)
    assert world.task(request).status == "completed"


def test_a_training_on_a_busy_machine_is_judged_by_its_work(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the wall it takes ten thousand times as long as it computes, as where other processes have the machine."""
    monotonic, perf_counter = time.monotonic, time.perf_counter
    clocks = {"monotonic": lambda: 10_000 * monotonic(), "perf_counter": lambda: 10_000 * perf_counter()}
    for place in ("training.start", "training.prepare", "runtime.heartbeat"):
        monkeypatch.setattr(f"expunge_workers.{place}.time", SimpleNamespace(**vars(time) | clocks))
    monkeypatch.setattr("expunge_workers.runtime.heartbeat.sleep", lambda _: None)
    model_id = world.live("means", "retrain", batch=None)
    report = world.report(model_id)
    assert report["seconds"] > 64 > report["work_seconds"] > 0
    request = world.delete("p1")
    world.work(model_id)
    assert world.task(request).status == "completed", "it does not wait a week"


@pytest.mark.parametrize("method", ["retrain", "shards"])
def test_an_update_measures_the_training_again(world: World, method: str) -> None:
    """A generation of before has the time by the wall alone, of the one busy hour in which it was registered."""
    model_id = world.live("own_training", method, batch=None)
    generation = world.generation(model_id)
    report = {name: value for name, value in (generation.report or {}).items() if name != "work_seconds"}
    world.change(Generation, generation.id, report=report | {"seconds": 3 * 3600.0})
    first = world.delete("p1")
    world.work(model_id)
    assert world.task(first).reason == "awaiting_batch"
    with world.database.write() as session:
        assert retry(session, session.get_one(DeletionRequest, first)) == [model_id]
    world.work(model_id)
    assert world.task(first).status == "completed"
    if method == "shards":
        assert "work_seconds" not in world.report(model_id), "it repeated a small part, which says nothing of the whole"
        return
    assert world.report(model_id)["work_seconds"] < 64
    second = world.delete("p2")
    world.work(model_id)
    assert world.task(second).status == "completed"


def test_who_waits_can_be_cancelled_until_the_claim_and_can_be_hurried(world: World) -> None:
    model_id = in_batches(world)
    requests = [world.delete(person) for person in ("p1", "p2", "p3")]
    world.work(model_id)
    with world.database.write() as session:
        waiting = session.get_one(DeletionRequest, requests[2])
        view = request_view(session, waiting, {Scope.DELETIONS_READ})
        assert (view.cancellable, view.cancellable_until) == (True, world.model(model_id).due_at)
        cancel(session, waiting)
    with world.database.write() as session:
        assert retry(session, session.get_one(DeletionRequest, requests[0])) == [model_id]
    world.work(model_id)
    assert [world.task(each).status for each in requests] == ["completed", "completed", "cancelled"]
    with pytest.raises(RequestRefused), world.database.write() as session:
        cancel(session, session.get_one(DeletionRequest, requests[0]))


def test_a_shorter_batch_lets_those_go_on_who_wait(world: World) -> None:
    model_id = in_batches(world, method="retrain")
    requests = [world.delete(f"p{number}") for number in range(3)]
    world.work(model_id)
    with world.database.write() as session:
        assert change_policy(session, session.get_one(Model, model_id), {"batch": 0})
    world.work(model_id)
    assert len(world.versions(model_id)) == 2
    assert {world.task(each).status for each in requests} == {"completed"}


def test_workers_die_around_updates_and_the_last_version_is_that_of_a_cold_training(world: World) -> None:
    """One after the other they forget somebody who was early or came later; each has waited."""
    model_id = in_batches(world, name="deleted")
    gone = ["p1", "p3", "p6", "p8", "p10"]
    requests = []
    for point, person in zip(POINTS, gone, strict=True):
        requests.append(world.delete(person, models=("deleted",)))
        world.work(model_id)
        time_passes(world, model_id)
        world.storage.database.close()
        world.storage.keys.close()
        die_at(world, point, lambda other: other.work(model_id))
        world.expire_lease(model_id)
        world.work(model_id)
    assert {world.task(each).status for each in requests} == {"completed"}
    assert len(world.versions(model_id)) == 1 + len(gone)
    assert broken(world.database) == []
    for person in gone:
        world.delete(person)
    never = world.register("own_training", "late", name="never", leave_out_forgotten=True)
    world.work(never)
    assert world.head(never).checkpoint == world.head(model_id).checkpoint


def test_a_retraining_that_fails_ends_visibly(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails does not wait for another batch: its attempts count, and the third ends it."""
    model_id = in_batches(world)
    request = world.delete("p3")
    world.work(model_id)

    def fails(*_: object) -> None:
        raise RuntimeError

    monkeypatch.setattr("expunge_workers.update.run.certify", fails)
    time_passes(world, model_id)
    for _ in range(4):
        world.expire_lease(model_id)
        world.work(model_id)
    task = world.task(request)
    assert (task.status, task.reason) == ("blocked", "failed")
    assert ((task.facts or {})["failed"]["error"], task.facts["failed"]["file"]) == ("RuntimeError", "test_batch.py")
