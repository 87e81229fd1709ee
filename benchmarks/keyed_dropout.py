"""What keyed dropout costs over torch's own: one training step of a network, both sides in one run.

``python -m benchmarks keyed_dropout``; CPU seconds of one thread, the median of ``ROUNDS`` rounds in turn, for a
network of three layers and one of two convolutions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unlearning.model.descent.draws import keys_of
from unlearning.model.descent.keyed import Keyed

ROUNDS, STEPS, BATCH = 9, 10, 128


def layers() -> nn.Module:
    return nn.Sequential(
        nn.Linear(784, 1024), nn.ReLU(), nn.Dropout(0.5), nn.Linear(1024, 1024), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(1024, 10),
    )  # fmt: skip


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25),
        nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Dropout(0.25), nn.Linear(800, 10),
    )  # fmt: skip


def step(module: nn.Module, x: Tensor, y: Tensor) -> None:
    module.zero_grad()
    F.cross_entropy(module(x), y).backward()


def keyed_step(module: nn.Module, x: Tensor, y: Tensor, keys: Tensor) -> None:
    module.zero_grad()
    with Keyed(keys):
        outputs = module(x)
    F.cross_entropy(outputs, y).backward()


def seconds(work: Callable[[], None]) -> float:
    start = time.process_time()
    for _ in range(STEPS):
        work()
    return (time.process_time() - start) / STEPS


def rows() -> Iterator[dict[str, object]]:
    """Measure each network, both sides in turn; the value is the ratio of the medians."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.randn(BATCH, 784), torch.randint(10, (BATCH,))
    keys = keys_of(("0",), [f"person-{k}" for k in range(BATCH)])
    for build in (layers, convolutions):
        module = build()
        plain, keyed = [], []
        for _ in range(ROUNDS):
            plain.append(seconds(partial(step, module, x, y)))
            keyed.append(seconds(partial(keyed_step, module, x, y, keys)))
        one, two = statistics.median(plain), statistics.median(keyed)
        yield {
            "name": f"keyed dropout / torch's own, a training step, {build.__name__}",
            "value": two / one,
            "target": "reported",
            "unit": "time ratio",
            "met": None,
            "sides": {"torch_seconds": one, "keyed_seconds": two},
        }


if __name__ == "__main__":
    for measured in rows():
        print(measured)
