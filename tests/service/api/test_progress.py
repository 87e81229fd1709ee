"""Settling requests in the transaction that changed a task."""

from __future__ import annotations

import json
import threading

import pytest
from sqlalchemy import select

from expunge_service.infra.db import Database, now
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.tables import AuditEntry, DeletionRequest, Model, Task
from expunge_service.requests.status import settle


def a_request(database: Database, *tasks: str) -> str:
    with database.write() as session:
        request = DeletionRequest(
            id=new_id(),
            tenant_id="t",
            status="queued",
            salt=b"s",
            received_at=1,
            created_at=now(session),
        )
        session.add(request)
        models = [
            Model(id=new_id(), tenant_id="t", name=new_id(), status="live", recipe="r", policy={}, created_at=1)
            for _ in tasks
        ]
        session.add_all(models)
        session.flush()
        for status, model in zip(tasks, models, strict=True):
            session.add(
                Task(
                    id=new_id(),
                    tenant_id="t",
                    request_id=request.id,
                    model_id=model.id,
                    status=status,
                    not_before=0,
                    created_at=1,
                )
            )
    return request.id


def move(database: Database, request_id: str, *statuses: str, reason: str | None = None) -> list[str]:
    with database.write() as session:
        tasks = session.scalars(select(Task).where(Task.request_id == request_id).order_by(Task.id)).all()
        for task, status in zip(tasks, statuses, strict=True):
            task.status, task.reason = status, reason
        return settle(session, [request_id])


def stored(database: Database, request_id: str) -> DeletionRequest:
    with database.read() as session:
        return session.get_one(DeletionRequest, request_id)


@pytest.mark.both_engines
def test_a_request_walks_through_its_life(database: Database) -> None:
    made = a_request(database, "queued", "queued")
    for statuses, expected in [
        (("running", "queued"), "running"),
        (("queued", "queued"), "queued"),
        (("running", "running"), "running"),
        (("blocked", "completed"), "blocked"),
        (("queued", "completed"), "queued"),
        (("completed", "completed"), "completed"),
        (("completed", "queued"), "queued"),
        (("completed", "completed"), "completed"),
    ]:
        assert move(database, made, *statuses) == [made]
        row = stored(database, made)
        assert row.status == expected
        assert (row.completed_at is not None) == (expected == "completed")
    with database.read() as session:
        kinds = session.scalars(select(AuditEntry.kind).order_by(AuditEntry.id)).all()
    assert kinds == ["request.blocked", "request.queued", "request.completed", "request.queued", "request.completed"]


def test_a_held_request_says_why(database: Database) -> None:
    made = a_request(database, "queued")
    move(database, made, "blocked", reason="legal_hold")
    assert stored(database, made).reason == "legal_hold"
    with database.read() as session:
        assert json.loads(session.scalars(select(AuditEntry.body)).one())["reason"] == "legal_hold"
    move(database, made, "queued")
    assert stored(database, made).reason is None


def test_settling_what_did_not_change_writes_nothing(database: Database) -> None:
    made = a_request(database, "queued")
    assert move(database, made, "queued") == []
    move(database, made, "completed")
    assert move(database, made, "completed") == []
    with database.read() as session:
        assert len(session.scalars(select(AuditEntry)).all()) == 1


def test_a_request_without_tasks_is_completed_with_no_match(database: Database) -> None:
    made = a_request(database)
    assert move(database, made) == [made]
    assert (stored(database, made).status, stored(database, made).reason) == ("completed", "no_match")


def test_a_cancelled_request_stays_cancelled(database: Database) -> None:
    made = a_request(database, "queued", "queued")
    move(database, made, "cancelled", "cancelled")
    assert stored(database, made).status == "cancelled"
    with pytest.raises(ValueError, match="cannot become"):
        move(database, made, "completed", "cancelled")
    assert stored(database, made).status == "cancelled"


@pytest.mark.both_engines
def test_two_models_that_finish_at_once_complete_the_request(database: Database) -> None:
    for _ in range(10):
        made = a_request(database, "running", "running")
        with database.read() as session:
            tasks = session.scalars(select(Task.id).where(Task.request_id == made)).all()
        together = threading.Barrier(2)

        def finish(task_id: str, together: threading.Barrier = together, made: str = made) -> None:
            together.wait()
            with database.write() as session:
                session.get_one(Task, task_id).status = "completed"
                settle(session, [made])

        threads = [threading.Thread(target=finish, args=[task_id]) for task_id in tasks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert stored(database, made).status == "completed"
