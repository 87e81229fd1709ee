"""Reading and writing what a lineage keeps in secret: the sealed state file, and the sealed rows of vectors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TypeAlias, cast

import torch
from sqlalchemy import Table, bindparam, delete, insert, select, update
from sqlalchemy.orm import Session
from torch import Tensor

from service.records import Recollection
from service.storage import Stored
from unlearning.protocol import Json, State
from workers import codec
from workers.keystore import BATCH, batches
from workers.sealing import SealedRow, open_row, seal_row
from workers.workshop import Workshop

ROWS_BYTES = 32 * 2**20
Row: TypeAlias = dict[str, object]


def keep(workshop: Workshop, state: State, evidence: Mapping[str, Json]) -> Stored:
    """Write w~, the method's tensors and facts, and the evidence, sealed and durable."""
    return workshop.private.put(workshop.sealer.seal(codec.encode_state(state, evidence)))


def load(workshop: Workshop, digest: str, device: torch.device) -> State:
    """The state of that digest, on the device. Raises Damaged, Unsealable or Malformed: there is no other copy."""
    state = codec.decode_state(workshop.sealer.unseal(workshop.private.read(digest)))
    tensors = {name: tensor.to(device) for name, tensor in state.tensors.items()}
    return State(state.weights.to(device), tensors, state.facts)


def seal_vectors(workshop: Workshop, lineage_id: int, vectors: Mapping[str, Tensor]) -> Iterable[list[Row]]:
    """Batches of recollection rows; every holder gets a fresh key, durable in the key store before its row is made."""
    holders = iter(sorted(vectors))
    while batch := list(islice(holders, _rows_at_once(vectors))):
        keys = workshop.keys.create(lineage_id, len(batch))
        yield [
            _row(lineage_id, holder, key_id, key, vectors[holder])
            for holder, (key_id, key) in zip(batch, keys, strict=True)
        ]


def write_vectors(session: Session, rows: list[Row]) -> None:
    """Insert a batch of ``seal_vectors``."""
    session.execute(insert(Recollection), rows)


def reseal_vectors(workshop: Workshop, lineage_id: int, vectors: Mapping[str, Tensor]) -> list[Row]:
    """Rows for vectors that a release changed, each sealed anew under the key that its holder has already.

    A holder without a row or a key is left out: such a vector is lost, and can never be used.
    """
    if not vectors:
        return []
    with workshop.database.read() as session:
        key_ids = {
            holder: key_id
            for batch in batches(sorted(vectors), BATCH)
            for holder, key_id in session.execute(
                select(Recollection.holder, Recollection.key_id).where(
                    Recollection.lineage_id == lineage_id, Recollection.holder.in_(batch)
                )
            )
        }
    keys = workshop.keys.fetch(key_ids.values())
    return [
        _row(lineage_id, holder, key_id, keys[key_id], vectors[holder])
        for holder, key_id in key_ids.items()
        if key_id in keys
    ]


def rewrite_vectors(session: Session, rows: Sequence[Row]) -> None:
    """Put the rows of ``reseal_vectors`` in the place of those that their holders have."""
    table = cast(Table, Recollection.__table__)
    place = (table.c.lineage_id == bindparam("lineage"), table.c.holder == bindparam("whose"))
    change = update(table).where(*place).values(nonce=bindparam("fresh_nonce"), sealed=bindparam("fresh_sealed"))
    for batch in batches(rows, BATCH):
        named = [
            {
                "lineage": row["lineage_id"],
                "whose": row["holder"],
                "fresh_nonce": row["nonce"],
                "fresh_sealed": row["sealed"],
            }
            for row in batch
        ]
        session.execute(change, named)


def holders_of(session: Session, lineage_id: int) -> list[str]:
    """Everyone who has a vector in the lineage."""
    return list(session.scalars(select(Recollection.holder).where(Recollection.lineage_id == lineage_id)))


def read_vectors(
    session: Session, workshop: Workshop, lineage_id: int, holders: Iterable[str], device: torch.device
) -> dict[str, Tensor]:
    """The vectors of these holders, and of nobody else. Holders without a row or a key are absent.

    Raises Unsealable for a row that was changed or moved.
    """
    found: dict[str, Tensor] = {}
    columns = (Recollection.holder, Recollection.key_id, Recollection.nonce, Recollection.sealed)
    for batch in batches(holders, BATCH):
        query = select(*columns).where(Recollection.lineage_id == lineage_id, Recollection.holder.in_(batch))
        rows = session.execute(query).all()
        keys = workshop.keys.fetch(row.key_id for row in rows)
        for holder, key_id, nonce, sealed in rows:
            if key_id in keys:
                data = open_row(keys[key_id], _place(lineage_id, holder), SealedRow(nonce, sealed))
                found[holder] = codec.unpack(data).to(device)
    return found


def drop_vectors(session: Session, lineage_id: int, holders: Iterable[str]) -> list[str]:
    """Delete these holders' rows; return the ids of the keys that must now be destroyed."""
    dropped: list[str] = []
    for batch in batches(holders, BATCH):
        gone = (
            delete(Recollection)
            .where(Recollection.lineage_id == lineage_id, Recollection.holder.in_(batch))
            .returning(Recollection.key_id)
            .execution_options(synchronize_session=False)
        )
        dropped.extend(session.scalars(gone))
    return dropped


def _row(lineage_id: int, holder: str, key_id: str, key: bytes, vector: Tensor) -> Row:
    row = seal_row(key, _place(lineage_id, holder), codec.pack(vector))
    return {"lineage_id": lineage_id, "holder": holder, "key_id": key_id, "nonce": row.nonce, "sealed": row.sealed}


def _place(lineage_id: int, holder: str) -> str:
    return f"{lineage_id}/{holder}"


def _rows_at_once(vectors: Mapping[str, Tensor]) -> int:
    first = next(iter(vectors.values()), None)
    return 1 if first is None else max(1, min(BATCH, ROWS_BYTES // max(1, first.numel() * first.element_size())))
