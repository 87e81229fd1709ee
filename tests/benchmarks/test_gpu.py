"""The GPU script: it runs with torch alone, names the network that it built, and measures ResNet-18 or says not run."""

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
more = {"sqlalchemy", "fastapi", "celery", "redis", "pydantic", "expunge", "torchvision", "sklearn"}
sys.exit(" ".join(more & {name.partition(".")[0] for name in sys.modules}) or 0)
"""


@pytest.mark.drill
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
    assert {row["name"].partition(":")[0] for row in rows} == {"residual network of 44,502 weights"}
    assert {row["sides"]["parameters"] for row in rows} == {44_502}
    if not torch.cuda.is_available():
        assert {row["sides"]["device"] for row in rows} == {gpu.CPU}
    shares = [row["value"] for row in rows if row["unit"] == "share of its time"]
    assert sum(shares) == pytest.approx(1)


def test_without_a_card_resnet_18_is_not_run_and_has_no_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(gpu, "REPEATS", 1)
    rows = list(gpu.rows())
    published = [row for row in rows if gpu.RESNET_18 in row["name"]]
    assert len(published) == 5
    assert {(row["value"], row["sides"]["not_run"]) for row in published} == {(None, gpu.NOT_RUN)}
    measured = {row["name"].partition(": ")[2]: row["unit"] for row in rows if row["value"] is not None}
    assert {row["name"].partition(": ")[2]: row["unit"] for row in published} == measured


def test_the_model_is_resnet_18() -> None:
    model = gpu.residual_network()
    assert sum(each.numel() for each in model.parameters()) == gpu.RESNET_18_WEIGHTS
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    convolutions = [
        each for each in model.modules() if isinstance(each, torch.nn.Conv2d) and each.kernel_size == (3, 3)
    ]
    assert len(convolutions) == 17
