"""Work does not grow with what else the machine does, and counts every process that computes for the worker."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import cast

import pytest

from expunge_workers.runtime import work
from expunge_workers.runtime.heartbeat import HeartbeatSender, Stopwatch
from expunge_workers.runtime.work import cpu_seconds, work_of
from tests.workers.worlds import World

BURN = "import time\nwhile time.process_time() < 0.6: pass"


class Silent:
    def phase(self, name: str) -> None:
        """Show nothing."""


@pytest.mark.parametrize(
    ("wall", "cpu", "device", "expected"),
    [
        (126.0, 0.01, "cpu", 0.01),
        (20.0, 160.0, "cpu", 20.0),
        (3600.0, 4.0, "cuda:0", 3600.0),
        (0.0, 0.0, "cpu", 0.0),
    ],
    ids=["busy machine", "eight threads", "card", "nothing"],
)
def test_the_shorter_of_wall_and_cpu_and_on_a_card_the_wall(
    wall: float, cpu: float, device: str, expected: float
) -> None:
    assert work_of(wall, cpu, device) == expected


def test_a_phase_that_waits_takes_time_and_little_work() -> None:
    watch = Stopwatch(cast(HeartbeatSender, Silent()))
    for _ in range(2):
        with watch.phase("train"):
            time.sleep(0.2)
    assert watch.seconds["train"] >= 0.4 > 0.2 > watch.work("train", "cpu")
    assert watch.work("train", "cuda:0") == watch.seconds["train"]
    assert watch.work("never", "cpu") == 0


def test_a_child_that_was_waited_for_counts() -> None:
    before = cpu_seconds()
    subprocess.run([sys.executable, "-c", BURN], check=True)
    assert cpu_seconds() - before >= 0.6


def test_a_training_in_a_fresh_process_counts(world: World) -> None:
    """Its process is a child of the server's, so the kernel counts it nowhere in the worker."""
    before = work._elsewhere
    model_id = world.live("own_training", "retrain")
    assert work._elsewhere > before
    assert 0 < world.report(model_id)["work_seconds"] <= world.report(model_id)["seconds"]
