"""Several workers at once: one update at a time, every request once, the budget's sum exact."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import event

from expunge_service.audit.log import Overspent, charge
from expunge_service.audit.witness import Witness
from expunge_service.infra.stores import folder_at
from expunge_service.infra.tables import BudgetEntry, Generation, Removal
from expunge_service.queue import Deletions, claim
from expunge_workers.runtime.heartbeat import HeartbeatSender
from tests.harness.s3 import silent
from tests.workers import meanwhile
from tests.workers.worlds import World, begin, open_world, release_connections

pytestmark = pytest.mark.both_engines


def test_of_eight_claims_at_once_one_wins(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    together = threading.Barrier(8)

    def attempt(index: int) -> bool:
        together.wait()
        return claim(world.database, model_id, f"worker-{index}", 30) is not None

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(8))) == 1


def test_two_workers_and_a_stream_of_requests_forget_everyone_once(world: World, tmp_path: Path) -> None:
    model_id = world.live()
    done = tmp_path / "done"

    def worker() -> None:
        other = open_world(world.settings)
        while not done.exists():
            other.work(model_id)
        other.storage.close()

    release_connections(world)
    workers = [begin(worker) for _ in range(2)]
    requests = [world.delete(f"p{index}") for index in range(8)]
    for _ in range(400):
        if all(world.request(request).status == "completed" for request in requests):
            break
        time.sleep(0.05)
    done.touch()
    assert [os.waitpid(child, 0)[1] for child in workers] == [0, 0]
    assert {world.request(request).status for request in requests} == {"completed"}
    versions = world.versions(model_id)
    assert [version.number for version in versions] == list(range(1, len(versions) + 1))
    assert [version.parent_id for version in versions[1:]] == [version.id for version in versions[:-1]]
    assert [version.status for version in versions].count("current") == 1
    assert sum(version.samples for version in versions) == world.count(Removal) == 24
    generation = world.generation(model_id)
    assert generation.spent == (len(versions) - 1) * generation.budget_cost


def test_sixteen_writers_never_overspend(world: World) -> None:
    model_id = world.live()
    generation_id = world.generation(model_id).id
    world.change(Generation, generation_id, budget=50)

    def spend(_: int) -> bool:
        try:
            with world.database.write() as session:
                charge(session, generation_id, None, 7)
        except Overspent:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        fitted = sum(pool.map(spend, range(16)))
    assert (fitted, world.generation(model_id).spent) == (7, 49)
    assert sum(entry.budget_cost for entry in world.rows_of(BudgetEntry)) == 49


def test_a_worker_whose_clock_is_days_ahead_takes_over_no_living_lease(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = world.live()
    world.delete("p3")
    assert world.claim(model_id, owner="first") is not None
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3 * 86_400)
    assert world.claim(model_id, owner="thief") is None
    assert world.lease(model_id).owner == "first"


def test_an_update_reads_its_lease_with_the_models_row_and_writes_it_as_often(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    statements: list[str] = []
    event.listen(world.database.engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    job = world.claim(model_id)
    assert isinstance(job, Deletions)
    world.update(job)
    said = [each for each in statements if "leases" in each]
    assert [each.split()[0] for each in said] == ["SELECT", "UPDATE", "SELECT", "UPDATE"]
    assert all("FROM models JOIN leases" in each for each in said[::2])


def test_the_pulse_renews_a_lease_and_stops_when_it_is_taken_over(world: World) -> None:
    model_id = world.live()
    world.delete("p3")
    job = world.claim(model_id, seconds=0.5)
    assert job is not None
    pulse = HeartbeatSender(world.database, "here", "worker", 30)
    pulse.hold(job.lease, job.generation_id)
    pulse.phase("forget")
    pulse.beat()
    assert world.claim(model_id, owner="thief") is None
    assert (world.generation(model_id).phase or "").startswith("forget at ")
    world.expire_lease(model_id)
    winner = world.claim(model_id, owner="winner", seconds=30)
    assert winner is not None
    before = world.lease(model_id).expires_at
    pulse.beat()
    assert world.lease(model_id).expires_at == before
    assert world.lease(model_id).owner == "winner"


def test_intake_waits_for_a_publication_whose_bucket_is_silent_no_longer_than_that_may_wait(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The publication holds the model's row, on SQLite the whole database, while it writes the draft."""
    bucket = pytest.importorskip("expunge_service.infra.bucket", reason="unverified here: obstore is not installed")
    monkeypatch.setattr(bucket, "PROMPT_SECONDS", 2)
    model_id = world.live(method="newton", guarantee="proved")
    first = world.delete("p3")
    witness, updates = world.storage.guard.witness, world.storage.guard.witness.updates
    with silent() as url, ThreadPoolExecutor(1) as pool:
        beside = pool.submit(lambda: None)

        def ask_beside(*_: object) -> None:
            nonlocal beside
            witness.updates = Witness(folder_at(url)).updates
            beside = pool.submit(lambda: world.delete("p4"))

        meanwhile.HAPPENINGS.append(ask_beside)
        began = time.monotonic()
        world.work(model_id)
        second = beside.result(60)
        assert time.monotonic() - began < 60 and second is not None
    witness.updates = updates
    assert world.request(first).status == world.request(second).status == "queued"
    world.expire_lease(model_id)
    world.work(model_id)
    assert world.request(first).status == world.request(second).status == "completed"
