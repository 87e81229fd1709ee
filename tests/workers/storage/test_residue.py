"""After a release nothing that the system wrote holds the person's id or vector in clear, nor a key to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from sqlalchemy import select

from expunge_service.infra.tables import StoredVector
from expunge_workers.storage import private_state
from tests.harness.residue import share_in_file
from tests.workers.worlds import World

pytestmark = pytest.mark.both_engines


def everything_written(world: World, folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_relative_to(world.settings.recipes):  # the operator's own tables
            yield str(path), path.read_bytes()
    if world.database.dialect == "postgresql":
        with world.database.read() as session:
            for row in session.scalars(select(StoredVector)):
                yield "recollections", row.sealed


def found(world: World, folder: Path, needles: list[bytes]) -> list[str]:
    return [name for name, data in everything_written(world, folder) for needle in needles if needle in data]


def test_neither_id_nor_vector_nor_key_of_a_forgotten_person_is_left(world: World, tmp_path: Path) -> None:
    model_id = world.live()
    with world.database.read() as session:
        rows = list(session.scalars(select(StoredVector)))
        vectors = private_state.read_vectors(
            session, world.storage.keys, rows[0].generation_id, [row.holder for row in rows], torch.device("cpu")
        )
    keys = world.storage.keys.fetch(row.key_id for row in rows)
    shares = {key_id: share_in_file(world.storage.keys, key_id) for key_id in keys}
    assert len(vectors) == 12
    assert found(world, tmp_path, list(shares.values())), "the search finds what is there"
    people = [f"p{index}" for index in range(12)]
    before = {row.key_id: keys[row.key_id] for row in rows}
    world.delete("p3")
    world.work(model_id)
    left = world.storage.keys.fetch(before)
    destroyed = [key_id for key_id in before if key_id not in left]
    assert len(destroyed) == 1
    in_clear = [vector.numpy().tobytes() for vector in vectors.values()]
    assert found(world, tmp_path, [*in_clear, *before.values(), shares[destroyed[0]]]) == []
    assert found(world, tmp_path, [f'"{person}"'.encode() for person in people]) == []
