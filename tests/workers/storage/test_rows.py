"""Sealed rows of vectors: a release reads ten thousand of them in one query, and never holds them together."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from sqlalchemy import event

from expunge_service.infra.stores import Damaged
from expunge_service.infra.tables import StoredVector
from expunge_service.models.vectors import write_vectors
from expunge_workers.storage import private_state
from tests.workers.worlds import World, open_world, release_connections
from unlearning.methods.recollection.vectors import sum_of
from unlearning.types import VectorsMissing

CPU = torch.device("cpu")
MEBIBYTE = 2**20


@pytest.mark.both_engines
def test_the_rows_of_an_update_are_one_query_and_add_up(world: World) -> None:
    generation_id = world.generation(world.live("convex")).id
    holders = written(world, generation_id, rows=600, numbers=40)
    chosen = tuple(sorted(holders)[::2])
    kept = private_state.VectorStore(world.storage.database, world.storage.keys, generation_id, 40, CPU)
    with selects(world, "recollections") as seen:
        total = sum_of(kept, frozenset(chosen), torch.zeros(40))
    assert len(seen) == 1, seen
    wanted = torch.stack([holders[holder].double() for holder in chosen]).sum(dim=0)
    assert torch.allclose(total, wanted, rtol=1e-12, atol=1e-12)
    assert [holder for holder, _ in kept.read(reversed(chosen))] == list(chosen)
    [(_, one)] = kept.read([chosen[3]])
    assert torch.equal(one, holders[chosen[3]])


def test_a_row_that_was_changed_is_no_vector(world: World) -> None:
    generation_id = world.generation(world.live("convex")).id
    names = tuple(sorted(written(world, generation_id, rows=2, numbers=300)))
    kept = private_state.VectorStore(world.storage.database, world.storage.keys, generation_id, 300, CPU)
    with world.database.write() as session:
        row = session.get_one(StoredVector, (generation_id, names[1]))
        row.sealed = row.sealed[:-20] + bytes([row.sealed[-20] ^ 1]) + row.sealed[-19:]
    with pytest.raises(Damaged):
        sum_of(kept, frozenset(names), torch.zeros(300))


def test_a_sum_says_how_many_vectors_are_missing(world: World) -> None:
    generation_id = world.generation(world.live("convex")).id
    holders = written(world, generation_id, rows=5, numbers=4)
    kept = private_state.VectorStore(world.storage.database, world.storage.keys, generation_id, 4, CPU)
    asked = frozenset([*holders, "nobody", "nowhere"])
    assert [person for person, _ in kept.read(asked)] == sorted(holders)
    with pytest.raises(VectorsMissing) as missing:
        sum_of(kept, asked, torch.zeros(4))
    assert missing.value.count == 2
    world.storage.keys.destroy_generation(generation_id)
    with pytest.raises(VectorsMissing) as missing:
        sum_of(kept, asked, torch.zeros(4))
    assert missing.value.count == 7, "a row whose key is gone is no vector"


@pytest.mark.drill
def test_summing_ten_thousand_rows_never_holds_them_together(world: World) -> None:
    """10,000 rows of 8,000 numbers are 76 MiB. The process that sums them has not held a vector before."""
    generation_id = world.generation(world.live("convex")).id
    names = tuple(sorted(name for part in range(20) for name in written(world, generation_id, 500, 2_000, part)))
    release_connections(world)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        before = resident()
        again = open_world(world.settings).storage
        kept = private_state.VectorStore(again.database, again.keys, generation_id, 2_000, CPU)
        total = sum_of(kept, frozenset(names), torch.zeros(2_000))
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
        os.write(writer, f"{grown} {float(total.norm())}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    grown, norm = os.read(reader, 200).decode().split()
    print(f"{len(names)} rows: {int(grown) / MEBIBYTE:.0f} MiB more resident")
    assert len(names) == 10_000 and float(norm) > 0
    assert int(grown) < 48 * MEBIBYTE


def written(world: World, generation_id: int, rows: int, numbers: int, seed: int = 0) -> dict[str, torch.Tensor]:
    """More sealed rows, and what they hold."""
    random = torch.Generator().manual_seed(seed)
    drawn = torch.randn(rows, numbers, generator=random)
    vectors = {f"{seed:032x}{index:032x}": vector.clone() for index, vector in enumerate(drawn)}
    for batch in private_state.seal_vectors(world.storage.keys, generation_id, vectors):
        with world.database.write() as session:
            write_vectors(session, batch)
    return vectors


@contextmanager
def selects(world: World, table: str) -> Iterator[list[str]]:
    """The SELECT statements on ``table`` inside the block."""
    seen: list[str] = []

    def note(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("SELECT") and f"FROM {table}" in statement:
            seen.append(statement)

    event.listen(world.database.engine, "before_cursor_execute", note)
    yield seen
    event.remove(world.database.engine, "before_cursor_execute", note)


def resident() -> int:
    """Bytes of memory that this process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
