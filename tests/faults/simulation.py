"""Random histories against the real rules: Hypothesis draws steps, the whole service lies in memory.

Requests, misspelled ids and decisions about them, cancellations, holds, lost, doubled and reordered messages, workers
that die or wake late, a clock that jumps, schedulers, retrains, a third model, keys and webhooks that are ended, and
restored backups with and without the exported log, over two models. After every step the invariants hold; at the end
everything that was accepted has ended, and nothing of the forgotten is left.
"""

from __future__ import annotations

import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from os import getpid
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select

from expunge_service.infra.tables import DeletionRequest, Generation, Hold, Model, Task
from expunge_service.queue import Deletions, Stale, Work, claim
from expunge_service.requests import legal_holds
from expunge_service.requests.cancellation import cancel
from expunge_service.requests.states import RequestRefused
from expunge_workers.runtime import heartbeat
from tests.faults.invariants import (
    Broken,
    Wrong,
    broken,
    broken_after_restore,
    counted,
    harms_of,
    left_behind,
    uncertified,
    unfinished,
    unreadable,
)
from tests.faults.restores import Restores
from tests.faults.result import Result
from tests.faults.spellings import PEOPLE, Spellings
from tests.faults.town import MODELS, Died, Photograph, Town, dying_at, found, meanwhile_at
from tests.workers.worlds import TENANT

RUNS = 5000
STEPS = 20
PROCESSES = 2
HISTORIES_BETWEEN_REPORTS = 100
"""how many a process plays before it says again how far it is"""
SHOWN = 6000
"""characters of a broken history, its end"""
POINTS = (
    *("worker-after-claim", "worker-after-compute", "worker-after-noise", "worker-before-publish"),
    *("publish-after-charge", "publish-after-version", "publish-after-audit", "switch-after-version"),
    *("worker-after-commit", "worker-after-erasure", "prepare-after-rows"),
)
BETWEEN = ("worker-after-claim", "worker-after-compute", "worker-before-publish", "worker-after-commit")
"""points that no transaction is open at"""
MEANWHILE = ("somebody asks", "a hold", "overtaken", "its lease is taken", "the scheduler ticks")
IN_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
ROUNDS = 40
"""of letting time pass, until everything has ended"""


@dataclass(frozen=True)
class Outcome:
    """What a number of histories came to. ``shown``: the first one that broke a rule, and how."""

    histories: int
    faults: int
    harms: list[Broken]
    shown: str = ""


@cache
def the_town() -> tuple[Town, Photograph, Any]:
    """Return the town, which is built once in a process; its folder lives as long as the process."""
    folder = tempfile.TemporaryDirectory(prefix="expunge-simulation-", dir=IN_MEMORY)
    town = found(Path(folder.name))
    return town, town.photograph(), folder


class Simulation(Spellings, Restores):
    """One history."""

    wanted = 0
    begun = 0
    faults = 0

    @initialize(people=st.lists(st.sampled_from(PEOPLE), min_size=1, max_size=3), claimed=st.booleans())
    def begin(self, people: list[str], claimed: bool) -> None:
        """Let somebody ask before anything else: a history without a request shows nothing."""
        self.town, photo, _ = the_town()
        self.town.go_back(photo)
        Simulation.begun += 1
        if Simulation.begun % HISTORIES_BETWEEN_REPORTS == 0:
            print(f"  process {getpid()}: {Simulation.begun} histories, at least {Simulation.wanted}", flush=True)
        self.jobs, self.accepted, self.cancelled = [], [], set()
        self.backup, self.restored = None, False
        self.seen = -1
        self.spent: dict[int, int] = {}
        self.gone = set()
        self.protected = set()
        self.who = {}
        self.misspelled, self.apart = {}, set()
        for person in people:
            self.somebody_asks(person, None, 0)
        for model_id in self.town.models.values() if claimed else ():
            self.claim(model_id)

    @rule(
        person=st.sampled_from(PEOPLE),
        models=st.sampled_from([None, *((name,) for name in MODELS)]),
        window=st.sampled_from([0, 0, 60]),
    )
    def somebody_asks(self, person: str, models: tuple[str, ...] | None, window: int) -> None:
        self.accepted.append(self.town.accept(person, models, window))
        self.who[self.accepted[-1]] = person

    @precondition(lambda self: self.town.notifier.messages)
    @rule(data=st.data(), kept=st.booleans())
    def a_message_arrives(self, data: st.DataObject, kept: bool) -> None:
        """Deliver a message, in any order, and once more later if it is kept."""
        messages = self.town.notifier.messages
        place = data.draw(st.integers(0, len(messages) - 1))
        self.claim(messages[place])
        if not kept:
            del messages[place]
        Simulation.faults += kept

    @precondition(lambda self: self.town.notifier.messages)
    @rule()
    def every_message_is_lost(self) -> None:
        self.town.notifier.messages.clear()
        Simulation.faults += 1

    @precondition(lambda self: self.jobs)
    @rule(data=st.data())
    def a_worker_goes_on(self, data: st.DataObject) -> None:
        """Let a worker continue, however late: its lease may be over, and its work done by another."""
        self.carry_out(self.jobs.pop(data.draw(st.integers(0, len(self.jobs) - 1))))

    @precondition(lambda self: self.jobs)
    @rule(data=st.data(), point=st.sampled_from(POINTS))
    def a_worker_dies(self, data: st.DataObject, point: str) -> None:
        Simulation.faults += 1
        with dying_at(point):
            self.carry_out(self.jobs.pop(data.draw(st.integers(0, len(self.jobs) - 1))))

    @precondition(lambda self: self.jobs)
    @rule(
        data=st.data(), point=st.sampled_from(BETWEEN), what=st.sampled_from(MEANWHILE), person=st.sampled_from(PEOPLE)
    )
    def something_happens_while_a_worker_works(self, data: st.DataObject, point: str, what: str, person: str) -> None:
        """Let anything happen between the transactions of an update, the end of its lease included."""
        job = self.jobs.pop(data.draw(st.integers(0, len(self.jobs) - 1)))
        heads: list[str | None] = []
        happenings: dict[str, Callable[[], object]] = {
            "somebody asks": lambda: self.somebody_asks(person, None, 0),
            "a hold": lambda: self.a_hold_is_placed(person),
            "overtaken": lambda: self.overtake(job.lease.model_id),
            "its lease is taken": lambda: heads.extend(self.take_over(job)),
            "the scheduler ticks": self.town.scheduler.tick,
        }
        Simulation.faults += 1
        with meanwhile_at(point, happenings[what]):
            self.carry_out(job)
        if heads and self.town.world.model(job.lease.model_id).current_id != heads[0]:
            raise Wrong([Broken("doubled", "a worker whose lease was taken over has published")])

    @rule(seconds=st.sampled_from([1.0, 5.0, 31.0, 61.0, 4000.0]))
    def time_passes(self, seconds: float) -> None:
        self.town.clock.advance(seconds)

    @rule(count=st.sampled_from([0, 1]))
    def the_scheduler_ticks(self, count: int) -> None:
        """Do every duty, or those that the look finds."""
        self.town.scheduler.tick(count)

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def somebody_cancels(self, data: st.DataObject) -> None:
        request = data.draw(st.sampled_from(self.accepted))
        with suppress(RequestRefused), self.town.database.write() as session:
            row = session.get(DeletionRequest, request)
            if row is not None:
                cancel(session, row)
                self.cancelled.add(request)

    @rule(person=st.sampled_from(PEOPLE))
    def a_hold_is_placed(self, person: str) -> None:
        pepper = self.town.world.storage.pepper
        present = {(name, person) for name in MODELS} - self.town.absent(PEOPLE)
        with self.town.database.write() as session:
            legal_holds.place_hold(session, pepper, TENANT, subject_id=person, sample_id=None, reason="drill")
            self.protected |= present

    @rule()
    def every_hold_is_released(self) -> None:
        self.protected.clear()
        with self.town.database.write() as session:
            for hold in session.scalars(select(Hold).where(Hold.lifted_at.is_(None))).all():
                self.town.notifier.messages.extend(legal_holds.lift_hold(session, hold))

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def a_held_request_is_driven_on(self, data: st.DataObject) -> None:
        with self.town.database.write() as session:
            row = session.get(DeletionRequest, data.draw(st.sampled_from(self.accepted)))
            if row is not None:
                with suppress(RequestRefused):  # a retry cannot help: lifting the hold, or a retrain, does
                    self.town.notifier.messages.extend(legal_holds.retry(session, row))

    def count_fault(self) -> None:
        Simulation.faults += 1

    @invariant()
    def nothing_is_broken(self) -> None:
        if not hasattr(self, "town") or self.town.database.changes() == self.seen:
            return
        self.seen = self.town.database.changes()
        check = broken_after_restore if self.restored else broken
        self.require(check(self.town.database) + self.rewound() + self.forgot_a_request() + self.unprotected())
        self.require(self.finished_without_a_decision() if self.misspelled else [])

    def teardown(self) -> None:
        if hasattr(self, "town"):
            self.end()

    def end(self) -> None:
        """Give everything its time; nobody dies any more."""
        self.note_gone()
        self.every_hold_is_released()
        for _ in range(ROUNDS):
            self.town.clock.advance(61.0)
            self.town.scheduler.tick(1)
            for model_id in self.town.models.values():
                self.claim(model_id)
            for job in self.jobs:
                self.carry_out(job)
            self.jobs.clear()
            if not unfinished(self.town.database) and not self.town.notifier.messages:
                break
            self.town.notifier.messages.clear()
        for _ in range(2):  # what the first one writes into the log is certified in the second
            self.town.clock.advance(61.0)
            self.town.scheduler.tick(1)
        self.nothing_is_broken()
        storage, database = self.town.world.storage, self.town.database
        self.require(
            unfinished(database) + uncertified(database) + unreadable(database, storage.store, storage.private)
        )
        self.require(left_behind(database, storage.keys) + self.returned() + self.carried_out_though_cancelled())
        self.require(self.deleted_without_a_decision())

    def overtake(self, model_id: str) -> None:
        """End the lease; another worker does all that waits."""
        self.town.clock.advance(31.0)
        before = len(self.jobs)
        self.claim(model_id)
        for job in self.jobs[before:]:
            self.jobs.remove(job)
            self.carry_out(job)

    def take_over(self, job: Work) -> list[str | None]:
        """End the lease; another worker takes the work. Return the current version at that moment, if it got it."""
        self.town.clock.advance(31.0)
        before = len(self.jobs)
        self.claim(job.lease.model_id)
        taken = len(self.jobs) > before and isinstance(job, Deletions) and isinstance(self.jobs[-1], Deletions)
        return [self.town.world.model(job.lease.model_id).current_id] if taken else []

    def claim(self, model_id: str) -> None:
        job = claim(self.town.database, model_id, f"worker-{len(self.jobs)}", 30.0)
        if job is not None:
            self.jobs.append(job)

    def carry_out(self, job: Work) -> None:
        with suppress(Stale, Died):
            self.town.carry_out(job)

    def require(self, harms: list[Broken]) -> None:
        if harms:
            raise Wrong(harms)

    def rewound(self) -> list[Broken]:
        """Return the generations of which less is spent than was seen before: not even a restore may do that."""
        with self.town.database.read() as session:
            now = {row.id: row.spent for row in session.execute(select(Generation.id, Generation.spent))}
        less = [
            Broken("overspent", f"generation {key} spent less than before")
            for key in now
            if now[key] < self.spent.get(key, 0)
        ]
        self.spent |= now
        return less

    def forgot_a_request(self) -> list[Broken]:
        with self.town.database.read() as session:
            kept = set(session.scalars(select(DeletionRequest.id)))
        return [
            Broken("lost", f"request {each} was accepted and is gone") for each in self.accepted if each not in kept
        ]

    def note_gone(self) -> None:
        """Remember who is missing from the served versions: they must never come back."""
        self.gone |= {(name, person) for name, person in self.town.absent(PEOPLE) if person in PEOPLE}

    def unprotected(self) -> list[Broken]:
        """Return the people under a legal hold who were forgotten nevertheless."""
        lost = self.protected & self.town.absent(PEOPLE) if self.protected else set()
        return [Broken("lost", f"{person} is under a legal hold and gone from {name}") for name, person in sorted(lost)]

    def returned(self) -> list[Broken]:
        """Return the people who are back: in a model that lacked them, or although a request for every model was
        carried out.
        """
        with self.town.database.read() as session:
            served = set(session.scalars(select(Model.name).where(Model.status.in_(("live", "exhausted")))))
            everywhere = select(DeletionRequest.id).where(
                DeletionRequest.status == "completed", DeletionRequest.models.is_(None)
            )
            asked = {self.who[request] for request in session.scalars(everywhere) if request in self.who}
        gone = self.gone | {(name, person) for name in served for person in asked}
        back = {each for each in gone if each[0] in served} - self.town.absent(PEOPLE)
        return [Broken("served_with_deletion_missing", f"{person} is back in {name}") for name, person in sorted(back)]

    def carried_out_though_cancelled(self) -> list[Broken]:
        """Return the cancelled requests that continued, and people who are gone though all their requests were
        cancelled.
        """
        with self.town.database.read() as session:
            done = select(Task.request_id).where(Task.request_id.in_(self.cancelled), Task.status != "cancelled")
            found = [Broken("doubled", f"request {each} was cancelled and continues") for each in session.scalars(done)]
        asked = {self.who[request] for request in self.who.keys() - self.cancelled}
        kept = {self.who[request] for request in self.cancelled & self.who.keys()} - asked
        gone = {each for each in self.town.absent(PEOPLE) if each[1] in kept and each[0] in MODELS}
        gone = set() if self.restored else gone  # and those who asked while another was prepared are left out of it
        return found + [
            Broken("doubled", f"{person} cancelled and is gone from {name}") for name, person in sorted(gone)
        ]


def simulate(runs: int, number: int) -> Outcome:
    """Play so many histories from this seed, up to the first that breaks a rule."""
    begun, faults = Simulation.begun, Simulation.faults
    Simulation.wanted = begun + runs
    torch.set_num_threads(1)  # a process for each core: further threads wait for each other at every small product
    chosen = settings(
        max_examples=runs,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate,),  # a shorter history would cost more time than all others together
    )
    harms, shown = [], ""
    try:
        with patch.object(heartbeat, "sleep"):  # the clock is set, and nobody measures how long an update takes
            run_state_machine_as_test(seed(number)(Simulation), settings=chosen)
    except Exception as error:
        harms, shown = harms_of(error), traceback.format_exc()
        print(shown[-SHOWN:], end="", flush=True)  # now, and not when the other processes are through
    return Outcome(Simulation.begun - begun, Simulation.faults - faults, harms, shown)


def run(seed: int, scale: float) -> Result:
    runs = max(1, round(RUNS * scale / PROCESSES))
    seeds = [seed * PROCESSES + number for number in range(PROCESSES)]
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        outcomes = list(pool.map(simulate, [runs] * PROCESSES, seeds))
    harms = [each for outcome in outcomes for each in outcome.harms]
    cases = sum(outcome.histories for outcome in outcomes)
    return Result(
        "simulation",
        cases=cases,
        faults=sum(outcome.faults for outcome in outcomes),
        **counted(harms),
        notes=(
            f"{cases} histories of up to {STEPS} steps, Hypothesis seeds {seeds}",
            *(f"a process stopped at its first broken history, of {runs}" for outcome in outcomes if outcome.harms),
            *sorted({each.words for each in harms})[:10],
        ),
    )
