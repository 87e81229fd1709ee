"""The database's clock had jumped ahead and is back: what was written meanwhile lengthens no wait."""

from __future__ import annotations

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge_service.infra.db import now
from expunge_service.infra.tables import Consumer, Heartbeat, Model, Task
from expunge_service.models import standing
from expunge_service.queue import EVERYTHING, living, others_take, take
from expunge_workers.scheduler.run import LEASE, hold_lease, sweep
from tests.workers.worlds import TENANT, World, seconds


@pytest.mark.both_engines
def test_after_a_clock_that_jumped_ahead_is_back_no_wait_is_longer_than_it_was_meant(world: World) -> None:
    """The year ahead of the clock is in a task's window, in the models' next looks, and in the scheduler's lease."""
    model_id, other, year = world.live(), world.live(name="other", retrain_every=86_400), seconds(365 * 86_400)
    request = world.delete("p1")
    with world.database.write() as session:
        at = now(session)
        assert take(session, LEASE, "of a year ahead", at + year, 30.0)
        task = session.scalars(select(Task).where(Task.request_id == request, Task.model_id == model_id)).one()
        task.created_at, task.not_before = at + year, at + year + seconds(600)
        session.get_one(Model, model_id).due_at = at + year
        session.get_one(Model, other).retrain_at = at + year
        legitimate = session.scalars(select(Task).where(Task.request_id == request, Task.model_id == other)).one()
        legitimate.not_before = at + seconds(3600)
    assert hold_lease(world.database, "new", 30.0)
    with world.database.read() as session:
        later = now(session)
        window = session.get_one(Task, task.id).not_before
        assert at + seconds(600) <= window <= later + seconds(600), "the window is as long as it was meant"
        assert session.get_one(Task, legitimate.id).not_before == at + seconds(3600)
        assert (session.get_one(Model, model_id).due_at or 0) <= later
        assert (session.get_one(Model, other).retrain_at or 0) <= later + seconds(86_400)
    world.change(Task, task.id, not_before=at)
    assert sweep(world.database, world.process.notifier) == 1
    world.work(model_id)
    with world.database.read() as session:
        assert session.get_one(Task, task.id).status == "completed"


@pytest.mark.both_engines
def test_a_beat_and_a_report_of_the_future_are_no_sign_of_life(world: World) -> None:
    model_id = world.live()
    with world.database.write() as session:
        at = now(session)
        row = {"kind": "worker", "software": "s", "started_at": at, "serves": EVERYTHING.to_json()}
        session.add(Heartbeat(process="ahead", beat_at=at + seconds(7200), **row))
        register_seen(session, model_id, at + seconds(7200))
        session.flush()
        assert living(session) == []
        assert not others_take(session, session.get_one(Model, model_id), "me")
        (consumer,) = standing(session, session.get_one(Model, model_id), world.head(model_id))
        assert consumer["status"] == "unknown"
        session.get_one(Heartbeat, "ahead").beat_at = at + seconds(1)
        session.flush()
        assert living(session) == [EVERYTHING]


def register_seen(session: Session, model_id: str, seen_at: int) -> None:
    """Add a consumer that serves the model's current version and reported then."""
    model = session.get_one(Model, model_id)
    session.add(Consumer(model_id=model_id, tenant_id=TENANT, name="web", version_id=model.current_id, seen_at=seen_at))
