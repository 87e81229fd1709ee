"""A long history costs nothing: neither an intake, an update, a tick nor a scrape reads what is finished."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import func, select, true

from expunge_service.api.traffic import Traffic
from expunge_service.api.views.metrics import render
from expunge_service.infra.tables import PhaseSeconds, Removal, Version
from expunge_service.models import consumers
from expunge_service.models.counters import (
    LATENCY,
    PHASE,
    SAMPLES,
    VERSIONS,
    Key,
    _of_entries,
    _of_versions,
    counts,
    tally,
)
from expunge_workers.scheduler.run import open_scheduler
from tests.harness import databases
from tests.harness.history import Work, fill, watched
from tests.workers.worlds import World, end_schedulers_lease, open_world, settings_of

QUESTIONS = ("intake", "update", "tick", "scrape", "long tick")


def work_of(template: Path, folder: Path, finished: int) -> dict[str, Work]:
    """What SQLite works for each question after ``finished`` requests."""
    world = open_world(settings_of(folder / "home", databases.sqlite_databases(template)(folder)))
    model_id = world.live()
    worker, scheduler = world.worker(), open_scheduler(world.settings)
    scheduler.tick(1)
    fill(world.database, world.storage.guard.witness, finished)
    world.commit_anew(model_id, drafted_as=1)
    world.delete("p1")
    worker.work(model_id)
    scheduler.tick(1)
    asked: dict[str, Callable[[], object]] = {
        "intake": lambda: world.delete("p2"),
        "update": lambda: worker.work(model_id),
        "tick": lambda: scheduler.tick(1),
        "scrape": lambda: render(world.database, world.settings, Traffic(), differs=False),
        "long tick": lambda: scheduler.tick(0),
    }
    done = {}
    for question, ask in asked.items():
        with watched(scheduler.database if "tick" in question else world.database) as work:
            ask()
        done[question] = work
    assert world.head(model_id).number == 3 + finished // 20
    world.storage.close()
    scheduler.database.close()
    return done


@pytest.fixture(scope="module")
def both(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Work], dict[str, Work]]:
    short, long = (work_of(sqlite_template, tmp_path_factory.mktemp("history"), count) for count in (50, 2_000))
    return short, long


@pytest.mark.parametrize("question", QUESTIONS)
def test_sqlite_works_no_more_for_forty_times_the_history(
    both: tuple[dict[str, Work], dict[str, Work]], question: str
) -> None:
    """Counted in hundreds of instructions of its virtual machine, which no other process disturbs."""
    short, long = both[0][question], both[1][question]
    if question == "update":  # it runs the recipe on all who stay, so it reads every mark of its generation
        for statement in [each for each in long.steps if "FROM forgotten" in each]:
            del long.steps[statement]
    most = {each: count for each, count in long.steps.most_common(3) if count > short.steps[each] + 2}
    assert long.total <= 1.2 * short.total + 5, most
    assert len(long.statements) == len(short.statements)


def test_an_update_of_one_person_runs_no_more_statements_than_it_did(
    both: tuple[dict[str, Work], dict[str, Work]],
) -> None:
    """From the notification to the destroyed key. The goal is 30; it is missed.

    The last that came: the moment before the files are written, whether a sweep took them, and what the database must
    still have (decision 11).
    """
    work = both[1]["update"]
    assert len([each for each in work.statements if not each.startswith("BEGIN")]) <= 82
    assert work.commits <= 4


@pytest.mark.both_engines
def test_tallies_and_what_is_not_tallied_give_the_counts_of_everything(world: World) -> None:
    models = [world.live(name=name) for name in ("one", "two")]
    for person in ("p1", "p2", "p3"):
        world.delete(person)
        for model_id in models:
            world.work(model_id)
    scheduler = open_scheduler(world.settings)
    scheduler.tick(1)
    with world.database.snapshot() as session:
        versions = session.scalars(select(Version.id)).all()
        everything = _of_versions(session, versions) + _of_entries(session, true())
        assert counts(session) == everything
    with ThreadPoolExecutor(4) as pool:  # a scheduler that was taken for dead may tally beside its successor
        assert sum(pool.map(tally, [world.database] * 4)) > 6
    for _ in range(3):
        tally(world.database)
    with world.database.snapshot() as session:
        assert counts(session) == everything
        assert session.scalar(select(func.count()).where(Version.tallied)) == 6
        left = set(session.scalars(select(PhaseSeconds.version_id)))
    assert len(left) == 6, "the phases of tallied versions are kept: a request's page shows them"
    assert everything[Key(VERSIONS, models[0], "recollection")] == 4
    assert everything[Key(SAMPLES, models[0], "recollection")] == 9
    by_name = {name: sum(n for key, n in everything.items() if key.name == name) for name in (LATENCY, PHASE)}
    assert by_name == {LATENCY: 6, PHASE: 2 * 3 * 4}


def test_a_version_whose_tasks_wait_for_consumers_is_tallied_when_they_are_completed(world: World) -> None:
    model_id = world.live(complete_when="served")
    first = world.head(model_id)
    with world.database.write() as session:
        consumers.report_consumer(session, world.model(model_id), "web", first, "actor")
    request = world.delete("p1")
    world.work(model_id)
    waited_for = world.head(model_id)
    world.delete("p2")
    world.work(model_id)
    tally(world.database)
    tallied = {each.id for each in world.versions(model_id) if each.tallied}
    assert first.id in tallied and waited_for.id not in tallied
    with world.database.write() as session:
        consumers.report_consumer(session, world.model(model_id), "web", world.head(model_id), "actor")
        consumers.complete_waiting(session)
    assert world.task(request).status == "completed"
    tally(world.database)
    assert {each.id for each in world.versions(model_id) if each.tallied} == {first.id, waited_for.id}


def test_the_scheduler_tallies(world: World) -> None:
    model_id = world.live()
    world.delete("p1")
    world.work(model_id)
    end_schedulers_lease(world)
    assert open_scheduler(world.settings).tick(0)
    assert [each.tallied for each in world.versions(model_id)] == [True, False]


def test_a_claim_counts_the_updates_that_forgot_somebody(world: World) -> None:
    """The slow twin counts the versions among everything that was ever forgotten."""
    model_id = world.live(method="newton")
    for person in ("p1", "p2", "p1", "p3"):
        world.delete(person)
        world.work(model_id)
    with world.database.read() as session:
        slow = session.scalar(select(func.count(Removal.version_id.distinct())))
    assert world.head(model_id).claim["updates"] == slow == 3
