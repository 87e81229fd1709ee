"""Where a connector keeps what it knows: a folder for each tenant, with its databases and its secret."""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TypeVar

HOME = "EXPUNGE_CONNECT_HOME"
SECRET_BYTES = 32
BUSY_SECONDS = 30.0
"""that a process waits for another one's transaction"""
Item = TypeVar("Item")


def folder_of(tenant: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the tenant's folder: in EXPUNGE_CONNECT_HOME, else in ``connect`` of the service's home folder."""
    home = environment.get(HOME) or Path(environment.get("EXPUNGE_HOME") or ".expunge") / "connect"
    return Path(home).expanduser().resolve() / tenant


def secret_of(folder: Path) -> bytes:
    """Return the secret that digests are keyed by; make it in a folder that has none."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        with os.fdopen(os.open(folder / "secret", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        pass
    return read_secret(folder)


def read_secret(folder: Path) -> bytes:
    """Read the folder's secret. Raises OSError, or ValueError where the file does not hold one."""
    path = folder / "secret"
    if len(found := path.read_bytes()) != SECRET_BYTES:
        raise ValueError(f"{path} does not hold {SECRET_BYTES} bytes. Put it back from a backup.")
    return found


def opened(path: Path, tables: str) -> sqlite3.Connection:
    """Open a database of this machine, with its tables. Statements outside ``writing`` are transactions of their own.

    Several threads may use it, one at a time.
    """
    database = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
    database.row_factory = sqlite3.Row
    database.executescript(tables)
    return database


@contextmanager
def writing(database: sqlite3.Connection) -> Iterator[None]:
    """Run what is inside as one transaction."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        database.rollback()
        raise
    database.commit()


def batches(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Yield the items by so many."""
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
