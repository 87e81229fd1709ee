"""The parts of a training that a generation keeps: each by its key, sealed in the private store, with a row."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge.service.infra.files import Damaged
from expunge.service.infra.pseudonyms import digest
from expunge.service.infra.tables import TrainedPart
from expunge.service.infra.time import time_bucket
from expunge.service.models import drop_parts
from expunge.workers.storage import private_state
from expunge.workers.storage.storage import Storage
from unlearning.artefact import bytes_of
from unlearning.types import State


@dataclass(frozen=True)
class MadePart:
    """What a part of a training left.

    Args:
        data: the files in a row, as ``listing`` says.
        score: what its own score gave, None where it has none.
        walls: how strong the walls were that it was made behind.
        seconds: of work that it took.
    """

    listing: tuple[tuple[str, int], ...]
    data: bytes
    score: float | None
    walls: str
    seconds: float


@dataclass(frozen=True)
class PartStore:
    """The parts of one generation."""

    storage: Storage
    generation_id: int

    def key_of(self, inputs: str) -> str:
        """Return the key of a part by all that its bytes follow from: a bare digest would test who was in it."""
        return digest(self.storage.pepper, "part", f"{self.generation_id}\n{inputs}")

    def load(self, key: str) -> MadePart | None:
        """Return the part of this key; None where it was not made, or its file is gone."""
        with self.storage.database.read() as session:
            row = session.get(TrainedPart, (self.generation_id, key))
            if row is None:
                return None
            result, walls, seconds = row.result, row.walls, row.seconds
        try:
            state = private_state.load(
                self.storage.private, self.storage.sealer, self._place(key), result, torch.device("cpu")
            )
        except Damaged:
            return None
        facts: dict[str, object] = dict(state.facts)
        listing = tuple((str(name), int(size)) for name, size in facts["listing"])  # type: ignore[attr-defined]
        score = facts["score"]
        return MadePart(listing, bytes_of(state.weights), score if isinstance(score, float) else None, walls, seconds)

    def keep(self, key: str, part: MadePart) -> None:
        """Seal a part and note it; one that another worker made meanwhile stays."""
        weights = torch.frombuffer(bytearray(part.data), dtype=torch.uint8)
        state = State(weights, {}, {"listing": [[name, size] for name, size in part.listing], "score": part.score})
        file = private_state.keep(self.storage.private, self.storage.sealer, self._place(key), state, {})
        seconds = time_bucket(part.seconds)
        row = TrainedPart(
            generation_id=self.generation_id, key=key, result=file.digest, walls=part.walls, seconds=seconds
        )
        with self.storage.database.write() as session:
            earlier = session.get(TrainedPart, (self.generation_id, key))
            before = None if earlier is None else earlier.result
            session.merge(row)
        if before is not None and before != file.digest:
            self.storage.private.delete(before)

    def drop_others(self, keys: Collection[str]) -> None:
        """Delete every part but these, with its file."""
        with self.storage.database.write() as session:
            results = drop_parts(session, self.generation_id, keys)
        self.storage.private.delete(*results)

    def _place(self, key: str) -> str:
        return f"built/{self.generation_id}/{key}"


def results_of(session: Session, generation_id: int) -> list[str]:
    """Return the files of a generation's parts."""
    return [*session.scalars(select(TrainedPart.result).where(TrainedPart.generation_id == generation_id))]
