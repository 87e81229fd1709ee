"""Fresh, migrated databases: copies of one that was migrated once, which is far faster than migrating again."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from expunge_service.infra.db import Database
from expunge_service.infra.migrate import migrate
from tests.harness.servers import Postgres

MakeDatabase = Callable[[Path], str]
"""makes a database and returns its URL; a SQLite file is written into the folder"""


def sqlite_template(folder: Path) -> Path:
    """Migrate a SQLite file in ``folder`` and return its path. Its write-ahead log is empty, so it can be copied."""
    path = folder / "template.db"
    database = Database(f"sqlite:///{path}")
    migrate(database)
    if not database.truncate_log():
        raise RuntimeError("the template's log could not be emptied")
    database.close()
    return path


def sqlite_databases(template: Path) -> MakeDatabase:
    """Return what copies the migrated file ``template``."""

    def make(home: Path) -> str:
        home.mkdir(parents=True, exist_ok=True)
        shutil.copy(template, home / "expunge.db")
        return f"sqlite:///{home / 'expunge.db'}"

    return make


@contextmanager
def postgres_databases(server: Postgres) -> Iterator[MakeDatabase]:
    """Yield what copies a migrated database on ``server``; drop the databases afterwards."""
    made = [f"template_{secrets.token_hex(4)}"]
    server.execute(f"CREATE DATABASE {made[0]}")
    database = Database(server.url(made[0]))
    migrate(database)
    database.close()

    def make(_: Path) -> str:
        made.append(f"copy_{secrets.token_hex(6)}")
        server.execute(f"CREATE DATABASE {made[-1]} TEMPLATE {made[0]}")
        return server.url(made[-1])

    yield make
    for name in made:
        server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
