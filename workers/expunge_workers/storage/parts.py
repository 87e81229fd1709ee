"""The parts of a training that a generation keeps: each by its key, sealed in the private store, with a row."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from sqlalchemy import Select, delete, insert, select
from sqlalchemy.orm import Session

from expunge_service.infra.db import batches, now
from expunge_service.infra.pseudonyms import digest
from expunge_service.infra.stores import Damaged
from expunge_service.infra.tables import TrainedPart
from expunge_service.infra.time import time_bucket
from expunge_service.models import drop_parts
from expunge_service.queue import Stale
from expunge_workers.storage import private_state
from expunge_workers.storage.storage import Storage
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


def _always(_session: Session) -> bool:
    return True


@dataclass(frozen=True)
class PartStore:
    """The parts of one generation.

    ``may_keep`` is asked in the transaction that notes a part: one that returns nothing, or raises, keeps it out.
    ``moved_on`` is told in one that notes a point.
    """

    storage: Storage
    generation_id: int
    may_keep: Callable[[Session], object] = _always
    moved_on: Callable[[Session], object] = _always

    def key_of(self, inputs: str) -> str:
        """Return the key of a part by all that its bytes follow from: a bare digest would test who was in it."""
        return digest(self.storage.pepper, "part", f"{self.generation_id}\n{inputs}")

    def load(self, key: str) -> MadePart | None:
        """Return the part of this key; None where it was not made, or its file is gone."""
        return dict(self.load_many([key])).get(key)

    def load_many(self, keys: Iterable[str]) -> Iterator[tuple[str, MadePart]]:
        """Yield the parts of these keys, but those that were not made, or whose file is gone."""
        for some in batches(keys):
            with self.storage.database.read() as session:
                rows = session.execute(self._rows(some)).all()
            for key, result, walls, seconds in rows:
                part = self._open(key, result, walls, seconds)
                if part is not None:
                    yield key, part

    def require_claim(self) -> None:
        """Raise Stale where another claim makes these parts by now."""
        with self.storage.database.write() as session:
            if not self.may_keep(session):
                raise Stale(f"Another claim makes the parts of generation {self.generation_id}.")

    def keep(self, key: str, part: MadePart) -> None:
        """Seal a part and note it, in place of one that another worker kept under the key, or whose file is gone."""
        self.keep_many({key: part})

    def keep_point(self, key: str, part: MadePart) -> None:
        """Keep, as ``keep``, what an interrupted part goes on from. It leaves with what no version is made of."""
        self._keep({key: part}, self.moved_on)

    def keep_many(self, parts: Mapping[str, MadePart]) -> None:
        """Seal each part, and note all in one transaction: as ``keep``."""
        self._keep(parts, _always)

    def _keep(self, parts: Mapping[str, MadePart], noted: Callable[[Session], object]) -> None:
        rows = {key: self._seal(key, part) for key, part in parts.items()}
        sealed = {row["result"] for row in rows.values()}
        with self.storage.database.write() as session:
            unused, at = sealed, {"done_at": now(session)}
            if self.may_keep(session):
                unused = self._replace(session, {key: row | at for key, row in rows.items()}) - sealed
                noted(session)
        self.storage.private.delete(*unused)

    def _replace(self, session: Session, rows: Mapping[str, dict[str, Any]]) -> set[str]:
        """Write the rows in place of those with their keys; return the files that these named."""
        files = set[str]()
        for some in batches(rows):
            files |= {result for _, result, *_ in session.execute(self._rows(some))}
            theirs = TrainedPart.generation_id == self.generation_id, TrainedPart.key.in_(some)
            session.execute(delete(TrainedPart).where(*theirs))
            session.execute(insert(TrainedPart), [rows[key] for key in some])
        return files

    def files_of_others(self, keys: Collection[str]) -> list[str]:
        """Return the files of every part but these: a version that is made of these leaves them behind."""
        rows = select(TrainedPart.key, TrainedPart.result).where(TrainedPart.generation_id == self.generation_id)
        with self.storage.database.read() as session:
            return [result for key, result in session.execute(rows) if key not in keys]

    def drop_others(self, keys: Collection[str]) -> None:
        """Delete every part but these, with its file."""
        with self.storage.database.write() as session:
            results = drop_parts(session, self.generation_id, keys)
        self.storage.private.delete(*results)

    def _rows(self, keys: Collection[str]) -> Select[str, str, str, float]:
        """Select key, file, walls and seconds of the parts with these keys, ``BATCH`` at most."""
        columns = TrainedPart.key, TrainedPart.result, TrainedPart.walls, TrainedPart.seconds
        return select(*columns).where(TrainedPart.generation_id == self.generation_id, TrainedPart.key.in_(keys))

    def _open(self, key: str, result: str, walls: str, seconds: float) -> MadePart | None:
        """Return what the sealed file of a part holds; None where the file is gone."""
        private, sealer = self.storage.private, self.storage.sealer
        try:
            state = private_state.load(private, sealer, self._place(key), result, torch.device("cpu"))
        except Damaged:
            return None
        facts: dict[str, object] = dict(state.facts)
        listing = tuple((str(name), int(size)) for name, size in facts["listing"])  # type: ignore[attr-defined]
        score = facts["score"]
        return MadePart(listing, bytes_of(state.weights), score if isinstance(score, float) else None, walls, seconds)

    def _seal(self, key: str, part: MadePart) -> dict[str, Any]:
        """Write the sealed file of a part; return its row."""
        weights = torch.frombuffer(bytearray(part.data), dtype=torch.uint8)
        state = State(weights, {}, {"listing": [[name, size] for name, size in part.listing], "score": part.score})
        file = private_state.keep(self.storage.private, self.storage.sealer, self._place(key), state, {})
        facts = {"result": file.digest, "walls": part.walls, "seconds": time_bucket(part.seconds)}
        return {"generation_id": self.generation_id, "key": key, **facts}

    def _place(self, key: str) -> str:
        return f"built/{self.generation_id}/{key}"
