"""What keyed dropout costs over torch's own: one training step of a network, both sides in one run.

``python -m benchmarks.keyed_dropout`` prints milliseconds of CPU time a step (one thread, the median of ``ROUNDS``
rounds in turn) and the ratio, for a network of two layers and one of two convolutions.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

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


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.randn(BATCH, 784), torch.randint(10, (BATCH,))
    keys = keys_of(("0",), [f"person-{k}" for k in range(BATCH)])
    print("| network | torch's dropout, ms a step | keyed, ms a step | ratio |\n|---|---|---|---|")
    for build in (layers, convolutions):
        module = build()
        plain, keyed = [], []
        for _ in range(ROUNDS):
            plain.append(seconds(lambda module=module: step(module, x, y)))  # type: ignore[misc]
            keyed.append(seconds(lambda module=module: keyed_step(module, x, y, keys)))  # type: ignore[misc]
        one, two = 1e3 * statistics.median(plain), 1e3 * statistics.median(keyed)
        print(f"| {build.__name__} | {one:.2f} | {two:.2f} | {two / one:.2f} |")


if __name__ == "__main__":
    main()
