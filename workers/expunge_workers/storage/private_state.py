"""The secrets of a generation: the sealed state file, the sealed vectors, and sealed notes for operators."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from sqlalchemy.orm import Session
from torch import Tensor

from expunge_service.infra.db import BATCH, Database
from expunge_service.infra.stores import Store, StoredFile
from expunge_service.infra.tables import Version
from expunge_service.models import Row, keys_of, sealed_rows
from expunge_workers.storage import checkpoint_format
from expunge_workers.storage.encryption import Sealer
from expunge_workers.storage.key_store import KeyStore
from unlearning.types import Json, State

ROWS_BYTES = 32 * 2**20
"""of vectors that are held at once, while they are sealed or summed"""
NUMBER_BYTES = 8
STATE, NOTE = "state", "note"
"""the places for which notes are sealed, and state files before 0.3"""


@dataclass(frozen=True)
class VectorStore:
    """The vectors of a generation, which stay in the database: each reading is one query, a few rows at a time.

    ``numbers`` is the most that a vector has.
    """

    database: Database
    key_store: KeyStore
    generation_id: int
    numbers: int
    device: torch.device

    def read(self, people: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield each of ``people`` with a vector, in sorted order. Raises Damaged for a row that was changed."""
        with self.database.read() as session:
            at_once = _rows_at_once(self.numbers * NUMBER_BYTES)
            rows = sealed_rows(session, self.generation_id, sorted(people), at_once)
            yield from _opened(rows, self.key_store, self.generation_id, self.device)


def version_place(generation_id: int, version_id: str) -> str:
    """Return the place that a version's state is sealed for: it opens in no other version, and no other generation."""
    return f"{STATE}/{generation_id}/{version_id}"


def place_of(version: Version) -> str:
    """Return the place that the state of this version is sealed for. Versions of before 0.3 share one."""
    return STATE if version.commitments is None else version_place(version.generation_id, version.id)


def keep(private: Store, sealer: Sealer, place: str, state: State, evidence: Mapping[str, Json]) -> StoredFile:
    """Write the unnoised weights, the method's tensors and facts, and the evidence, sealed for ``place``, durable."""
    return private.put([sealer.seal(place, checkpoint_format.encode_state(state, evidence))])


def load(private: Store, sealer: Sealer, place: str, digest: str, device: torch.device) -> State:
    """Return the state of that digest, on the device. Raises Damaged or Malformed: there is no other copy.

    Damaged, too, where it was sealed for another place.
    """
    state, _ = checkpoint_format.decode_state(sealer.open(place, private.read(digest)))
    tensors = {name: tensor.to(device) for name, tensor in state.tensors.items()}
    return State(state.weights.to(device), tensors, state.facts)


def seal_note(sealer: Sealer, facts: Mapping[str, Json]) -> str:
    """Return facts for operators as sealed text (base64), which a row may hold."""
    return b64encode(sealer.seal(NOTE, json.dumps(dict(facts)).encode())).decode()


def open_note(sealer: Sealer, note: str) -> dict[str, Json]:
    """Return the facts of ``seal_note``. Raises Damaged."""
    facts: dict[str, Json] = json.loads(sealer.open(NOTE, b64decode(note)))
    return facts


def seal_vectors(keys: KeyStore, generation_id: int, vectors: Mapping[str, Tensor]) -> Iterable[list[Row]]:
    """Yield the rows in batches. Every person gets a new key, durable in the key store before the row is made."""
    holders = iter(sorted(vectors))
    largest = max((vector.numel() * vector.element_size() for vector in vectors.values()), default=1)
    while batch := list(islice(holders, _rows_at_once(largest))):
        fresh = keys.create(generation_id, len(batch))
        yield [
            _row(generation_id, holder, key_id, key, vectors[holder])
            for holder, (key_id, key) in zip(batch, fresh, strict=True)
        ]


def reseal_vectors(database: Database, keys: KeyStore, generation_id: int, vectors: Mapping[str, Tensor]) -> list[Row]:
    """Return rows for vectors that an update changed, each sealed under the key that its person has already.

    A person without a row or a key is left out: such a vector is lost.
    """
    if not vectors:
        return []
    with database.read() as session:
        key_ids = keys_of(session, generation_id, vectors)
    found = keys.fetch(key_ids.values())
    return [
        _row(generation_id, holder, key_id, found[key_id], vectors[holder])
        for holder, key_id in key_ids.items()
        if key_id in found
    ]


def read_vectors(
    session: Session, keys: KeyStore, generation_id: int, holders: Iterable[str], device: torch.device
) -> dict[str, Tensor]:
    """Return the vectors of these people. People without a row or a key are absent.

    Raises Damaged for a row that was changed or moved.
    """
    rows = sealed_rows(session, generation_id, sorted(holders), BATCH)
    return dict(_opened(rows, keys, generation_id, device))


def _row(generation_id: int, holder: str, key_id: str, key: bytes, vector: Tensor) -> Row:
    sealed = Sealer(key).seal(_place(generation_id, holder), checkpoint_format.pack(vector))
    return {"generation_id": generation_id, "holder": holder, "key_id": key_id, "sealed": sealed}


def _place(generation_id: int, holder: str) -> str:
    return f"{generation_id}/{holder}"


def _opened(
    parts: Iterable[Sequence[Any]], keys: KeyStore, generation_id: int, device: torch.device
) -> Iterator[tuple[str, Tensor]]:
    """Yield the vectors of sealed rows, without those of destroyed keys."""
    for rows in parts:
        found = keys.fetch(row.key_id for row in rows)
        for holder, key_id, sealed in rows:
            if key_id in found:
                data = Sealer(found[key_id]).open(_place(generation_id, holder), sealed)
                yield holder, checkpoint_format.unpack(data).to(device)


def _rows_at_once(size: int) -> int:
    """Return how many rows of ``size`` bytes are read at once."""
    return max(1, min(BATCH, ROWS_BYTES // max(1, size)))
