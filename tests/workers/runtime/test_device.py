"""The device of a worker: which errors are its own, and a process whose device computes no more ends."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest
import torch
from celery import Celery
from celery.worker import state

from expunge_service.infra.broker.messages import TASK
from expunge_service.infra.db import Database
from expunge_service.infra.tables import Heartbeat, Model, Task
from expunge_service.queue import Work
from expunge_workers import app, doctor, main
from expunge_workers.app import DEVICE_BROKEN, MACHINE_PAUSE_SECONDS, PAUSE_SECONDS, register
from expunge_workers.runtime import device
from expunge_workers.runtime.failures import may_pass
from expunge_workers.storage.manifest import surroundings
from tests.workers.worlds import World
from unlearning.model.global_state import OF_A_CARD, settings_kept


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: device-side assert triggered",
        "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
        "CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cusolver error: CUSOLVER_STATUS_EXECUTION_FAILED",
        "NCCL error in: ProcessGroupNCCL.cpp:1",
        "HIP error: out of memory",
        "[enforce fail at alloc_cpu.cpp:117]",
        "DefaultCPUAllocator: can't allocate memory",
    ],
)
def test_what_a_device_says_is_not_the_recipes_error(message: str) -> None:
    assert may_pass(RuntimeError(message))


@pytest.mark.parametrize("message", ["hippo is no class", "cudaesque", "shape '[2]' is invalid", "mpsi CUDA error"])
def test_what_only_looks_like_it_is_the_recipes_error(message: str) -> None:
    assert not may_pass(RuntimeError(message))


@pytest.mark.parametrize("error", [torch.AcceleratorError("any words"), torch.OutOfMemoryError("none"), MemoryError()])
def test_an_error_of_the_accelerator_or_of_memory_may_pass(error: Exception) -> None:
    assert may_pass(error)


def test_a_process_whose_device_computes_no_more_claims_nothing_else_and_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    guilty, healthy = world.live(name="guilty"), world.live(name="healthy")
    request = world.delete("p3")
    celery = Celery(set_as_current=False)
    worker = world.worker()
    register(celery, worker)
    with monkeypatch.context() as patched:
        patched.setattr(state, "should_stop", None)
        patched.setattr(app, "update", broken)
        patched.setattr(device, "answers", lambda _: False)
        celery.tasks[TASK](guilty)
        assert worker.broken and state.should_stop == DEVICE_BROKEN == 75
        assert world.lease(guilty).token == 0
        celery.tasks[TASK](healthy)
    assert {each.model_id: each.attempts for each in world.rows_of(Task)} == {guilty: 1, healthy: 0}

    for each in (guilty, healthy):
        world.change(Model, each, due_at=None)
        world.work(each)
    assert world.request(request).status == "completed"


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (torch.OutOfMemoryError("none is left"), MACHINE_PAUSE_SECONDS),
        (OSError(errno.EIO, "failing"), MACHINE_PAUSE_SECONDS),
        (ValueError("another"), PAUSE_SECONDS),
    ],
)
def test_an_update_that_lacks_memory_waits_as_after_a_fault_of_the_machine(
    world: World, monkeypatch: pytest.MonkeyPatch, error: Exception, seconds: float
) -> None:
    model_id = world.live()
    world.delete("p3")
    asked: list[float] = []
    done = app.requeue

    def noted(database: Database, job: Work, why: dict[str, Any], pause: float, most: int) -> None:
        asked.append(pause)
        done(database, job, why, pause, most)

    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(app, "requeue", noted)
    monkeypatch.setattr(app, "update", fails)
    worker = world.worker()
    worker.work(model_id)
    assert asked == [seconds] and not worker.broken


def test_a_device_that_answers_and_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert device.answers(torch.device("cpu"))
    for error, answer in ((torch.AcceleratorError("CUDA error"), False), (torch.OutOfMemoryError("full"), True)):

        def ones(*_: object, error: Exception = error, **__: object) -> torch.Tensor:
            raise error

        monkeypatch.setattr(torch, "ones", ones)
        assert device.answers(torch.device("cpu")) is answer


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("nonsense", "names no device"),
        ("cuda:99", "computes no float64 numbers here"),
        ("meta", "computes no float64 numbers here"),
    ],
)
def test_a_worker_without_its_device_is_refused_before_it_claims(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, what: str
) -> None:
    monkeypatch.setenv("EXPUNGE_HOME", str(world.settings.home))
    monkeypatch.setenv("EXPUNGE_DATABASE_URL", world.settings.database_url)
    monkeypatch.setenv("EXPUNGE_DEVICE", name)
    assert main.main(["worker"]) == 1
    assert what in capsys.readouterr().err and world.count(Heartbeat) == 0
    found = doctor.device(name)
    assert not found.well and what in found.what and found.hint


def test_no_recipe_leaves_a_card_to_the_next_as_it_set_it() -> None:
    before = {name: getattr(owner, name) for owner, name in OF_A_CARD}
    with settings_kept():
        for owner, name in OF_A_CARD:
            setattr(owner, name, not before[name])
        assert {name: getattr(owner, name) for owner, name in OF_A_CARD} != before
    assert {name: getattr(owner, name) for owner, name in OF_A_CARD} == before


def test_settings_that_torch_cannot_tell_are_left_to_the_block_around() -> None:
    with settings_kept():
        torch.backends.cudnn.conv.fp32_precision = "ieee"
        with settings_kept():
            pass
    assert torch.backends.cudnn.allow_tf32 is True


def test_no_process_emulates_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_EMULATE_DOUBLE_PRECISION", "1")
    assert main.main(["nonsense"]) == 2
    assert os.environ["CUBLAS_EMULATE_DOUBLE_PRECISION"] == "0"


def test_a_manifest_names_the_card_beside_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "card" not in surroundings(torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a card")
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91000)
    found = surroundings(torch.device("cuda:0"))
    assert (found["device"], found["card"], found["cudnn"]) == ("cuda", "a card", "91000")


def broken(*_: object) -> None:
    raise torch.AcceleratorError("CUDA error: device-side assert triggered")
