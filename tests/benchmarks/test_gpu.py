"""The GPU script: it runs with torch alone, on a machine without a card it says so, and it measures ResNet-18."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import gpu

ROOT = Path(__file__).parents[2]
LOOK = """
import runpy, sys
sys.argv = ["gpu", "--tiny", "--json"]
runpy.run_module("benchmarks.gpu", run_name="__main__")
more = {"sqlalchemy", "fastapi", "celery", "redis", "pydantic", "service", "workers", "torchvision", "sklearn"}
sys.exit(" ".join(more & {name.partition(".")[0] for name in sys.modules}) or 0)
"""


def test_it_runs_on_a_bare_machine_and_says_where(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "unlearning", tmp_path / "unlearning")
    (tmp_path / "benchmarks").mkdir()
    shutil.copy(ROOT / "benchmarks" / "gpu.py", tmp_path / "benchmarks")
    environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOOK], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(rows) == 5
    assert all(row["value"] > 0 for row in rows)
    if not torch.cuda.is_available():
        assert {row["sides"]["device"] for row in rows} == {gpu.UNVERIFIED}
    shares = [row["value"] for row in rows if row["unit"] == "share of its time"]
    assert sum(shares) == pytest.approx(1)


def test_the_model_is_resnet_18() -> None:
    model = gpu.resnet18()
    assert 11.1e6 < sum(each.numel() for each in model.parameters()) < 11.3e6
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    convolutions = [
        each for each in model.modules() if isinstance(each, torch.nn.Conv2d) and each.kernel_size == (3, 3)
    ]
    assert len(convolutions) == 17
