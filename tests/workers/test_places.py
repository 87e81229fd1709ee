"""Work goes to the workers of its place: whose heartbeats say so, and whose queues it is rung in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from expunge_service.cli.checks import _untaken
from expunge_service.infra.broker.messages import queue_of
from expunge_service.infra.tables import Heartbeat, Model, Task
from expunge_service.infra.time import SECOND
from expunge_service.models import plan_new_data
from expunge_service.queue import (
    LONG_DUE,
    WITHOUT_WORKER,
    Serves,
    block_untaken,
    living,
    mark_notified,
    queue_taken,
    untaken,
    waiting_deletions,
)
from expunge_service.queue.serves import needs_of
from expunge_service.requests.reasons import Reason
from expunge_workers.doctor import examine
from expunge_workers.runtime.machine import Machine
from expunge_workers.storage import manifest
from tests.workers.worlds import TENANT, World

GIGABYTE = 10**9
Start = Callable[..., World]


@pytest.fixture
def start(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts workers of a kind of device: their heartbeats say so, and what they compute notes it.

    All compute on the CPU: what differs is what they say of themselves, as a manifest records it.
    """
    real, running = manifest.surroundings, ["cpu"]
    monkeypatch.setattr(manifest, "surroundings", lambda *given: real(*given) | {"device": running[0]})

    def started(kind: str = "cpu", memory: int = 16 * GIGABYTE, **settings: Any) -> World:
        machine, owner = Machine(kind, None, memory), f"{kind}{world.count(Heartbeat)}"
        other = world.configured(**settings)
        other = World(replace(other.process, machine=machine, owner=owner))
        other.pulse().beat()
        work = other.work

        def do(model_id: str) -> None:
            running[0] = kind
            work(model_id)

        other.work = do  # type: ignore[method-assign]
        return other

    yield started


def hour_passes(world: World, *owners: str) -> None:
    """As if all were an hour older; these processes beat on."""
    ago = 3600 * SECOND
    for task in world.rows_of(Task):
        world.change(Task, task.id, not_before=task.not_before - ago)
    for model in world.rows_of(Model):
        world.change(Model, model.id, due_at=None if model.due_at is None else model.due_at - ago)
    for row in world.rows_of(Heartbeat):
        if row.process not in owners:
            world.change(Heartbeat, row.process, beat_at=row.beat_at - ago)


@pytest.mark.parametrize("database_url", ["sqlite", pytest.param("postgresql", marks=pytest.mark.drill)], indirect=True)
def test_sixteen_deletions_are_done_by_four_workers_of_two_places(world: World, start: Start) -> None:
    """The updates of ``mini`` follow the path that was recorded on one kind of device, and on no other."""
    workers = [start("cuda"), start("cpu"), start("cpu"), start("cpu")]
    models = []
    for number, worker in enumerate((workers[0], workers[0], workers[1], workers[0])):
        model_id = world.register("steps", "mini", name=f"m{number}")
        worker.work(model_id)
        models.append(model_id)
    assert [world.model(each).place for each in models] == ["cuda", "cuda", "cpu", "cuda"]
    requests = []
    for person in range(4):
        requests += [world.delete(f"p{person}", models=(f"m{number}",)) for number in range(4)]
        for turn in range(4):  # each hears each message once, the wrong ones first
            for model_id in models:
                workers[(turn + 1) % 4].work(model_id)
    assert [world.request(each).status for each in requests] == ["completed"] * 16


@pytest.mark.parametrize("asked", ["any", "cuda", "west"])
def test_a_model_is_placed_by_its_policy_or_by_the_device_of_its_path(world: World, start: Start, asked: str) -> None:
    bound = world.register("steps", "mini", name="bound", place=asked)
    free = world.register(name="free", place=asked)
    worker = start("cuda", places="west")
    for model_id in (bound, free):
        assert world.model(model_id).place == asked
        start("cpu").work(model_id)
        assert world.model(model_id).status == ("live" if asked == "any" else "preparing")
        worker.work(model_id)
        assert world.model(model_id).status == "live"
    assert world.model(free).place == asked
    assert world.model(bound).place == ("cpu" if asked == "any" else asked), "a group's machines are alike"


def test_a_retrain_is_taken_where_the_policy_says_and_moves_the_model(world: World, start: Start) -> None:
    cpu, cuda = start("cpu"), start("cuda")
    model_id = world.register("steps", "mini")
    cpu.work(model_id)
    request = world.delete("p1")
    with world.database.write() as session:
        plan_new_data(session, session.get_one(Model, model_id), dry_run=False)
    with world.database.write() as session:
        assert mark_notified(session) == {model_id: {"cpu", "any"}}, "both may have work"
    cuda.work(model_id)
    assert (world.model(model_id).place, world.request(request).status) == ("cuda", "completed")
    later = world.delete("p2")
    cpu.work(model_id)
    assert world.request(later).status == "queued"
    with world.database.write() as session:
        session.get_one(Model, model_id).notified_at = 0
    with world.database.write() as session:
        assert mark_notified(session) == {model_id: {"cuda"}}
    cuda.work(model_id)
    assert world.request(later).status == "completed"


def test_what_the_condition_says_is_what_is_said_of_one_model(world: World) -> None:
    every = [
        Serves(tenants, places, memory)
        for tenants in (None, frozenset({TENANT}), frozenset({"other"}))
        for places in (None, frozenset({"any"}), frozenset({"any", "cuda"}), frozenset({"west"}))
        for memory in (None, 0, GIGABYTE)
    ]
    assert [Serves.from_json(each.to_json()) for each in every] == every
    for number, (place, memory) in enumerate((p, m) for p in ("any", "cuda", "west") for m in (0, GIGABYTE, 2**40)):
        model_id = world.register(name=f"m{number}", place=place)
        world.change(Model, model_id, memory=memory)
    for each in every:
        with world.database.read() as session:
            found = set(session.scalars(select(Model.id).where(each.where(Model))))
        assert found == {model.id for model in world.rows_of(Model) if each.takes(model)}
    assert {bool(found) for found in (each.takes(world.model(model_id)) for each in every)} == {True, False}


def test_a_worker_sees_the_waiting_deletions_of_its_places_alone(world: World, start: Start) -> None:
    model_id = world.register("steps", "mini")
    start("cuda").work(model_id)
    task = world.task(world.delete("p1"))
    world.change(Task, task.id, not_before=task.not_before - SECOND)
    with world.database.read() as session:
        assert waiting_deletions(session, start("cuda").process.serves) == [model_id]
        assert waiting_deletions(session, start("cuda", memory=1).process.serves) == []
        assert waiting_deletions(session, start("cpu").process.serves) == []
    assert start("cpu").worker().update_what_waits() == 0
    assert start("cuda").worker().update_what_waits() == 1


def test_a_deletion_is_blocked_only_where_no_living_worker_takes_it_and_goes_on_with_one(
    world: World, start: Start
) -> None:
    cuda, cpu = start("cuda"), start("cpu")
    model_id = world.register("steps", "mini")
    cuda.work(model_id)
    request = world.delete("p1")
    with world.database.read() as session:
        assert untaken(session) == []
    hour_passes(world, cuda.process.owner, cpu.process.owner)
    assert block_untaken(world.database) == 0, "its worker is busy, and lives"
    hour_passes(world, cpu.process.owner)
    late = world.delete("p2")
    with world.database.read() as session:
        assert [model.id for model in untaken(session)] == [model_id]
        assert session.scalars(select(Task.id).where(LONG_DUE)).all() == [world.task(request).id]
    assert block_untaken(world.database) == 1
    blocked = world.request(request)
    assert (blocked.status, blocked.reason) == ("blocked", Reason.NO_WORKER)
    assert world.task(request).facts == {"no_worker": {"needs": "cuda"}}
    large = Model(place="cuda", memory=12 * GIGABYTE)
    assert needs_of(large) == "cuda and 12.0 GB"
    assert world.request(late).status == "queued", "a restart takes less than ten minutes"
    assert queue_taken(world.database) == 0
    again = start("cuda")
    with world.database.read() as session:
        assert session.scalars(select(Task.id).where(WITHOUT_WORKER)).all() == [world.task(request).id]
    assert queue_taken(world.database) == 1 and queue_taken(world.database) == 0
    again.work(model_id)
    assert [world.request(each).status for each in (request, late)] == ["completed"] * 2


def test_without_any_living_process_deletions_wait(world: World, start: Start) -> None:
    model_id = world.register("steps", "mini")
    start("cuda").work(model_id)
    request = world.delete("p1")
    hour_passes(world)
    with world.database.read() as session:
        assert living(session) == [] and untaken(session) == []
    assert block_untaken(world.database) == 0 and world.request(request).status == "queued"


def test_a_registration_that_no_living_worker_takes_is_told(world: World, start: Start) -> None:
    world.register(name="far", place="west")
    near = world.register(name="near")
    start("cpu")
    with world.database.read() as session:
        assert [model.name for model in untaken(session)] == ["far"]
        assert near not in [model.id for model in untaken(session)]
    start("cpu", places="west,north")
    with world.database.read() as session:
        assert untaken(session) == []


def test_a_process_of_the_release_before_takes_every_model(world: World, start: Start) -> None:
    world.register(name="far", place="west")
    worker = start("cpu")
    with world.database.read() as session:
        assert len(untaken(session)) == 1
    world.change(Heartbeat, worker.process.owner, serves=None)
    with world.database.read() as session:
        assert untaken(session) == [] and living(session) == [Serves()]


def test_the_doctor_names_a_model_that_no_running_worker_takes_and_leaves_those_of_other_places(
    world: World, start: Start
) -> None:
    start("cpu")
    model_id = world.live()
    assert list(_untaken(world.database)) == []
    (looked,) = [each for each in examine(world.settings) if each.name == "generation of m"]
    world.change(Model, model_id, place="west")
    (finding,) = _untaken(world.database)
    assert not finding.well and "the model m, which needs west." in finding.what
    (left,) = [each for each in examine(world.settings) if each.name == "generation of m"]
    assert looked.well and left.well and looked.what != left.what and "place west" in left.what


def test_a_place_has_a_queue() -> None:
    assert [queue_of(place) for place in ("any", "cuda", "west")] == ["expunge", "expunge.cuda", "expunge.west"]


def test_memory_is_asked_where_an_update_reads_samples(world: World) -> None:
    reads, reads_none = world.live(guarantee="proved"), world.live(guarantee="none", name="n")
    bytes_of = {each: (world.generation(each).manifest or {})["memory"] for each in (reads, reads_none)}
    assert {each: world.model(each).memory for each in bytes_of} == bytes_of
    assert bytes_of[reads] > 0 == bytes_of[reads_none]
