"""A few simulated histories on every run of the suite; ``python -m tests.faults simulation`` runs 5,000."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import select

from expunge_service.infra.broker.notify import notify_one
from expunge_service.infra.db import now
from expunge_service.infra.stores import Damaged
from expunge_service.infra.tables import Model
from expunge_service.requests import near_misses
from expunge_workers.scheduler import replay
from tests.faults.bugs import every_bug
from tests.faults.invariants import Broken, Wrong, harms_of
from tests.faults.memory import ManualClock, MemoryBroker, MemoryDatabase, MemoryStore, image_of
from tests.faults.planted_bugs import copy_tree
from tests.faults.result import Result
from tests.faults.simulation import Simulation, simulate
from tests.faults.town import Town
from tests.harness.source import path_of
from tests.workers.worlds import TENANT

RUNS = 3
VISIBLE = ["no_fence", "hold_not_seen_by_publish", "cancelled_suppression_stays", "cancelled_still_executed"]
VISIBLE += ["near_forms_not_compared", "near_miss_finishes_a_request"]
"""planted bugs that histories of one process at a time can show"""


def test_random_histories_break_no_rule() -> None:
    number = secrets.randbelow(10**6)
    print(f"seed {number}: python -m tests.faults simulation --seed ...")
    outcome = simulate(RUNS, number)
    assert outcome.harms == [], f"Hypothesis seed {number}\n{outcome.shown}"
    assert outcome.histories >= RUNS


def restored(with_log: bool) -> None:
    """Lift a hold, place a hold and close every door, between a backup and its restore."""
    history = Simulation()
    history.begin(people=["p0"], claimed=False)
    history.a_hold_is_placed(person="p1")
    history.a_backup_is_made()
    history.every_hold_is_released()
    history.a_hold_is_placed(person="p2")
    for what in ("rotated", "rotated with overlap", "revoked", "webhook"):
        history.a_door_is_closed(what=what)
    history.the_backup_is_restored(with_log=with_log)


@pytest.mark.parametrize("with_log", [True, False])
def test_a_history_restores_across_lifted_holds_and_closed_doors(with_log: bool) -> None:
    restored(with_log)


@pytest.mark.parametrize("kind", ["hold.lifted", "key.rotated", "key.revoked", "webhook.disabled"])
def test_the_simulation_sees_a_restore_that_turns_something_back(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(replay._OF_THE_REST, kind, lambda *_: False)
    with pytest.raises(Wrong, match="that was over is in force after a restore"):
        restored(with_log=True)


def misspelled(*, decide: bool) -> Simulation:
    """Ask for two people under misspelled ids, and say of one that it is the same person, of the other that it is not.

    A backup of before the decisions is restored without the log.
    """
    history = Simulation()
    history.begin(people=["p0"], claimed=False)
    for person in ("p1", "p2"):
        history.somebody_asks_under_a_misspelled_id(person=person, models=None, window=0)
    history.nothing_is_broken()
    history.a_backup_is_made()
    for _ in range(2 if decide else 0):
        for request, (person, _) in history.misspelled.items():
            assert request in history.waiting()
            history.decide(request, same=person == "p1")
            history.nothing_is_broken()
        history.the_backup_is_restored(with_log=False)
        assert history.waiting() == list(history.misspelled) and not history.who.keys() & history.misspelled.keys()
    return history


@pytest.mark.parametrize("decide", [True, False])
def test_a_history_asks_about_misspelled_ids_until_they_are_decided(decide: bool) -> None:
    misspelled(decide=decide).end()


def test_the_simulation_sees_a_misspelled_request_that_is_finished_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_misses, "near_rows", lambda *_: [])
    with pytest.raises(Wrong, match="nobody was asked about p1"):
        misspelled(decide=False)


def test_the_simulation_sees_a_decision_that_takes_effect_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    history = misspelled(decide=False)
    monkeypatch.setattr(Town, "decide", lambda *_: None)
    monkeypatch.setattr(Simulation, "waiting", lambda _: [])
    with pytest.raises(Wrong, match="took effect twice"):
        history.decide(next(iter(history.misspelled)), same=True)


@pytest.mark.drill
@pytest.mark.parametrize("name", VISIBLE)
def test_two_hundred_histories_show_a_planted_bug(name: str, tmp_path: Path) -> None:
    tree, report = copy_tree(tmp_path / "tree"), tmp_path / "drills.json"
    next(bug for bug in every_bug() if bug.name == name).plant(tree)
    command = [
        sys.executable,
        "-m",
        "tests.faults",
        "simulation",
        "--scale",
        "0.04",
        "--seed",
        "7",
        "--json",
        str(report),
    ]
    done = subprocess.run(command, cwd=tree, env={**os.environ, "PYTHONPATH": path_of(tree)}, check=False)
    record = json.loads(report.read_text())
    assert (done.returncode, record["failed"]) == (1, [])
    assert not Result.from_json(record["results"][0]).clean


def test_a_history_that_ends_in_an_error_of_the_service_is_counted() -> None:
    wrong = Wrong([Broken("doubled", "twice")])
    assert [each.harm for each in harms_of(ExceptionGroup("", [wrong, KeyError("x")]))] == [
        "doubled",
        "lost",
    ]


def test_a_database_in_memory_has_the_clock_it_is_told_and_can_be_played_back(sqlite_template: Path) -> None:
    clock = ManualClock()
    database = MemoryDatabase(clock, image_of(sqlite_template))
    with database.write() as session:
        assert now(session) == clock.at
        before = database.changes()
        session.add(Model(id="m", tenant_id=TENANT, name="m", status="live", recipe="r", policy={}, created_at=1))
    assert database.changes() > before
    image = database.image()
    clock.advance(3600)
    with database.write() as session:
        assert now(session) == clock.at
        session.delete(session.get_one(Model, "m"))
    database.restore(image)
    with database.read() as session:
        assert session.scalars(select(Model.id)).all() == ["m"]


def test_files_in_memory_are_checked_and_swept_like_files(tmp_path: Path) -> None:
    clock = ManualClock()
    store = MemoryStore(tmp_path, clock)
    stored = store.put([b"one", b"two"])
    assert store.read(stored.digest) == b"onetwo"
    assert store.sweep(set(), older_than=60) == 0
    clock.advance(61)
    assert store.sweep({stored.digest}, older_than=60) == 0
    store.files[stored.digest] = b"other"
    with pytest.raises(Damaged):
        store.open(stored.digest)
    assert store.sweep(set(), older_than=60) == 1


def test_the_bell_keeps_what_it_was_given() -> None:
    notifier = MemoryBroker()
    assert notify_one(notifier, "m")  # type: ignore[arg-type]
    assert notifier.messages == ["m"]
