"""Opening and ending a generation: its row and, on PostgreSQL, its partitions."""

from __future__ import annotations

from sqlalchemy import delete, func, select, text
from sqlalchemy.orm import Session

from expunge_service.infra.tables import (
    Generation,
    GenerationPart,
    HoldoutPerson,
    Membership,
    MembershipBlock,
    Model,
    Restoration,
    Spelling,
    StoredVector,
    Version,
)
from unlearning.accounting.policy import Policy, place_by_rule

_PARTITIONED = (Membership, StoredVector, Spelling)


def open_generation(session: Session, generation: Generation) -> Generation:
    """Add a generation and make room for its memberships, recollections and spellings. Sets ``generation.id``."""
    sqlite = session.get_bind().dialect.name == "sqlite"
    used = session.scalar(select(func.max(Restoration.last_generation))) if sqlite else None
    if used is not None:
        generation.id = 1 + max(used, session.scalar(select(func.max(Generation.id))) or 0)
    session.add(generation)
    session.flush()
    if sqlite:
        return generation
    for table in (record.__tablename__ for record in _PARTITIONED):
        part = f"{table}_{generation.id:d}"
        # attaching locks the parent far more weakly than CREATE TABLE ... PARTITION OF: readers go on
        session.execute(text(f"CREATE TABLE {part} (LIKE {table} INCLUDING ALL)"))
        session.execute(text(f"ALTER TABLE {table} ATTACH PARTITION {part} FOR VALUES IN ({generation.id:d})"))
    return generation


def put_in_place(model: Model, generation: Generation) -> None:
    """Write which workers take the model's updates from now on: by its policy, and by what ``generation`` found out."""
    frozen = generation.manifest or {}
    model.place = place_by_rule(Policy.from_json(model.policy).place, frozen.get("bound_to"))
    model.memory = int(frozen.get("memory", 0))


def serving(session: Session) -> list[tuple[Model, Generation, Version]]:
    """Return every live model with the generation and the version that serve, by name."""
    rows = (
        select(Model, Generation, Version)
        .join(Generation, Generation.id == Model.generation_id)
        .join(Version, Version.id == Model.current_id)
        .where(Model.status == "live", Version.generation_id == Generation.id)
    )
    return [(model, generation, version) for model, generation, version in session.execute(rows.order_by(Model.name))]


def begun_at(session: Session, generation_id: int) -> int:
    """Return the moment when the generation was opened."""
    return session.get_one(Generation, generation_id).created_at


def number_above(session: Session, restoration: Restoration, used: int) -> None:
    """Give the generations from now on numbers above ``used``, which a generation had that the database has lost.

    Its keys and its journal are still there under that number, and must not count for another.
    """
    restoration.last_generation = max(restoration.last_generation or 0, used)
    if session.get_bind().dialect.name == "postgresql":
        counter = "pg_get_serial_sequence('generations', 'id')"
        session.execute(text(f"SELECT setval({counter}, GREATEST(:used, nextval({counter})))"), {"used": used})


def empty_generation(session: Session, generation_id: int) -> None:
    """Drop what a generation knew about people: memberships, recollections, spellings, parts and its holdout."""
    for people in (GenerationPart, HoldoutPerson, MembershipBlock):
        session.execute(delete(people).where(people.generation_id == generation_id))
    if session.get_bind().dialect.name == "postgresql":
        for record in _PARTITIONED:
            session.execute(text(f"DROP TABLE IF EXISTS {record.__tablename__}_{int(generation_id):d}"))
        return
    for record in _PARTITIONED:
        session.execute(delete(record).where(record.generation_id == generation_id))
