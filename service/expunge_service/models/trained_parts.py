"""The rows of the parts that a generation's training left: which go, and with them their files."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from expunge_service.infra.db import batches
from expunge_service.infra.tables import TrainedPart


def drop_parts(session: Session, generation_id: int, keys: Collection[str]) -> list[str]:
    """Delete the rows of every part of a generation but those with these keys; return the files that they named."""
    rows = select(TrainedPart.key, TrainedPart.result).where(TrainedPart.generation_id == generation_id)
    gone = {key: result for key, result in session.execute(rows) if key not in keys}
    for some in batches(gone):
        session.execute(
            delete(TrainedPart).where(TrainedPart.generation_id == generation_id, TrainedPart.key.in_(some))
        )
    return sorted(gone.values())
