"""A claim that a stopped worker gives back: everything is as if it had not been made, and only its holder may do so."""

from __future__ import annotations

import json
from typing import Any

import pytest
from sqlalchemy import update

from expunge_service.infra.db import now
from expunge_service.infra.tables import AuditEntry, Heartbeat, Task, WorkUnit
from expunge_service.queue import Deletions, Preparation, Stale, WorkUnits, free_pieces, give_back
from tests.workers.worlds import World

pytestmark = pytest.mark.both_engines

HOLDER, OTHER = "the-holder", "another"


def rows(world: World) -> list[dict[str, Any]]:
    """What a claim changes of the tasks."""
    names = ("id", "status", "attempts", "lease_token", "reason", "facts", "not_before")
    return sorted(({name: getattr(task, name) for name in names} for task in world.rows_of(Task)), key=str)


def test_the_tasks_of_an_update_wait_as_they_did_before(world: World) -> None:
    """Four that failed together twice, of which a claim takes half: the next takes the same two."""
    model_id = world.live()
    for person in ("p1", "p2", "p3", "p4"):
        world.delete(person)
    with world.database.write() as session:
        session.execute(update(Task).values(attempts=2, lease_token=77))
    before = rows(world)
    first = world.claim(model_id, HOLDER)
    assert isinstance(first, Deletions) and len(first.tasks) == 2 and rows(world) != before
    give_back(world.database, first, HOLDER, "certify")
    assert rows(world) == before and world.lease(model_id).token == 0
    again = world.claim(model_id, OTHER)
    assert isinstance(again, Deletions), "at once"
    assert [task.id for task in again.tasks] == [task.id for task in first.tasks]


@pytest.mark.parametrize("attempts", [0, 1, 2])
def test_no_number_of_stops_blocks_a_request(world: World, attempts: int) -> None:
    model_id = world.live()
    request = world.delete("p3")
    with world.database.write() as session:
        session.execute(update(Task).values(attempts=attempts))
    for _ in range(4):
        job = world.claim(model_id, HOLDER)
        assert isinstance(job, Deletions) and job.attempt == attempts + 1
        give_back(world.database, job, HOLDER, "load")
        assert (world.task(request).attempts, world.request(request).status) == (attempts, "queued")
    given_back = [entry for entry in world.rows_of(AuditEntry) if entry.kind == "attempt.given_back"]
    assert [(entry.model_id, json.loads(entry.body)["phase"]) for entry in given_back] == [(model_id, "load")] * 4


def test_no_number_of_stops_refuses_a_model_and_its_units_are_free(world: World) -> None:
    model_id = world.register()
    generation_id = world.generation(model_id).id
    theirs, others = (WorkUnits(world.database, owner, 30.0, WorkUnit, generation_id) for owner in (HOLDER, OTHER))
    with world.database.write() as session:
        session.add(Heartbeat(process=OTHER, kind="worker", software="", started_at=0, beat_at=now(session), skew=0))
        theirs.lay_out(session, range(3))
        assert others.take(session) == 0
    for _ in range(4):
        job = world.claim(model_id, HOLDER)
        assert isinstance(job, Preparation) and job.attempt == 1
        with world.database.write() as session:
            assert theirs.take(session) == 1
        give_back(world.database, job, HOLDER, "method")
        assert (world.generation(model_id).attempts, world.lease(model_id).token) == (0, 0)
        assert [row.owner for row in sorted(world.rows_of(WorkUnit), key=lambda row: row.number)] == [OTHER, None, None]


@pytest.mark.parametrize("live", [True, False])
def test_a_claim_that_another_has_by_now_is_not_given_back(world: World, live: bool) -> None:
    model_id = world.live() if live else world.register()
    if live:
        world.delete("p3")
    late = world.claim(model_id, HOLDER)
    world.expire_lease(model_id)
    assert late is not None and world.claim(model_id, OTHER) is not None
    before, token, attempts = rows(world), world.lease(model_id).token, world.generation(model_id).attempts
    with pytest.raises(Stale):
        give_back(world.database, late, HOLDER, "train")
    assert (rows(world), world.lease(model_id).token, world.generation(model_id).attempts) == (before, token, attempts)
    assert "attempt.given_back" not in world.kinds()


def test_a_claim_that_was_published_is_not_given_back(world: World) -> None:
    model_id = world.live()
    request = world.delete("p3")
    job = world.claim(model_id, HOLDER)
    assert isinstance(job, Deletions)
    world.update(job)
    with pytest.raises(Stale):
        give_back(world.database, job, HOLDER, "store")
    assert (world.request(request).status, world.task(request).attempts) == ("completed", 1)


def test_a_helper_frees_its_units_alone(world: World) -> None:
    model_id = world.register()
    generation_id = world.generation(model_id).id
    units = WorkUnits(world.database, HOLDER, 30.0, WorkUnit, generation_id)
    with world.database.write() as session:
        units.lay_out(session, range(2))
        assert units.take(session) == 0
        assert free_pieces(session, HOLDER) == [model_id] and free_pieces(session, HOLDER) == []
