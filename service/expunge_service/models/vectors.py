"""The rows of a generation's vectors. Each has its own key, which is destroyed with it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from sqlalchemy import JSON, ColumnElement, bindparam, delete, func, insert, literal, select, update
from sqlalchemy import cast as cast_to
from sqlalchemy.orm import Session

from expunge_service.infra.db import batches
from expunge_service.infra.tables import StoredVector

Row: TypeAlias = dict[str, object]
_VECTORS = StoredVector.__table__


def write_vectors(session: Session, rows: list[Row]) -> None:
    session.execute(insert(StoredVector), rows)


def rewrite_vectors(session: Session, rows: Sequence[Row]) -> None:
    """Replace the sealed vectors of the people of these rows."""
    table = StoredVector.__table__
    place = (table.c.generation_id == bindparam("generation"), table.c.holder == bindparam("whose"))
    change = update(table).where(*place).values(sealed=bindparam("fresh"))
    for batch in batches(rows):
        named = [{"generation": row["generation_id"], "whose": row["holder"], "fresh": row["sealed"]} for row in batch]
        session.execute(change, named)


_DROP = (
    delete(_VECTORS)
    .where(_VECTORS.c.generation_id == bindparam("generation"))
    .where(_VECTORS.c.holder.in_(bindparam("holders", expanding=True)))
    .returning(_VECTORS.c.key_id)
)


def drop_vectors(session: Session, generation_id: int, holders: Iterable[str]) -> list[str]:
    """Delete the rows of these people; return the ids of the keys that must now be destroyed."""
    dropped: list[str] = []
    for batch in batches(holders):
        dropped.extend(session.scalars(_DROP, {"generation": generation_id, "holders": batch}))
    return dropped


def drop_all_vectors(session: Session, generation_id: int) -> list[str]:
    """Delete every row of a generation; return the ids of the keys that must now be destroyed."""
    gone = delete(StoredVector).where(StoredVector.generation_id == generation_id).returning(StoredVector.key_id)
    return list(session.scalars(gone.execution_options(synchronize_session=False)))


def keys_of(session: Session, generation_id: int, holders: Iterable[str]) -> dict[str, str]:
    """Return the key's id of each of these people with a row."""
    mine = select(StoredVector.holder, StoredVector.key_id).where(StoredVector.generation_id == generation_id)
    return {
        holder: key_id
        for batch in batches(sorted(holders))
        for holder, key_id in session.execute(mine.where(StoredVector.holder.in_(batch)))
    }


def sealed_rows(session: Session, generation_id: int, holders: Sequence[str], at_once: int) -> Iterator[Sequence[Any]]:
    """Yield (holder, key_id, sealed) of these people in sorted order, ``at_once`` at a time, from one query."""
    columns = (StoredVector.holder, StoredVector.key_id, StoredVector.sealed)
    query = (
        select(*columns)
        .where(StoredVector.generation_id == generation_id, _among(session, holders))
        .order_by(StoredVector.holder)
        .execution_options(yield_per=at_once)
    )
    return session.execute(query).partitions()


def _among(session: Session, holders: Sequence[str]) -> ColumnElement[bool]:
    """Return the condition with all names in one parameter: databases limit the number of parameters."""
    names = json.dumps(list(holders))
    if session.get_bind().dialect.name == "postgresql":
        return StoredVector.holder.in_(select(func.json_array_elements_text(cast_to(literal(names), JSON))))
    return StoredVector.holder.in_(select(func.json_each(names).table_valued("value").c.value))
