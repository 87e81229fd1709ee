"""What does not fit is refused with its figures before it is made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.unit.test_sketch import SEED, Setting, network, problem_of, setting_of, softmax
from tests.unit.test_sketch import digits as some_digits
from unlearning.methods.recollection import Recollection, room
from unlearning.methods.recollection.sketch import Sketch
from unlearning.model.training import steps_per_epoch
from unlearning.settings import Training
from unlearning.types import Refused

CPU = torch.device("cpu")
HERE = Training(epochs=3, learning_rate=0.1, batch_size=10)


@pytest.fixture(scope="module")
def hidden() -> Setting:
    return setting_of(*problem_of(network(4), *some_digits(20), HERE))


def free(monkeypatch: pytest.MonkeyPatch, size: int | None) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda _device: size)


def test_a_sketch_whose_steps_do_not_fit_is_refused_before_it_begins(
    hidden: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 3 * steps_per_epoch(hidden.problem, len(hidden.examples))
    size = steps * hidden.problem.dimension * 8
    free(monkeypatch, size)
    assert hidden.prepare(Sketch(rank=4)).tensors["step_weights"].nbytes == size
    free(monkeypatch, size - 1)
    with pytest.raises(Refused, match=f"{size:,} bytes, and {size - 1:,} are free on cpu") as refused:
        hidden.prepare(Sketch(rank=4))
    assert "rewind" in refused.value.hint


def test_a_linear_head_keeps_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    linear = setting_of(*problem_of(softmax, *some_digits(20), HERE))
    free(monkeypatch, 0)
    assert "step_weights" not in linear.prepare(Sketch(rank=4)).tensors


def test_exact_vectors_that_do_not_fit_are_refused(hidden: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(hidden.people) * hidden.problem.dimension * 8
    free(monkeypatch, size - 1)
    with pytest.raises(Refused, match=f"{size:,} bytes"):
        Recollection(probe_seed=SEED).prepare(hidden.problem, hidden.examples, hidden.learned)


def test_the_machine_and_its_container_say_what_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (room.available_bytes(CPU) or 0) > 1_000_000
    memory = tmp_path / "meminfo"
    monkeypatch.setattr(room, "MEMORY", memory)
    monkeypatch.setattr(room, "CGROUP", tmp_path)
    assert room.available_bytes(CPU) is None
    room.require_room("Nothing that is known", 2**80, CPU, "")
    memory.write_text("MemTotal: 9000 kB\nMemAvailable: 4000 kB\n")
    assert room.available_bytes(CPU) == 4_096_000
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert room.available_bytes(CPU) == 4_096_000
    (tmp_path / "memory.max").write_text("3000\n")
    assert room.available_bytes(CPU) == 2000
