"""A place where processes are killed: a world on one stack, whose worker, scheduler and API die in forked children."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import redis
from fastapi.testclient import TestClient

from expunge_service.access.api_keys import Scope, create_key
from expunge_service.app import create_app
from expunge_service.infra.broker.messages import QUEUE
from expunge_service.infra.broker.notify import consumer, notify
from expunge_service.infra.tables import Model
from expunge_workers.app import Worker
from expunge_workers.scheduler.run import Scheduler, open_scheduler
from tests.faults.invariants import Broken, broken, left_behind, unfinished, unreadable
from tests.harness import servers
from tests.harness.databases import MakeDatabase, postgres_databases, sqlite_databases, sqlite_template
from tests.workers.worlds import World, end_schedulers_lease, fork, open_world, settings_of

PEOPLE = 12
"""in the recipe convex, three samples each"""
FEWEST = 6
"""a proved update needs both classes: any three of the people have both, and at most three leave at once"""
MESSAGE_SECONDS = 20.0


class NotReached(RuntimeError):
    """The process ended without dying at its crash point: the drill shows nothing."""


@dataclass(frozen=True)
class Stack:
    name: str
    make_database: MakeDatabase
    broker_url: str | None
    """None: the filesystem, in the world's home"""


@contextmanager
def stack_of(name: str, folder: Path) -> Iterator[Stack]:
    """Start the servers of ``sqlite`` (with the filesystem as broker) or ``postgresql`` (with Redis)."""
    with ExitStack() as held:
        if name == "sqlite":
            yield Stack(name, sqlite_databases(sqlite_template(folder)), None)
            return
        server = held.enter_context(servers.redis_server())
        with redis.Redis.from_url(server.url) as client:
            client.ping()
        yield Stack(name, held.enter_context(postgres_databases(held.enter_context(servers.postgres()))), server.url)


@dataclass
class Place:
    """A world, its scheduler, and its API with a key. ``people`` are who is still in its present model."""

    world: World
    scheduler: Scheduler
    api: TestClient
    name: str = ""
    model_id: str = ""
    people: list[str] = field(default_factory=list)
    names: Iterator[str] = field(default_factory=lambda: (f"m{number}" for number in count()))

    def model(self) -> str:
        """Return the id of a live model with enough people; its name is ``name``."""
        if len(self.people) < FEWEST:
            self.name = next(self.names)
            self.model_id = self.world.live(name=self.name, guarantee="proved")
            self.people = [f"p{number}" for number in range(PEOPLE)]
        return self.model_id

    def let_go(self) -> None:
        """Close every connection: none survives a fork."""
        self.world.storage.close()
        self.scheduler.database.close()
        self.scheduler.keys.close()
        self.service.database.close()

    @property
    def service(self) -> Any:
        return self.api.app.state.service  # type: ignore[attr-defined]

    def die(self, point: str, act: Callable[[], object]) -> None:
        """Run ``act`` in a child process that is to be killed at ``point``. Raise NotReached where it was not."""
        self.let_go()
        status = fork(act, TESTS_DIE_AT=point)
        if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
            raise NotReached(f"{point}: the process ended with wait status {status}")

    def worker_dies(self, point: str, model_id: str) -> None:
        """Notify; a worker takes the message from the real broker, and dies."""
        self.world.change(Model, model_id, notified_at=0)  # an earlier death may have taken the message with it
        notify(self.world.database, self.world.process.notifier, [model_id])
        self.die(point, lambda: serve_one(self.world, model_id))

    def recover(self, model_id: str) -> None:
        """End the dead worker's lease, and run another worker and the scheduler."""
        self.world.expire_lease(model_id)
        self.world.work(model_id)
        self.tick()

    def tick(self) -> None:
        end_schedulers_lease(self.world)
        if not self.scheduler.tick():
            raise RuntimeError("the drill's scheduler did not get its lease")

    def wrong(self) -> list[Broken]:
        """Return what does not hold now that everything had its time."""
        storage, database = self.world.storage, self.world.database
        found = broken(database) + unfinished(database) + left_behind(database, storage.keys)
        return found + unreadable(database, storage.store, storage.private)

    def close(self) -> None:
        self.let_go()
        self.api.close()


def open_place(stack: Stack, home: Path) -> Place:
    changes: dict[str, Any] = {} if stack.broker_url is None else {"broker_url": stack.broker_url}
    settings = settings_of(home, stack.make_database(home), grace=0.0, **changes)
    api = TestClient(create_app(settings), raise_server_exceptions=False)
    place = Place(open_world(settings), open_scheduler(settings), api)
    api.headers["Authorization"] = f"Bearer {api_key(place)}"
    return place


def api_key(place: Place) -> str:
    with place.world.database.write() as session:
        key = create_key(session, place.world.storage.pepper, label="drill", scopes=list(Scope))
    return key.secret


def serve_one(world: World, model_id: str) -> None:
    """Take messages as a worker process does until one of this model came; each is acknowledged late, and a heartbeat
    follows it.
    """
    other = open_world(world.settings)
    pulse, app = other.pulse(), consumer(world.settings.broker_url)
    worker = Worker(other.process, pulse)
    met = []

    def on_message(body: Any, message: Any) -> None:
        met.append(body[0][0])
        worker.work(body[0][0])
        pulse.run_errands()
        message.ack()

    queues = [app.amqp.queues[QUEUE]]
    with (
        app.connection_for_read() as connection,
        connection.Consumer(queues, callbacks=[on_message], accept=["json"], prefetch_count=1),
    ):
        while model_id not in met:
            connection.drain_events(timeout=MESSAGE_SECONDS)


__all__ = ["NotReached", "Place", "Stack", "open_place", "serve_one", "stack_of"]
