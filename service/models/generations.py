"""Opening and ending a lineage: its row and, on PostgreSQL, its partitions."""

from __future__ import annotations

from sqlalchemy import delete, text
from sqlalchemy.orm import Session

from service.infra.tables import CalibrationOrder, HoldoutPerson, Lineage, Membership, Recollection, Shard

_PARTITIONED = (Membership, Recollection)


def open_lineage(session: Session, lineage: Lineage) -> Lineage:
    """Add a lineage and make room for its memberships and recollections. Sets ``lineage.id``."""
    session.add(lineage)
    session.flush()
    if session.get_bind().dialect.name != "postgresql":
        return lineage
    for table in (record.__tablename__ for record in _PARTITIONED):
        part = f"{table}_{lineage.id:d}"
        # attaching locks the parent far more weakly than CREATE TABLE ... PARTITION OF: readers go on
        session.execute(text(f"CREATE TABLE {part} (LIKE {table} INCLUDING ALL)"))
        session.execute(text(f"ALTER TABLE {table} ATTACH PARTITION {part} FOR VALUES IN ({lineage.id:d})"))
    return lineage


def empty_lineage(session: Session, lineage_id: int) -> None:
    """Drop what a lineage knew about people: memberships, recollections, calibration, shards and its holdout."""
    for piece in (CalibrationOrder, Shard, HoldoutPerson):
        session.execute(delete(piece).where(piece.lineage_id == lineage_id))
    if session.get_bind().dialect.name == "postgresql":
        for record in _PARTITIONED:
            session.execute(text(f"DROP TABLE IF EXISTS {record.__tablename__}_{int(lineage_id):d}"))
        return
    for record in _PARTITIONED:
        session.execute(delete(record).where(record.lineage_id == lineage_id))
