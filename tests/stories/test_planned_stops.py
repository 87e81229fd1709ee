"""A worker that is stopped in a training: it gives its claim back at once, and another worker goes on.

Real processes and a real broker. ``stop`` is what ``docker stop`` and ``systemctl stop`` send: SIGTERM.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import select

from expunge_service.infra.db import now
from expunge_service.infra.limits import LIMITS, Limits
from expunge_service.infra.tables import AuditEntry, Generation, Heartbeat, Lease, Model, Task
from expunge_service.infra.time import SECOND
from expunge_service.models import model_lease
from expunge_workers.runtime.heartbeat import UNLEARN
from expunge_workers.runtime.points import LEAVE_SECONDS
from tests.harness.process import FAST
from tests.harness.stack import Stack, running
from tests.stories.conftest import SETTINGS, recipes_in, servers_of
from tests.workers.rows.data import lay_out
from tests.workers.rows.test_points import recipe

FOR_LONG_SECONDS = 600
STOPS = 3
"""as many as once refused the model"""
SOON_SECONDS = 2.0
GRACE_SECONDS = 30.0
"""what docker-compose.yml, the units of systemd and the chart give"""
TRAINS_SECONDS = 6.0
"""a claim this old is in its training; of a preparation, once its worker has written so"""
LOADS_TIMES = 2
"""no phase of an update is written: it trains once its claim is this many times as old as a preparation's was then"""
LISTENS_SECONDS = 3.0
"""after its first heartbeat a worker hears the broker by then"""


@pytest.fixture
def trio(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A service with three workers, under the product's own limits: a lease of 30 s."""
    with several_workers(3, LIMITS, request, tmp_path_factory) as stack:
        yield stack


@pytest.fixture
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A service with two workers and a short lease: a test waits for the end of it."""
    with several_workers(2, FAST, request, tmp_path_factory) as stack:
        yield stack


@contextmanager
def several_workers(
    count: int, limits: Limits, request: pytest.FixtureRequest, folders: pytest.TempPathFactory
) -> Iterator[Stack]:
    recipes, settings = recipes_in(folders.mktemp("recipes")), {**SETTINGS, "TRIAL_SECONDS": "0"}
    with running(folders.mktemp("home"), recipes, servers_of(request), limits=limits, **settings) as stack:
        stack.more_workers(count - 1)
        yield stack


def write_seconds(stack: Stack, seconds: int) -> None:
    """Write the table of ``lasting``: the rows of ``tiny``, and how long a training on them takes that begins now."""
    header, first, *others = (stack.settings.recipes / "tiny.csv").read_text().splitlines()
    lines = [f"{header},seconds", f"{first},{seconds}", *(f"{line},0" for line in others)]
    (stack.settings.recipes / "lasting.csv").write_text("\n".join(lines) + "\n")


class Training:
    """The model that is trained: for longer than a test, until its worker is stopped."""

    def __init__(self, stack: Stack, recipe: str = "lasting") -> None:
        self.stack, self.database = stack, stack.database()
        write_seconds(stack, FOR_LONG_SECONDS)
        self.name = stack.register(recipe, "retrain")
        self.loading = 0
        """microseconds from the claim of a preparation to its training, the longest"""
        with self.database.read() as session:
            self.model_id = session.scalars(select(Model.id).where(Model.name == self.name)).one()

    def entries(self, kind: str) -> list[dict[str, Any]]:
        with self.database.read() as session:
            query = select(AuditEntry.body).where(AuditEntry.kind == kind, AuditEntry.model_id == self.model_id)
            return [json.loads(body) for body in session.scalars(query.order_by(AuditEntry.id))]

    def worker(self, claims: str) -> str:
        """Wait until one worker is in the training and another listens; return the first."""
        workers = {name: child for name, child in self.stack.processes.items() if name.startswith("worker")}

        def look() -> str:
            with self.database.read() as session:
                at = now(session)
                started = {
                    beat.process.split(":")[1]: at - beat.started_at for beat in session.scalars(select(Heartbeat))
                }
                lease = session.get_one(Lease, model_lease(self.model_id))
                phases = session.scalars(select(Generation.phase).where(Generation.model_id == self.model_id)).all()
            ages = [started.get(str(child.process.pid), 0) for child in workers.values() if child.process]
            listening = sum(age > LISTENS_SECONDS * SECOND for age in ages)
            claimed = max((entry["at"] for entry in self.entries(claims)), default=at)
            trains, least = any((phase or "").startswith("train") for phase in phases), TRAINS_SECONDS * SECOND
            if claims == "update.claimed":
                trains, least = True, max(least, LOADS_TIMES * self.loading)
            elif not trains:
                self.loading = max(self.loading, at - claimed)
            if not (listening > 1 and lease.token and at - claimed > least and trains):
                return ""
            number = str(lease.owner).split(":")[1]
            return next(
                (name for name, child in workers.items() if child.process and str(child.process.pid) == number), ""
            )

        return self.stack.eventually(look, bool)

    def owner(self) -> str:
        """The process that has the claim; empty: none has."""
        with self.database.read() as session:
            lease = session.get_one(Lease, model_lease(self.model_id))
            return lease.owner if lease.token else ""

    def stopped(self, claims: str, *, next_takes: int) -> float:
        """Stop the worker that trains, by SIGTERM, and start it again; return the seconds until another claimed.

        ``next_takes``: the seconds of the training that the other one begins.
        """
        name, count = self.worker(claims), len(self.entries(claims))
        write_seconds(self.stack, next_takes)
        child, start = self.stack.processes[name], time.monotonic()
        child.ask_to_stop()
        self.stack.eventually(lambda: len(self.entries(claims)), lambda found: found > count)
        seconds = time.monotonic() - start
        child.await_stop(GRACE_SECONDS)
        assert child.exit_code == 0, f"{name} did not end by itself\n{self.stack.logs()}"
        self.stack.start(name)
        return seconds

    def log(self) -> list[str]:
        logs = [child.log for name, child in self.stack.processes.items() if name.startswith("worker")]
        return [line for log in logs for line in log.read_text().splitlines() if self.name in line]


@pytest.mark.timeout(600)  # workers load torch, one after another where there are two cores
@pytest.mark.parametrize("trio", ["postgres", pytest.param("sqlite", marks=pytest.mark.drill)], indirect=True)
def test_three_planned_stops_cost_a_registration_and_a_deletion_nothing(trio: Stack) -> None:
    training = Training(trio)
    waits = [
        training.stopped("preparation.claimed", next_takes=takes) for takes in (*[FOR_LONG_SECONDS] * (STOPS - 1), 0)
    ]
    state = trio.prepared(training.name)
    assert state["status"] == "live", f"{state}\n{trio.logs()}"
    write_seconds(trio, FOR_LONG_SECONDS)
    request = trio.delete(training.name, subject_id="tiny-person-2")
    waits += [training.stopped("update.claimed", next_takes=0)]
    done = trio.ended(request)
    assert (done["status"], done["samples"]) == ("completed", 3), trio.logs()
    assert max(waits) <= SOON_SECONDS, waits
    with training.database.read() as session:
        assert session.scalars(select(Generation.attempts)).one() == 1, "the claim that published"
        assert session.scalars(select(Task.attempts)).one() == 1
    assert len(training.entries("attempt.given_back")) == STOPS + 1
    assert training.entries("attempt.failed") == []
    assert [entry["attempt"] for entry in training.entries("preparation.claimed")] == [1] * (STOPS + 1)
    lines = [json.loads(line) for line in training.log() if "given back" in line]
    assert [line["phase"] for line in lines].count("train") == STOPS, lines
    assert [line["phase"] for line in lines].count(UNLEARN) == 1, lines
    assert {line["level"] for line in lines} == {"WARNING"}
    assert not any("taken over" in line for line in training.log())


@pytest.mark.timeout(600)  # workers load torch, one after another where there are two cores
@pytest.mark.parametrize("pair", ["postgres", pytest.param("sqlite", marks=pytest.mark.drill)], indirect=True)
def test_drained_workers_hold_nothing_take_nothing_and_go_on(pair: Stack) -> None:
    """One worker, then all with the updater, as before an upgrade of the database's server."""
    pair.start("updater")
    training = Training(pair)
    first = training.worker("preparation.claimed")
    assert_drained(pair, training.owner())
    pair.eventually(lambda: len(training.entries("preparation.claimed")), lambda count: count == 2)
    assert training.worker("preparation.claimed") != first
    assert_drained(pair)
    write_seconds(pair, 0)
    time.sleep(LISTENS_SECONDS)
    assert (training.owner(), pair.client.get(f"/v1/models/{training.name}")["status"]) == ("", "preparing")
    told = command(pair, "drain", "--undo", "--wait")
    assert [row["state"] for row in told] == ["taking work"] * 3
    assert pair.prepared(training.name)["status"] == "live"
    assert len(training.entries("attempt.given_back")) == 2 and training.entries("attempt.failed") == []
    assert all(child.process and child.process.poll() is None for child in pair.processes.values())


def assert_drained(stack: Stack, *names: str) -> None:
    told = command(stack, "drain", "--wait", *names)
    assert [row["state"] for row in told] == ["drained"] * (len(names) or 3), told


def command(stack: Stack, *words: str) -> Any:
    """Run a command of an operator of this installation; return what it prints as JSON."""
    line = [sys.executable, "-m", "expunge_client.cli.main", *words, "--json"]
    done = subprocess.run(line, env=stack.environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.timeout(600)  # workers load torch, one after another where there are two cores
@pytest.mark.parametrize("pair", ["sqlite", pytest.param("postgres", marks=pytest.mark.drill)], indirect=True)
def test_a_killed_worker_still_counts_as_an_attempt(pair: Stack) -> None:
    training = Training(pair)
    name = training.worker("preparation.claimed")
    write_seconds(pair, 0)
    pair.kill(name)
    pair.eventually(lambda: len(training.entries("preparation.claimed")), lambda count: count == 2)
    assert [entry["attempt"] for entry in training.entries("preparation.claimed")] == [1, 2]
    assert training.entries("attempt.given_back") == []
    pair.eventually(lambda: [line for line in training.log() if "taken over" in line], bool)
    assert pair.prepared(training.name)["status"] == "live"


@pytest.mark.drill
@pytest.mark.timeout(900)
@pytest.mark.parametrize("trio", ["postgres"], indirect=True)
def test_two_minutes_of_training_that_are_stopped_three_times_are_not_trained_again(trio: Stack) -> None:
    """Begun anew after each stop, it would take some 80 seconds longer, and half of that is what is allowed."""
    lay_out(trio.settings.recipes, recipe=recipe(sleep=1.2))
    (trio.settings.recipes / "quick.py").write_text(recipe(sleep=0.0))
    begun = time.monotonic()
    training = Training(trio, "rows")
    for _ in range(STOPS):
        training.worker("preparation.claimed")
        time.sleep(20)
        assert training.stopped("preparation.claimed", next_takes=0) <= LEAVE_SECONDS + SOON_SECONDS
    path = f"/v1/models/{training.name}"
    while trio.client.get(path)["status"] == "preparing":
        time.sleep(1)
    assert time.monotonic() - begun < 120 + STOPS * 20
    assert training.entries("attempt.failed") == []
    assert (
        trio.head(training.name)["checkpoint_sha256"] == trio.head(trio.live("quick", "retrain"))["checkpoint_sha256"]
    )
