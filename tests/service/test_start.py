"""The API's process is small and quick to start, and never holds torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.latency import started_api
from service.infra.settings import Settings, ensure_secrets

ATTEMPTS = 3
"""CPU seconds too grow on a crowded core: one quiet start is what the process itself needs"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_the_api_starts_without_torch_in_little_time_and_memory(tmp_path: Path) -> None:
    ensure_secrets(Settings(home=tmp_path))
    spent = []
    while len(spent) < ATTEMPTS and min(spent, default=9.0) >= 1.5:
        seconds, cpu, megabytes, torch = started_api(str(tmp_path))
        print(f"first answer after {seconds:.2f} s, {cpu:.2f} CPU s, {megabytes:.0f} MB")
        assert not torch
        assert 20 < megabytes < 150
        spent.append(cpu)
    assert 0.05 < min(spent) < 1.5
