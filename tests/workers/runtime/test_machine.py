"""What a process says of the device that it computes on. The card is a pretended one: nothing here ran on a GPU."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from expunge_service.infra.settings import Settings, SettingsError
from expunge_workers.runtime import machine
from expunge_workers.runtime.machine import Machine, host_bytes, machine_of


def test_a_cpu_is_described_without_torch() -> None:
    code = "import sys; from expunge_workers.runtime.machine import machine_of; machine_of('cpu')"
    code += "; print('torch' in sys.modules)"
    told = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"
    assert machine_of("cpu") == Machine("cpu", None, host_bytes())


@pytest.mark.parametrize("limit", ["memory.max", "memory/memory.limit_in_bytes"])
def test_a_container_has_no_more_than_its_limit(limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of either version of cgroups: the first writes a huge number where there is no limit."""
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    (tmp_path / "memory").mkdir()
    whole = host_bytes()
    assert whole > 2**28
    for text, most in (("max", whole), ("1000000", 1_000_000), ("9223372036854771712", whole)):
        (tmp_path / limit).write_text(f"{text}\n")
        assert host_bytes() == most


def test_a_card_names_itself_and_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "DRIVERS", (tmp_path / "driver",))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(name="H100", total_memory=80))
    assert machine_of("auto").kind == "cpu", "there is no driver"
    (tmp_path / "driver").touch()
    assert machine_of("auto") == machine_of("cuda:0") == Machine("cuda", "H100", 80)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert machine_of("auto").kind == "cpu" and machine_of("cuda") == Machine("cuda")


def test_groups_are_names_of_ones_own(tmp_path: Path) -> None:
    assert Settings(home=tmp_path).groups == frozenset()
    assert Settings(home=tmp_path, places=" west, north_2 ,").groups == {"west", "north_2"}
    for wrong in ("any", "cuda", "west,CPU", "a.b"):
        with pytest.raises(SettingsError, match=r"EXPUNGE_PLACES: .* is no group's name"):
            Settings(home=tmp_path, places=wrong)
