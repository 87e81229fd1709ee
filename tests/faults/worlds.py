"""Worlds to attack: a migrated database, stores, secrets, and a worker that this process plays."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from sqlalchemy import update

from service.infra.db import Database
from service.infra.migrate import migrate
from service.infra.settings import Settings, ensure_secrets
from service.infra.tables import Lease
from tests.harness import servers
from tests.workers.worlds import RECIPES, World, open_world
from workers.scheduler.run import LEASE

torch.set_num_threads(1)  # drills fork workers that are to die: a pool of threads would not survive the fork

PATIENCE_SECONDS = 120

MakeDatabase = Callable[[Path], str]
"""gives a fresh, migrated database; the folder is where a file may lie; returns its URL"""


def sqlite_databases(folder: Path) -> MakeDatabase:
    """Copies of one migrated file, which lies in ``folder``."""
    template = folder / "template.db"
    database = Database(f"sqlite:///{template}")
    migrate(database)
    if not database.truncate_log():
        raise RuntimeError("the template's log could not be emptied")
    database.close()

    def make(home: Path) -> str:
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(template, home / "expunge.db")
        return f"sqlite:///{home / 'expunge.db'}"

    return make


@contextmanager
def postgres_databases() -> Iterator[MakeDatabase]:
    """Copies of one migrated database on a PostgreSQL of its own."""
    with ExitStack() as stack:
        server = stack.enter_context(servers.postgres())
        template = f"template_{secrets.token_hex(4)}"
        server.execute(f"CREATE DATABASE {template}")
        database = Database(server.url(template))
        migrate(database)
        database.close()

        def make(_: Path) -> str:
            name = f"drill_{secrets.token_hex(6)}"
            server.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
            return server.url(name)

        yield make


def settings_of(home: Path, database_url: str, recipes: Path = RECIPES, **changes: Any) -> Settings:
    """Settings of a world in ``home``, with its own copy of ``recipes``.

    Whoever edited a recipe during a drill would change it under its model, and every update would be held for that.
    """
    copies = home.parent / "recipes"
    shutil.copytree(recipes, copies, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    chosen = Settings(
        home=home, database_url=database_url, recipes=copies, device="cpu", **{"lease_seconds": 30.0, **changes}
    )
    ensure_secrets(chosen)
    return chosen


def end_schedulers_lease(world: World) -> None:
    """The scheduler died, and its lease has run out."""
    with world.database.write() as session:
        session.execute(update(Lease).where(Lease.name == LEASE).values(expires_at=0))


def fork(act: Callable[[], object], **environment: str) -> int:
    """Run ``act`` in a process of its own and return its wait status. What it opens must be its own.

    Whoever hangs ends by SIGALRM: a lock that another thread held at the fork is never given back.
    """
    child = os.fork()
    if child == 0:
        signal.alarm(PATIENCE_SECONDS)
        os.environ |= environment
        code = 3
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


__all__ = [
    "MakeDatabase",
    "World",
    "end_schedulers_lease",
    "fork",
    "open_world",
    "postgres_databases",
    "settings_of",
    "sqlite_databases",
]
