"""A real PostgreSQL goes back by seconds under running processes: they stop, say so, and go on after a restore.

The standby that takes over lacks the last commits: versions of three methods without a certified person, signed heads
and certificates. Until the restore nothing is published, signed, taken in or handed out; after it nobody is back.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
from sqlalchemy import func, make_url, select

from expunge_service.audit.signed_note import Signer
from expunge_service.cli.checks import examine
from expunge_service.infra.db import Busy, Database, now
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.settings import Settings
from expunge_service.infra.stores import StoredFile
from expunge_service.infra.tables import Certificate, Generation, Model, TreeHead, Version
from expunge_service.models import model_lease
from expunge_service.models.restore_guard import PutBack
from expunge_service.queue import Deletions, Draft, ForgottenCount, Target, publish
from expunge_service.queue.leases import take
from expunge_service.requests import Names
from expunge_workers.scheduler.run import extend_log
from tests.faults.invariants import Broken
from tests.faults.judge import harm, judge, sentences
from tests.faults.load import crowd
from tests.faults.pooler import pooler
from tests.faults.result import Result
from tests.faults.sites import LEASE_SECONDS, Site, site
from tests.faults.traffic import Journal
from tests.harness.databases import postgres_databases, sqlite_databases, sqlite_template
from tests.harness.servers import postgres
from tests.workers.worlds import World, open_world, settings_of
from unlearning.accounting.certificate import Claim
from unlearning.accounting.policy import Policy

PEOPLE = 600
COMMITS = 10_000
WATCHED_SECONDS = 12.0
STOP_SECONDS = 60
SAID = "The database lacks"
EXPUNGE = "from expunge_client.cli.main import app; app()"
Told = tuple[list[Broken], str]


def run(seed: int, scale: float) -> Result:
    chance = random.Random(seed)
    parts: list[tuple[str, Callable[[], Told]]] = [
        ("failover", lambda: failover(str)),
        ("behind a pooler", behind_a_pooler),
        ("store away", store_away),
        ("a copy", a_copy),
        ("on purpose", on_purpose),
        ("sqlite commits", lambda: commits("sqlite", round(COMMITS * scale / 2), chance)),
        ("postgres commits", lambda: commits("postgres", round(COMMITS * scale / 2), chance)),
    ]
    found: list[Broken] = []
    notes: list[str] = []
    for name, part in parts:
        broken, told = part()
        found += [Broken(each.harm, f"{name}: {each.words}") for each in broken]
        notes.append(f"{name}: {told}")
    return Result("failover", cases=len(parts), faults=len(parts), **harm(found), notes=(*notes, *sentences(found)))


@dataclass
class Lived:
    """An installation with three models, which people have left; one left them after the standby stopped receiving."""

    where: Site
    models: list[str]
    standby: Path
    journal: Journal = field(default_factory=Journal)
    found: list[Broken] = field(default_factory=list)

    def forget(self, person: int) -> None:
        """Delete a person from every model, and wait for the certificate."""
        stack, subject = self.where.stack, f"crowd-person-{person}"
        request = stack.forgotten(subject_id=subject)
        self.journal.acknowledged[subject] = request["id"]
        path = f"/v1/deletion-requests/{request['id']}/certificate"
        stack.eventually(lambda: self.get(path).status_code, lambda code: code == httpx.codes.OK)

    def get(self, path: str) -> httpx.Response:
        return self.where.stack.http.get(path, headers=self.headers, timeout=30.0)

    def ask(self, person: int) -> httpx.Response:
        body = {"subject_id": f"crowd-person-{person}"}
        key = {"Idempotency-Key": f"drill-{person}"}
        return self.where.stack.http.post("/v1/deletion-requests", json=body, headers=self.headers | key, timeout=30.0)

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.where.stack.account.api_key}"}

    def require(self, holds: bool, words: str, kind: str = "lost") -> None:
        if not holds:
            self.found.append(Broken(kind, words))

    def written(self) -> tuple[set[str], int, int]:
        """Return the names of every file in the stores, and how many versions and certificates the database has."""
        settings = self.where.stack.settings
        files = {str(path) for root in (settings.store, settings.private_store) for path in Path(str(root)).rglob("*")}
        database = self.where.stack.database()
        with database.read() as session:
            rows = [select(func.count()).select_from(record) for record in (Version, TreeHead)]
            issued = select(func.count()).where(Certificate.issued_at.is_not(None))
            versions, heads = (session.scalar(each) or 0 for each in rows)
            certificates = session.scalar(issued) or 0
        database.close()
        return files, versions + heads, certificates


@contextmanager
def lived(through: Callable[[str], str] = str) -> Iterator[Lived]:
    with site("postgres", through, PEOPLE) as where:
        stack = where.stack
        assert where.postgres is not None
        models = [
            stack.live("crowd", "newton", **crowd(PEOPLE)),
            stack.live("few", "recollection", guarantee="proved"),
            stack.live("few", "retrain"),
        ]
        course = Lived(where, models, Path())
        course.forget(1)
        course.standby = where.postgres.standby()
        stack.eventually(lambda: _code(course, "/readyz"), lambda code: code == httpx.codes.OK)
        course.forget(2)
        yield course


def failover(through: Callable[[str], str]) -> Told:
    with lived(through) as course:
        answers = _fail_over_and_watch(course)
        _restore(course)
        _goes_on(course)
        return course.found, f"{answers}; restored, {len(course.models)} models went on"


def behind_a_pooler() -> Told:
    with ExitStack() as held:
        made = []

        def through(url: str) -> str:
            parsed = make_url(url)
            made.append(held.enter_context(pooler(parsed.host or "", parsed.port or 0)))
            return parsed.set(host="127.0.0.1", port=made[0].port).render_as_string(hide_password=False)

        broken, told = failover(through)
        if not made[0].carried_over:
            broken.append(Broken("lost", "no connection outlived the server: nothing is shown"))
        return broken, f"{told}; {made[0].carried_over} connections outlived the server"


def store_away() -> Told:
    """Take the store away while the database is put back: what needs it waits, and requests are taken in."""
    with lived() as course:
        stack, hidden = course.where.stack, course.where.stack.home / "hidden"
        store = Path(str(stack.settings.store))
        store.rename(hidden)
        store.write_text("not a folder")
        course.where.postgres.fail_over(course.standby)  # type: ignore[union-attr]
        taken = stack.eventually(lambda: _status(lambda: course.ask(10)), lambda code: code == httpx.codes.ACCEPTED)
        downloads = {_status(partial(course.get, _download(name))) for name in course.models}
        course.require(downloads == {503}, f"downloads without the store: {downloads}", "served_with_deletion_missing")
        time.sleep(3 * LEASE_SECONDS / 2)
        store.unlink()
        hidden.rename(store)
        stack.eventually(lambda: _said(course), lambda said: SAID in said)
        _restore(course)
        course.journal.acknowledged["crowd-person-10"] = course.ask(10).json()["id"]
        _goes_on(course)
        return course.found, f"answered {taken} while the store was away, then stopped, then restored"


def a_copy() -> Told:
    """Let a copy of the database, with another worker, write to the same store: the original stops."""
    with lived() as course, postgres() as other:
        other.process.end(signal.SIGINT)
        subprocess.run(["rm", "-rf", other.folder / "data"], check=True)
        subprocess.run(["cp", "-a", course.standby, other.folder / "data"], check=True)
        other.process.start()
        settings, host = course.where.stack.settings, other.address.split(":")
        urls = {
            name: make_url(getattr(settings, name)).set(host=host[0], port=int(host[1]))
            for name in ("database_url", "key_store_url")
        }
        shown = {name: url.render_as_string(hide_password=False) for name, url in urls.items()}
        copy = open_world(settings.model_copy(update=shown))
        try:
            said = ""
            try:
                copy.storage.guard.look()
            except PutBack as error:
                said = str(error)
            course.require(SAID in said, f"the copy, which is behind, finds no difference: {said}")
            before = course.written()[1]
            model_id = copy.model_named(course.models[1])
            _publish_unseen(copy, model_id)
            stopped = course.where.stack.eventually(lambda: _said(course), lambda words: SAID in words)
            course.require(_status(lambda: course.ask(20)) == 503, "the original takes in, as its copy does")
            course.require(
                course.written()[1] - before <= 1, "the original publishes or signs, as its copy does", "doubled"
            )
        finally:
            copy.storage.close()
        return course.found, f"the copy was behind and said so; the original said: {stopped}"


def on_purpose() -> Told:
    """Put a backup back as an operator does: everything is stopped, restored and confirmed, and runs again."""
    with lived() as course:
        _stop(course)
        course.where.postgres.fail_over(course.standby)  # type: ignore[union-attr]
        _restore(course)
        _goes_on(course)
        logs = course.where.stack.logs()
        course.require(logs.count(SAID) == 0, "a restore on purpose was called a difference afterwards")
        return course.found, "restored without an export, then signed, published and verified"


def _fail_over_and_watch(course: Lived) -> str:
    stack = course.where.stack
    course.where.postgres.fail_over(course.standby)  # type: ignore[union-attr]
    back = course.written()  # what was begun before may have ended while the server was away
    answers: Counter[str] = Counter()
    until = time.monotonic() + WATCHED_SECONDS
    person = 100
    while time.monotonic() < until:
        person += 1
        taken = _status(lambda person=person: course.ask(person))  # type: ignore[misc]
        answers[f"POST {taken}"] += 1
        course.require(taken not in (200, 202), "a request was taken in after the failover")
        for name in course.models:
            code = _status(lambda name=name: course.get(_download(name)))  # type: ignore[misc]
            answers[f"GET {code}"] += 1
            course.require(code != 200, f"{name} was handed out after the failover", "served_with_deletion_missing")
        time.sleep(0.2)
    files, rows, certificates = course.written()
    course.require(rows == back[1], "something was published or signed after the failover", "doubled")
    course.require(certificates == back[2], "a certificate was issued after the failover", "doubled")
    course.require(back[0] <= files, f"files were swept: {sorted(back[0] - files)[:3]}")
    course.require(files <= back[0] | {*map(str, stack.home.rglob("*.part"))}, "files were written to the stores")
    course.require(_said(course).startswith(SAID), f"/readyz says {_said(course)!r}")
    course.require("expunge_database_put_back 1.0" in course.get("/metrics").text, "the metric says nothing")
    course.require(any(SAID in each.what for each in examine(stack.settings)), "doctor says nothing")
    for name in ("worker", "worker-2", "scheduler", "api"):
        course.require(stack.processes[name].alive, f"the {name} did not stay up")
    for name in ("scheduler", "api"):
        course.require(SAID in stack.processes[name].log.read_text(), f"the {name}'s log says nothing")
    return ", ".join(f"{count} x {what}" for what, count in sorted(answers.items()))


def _stop(course: Lived) -> None:
    """Let each end by itself: a process that is killed keeps its heartbeat, and `restore` waits for that."""
    for name in ("worker", "worker-2", "scheduler"):
        course.where.stack.processes[name].stop(STOP_SECONDS)


def _restore(course: Lived) -> None:
    """Do what the page on backups says, and what the command says where the database still tells of live processes."""
    _stop(course)
    stack = course.where.stack
    stack.eventually(lambda: _expunge(course, "restore", "--json"), lambda said: "sent a heartbeat" not in said)
    _expunge(course, "restore", "--confirm")
    for name in ("worker", "worker-2", "scheduler"):
        stack.start(name)
    stack.eventually(lambda: _code(course, "/readyz"), lambda code: code == httpx.codes.OK)


def _expunge(course: Lived, *arguments: str) -> str:
    """Run the command; return what it says where it waits for processes to end. Raises AssertionError."""
    command = [sys.executable, "-c", EXPUNGE, *arguments]
    done = subprocess.run(command, env=course.where.stack.environment, capture_output=True, text=True, check=False)
    said = " ".join(done.stderr.split())[-500:]
    assert done.returncode == 0 or "sent a heartbeat" in said, f"expunge {' '.join(arguments)}: {said}"
    return said if done.returncode else ""


def _goes_on(course: Lived) -> None:
    """Delete one more person, download, and look at everything: nobody is back."""
    course.forget(3)
    for name in course.models:
        code = _status(lambda name=name: course.get(_download(name)))  # type: ignore[misc]
        course.require(code == 200, f"{name} is not handed out after the restore: {code}")
    course.found += judge(course.where.stack.settings, course.journal, restored=True)


def _publish_unseen(copy: World, model_id: str) -> None:
    """Publish in the copy as a worker does that has not looked yet, for its guard would refuse."""
    guard = copy.storage.guard
    guard.look = lambda *_: None  # type: ignore[method-assign]
    guard.still = lambda *_: None  # type: ignore[method-assign]
    _publish_empty(copy, model_id)


def _download(name: str) -> str:
    return f"/v1/models/{name}/versions/current/checkpoint"


def _status(call: Callable[[], httpx.Response]) -> int:
    try:
        return call().status_code
    except httpx.TransportError:
        return 0


def _code(course: Lived, path: str) -> int:
    return _status(lambda: course.get(path))


def _said(course: Lived) -> str:
    try:
        return str(course.get("/readyz").json().get("detail", ""))
    except (httpx.TransportError, json.JSONDecodeError):
        return ""


def commits(kind: str, count: int, chance: random.Random) -> Told:
    """Publish, sign and claim under kills, while others look without a pause: none may see a difference."""
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="expunge-drill-")))
        if kind == "sqlite":
            url = sqlite_databases(sqlite_template(folder))(folder / "home")
        else:
            url = held.enter_context(postgres_databases(held.enter_context(postgres())))(folder)
        settings = settings_of(folder / "home", url)
        world = open_world(settings)
        model_id = world.live("convex", "newton", guarantee="proved")
        world.storage.close()
        told = folder / "differences"
        lookers = [_forked(lambda: _look_on(settings, told)) for _ in range(2)]
        done = kills = 0
        try:
            while done < count:
                publisher = _forked(lambda: _publish_on(settings, model_id))
                time.sleep(chance.uniform(0.5, 10.0))
                os.kill(publisher, signal.SIGKILL)
                os.waitpid(publisher, 0)
                kills += 1
                done = _commits(settings)
        finally:
            for looker in lookers:
                os.kill(looker, signal.SIGKILL)
                os.waitpid(looker, 0)
        world = open_world(settings)
        found: list[Broken] = []
        try:
            world.storage.guard.look()
            said = told.read_text().splitlines() if told.exists() else []
        except PutBack as error:
            said = [str(error)]
        finally:
            world.storage.close()
        found += [Broken("lost", f"a false difference: {each}") for each in said]
        return found, f"{done} commits under {kills} kills"


def _forked(act: Callable[[], object]) -> int:
    """Run ``act`` in a child that opens its own connections; return its id."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(0)
    return child


def _commits(settings: Settings) -> int:
    """Return how many commits there were: a claim and a publication for each version, two for each head."""
    database = Database(settings.database_url)
    try:
        with database.read() as session:
            counts = [session.scalar(select(func.count()).select_from(each)) or 0 for each in (Version, TreeHead)]
    finally:
        database.close()
    return 2 * sum(counts)


def _look_on(settings: Settings, told: Path) -> None:
    world = open_world(settings)
    while True:
        try:
            world.storage.guard.look()
        except PutBack as error:
            with told.open("a") as file:
                file.write(f"{error}\n")
        except Busy:
            continue


def _publish_on(settings: Settings, model_id: str) -> None:
    world, signer = open_world(settings), Signer.of(settings)
    while True:
        try:
            _publish_empty(world, model_id)
            extend_log(world.database, signer, world.storage.guard.witness)
        except Busy:
            continue


def _publish_empty(world: World, model_id: str) -> None:
    """Publish a version that forgets nobody: the current one's files under a new number, in the real transaction."""
    with world.database.write() as session:
        model = session.get_one(Model, model_id)
        lease = take(session, model_lease(model_id), new_id(), now(session), 30.0)
        assert lease is not None
        current = session.get_one(Version, model.current_id)
        generation = session.get_one(Generation, model.generation_id)
        job = Deletions(
            lease=lease,
            tenant_id=model.tenant_id,
            model_name=model.name,
            recipe=model.recipe,
            policy=Policy.from_json(model.policy).in_force(generation.method),
            generation_id=generation.id,
            current_id=current.id,
            tasks=(),
        )
        draft = Draft(
            version_id=new_id(),
            checkpoint=StoredFile(current.checkpoint, current.size),
            state=StoredFile(current.state, 1),
            method=current.method,
            claim=Claim.from_json(current.claim),
            accuracy=current.holdout_accuracy or 0.0,
            budget_cost=0,
            target=Target(),
            size=ForgottenCount(),
            commitments=dict(current.commitments or {}),
            marked={},
            begun=now(session),
        )
    publish(world.storage.database, world.storage.journal, job, draft, {}, names=Names())
