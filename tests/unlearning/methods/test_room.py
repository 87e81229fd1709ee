"""What does not fit is refused with its figures before it is made."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.contract.cases import network
from unlearning.methods.recollection import Recollection, room
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import Refused

CPU = torch.device("cpu")


def free(monkeypatch: pytest.MonkeyPatch, size: int | None) -> None:
    monkeypatch.setattr(room, "available_bytes", lambda _device: size)


def test_exact_vectors_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = network()
    problem, examples = Problem(recipe).double(), recipe.samples.examples()
    learned = train(problem, examples)
    size = len(examples.people.distinct()) * problem.dimension * 8
    free(monkeypatch, size - 1)
    with pytest.raises(Refused, match=f"{size:,} bytes"):
        Recollection().prepare(problem, examples, learned)


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
    for version_2 in ("memory.max", "memory.current"):
        (tmp_path / version_2).unlink()
    (tmp_path / "memory").mkdir()
    (tmp_path / "memory" / "memory.usage_in_bytes").write_text("1000\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert room.available_bytes(CPU) == 4_096_000
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("2500\n")
    assert room.available_bytes(CPU) == 1500
