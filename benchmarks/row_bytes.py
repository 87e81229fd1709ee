"""Bytes that a row of the large tables takes on disk, with its indexes: SQLite and PostgreSQL.

``python -m benchmarks row_bytes``; ``results/scaling.md`` multiplies these. Rows with random digests are
written in the order of positions, as a registration writes them, and the tables are measured as they then lie on disk:
PostgreSQL by ``pg_table_size`` and ``pg_total_relation_size``, SQLite by the growth of the file. A sealed vector is
that of a sketch with 64 directions and 16 probes.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Column, Connection, Engine, Table, create_engine, insert, text

from expunge_service.infra.tables import Membership, StoredVector
from expunge_workers.storage.encryption import NONCE_BYTES, TAG_BYTES
from expunge_workers.storage.key_store import HolderKey
from tests.harness import servers

COUNT = 100_000
BATCH = 10_000
SKETCH_BYTES = 4 * (64 + 16) + NONCE_BYTES + TAG_BYTES
"""float32 numbers, and what sealing adds"""
BLOBS = {"sealed": SKETCH_BYTES, "share": 32}
Row = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """Bytes of a table without and with its indexes; ``heap`` is None where they are not told apart."""

    heap: float | None
    whole: float


def rows() -> Iterator[Row]:
    """Bytes a row of each table, on each database."""
    tables = {"membership": Membership, "sealed vector, r = 64": StoredVector, "key": HolderKey}
    with tempfile.TemporaryDirectory() as folder, servers.postgres() as server, server.database() as url:
        for name, record in tables.items():
            table: Table = record.__table__  # type: ignore[assignment]
            file = Path(folder) / f"{table.name}.db"
            yield row(f"{name}, SQLite", on_sqlite(table, file))
            yield row(f"{name}, PostgreSQL", on_postgresql(table, create_engine(url)))


def on_sqlite(table: Table, file: Path) -> Size:
    engine = create_engine(f"sqlite:///{file}")
    with engine.begin() as connection:
        table.create(connection)
    before = file.stat().st_size
    with engine.begin() as connection:
        fill(connection, table)
    engine.dispose()
    return Size(None, (file.stat().st_size - before) / COUNT)


def on_postgresql(table: Table, engine: Engine) -> Size:
    partitioned = table.name in ("memberships", "recollections")
    if partitioned:  # as the migration makes them
        table.dialect_options["postgresql"]["partition_by"] = "LIST (generation_id)"
    with engine.begin() as connection:
        table.create(connection)
        part = f"{table.name}_1" if partitioned else table.name
        if partitioned:
            connection.execute(text(f"CREATE TABLE {part} PARTITION OF {table.name} FOR VALUES IN (1)"))
        fill(connection, table)
        sizes = text("SELECT pg_table_size(:part), pg_total_relation_size(:part)")
        heap, whole = connection.execute(sizes, {"part": part}).one()
    engine.dispose()
    return Size(heap / COUNT, whole / COUNT)


def fill(connection: Connection, table: Table) -> None:
    for start in range(0, COUNT, BATCH):
        batch = [{each.name: value(each, start + place) for each in table.columns} for place in range(BATCH)]
        connection.execute(insert(table), batch)


def value(column: Column[Any], index: int) -> object:
    """Something of the column's type and length; the rows are those of one generation."""
    if column.name == "generation_id":
        return 1
    kind = column.type.python_type
    if kind is bytes:
        return secrets.token_bytes(BLOBS[column.name])
    return index if kind is int else secrets.token_hex(column.type.length // 2)  # type: ignore[attr-defined]


def row(name: str, size: Size) -> Row:
    return {
        "name": f"bytes a row with its indexes: {name}",
        "value": size.whole,
        "target": "reported",
        "unit": "bytes",
        "met": None,
        "sides": {"rows": COUNT, "whole": size.whole, "without_indexes": size.heap},
    }


if __name__ == "__main__":
    for measured in rows():
        print(measured)
