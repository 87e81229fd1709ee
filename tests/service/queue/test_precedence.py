"""What a worker does first: deletions, then pieces of preparations, then preparations."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import select

from expunge_service.infra.tables import AuditEntry, Lease, Model, Task, WorkUnit
from expunge_service.models import model_lease
from expunge_service.queue import Serves, claims, deletions_wait, waiting_deletions
from expunge_workers.app import Worker
from expunge_workers.training.keyed_parts import KeyedParts
from tests.workers.test_crashes import die_at
from tests.workers.worlds import World, keep_lease, release_connections


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other worker would take the deletion."""
    monkeypatch.setattr(claims, "PATIENCE_SECONDS", 0.0)


def asked_after_the_first_work_unit(world: World, monkeypatch: pytest.MonkeyPatch, subject: str) -> list[str]:
    """Somebody asks while the first work unit is computed; the request's id appears in the list."""
    requests: list[str] = []
    compute: Any = KeyedParts.compute

    def computed(*values: Any) -> None:
        compute(*values)
        if not requests:
            requests.append(world.delete(subject, models=("m",)))

    monkeypatch.setattr(KeyedParts, "compute", computed)
    return requests


def test_a_preparation_is_interrupted_between_two_work_units_and_taken_up_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = world.live(guarantee="proved")
    big = world.register("own_training", "shards", name="big", options={"shards": 4})
    requests = asked_after_the_first_work_unit(world, monkeypatch, "p1")
    world.work(big)
    shown = world.generation(big)
    assert world.model(big).status == "preparing" and world.lease(big).token == 0
    assert [row.done_at is not None for row in world.rows_of(WorkUnit)].count(True) == 1 and shown.attempts == 0
    world.work(big)  # the deletion, which was there first, and then the rest of the preparation
    assert world.request(requests[0]).status == "completed" and world.head(live).number == 2
    assert world.model(big).status == "live", world.model(big).reason
    assert order_of(world, "preparation.interrupted", "update.claimed") == [
        "preparation.interrupted",
        "update.claimed",
    ]


def order_of(world: World, *kinds: str) -> list[str]:
    with world.database.read() as session:
        found = select(AuditEntry.kind).where(AuditEntry.kind.in_(kinds)).order_by(AuditEntry.id)
        return list(session.scalars(found))


@pytest.mark.both_engines
def test_a_waiting_deletion_is_done_before_a_preparation_begins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    live = world.live(guarantee="proved")
    other = world.register(name="other", guarantee="proved")
    request = world.delete("p1", models=("m",))
    done: list[str] = []
    do: Any = Worker._do

    def watched(self: Worker, job: Any, watch: Any) -> None:
        done.append(job.lease.model_id)
        do(self, job, watch)

    monkeypatch.setattr(Worker, "_do", watched)
    world.work(other)
    assert done == [live, other] and world.request(request).status == "completed"


def test_a_free_piece_of_another_preparation_comes_before_a_new_preparation(world: World) -> None:
    big = world.register("own_training", "shards", name="big", options={"shards": 4})
    release_connections(world)
    die_at(world, "prepare-after-work-units", lambda dying: dying.work(big))
    keep_lease(world, big)
    small = world.register(name="small", guarantee="proved")
    for count in range(1, 5):
        world.work(small)
        assert [row.done_at is not None for row in world.rows_of(WorkUnit)].count(True) == count
        assert world.model(small).status == "preparing"
    world.work(small)
    assert world.model(small).status == "live"


def test_deletions_that_no_release_can_take_now_interrupt_nothing(world: World) -> None:
    live = world.live(guarantee="proved")
    world.delete("p1")
    with world.database.read() as session:
        assert waiting_deletions(session) == [live]
        assert waiting_deletions(session, patience_seconds=3600.0) == []
    model, lease = (Model, live), (Lease, model_lease(live))
    for row, change, before in (
        (model, {"due_at": 2**62}, {"due_at": world.model(live).due_at}),
        (lease, {"expires_at": 2**62}, {"expires_at": 0}),
        (model, {"status": "exhausted"}, {"status": "live"}),
    ):
        world.change(*row, **change)
        with world.database.read() as session:
            assert waiting_deletions(session) == []
        world.change(*row, **before)


@pytest.mark.both_engines
def test_the_model_whose_deletion_waits_longest_comes_first(world: World) -> None:
    """Neither the smallest id, nor the model whose last deletion is the oldest: the order of the oldest deletions."""
    first, second = sorted(world.live(name=name, guarantee="proved") for name in ("m", "n"))
    for model in (first, second, second):
        name = world.model(model).name
        world.delete(f"p{len(world.rows_of(Task)) + 1}", models=(name,))
    moments = {first: iter([200]), second: iter([100, 300])}
    for task in world.rows_of(Task):
        world.change(Task, task.id, not_before=next(moments[task.model_id]))
    with world.database.read() as session:
        assert waiting_deletions(session) == [second, first]
    for task in world.rows_of(Task):
        world.change(Task, task.id, not_before=100)
    with world.database.read() as session:
        assert waiting_deletions(session) == [first, second], "the same for everybody who looks"


def test_a_worker_is_not_interrupted_for_the_tenants_of_others(world: World) -> None:
    live = world.live(guarantee="proved")
    world.delete("p1")
    with world.database.read() as session:
        assert waiting_deletions(session, Serves(frozenset({world.model(live).tenant_id}))) == [live]
        assert waiting_deletions(session, Serves(frozenset({"another"}))) == []
    assert not deletions_wait(world.database, Serves(frozenset({"another"})))
    assert deletions_wait(world.database)
