"""A checkpoint that knew a person is destroyed with the deletion: in files, in the sealed state, in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from expunge.service.infra.pseudonyms import subject_digest
from expunge.service.infra.tables import Version
from expunge.workers.app import Worker
from expunge.workers.runtime.model import build
from expunge.workers.scheduler.run import open_scheduler
from expunge.workers.storage.checkpoint_format import encode_state
from tests.harness.files import root_of
from tests.service.queue.test_batch import core_and_late
from tests.workers.training.test_own_training import METHODS
from tests.workers.worlds import TENANT, World, end_schedulers_lease
from unlearning.accounting.policy import Policy
from unlearning.methods.late import Late
from unlearning.methods.shards import Shards
from unlearning.types import State

LEAST = 16
"""bytes: a shorter tensor, a counter for example, is found anywhere"""


def state_of(world: World, version: Version) -> State:
    return world.state(version)


def needles(state: State) -> dict[str, bytes]:
    """Return the first bytes of every tensor that the method keeps: weights, and what optimisers remember."""
    tensors = {"weights": state.weights, **state.tensors}
    tensors.pop("joined", None)  # positions of those who are left
    data = {name: bytes(tensor.contiguous().view(-1).numpy().tobytes()) for name, tensor in tensors.items()}
    return {name: each[:64] for name, each in data.items() if len(each) >= LEAST and any(each)}


def places(world: World, folder: Path) -> Iterator[tuple[str, bytes]]:
    """Every file as it is, and the sealed states that can still be opened."""
    for path in folder.rglob("*"):
        if path.is_file():
            yield str(path), path.read_bytes()
    for version in world.versions(world.model_named("m")):
        if (root_of(world.storage.private) / version.state).exists():
            yield f"state of version {version.number}", encode_state(state_of(world, version), {})


def found(world: World, folder: Path, wanted: dict[str, bytes]) -> set[str]:
    data = list(places(world, folder))
    return {name for name, needle in wanted.items() if any(needle in each for _, each in data)}


def knowing(world: World, model_id: str, person: str) -> tuple[str, ...]:
    """Return how the names of the checkpoints begin that were trained on the person."""
    bench = build(world.settings, TENANT, "unshared", Policy.from_json(world.model(model_id).policy))
    name = subject_digest(world.storage.pepper, TENANT, person)
    if isinstance(bench.method, Late):
        first = bench.method.order.phase_of(bench.problem, [name])
        return ("weights", *(f"phase {place}." for place in range(first, 2)))
    assert isinstance(bench.method, Shards)
    first, shard = bench.method.order.phase_of(bench.problem, [name]), bench.method._shard_of(bench.problem, (name,))
    return tuple(f"shard {shard} {place}." for place in range(first, bench.method.slices))


def purged(world: World) -> None:
    """Let the scheduler delete what was replaced."""
    end_schedulers_lease(world)
    assert open_scheduler(world.configured(grace=0.0).settings).tick()


@pytest.mark.parametrize("name", ["late in three phases", "shards"])
def test_no_byte_of_a_checkpoint_that_knew_the_person_is_left(world: World, tmp_path: Path, name: str) -> None:
    method, options = METHODS[name]
    model_id = world.live("unshared", method, options=options)
    before = needles(state_of(world, world.head(model_id)))
    assert found(world, tmp_path, before) == set(before), "the search finds what is there"
    request = world.delete("p3")
    knew = {key: data for key, data in before.items() if key.startswith(knowing(world, model_id, "p3"))}
    kept = {key: data for key, data in before.items() if key not in knew and key != "weights"}
    world.work(model_id)
    purged(world)
    assert world.task(request).status == "completed"
    assert knew and found(world, tmp_path, knew) == set()
    assert found(world, tmp_path, kept) == set(kept), "what never knew the person is kept, and used again"


def test_after_the_core_was_forgotten_nothing_of_before_is_left(world: World, tmp_path: Path) -> None:
    model_id = world.live("unshared", "late")
    before = needles(state_of(world, world.head(model_id)))
    world.delete(core_and_late(world, model_id)[0][0])
    world.work(model_id)
    purged(world)
    assert found(world, tmp_path, before) == set()


def test_a_worker_forgets_the_state_that_another_one_replaced(world: World) -> None:
    model_id = world.live("unshared", "late")
    pulse = world.pulse()
    first = Worker(world.process, pulse)
    world.delete("p1")
    first.work(model_id)
    (kept,) = first._benches._kept.values()
    assert kept.left is not None
    pulse.run_errands()
    assert [*first._benches._kept.values()] == [kept], "the current version's state is kept"
    world.delete("p2")
    world.work(model_id)
    pulse.run_errands()
    (kept,) = first._benches._kept.values()
    assert kept.left is None
