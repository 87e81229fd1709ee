"""A tick does what its one look finds: each condition equals doing the duty and seeing that it did something."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from sqlalchemy import delete, event, false, select

from expunge_service.infra.db import Database, now
from expunge_service.infra.settings import SettingsError
from expunge_service.infra.tables import (
    Consumer,
    DeletionRequest,
    Erasure,
    Generation,
    Heartbeat,
    IdempotencyKey,
    Lease,
    Model,
    Task,
)
from expunge_service.models import retirement
from expunge_service.queue import ADVICE, block_untaken
from expunge_service.queue.recipe_messages import SAYS
from expunge_service.queue.serves import UNTAKEN_SECONDS
from expunge_workers.scheduler import run
from expunge_workers.scheduler.run import LEASE, SILENT_SECONDS, Scheduler, hold_lease, open_scheduler, reported
from tests.workers.worlds import TENANT, World, seconds

NAMES = (
    *("log", "keys", "ended", "certificates", "purge", "generations", "figures", "files", "lost keys", "key files"),
    *(
        "notify",
        "no worker",
        "worker again",
        "unmatched",
        "served",
        "large",
        "due soon",
        "answers",
        "processes",
        "messages",
        "tally",
        "write-ahead",
    ),
)
"""the scheduler's duties, in their order"""
SEARCHES = {"files", "lost keys", "key files", "write-ahead"}
"""of places outside the database: no look finds them"""


def nothing(_world: World, _model_id: str) -> None: ...


def notification_lost(world: World, _: str) -> None:
    world.delete("p3")


def updated(world: World, model_id: str) -> None:
    world.delete("p3")
    world.work(model_id)


def key_left(world: World, model_id: str) -> None:
    updated(world, model_id)
    world.change(Erasure, world.rows_of(Erasure)[0].id, destroyed_at=None)


def retired(world: World, model_id: str) -> None:
    updated(world, model_id)
    with world.database.write() as session:
        retirement.retire(session, session.get_one(Model, model_id))


def request_without_task(world: World, _: str) -> None:
    request = world.delete("p3")
    with world.database.write() as session:
        session.execute(delete(Task).where(Task.request_id == request))


def consumers_moved_on(world: World, model_id: str) -> None:
    first = world.head(model_id).id
    with world.database.write() as session:
        session.add(Consumer(model_id=model_id, name="web", tenant_id=TENANT, version_id=first, seen_at=now(session)))
    updated(world, model_id)
    (task,) = (each for each in world.rows_of(Task) if each.reason == "awaiting_consumers")
    assert task.status == "running"
    world.change(Consumer, (model_id, "web"), version_id=world.head(model_id).id)


def large_and_due(world: World, _: str) -> None:
    world.change(Task, world.task(world.delete("p3")).id, status="blocked", reason="large", not_before=1)


def deadline_near(world: World, _: str) -> None:
    request = world.delete("p3")
    world.change(DeletionRequest, request, due_at=world.request(request).received_at + seconds(3600))


def answer_expired(world: World, _: str) -> None:
    answer = {"status_code": 202, "headers": {}, "answer": {}, "expires_at": 1, "body_digest": "0" * 64}
    with world.database.write() as session:
        session.add(IdempotencyKey(tenant_id=TENANT, actor_id="k", key="old", **answer))


def process_silent(world: World, _: str) -> None:
    pulse = world.pulse()
    pulse.beat()
    with world.database.write() as session:
        session.get_one(Heartbeat, world.process.owner).beat_at = now(session) - seconds(SILENT_SECONDS + 1)


def message_outlived(world: World, _: str) -> None:
    """a worker of a release before kept what a recipe said"""
    model_id = world.register("bad", "retrain", "bad")
    world.work(model_id)
    said = {"refused": {"what": "The recipe raised ValueError.", "hint": f'{SAYS}"row of person-7 is bad" {ADVICE}'}}
    world.change(Generation, world.generation(model_id).id, report=said)
    world.delete("somebody")


def no_worker(world: World, model_id: str) -> None:
    """a deletion is due for long, and the only process is of another place"""
    world.change(Model, model_id, place="west", due_at=None)
    world.pulse().beat()
    world.delete("p3")
    (task,) = world.rows_of(Task)
    world.change(Task, task.id, not_before=task.not_before - seconds(UNTAKEN_SECONDS))


def worker_again(world: World, model_id: str) -> None:
    """a worker of the place is started"""
    no_worker(world, model_id)
    assert block_untaken(world.database) == 1
    world.configured(places="west").pulse().beat()


HAPPENINGS: dict[str, tuple[Callable[[World, str], None], set[str]]] = {
    "nothing": (nothing, set()),
    "a notification is lost": (notification_lost, {"log", "notify"}),
    "an update": (updated, {"log", "certificates", "purge", "tally"}),
    "a key is left": (key_left, {"keys"}),
    "a model is retired": (retired, {"ended", "purge"}),
    "no worker takes a model": (no_worker, {"no worker"}),
    "a worker takes it again": (worker_again, {"worker again"}),
    "a request has no task": (request_without_task, {"unmatched"}),
    "the consumers have moved on": (consumers_moved_on, {"served"}),
    "a large request is due": (large_and_due, {"large"}),
    "a deadline is near": (deadline_near, {"due soon"}),
    "an answer has expired": (answer_expired, {"answers"}),
    "a process is silent": (process_silent, {"processes"}),
    "a message outlives a request": (message_outlived, {"messages", "generations"}),
}


CLOSER = {"figures", "no worker", "worker again"}
"""their conditions are that the log has grown, and that a deletion waits: the duty looks closer"""


def look(scheduler: Scheduler) -> set[str]:
    ((_, _, _, *found),) = scheduler.database.look(scheduler.look)
    return {name for name, due in zip(NAMES, found, strict=True) if due}


def do(scheduler: Scheduler) -> None:
    """Do every duty, and compare its condition of the moment before with what it did."""
    for name, duty in zip(NAMES, scheduler.duties, strict=True):
        with scheduler.database.read() as session:
            due = bool(session.scalar(select(duty.due)))
        did = bool(duty.do())
        if name in CLOSER:
            assert due or not did
        elif name not in SEARCHES:
            assert due == did, name


@pytest.fixture
def quiet(world: World) -> tuple[World, str, Scheduler]:
    """A world with a live model in which a scheduler has done everything, and keeps nothing."""
    world.process = world.configured(grace=0.0).process
    model_id = world.live(complete_when="served", fallback="retrain", guarantee="proved")
    scheduler = open_scheduler(world.settings)
    assert scheduler.tick() and scheduler.tick()
    return world, model_id, scheduler


@pytest.mark.both_engines
@pytest.mark.parametrize("happening", HAPPENINGS)
def test_a_duty_is_due_where_doing_it_does_something(quiet: tuple[World, str, Scheduler], happening: str) -> None:
    world, model_id, scheduler = quiet
    assert look(scheduler) == set()
    happens, expected = HAPPENINGS[happening]
    happens(world, model_id)
    assert look(scheduler) >= expected
    for _ in range(4):
        do(scheduler)
    later = {"ended", "notify", "worker again"}
    assert look(scheduler) <= later, "those are looked for again: for a day, after some seconds, until a worker starts"


def test_every_condition_came_true_in_some_happening() -> None:
    assert set().union(*(expected for _, expected in HAPPENINGS.values())) | {"figures"} == set(NAMES) - SEARCHES


@pytest.mark.both_engines
def test_a_tick_that_finds_nothing_is_one_statement(quiet: tuple[World, str, Scheduler]) -> None:
    _, _, scheduler = quiet
    sent: list[str] = []
    event.listen(scheduler.database.engine, "before_cursor_execute", lambda _c, _k, text, *_: sent.append(text))
    assert scheduler.tick(1)
    assert [each.partition(" ")[0] for each in sent if not each.startswith("BEGIN")] == ["SELECT"]


@pytest.mark.both_engines
def test_an_idle_scheduler_renews_its_lease_at_half_its_time(
    quiet: tuple[World, str, Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, _, scheduler = quiet
    renewed: list[str] = []

    def noted(database: Database, owner: str, lease_seconds: float) -> bool:
        renewed.append(owner)
        return hold_lease(database, owner, lease_seconds)

    monkeypatch.setattr(run, "hold_lease", noted)
    assert scheduler.tick(1) and renewed == []

    def ends() -> int:
        with world.database.read() as session:
            return session.get_one(Lease, LEASE).expires_at

    expires_at = ends()
    world.change(Lease, LEASE, expires_at=expires_at - seconds(16))
    assert scheduler.tick(1) and len(renewed) == 1
    assert ends() > expires_at
    assert not open_scheduler(world.settings).tick(1), "another one looks, and waits"
    assert len(renewed) == 1


def test_every_sixtieth_tick_does_everything_whatever_the_look_says(quiet: tuple[World, str, Scheduler]) -> None:
    _, _, scheduler = quiet
    assert {name for name, duty in zip(NAMES, scheduler.duties, strict=True) if duty.due.compare(false())} == SEARCHES
    done: list[str] = []
    noting = [replace(duty, do=partial(done.append, name)) for name, duty in zip(NAMES, scheduler.duties, strict=True)]
    scheduler.__dict__["duties"] = noting
    for count, expected in ((59, []), (60, list(NAMES)), (61, [])):
        assert scheduler.tick(count)
        assert done == expected
        done.clear()


def test_a_wrong_setting_is_logged_with_its_remedy_and_other_errors_without_a_text() -> None:
    assert reported(SettingsError("Copy signing.key here.")) == "Copy signing.key here."
    assert reported(ValueError("person-1")) == "ValueError"
    assert reported(OSError(errno.ENOSPC, "full", "/srv/person-1")) == "ENOSPC"
    assert reported(OSError("person-1")) == "OSError"


@pytest.mark.parametrize(
    ("portions", "times"),
    [([0], 1), ([3], 1), ([run.BACKLOG, 0], 2), ([500, 500, 7, 500], 3), ([500] * 50, run.PORTIONS)],
)
def test_a_duty_is_done_again_where_a_backlog_waits(portions: list[int], times: int) -> None:
    """What comes while a small portion is done waits for the next tick."""
    counts = iter(portions)
    assert run._in_portions(lambda: next(counts)) == sum(portions[:times])
    assert [*counts] == portions[times:]
