"""Which attempts count against a request: its own failures, and not those of the machine."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any, BinaryIO

import pytest

from expunge_service.infra.db import Busy
from expunge_service.infra.files import DiskFolder, Files
from expunge_service.infra.stores import Store
from expunge_service.infra.tables import Model, Removal
from expunge_service.queue import HALVE_AFTER
from expunge_workers.app import Worker
from expunge_workers.update import run
from tests.harness.files import root_of
from tests.workers.worlds import World


class Sick(Files):
    """The file operations of a machine whose disk fails, and works again after so many times."""

    def __init__(self, error: Exception, times: int) -> None:
        self.error, self.times = error, times

    def sync(self, file: BinaryIO) -> None:
        self.times -= 1
        if self.times >= 0:
            raise self.error
        super().sync(file)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(OSError(errno.ENOSPC, "full"), id="full"),
        pytest.param(OSError(errno.EIO, "failing"), id="failing", marks=pytest.mark.drill),
        pytest.param(Busy("away"), id="away"),
    ],
)
def test_nobody_is_held_because_the_machine_failed_often(world: World, error: Exception) -> None:
    model_id = world.live()
    request = world.delete("p3")
    store = Store(DiskFolder(root_of(world.storage.store), Sick(error, 10)))
    private = Store(DiskFolder(root_of(world.storage.private), Sick(error, 0)))
    sick = replace(world.storage, store=store, private=private)
    worker = Worker(replace(world.process, storage=sick), world.pulse())
    for _ in range(10):
        world.change(Model, model_id, due_at=None)
        worker.work(model_id)
        assert (world.request(request).status, world.lease(model_id).token) == ("queued", 0)
        assert world.task(request).attempts <= HALVE_AFTER
    world.change(Model, model_id, due_at=None)
    worker.work(model_id)
    assert world.request(request).status == "completed"
    assert world.count(Removal) == 3


@pytest.mark.both_engines
def test_a_commit_of_unknown_outcome_is_no_attempt_that_failed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The version is there, and its worker heard nothing: then it finds its lease given back, and writes nothing."""
    model_id = world.live()
    request = world.delete("p3")
    made = run.publish

    def unheard(*arguments: Any, **named: Any) -> None:
        made(*arguments, **named)
        raise Busy("cut off at COMMIT")

    monkeypatch.setattr(run, "publish", unheard)
    world.work(model_id)
    assert (world.request(request).status, world.head(model_id).number) == ("completed", 2)
    assert "attempt.failed" not in world.kinds()
