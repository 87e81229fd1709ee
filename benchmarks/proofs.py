"""Proofs for a certificate backlog, in a short log and in a long one, on SQLite without statistics.

``python -m benchmarks proofs``. The log is filled with leaves and nodes that are no hashes of anything: they are read
and not verified. The proofs are those of 250 certificates, five entries each, drawn from the whole log; the median of
three readings.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Iterator
from statistics import median
from typing import Any

from sqlalchemy.orm import Session

from expunge_service.audit import proofs
from expunge_service.infra.db import Database
from expunge_service.infra.migrate import migrate

SHORT, LONG = 10_000, 1_000_000
ASKED = 250 * 5
DIGEST = "ab" * 32


def rows() -> Iterator[dict[str, Any]]:
    sides = {f"{size} entries": cpu_of(size) for size in (SHORT, LONG)}
    short, long = sides.values()
    name = f"proofs of {ASKED:,} entries, SQLite: a log of {LONG:,} entries"
    yield row(name, 1000 * long, "CPU ms", sides)
    yield row(f"{name} / of {SHORT:,}", long / short, "CPU ratio", sides)


def row(name: str, value: float, unit: str, sides: dict[str, float]) -> dict[str, Any]:
    return {"name": name, "value": value, "target": "reported", "unit": unit, "met": None, "sides": sides}


def cpu_of(size: int) -> float:
    """Return the CPU seconds of the proofs in a log of ``size`` entries."""
    with tempfile.TemporaryDirectory(prefix="expunge-bench-") as folder:
        database = Database(f"sqlite:///{folder}/expunge.db")
        migrate(database)
        fill(database, size)
        asked = random.Random(0).sample(range(size), ASKED)
        with database.read() as session:
            spent = [seconds_of(session, size, asked) for _ in range(3)]
        database.close()
    return median(spent)


def seconds_of(session: Session, size: int, asked: list[int]) -> float:
    start = time.process_time()
    found = proofs(session, size, asked)
    spent = time.process_time() - start
    assert len(found) == ASKED
    return spent


def fill(database: Database, size: int) -> None:
    leaf = (
        "INSERT INTO audit_entries (tenant_id, log_index, leaf_hash, kind, body, created_at) VALUES (?, ?, ?, ?, ?, 0)"
    )
    node = 'INSERT INTO tree_nodes (level, "index", hash) VALUES (?, ?, ?)'
    with database.write() as session:
        raw: Any = session.connection().connection.driver_connection
        raw.executemany(leaf, (("default", index, DIGEST, "test.step", "{}") for index in range(size)))
        for level in range(1, size.bit_length()):
            raw.executemany(node, ((level, index, DIGEST) for index in range(size >> level)))
