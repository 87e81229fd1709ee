"""Whole processes that stop, run out of memory, have a wrong clock or a failing disk, or migrate all at once."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from sqlalchemy import select

from expunge_client.cli.output import CommandError
from expunge_service.infra.db import SILENT_SECONDS, Database
from expunge_service.infra.migrate import SchemaState, schema_state
from expunge_service.infra.tables import Certificate, DeletionRequest, Lease, Model, Version
from expunge_service.infra.time import SECOND
from expunge_service.models import model_lease
from tests.faults.crowd import write_greedy
from tests.faults.invariants import Broken
from tests.faults.judge import at_rest, eventually, harm, judge, sentences
from tests.faults.result import Result
from tests.faults.shim import THREE_DAYS, built
from tests.faults.sites import KINDS, Site, site
from tests.faults.traffic import Journal
from tests.harness.servers import postgres

MEMORY_BYTES = 16 << 30
"""of addresses: torch alone takes several gigabytes of them"""
LIMITED = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2); "
LIMITED += "os.execv(sys.argv[2], sys.argv[2:])"
MOST_DEATHS = 5
RACERS = 4
Told = tuple[list[Broken], str]


def run(seed: int, scale: float) -> Result:
    chance, rounds = random.Random(seed), max(1, round(5 * scale))
    found: list[Broken] = []
    notes: list[str] = []
    done = 0
    for name, attempt in _attempts(chance, rounds):
        broken, told = attempt()
        found += [Broken(each.harm, f"{name}: {each.words}") for each in broken]
        notes.append(f"{name}: {told}")
        done += rounds if "zombies" in name or "migrations" in name else 1
    return Result("processes", cases=done, faults=done, **harm(found), notes=(*notes, *sentences(found)))


def _attempts(chance: random.Random, rounds: int) -> list[tuple[str, Callable[[], Told]]]:
    attempts: list[tuple[str, Callable[[], Told]]] = []
    for kind in KINDS:
        attempts.append((f"{kind} zombies", lambda kind=kind: zombies(kind, rounds)))  # type: ignore[misc]
        attempts.append((f"{kind} migrations", lambda kind=kind: migrations(kind, rounds)))  # type: ignore[misc]
    attempts += [("out of memory", out_of_memory), ("failing fsync", failing_fsync)]
    return [*attempts, ("wrong clocks", lambda: wrong_clocks(chance.choice((-1, 1)) * THREE_DAYS))]


def zombies(kind: str, rounds: int) -> Told:
    """Stop a worker in the middle of an update until another one took over, and wake it: it may write nothing."""
    journal, late = Journal(), 0
    with site(kind) as where:
        name = where.stack.live("unhurried", "newton", guarantee="proved")
        for number in range(rounds):
            where.stack.kill("worker-2")
            person = f"crowd-person-{number}"
            journal.acknowledged[person] = where.stack.delete(name, subject_id=person)["id"]
            if not eventually(lambda: _leased(where, name), 30):
                return [Broken("lost", "nobody claimed the deletion")], ""
            pid = where.stack.processes["worker"].process.pid  # type: ignore[union-attr]
            os.kill(pid, signal.SIGSTOP)
            where.stack.start("worker-2")
            # one that is stopped inside a transaction keeps its locks until PostgreSQL ends the transaction
            done = eventually(lambda number=number: where.stack.head(name)["number"] == number + 2, SILENT_SECONDS + 60)  # type: ignore[misc]
            os.kill(pid, signal.SIGCONT)
            if not done:
                return [Broken("lost", "no other worker took over")], ""
            time.sleep(2.5)
        late = where.stack.processes["worker"].log.read_text().count("Another worker took over")
        if late == 0:
            return [Broken("lost", "no worker was fenced out: nothing is shown")], ""
        return judge(where.stack.settings, journal), f"{rounds} workers stopped past their lease, {late} fenced out"


def _leased(where: Site, name: str) -> bool:
    database = where.stack.database()
    with database.read() as session:
        lease = select(Lease.expires_at).join(Model, Lease.name == model_lease("") + Model.id)
        until = session.scalar(lease.where(Model.name == name)) or 0
    database.close()
    return until > 0


def out_of_memory() -> Told:
    """Run a recipe that needs more memory than there is: it ends blocked or refused, after a few deaths, and can be
    retried.
    """
    with site("sqlite") as where:
        stack, worker = where.stack, where.stack.processes["worker"]
        stack.kill("worker-2")
        worker.command = [sys.executable, "-c", LIMITED, str(MEMORY_BYTES), *worker.command]
        stack.restart("worker")
        name, journal, found, notes = stack.live("greedy", "newton", guarantee="proved"), Journal(), [], []
        for number, way in enumerate(("grow", "killed")):
            write_greedy(stack.settings.recipes, way)
            person = f"crowd-person-{number}"
            request = stack.delete(name, subject_id=person)
            journal.acknowledged[person] = request["id"]
            deaths = _until(where, request, "blocked")
            notes.append(f"{way}: {_status(where, request)} after {deaths} deaths")
            if _status(where, request) != "blocked" or deaths > MOST_DEATHS:
                found.append(Broken("lost", f"{way}: {_status(where, request)} after {deaths} deaths"))
            write_greedy(stack.settings.recipes, "modest")
            where.retry()
            _until(where, request, "completed")
        write_greedy(stack.settings.recipes, "killed")
        second = stack.register("greedy", "newton", guarantee="proved")
        deaths = _endure(where, lambda: _preparation(where, second) == "refused")
        notes.append(f"preparation {_preparation(where, second)} after {deaths} deaths")
        if _preparation(where, second) != "refused":
            found.append(Broken("lost", "a preparation that kills its workers never ends"))
        return found + judge(stack.settings, journal), ", ".join(notes)


def _endure(where: Site, true: Callable[[], bool], seconds: float = 180.0) -> int:
    """Start the worker again whenever it dies, until it is true; returns how often it died."""
    deaths, deadline = 0, time.monotonic() + seconds
    while not true() and time.monotonic() < deadline:
        if not where.stack.processes["worker"].alive:
            deaths += 1
            where.stack.start("worker")
        time.sleep(0.3)
    return deaths


def _until(where: Site, request: dict[str, object], status: str) -> int:
    return _endure(where, lambda: _status(where, request) == status)


def _status(where: Site, request: dict[str, object]) -> str:
    return str(where.stack.client.get(f"/v1/deletion-requests/{request['id']}")["status"])


def _preparation(where: Site, name: str) -> str:
    return str(where.stack.client.get(f"/v1/models/{name}")["status"])


def failing_fsync() -> Told:
    """Make fsync fail: nothing is acknowledged meanwhile, and afterwards everything that was is carried out."""
    shim = built()
    if shim is None:
        return [], "left out: no C compiler here"
    with tempfile.TemporaryDirectory() as folder, site("sqlite") as where:
        broken = Path(folder) / "broken"
        variables = {"LD_PRELOAD": str(shim), "DRILL_FSYNC_FAILS": str(broken)}
        name = where.stack.live("few", "recollection", guarantee="proved")
        for process in where.stack.processes:
            where.stack.restart(process, **variables)
        eventually(where.ready, 60)
        journal, found = Journal(), []
        refused = 0
        for number in range(10):
            person = f"crowd-person-{number}"
            if number % 2:
                broken.touch()
                try:
                    where.stack.delete(name, subject_id=person)
                    found.append(Broken("lost", "a request was acknowledged though fsync failed"))
                except CommandError:
                    refused += 1
                broken.unlink()
            journal.acknowledged[person] = where.stack.delete(name, subject_id=person)["id"]
            if number % 3 == 0:  # now the worker's turn to meet it
                broken.touch()
                time.sleep(1.5)
                broken.unlink()
        where.mend()
        eventually(where.ready, 60)
        at_rest(where.stack.settings)
        where.retry()
        found += [each for each in judge(where.stack.settings, journal) if "two requests" not in each.words]
        return found, f"{refused} of 5 calls refused while fsync failed"


def wrong_clocks(seconds: int) -> Told:
    """Set the clocks of one worker and the API three days off, in opposite directions: leases and certificates keep the
    hour.
    """
    shim = built()
    if shim is None:
        return [], "left out: no C compiler here"
    with site("postgres") as where:
        name, journal = where.stack.live("unhurried", "newton", guarantee="proved"), Journal()
        for process, offset in (("worker", seconds), ("api", -seconds), ("scheduler", seconds)):
            where.stack.restart(process, LD_PRELOAD=str(shim), DRILL_CLOCK_SECONDS=str(offset))
        eventually(where.ready, 60)
        begun = time.time()
        for number in range(6):
            person = f"crowd-person-{number}"
            journal.acknowledged[person] = where.stack.delete(name, subject_id=person)["id"]
            time.sleep(1)
        found = judge(where.stack.settings, journal)
        eventually(lambda: bool(_moments(where, Certificate.issued_at, 6)), 30)
        for column in (DeletionRequest.created_at, Version.published_at, Certificate.issued_at):
            for at in _moments(where, column, 6)[-6:]:
                if not begun - 60 < at < time.time() + 60:
                    found.append(Broken("lost", f"{column} is {at - begun:.0f} s off"))
        return found, f"API, worker and scheduler {seconds} s off: every moment within a minute of the database's clock"


def _moments(where: Site, column: object, least: int) -> list[float]:
    database = where.stack.database()
    with database.read() as session:
        moments = sorted(each / SECOND for each in session.scalars(select(column)) if each)  # type: ignore[call-overload]
    database.close()
    return moments if len(moments) >= least or column is Version.published_at else []


def migrations(kind: str, rounds: int) -> Told:
    """Let four processes migrate an empty database at once: all succeed, and the schema is the current one."""
    found: list[Broken] = []
    with tempfile.TemporaryDirectory() as folder, postgres() as server:
        for number in range(rounds):
            with server.database() as url:
                chosen = url if kind == "postgres" else f"sqlite:///{folder}/{number}.db"
                variables = {"EXPUNGE_HOME": f"{folder}/{number}", "EXPUNGE_DATABASE_URL": chosen}
                command = [sys.executable, "-m", "expunge_client.cli.main", "migrate"]
                racers = [
                    subprocess.Popen(command, env=os.environ | variables, stderr=subprocess.PIPE, text=True)
                    for _ in range(RACERS)
                ]
                said = [racer.communicate()[1] for racer in racers]
                codes = [racer.returncode for racer in racers]
                database = Database(chosen)
                if codes != [0] * RACERS or schema_state(database) is not SchemaState.CURRENT:
                    why = "; ".join(text.strip() for text, code in zip(said, codes, strict=True) if code)
                    found.append(Broken("lost", f"{kind}: raced migrations ended with {codes}: {why}"))
                database.close()
    return found, f"{rounds} times {RACERS} processes"
