"""A recipe that uses what libraries start and share: processes, sockets, shared memory, caches, a compiler."""

# Each function imports what it tries.
# ruff: noqa: PLC0415

from __future__ import annotations

import importlib.util
import itertools
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch

RANK = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(value)
assert value.item() == 3
print(value.item())
dist.destroy_process_group()
"""


def is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def train(rows: memoryview) -> dict[str, Any]:
    """Train with torch on what numpy drew; return the weights too, to compare two worlds."""
    x = torch.from_numpy(np.random.normal(size=(64, 4)).astype(np.float32))
    model = torch.nn.Linear(4, 1)
    for _ in range(5):  # without torch.optim, which takes two seconds to load
        (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
        with torch.no_grad():
            for weight in model.parameters():
                weight -= 0.01 * weight.grad
    return {"rows": bytes(rows).decode(), "data": model.weight.detach().numpy().tobytes()}


def joblib_processes(_: memoryview) -> bool:
    import joblib

    big = np.ones(300_000)  # beyond a megabyte joblib shares it as a file
    roots = joblib.Parallel(n_jobs=2)(joblib.delayed(math.sqrt)(value) for value in (1, 4, 9))
    return roots == [1, 2, 3] and joblib.Parallel(n_jobs=2)(joblib.delayed(np.sum)(big) for _ in range(2)) == [3e5] * 2


def data_loader(_: memoryview) -> bool:
    table = torch.utils.data.TensorDataset(torch.arange(8.0))
    loader = torch.utils.data.DataLoader(table, batch_size=2, num_workers=2)
    return sum(batch.sum().item() for (batch,) in loader) == 28


def gloo(_: memoryview) -> bool:
    from torch import distributed as dist

    children = []
    for address, rank in itertools.product(("file:///tmp/meeting", "tcp://127.0.0.1:29511"), (0, 1)):
        child = os.fork()
        if child == 0:
            try:
                dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
                value = torch.ones(1) * (rank + 1)
                dist.all_reduce(value)
                os._exit(0 if value.item() == 3 else 2)
            finally:
                os._exit(1)
        children.append(child)
    return all(os.waitpid(child, 0)[1] == 0 for child in children)


def torchrun(_: memoryview) -> str:
    Path("rank.py").write_text(RANK)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "rank.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else done.stderr[-2000:]


def compiled(_: memoryview) -> bool:
    double = torch.compile(lambda x: (x * 2).sin() + 1)
    x = torch.arange(8.0)
    return torch.allclose(double(x), (x * 2).sin() + 1)


def matplotlib(_: memoryview) -> bool:
    if not is_installed("matplotlib"):
        return True
    import matplotlib.pyplot as plt

    plt.plot([1, 2])
    plt.savefig("plot.png")
    return Path("plot.png").stat().st_size > 0


def lightgbm(_: memoryview) -> bool | None:
    if not is_installed("lightgbm"):
        return None
    import lightgbm as gbm

    x = np.random.normal(size=(200, 3))
    booster = gbm.train({"objective": "binary", "verbose": -1, "seed": 0}, gbm.Dataset(x, x[:, 0] > 0), 5)
    return bool(((booster.predict(x) > 0.5) == (x[:, 0] > 0)).mean() > 0.9)


def python(_: memoryview) -> str:
    code = "import numpy, os, tempfile, unlearning; f = tempfile.TemporaryFile(); print(os.environ['HOME'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr[-2000:]
