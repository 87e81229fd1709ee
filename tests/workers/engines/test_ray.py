"""What Ray survives beyond the others: its driver and its actor are killed, and no attempt is counted."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest

from expunge_workers.runtime.engine import Engine, EngineAway
from expunge_workers.runtime.part_files import CHECKPOINT
from tests.workers.engines.conftest import programs
from tests.workers.engines.test_conformance import eventually, never, parts
from tests.workers.rows.data import lay_out, published
from tests.workers.rows.test_points import recipe
from tests.workers.worlds import World, open_world

pytestmark = pytest.mark.parametrize("runner", ["ray"], indirect=True)


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def test_neither_the_death_of_the_driver_nor_that_of_the_actor_costs_an_attempt(
    world: World, folder: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    lay_out(folder, recipe=recipe(sleep=0.06, every=0.5))
    world = world.configured(recipes=folder)
    held = world.register("rows", "retrain", name="held")
    working = threading.Thread(target=lambda: open_world(world.settings).work(held))
    working.start()
    eventually(lambda: CHECKPOINT in parts(engine))
    driver = engine.runner._driver  # type: ignore[attr-defined]
    driver.kill()
    driver.wait()
    (program,) = programs(engine.place)
    os.kill(parent_of(program), signal.SIGKILL)  # the actor's own process
    eventually(lambda: programs(engine.place) - {program})
    working.join()
    model = world.model(held)
    assert (model.status, world.generation(held).attempts) == ("live", 1), model.reason
    assert published(world, held) == never(world, monkeypatch)
    assert not programs(engine.place) and parts(engine) == []


def test_a_cluster_that_is_away_is_told(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "1")
    with pytest.raises(EngineAway, match=r"Ray's (cluster did not look|driver did not answer)"):
        engine.runner.look("a" * 64)
