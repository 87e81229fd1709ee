"""Opening and ending a generation: its row and, on PostgreSQL, its partitions."""

from __future__ import annotations

from sqlalchemy import delete, text
from sqlalchemy.orm import Session

from service.infra.tables import CalibrationOrder, Generation, HoldoutPerson, Membership, StoredVector, WorkUnit

_PARTITIONED = (Membership, StoredVector)


def open_generation(session: Session, generation: Generation) -> Generation:
    """Add a generation and make room for its memberships and recollections. Sets ``generation.id``."""
    session.add(generation)
    session.flush()
    if session.get_bind().dialect.name != "postgresql":
        return generation
    for table in (record.__tablename__ for record in _PARTITIONED):
        part = f"{table}_{generation.id:d}"
        # attaching locks the parent far more weakly than CREATE TABLE ... PARTITION OF: readers go on
        session.execute(text(f"CREATE TABLE {part} (LIKE {table} INCLUDING ALL)"))
        session.execute(text(f"ALTER TABLE {table} ATTACH PARTITION {part} FOR VALUES IN ({generation.id:d})"))
    return generation


def empty_generation(session: Session, generation_id: int) -> None:
    """Drop what a generation knew about people: memberships, recollections, calibration, work units and its holdout."""
    for piece in (CalibrationOrder, WorkUnit, HoldoutPerson):
        session.execute(delete(piece).where(piece.generation_id == generation_id))
    if session.get_bind().dialect.name == "postgresql":
        for record in _PARTITIONED:
            session.execute(text(f"DROP TABLE IF EXISTS {record.__tablename__}_{int(generation_id):d}"))
        return
    for record in _PARTITIONED:
        session.execute(delete(record).where(record.generation_id == generation_id))
