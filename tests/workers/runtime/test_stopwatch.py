"""One bucketed duration: what can be told about an update's time is a power of two, whoever measures it."""

from __future__ import annotations

import math
import time
from typing import Any, cast

import pytest

from expunge_service.infra.tables import AuditEntry
from expunge_service.infra.time import BUCKETS, LONGEST, SHORTEST, time_bucket
from expunge_workers.guarantee.certify import Certified
from expunge_workers.runtime.heartbeat import UNLEARN, HeartbeatSender, Stopwatch
from expunge_workers.update import run
from tests.workers.worlds import World


@pytest.fixture(autouse=True)
def no_wait_for_the_bucket() -> None:
    """Wait here, in place of the fixture of this name that the other tests have."""


class Phases:
    """A pulse that notes which phases were shown."""

    def __init__(self) -> None:
        self.shown: list[str] = []

    def phase(self, name: str) -> None:
        self.shown.append(name)


def watch() -> tuple[Stopwatch, list[str]]:
    pulse = Phases()
    return Stopwatch(cast(HeartbeatSender, pulse)), pulse.shown


@pytest.mark.parametrize("seconds", [0.0, 1e-9, SHORTEST, 0.0011, 0.5, 0.50000001, 3.0, 4.0, 4.000001, 290.0, 1e9])
def test_a_bucket_is_the_next_power_of_two(seconds: float) -> None:
    edge = time_bucket(seconds)
    assert edge in BUCKETS and (edge >= seconds or edge == LONGEST)
    assert edge in {SHORTEST, LONGEST} or edge / 2 < seconds
    assert math.log2(edge).is_integer()


def test_forgetting_and_certifying_take_a_power_of_two_together() -> None:
    """26 and 31 products: each takes its own time, and both last as long, on the clock and in the record."""
    lasted, told = [], []
    for seconds in (0.26, 0.31):
        timed, shown = watch()
        start = time.perf_counter()
        with timed.unlearning():
            time.sleep(seconds)
        lasted.append(time.perf_counter() - start)
        told.append(timed.seconds[UNLEARN])
        assert shown == [UNLEARN]
    assert min(lasted) >= 0.5
    assert told == pytest.approx([time_bucket(each) for each in told], abs=0.02)


def test_a_release_that_fails_lasts_as_long() -> None:
    timed, _ = watch()
    start = time.perf_counter()
    with pytest.raises(ValueError, match="no"), timed.unlearning():
        time.sleep(0.26)
        raise ValueError("no")
    assert time.perf_counter() - start >= 0.5


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_no_entry_version_or_row_tells_more_than_the_bucket(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the claim's entry to the publication's at least the bucket has passed, though the work took less."""
    model_id = world.live()
    slow = 0.3

    def certify(*given: Any) -> Certified:
        time.sleep(slow)
        return certify_really(*given)

    certify_really = run.certify
    monkeypatch.setattr(run, "certify", certify)
    world.delete("p3")
    world.work(model_id)
    entries = {entry.kind: entry.created_at for entry in world.rows_of(AuditEntry)}
    assert entries["version.published"] - entries["update.claimed"] >= time_bucket(slow) * 1_000_000
