"""ResNet-18 on a GPU: products, and an update split into its parts. Needs torch alone.

``python -m benchmarks.gpu [--json] [--tiny]``; copy ``unlearning/`` and this file to a bare GPU machine. Reported are
the time of a batch of Hessian-vector products over as many gradients, the share of the card's matrix rate that the
products reach (the rate is measured here, by one large matrix product in the same dtype), and what an update of this
size takes: the maths on the device, the copy to the host, and the bytes written and synced. Every row names the network
that was built and counts its weights. Without a GPU the rows of ResNet-18 say ``not run``, and a small network of the
same form shows that the script works; its figures say nothing about ResNet-18 or a card.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from unlearning import Problem, Recipe, Samples, Training
from unlearning.model.curvature import hessian_products

REPEATS = 5
CPU = "a CPU"
NOT_RUN = "no GPU"
RESNET_18 = "ResNet-18"
RESNET_18_WEIGHTS = 11_172_042
"""of ``residual_network()`` with ten classes; ``tests/benchmarks`` counts them"""
GRADIENT_UNITS = {
    "a batched Hessian-vector product / a gradient": "time ratio",
    "share of the measured matrix rate in the products": "share",
}
PARTS = ("maths", "device to host", "storage")
Row = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """``width`` of the first stage (64: ResNet-18), image side, batch, vectors at once, side of the matrix product."""

    width: int = 64
    side: int = 32
    batch: int = 128
    vectors: int = 8
    matrix: int = 8192


TINY = Size(width=4, side=8, batch=4, vectors=2, matrix=128)


class Block(nn.Module):
    """Two 3x3 convolutions and the way around them. Normalised by groups: statistics of a batch mix people."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(min(4, outside), outside) for _ in range(2))
        around = stride != 1 or inside != outside
        self.around = nn.Conv2d(inside, outside, 1, stride, bias=False) if around else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(inner)) + self.around(x))


def residual_network(width: int = 64, classes: int = 10) -> nn.Module:
    """Build ResNet-18 (arXiv 1512.03385) for small images: the first convolution is 3x3, without pooling.

    ``width`` channels in the first stage: 64 is ResNet-18, any other is a network of the same form.
    """
    widths = [width, 2 * width, 4 * width, 8 * width]
    blocks: list[nn.Module] = [nn.Conv2d(3, width, 3, 1, 1, bias=False)]
    inside = width
    for stage, outside in enumerate(widths):
        blocks += [Block(inside, outside, 1 if stage == 0 else 2), Block(outside, outside, 1)]
        inside = outside
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, classes))


def rows(size: Size | None = None) -> Iterator[Row]:
    """Measure ``size``; by default ResNet-18, or without a GPU the small network beside rows that were not run."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    chosen = size or (Size() if device.type == "cuda" else TINY)
    problem, x, y = scene(chosen, device)
    w = flat(problem)
    network = named(chosen.width, len(w))
    for measured in (*product_rows(problem, w, (x, y), chosen), *update_rows(w, device)):
        yield measured | {"name": f"{network}: {measured['name']}"}
    if size is None and chosen is TINY:
        yield from not_run_rows(device)


def named(width: int, weights: int) -> str:
    """Name the network by what it is: only the published width is called ResNet-18."""
    return f"{RESNET_18}, {weights:,} weights" if width == Size.width else f"residual network of {weights:,} weights"


def not_run_rows(device: torch.device) -> Iterator[Row]:
    """The rows of ResNet-18 without figures."""
    units = GRADIENT_UNITS | {f"an update's {part}": "share of its time" for part in PARTS}
    for name, unit in units.items():
        whole = f"{named(Size.width, RESNET_18_WEIGHTS)}: {name}"
        yield row(whole, None, unit, device, parameters=RESNET_18_WEIGHTS, not_run=NOT_RUN)


def scene(size: Size, device: torch.device) -> tuple[Problem, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(size.batch, 3, size.side, size.side, generator=generator)
    targets = torch.arange(size.batch) % 10
    names = [f"p{index}" for index in range(size.batch)]
    recipe = Recipe(
        model=lambda: residual_network(size.width),
        samples=Samples(names, names, inputs, targets),
        holdout=(inputs[:2], targets[:2]),
        loss="cross_entropy",
        training=Training(epochs=1, learning_rate=0.1, seed=0),
    )
    return Problem(recipe, device), inputs.to(device), targets.to(device)


def flat(problem: Problem) -> Tensor:
    """The module's weights (d,) as they were drawn."""
    return torch.cat([parameter.detach().reshape(-1) for parameter in problem.module.parameters()])


def product_rows(problem: Problem, w: Tensor, batch: tuple[Tensor, Tensor], size: Size) -> Iterator[Row]:
    (x, y), device = batch, problem.device
    vectors = torch.randn(size.vectors, problem.dimension, device=device)
    gradient = seconds(lambda: problem.gradient(w, x, y), device)
    products = seconds(lambda: hessian_products(problem, w, x, y, vectors), device)
    sides = {"products": products, "gradient": gradient, "vectors": size.vectors, "parameters": problem.dimension}
    ratio = statistics.median(products) / (size.vectors * statistics.median(gradient))
    of_time, of_rate = GRADIENT_UNITS
    yield row(of_time, ratio, GRADIENT_UNITS[of_time], device, **sides)
    rate = flops(lambda: problem.gradient(w, x, y)) / statistics.median(gradient)
    work = flops(lambda: hessian_products(problem, w, x, y, vectors)) / statistics.median(products)
    card = matrix_rate(size.matrix, device)
    sides = {"products_flops": work, "gradient_flops": rate, "card_flops": card, "matrix": size.matrix}
    yield row(of_rate, work / card, GRADIENT_UNITS[of_rate], device, parameters=problem.dimension, **sides)


def update_rows(w: Tensor, device: torch.device) -> Iterator[Row]:
    """The parts of an update of this size: the sum and its noise on the device, to the host, written and synced."""
    vectors = torch.randn(4, len(w), device=device)
    noise = torch.randn(len(w), device=device)
    maths = seconds(lambda: w + vectors.sum(dim=0) + noise, device)
    published = w + noise
    copy = seconds(published.cpu, device)
    host = published.cpu().numpy().data
    storage = seconds(lambda: store(host), device)
    parts = dict(zip(PARTS, (maths, copy, storage), strict=True))
    total = sum(statistics.median(each) for each in parts.values())
    for name, each in parts.items():
        share = statistics.median(each) / total
        sides = {"seconds": each, "parameters": len(w)}
        yield row(f"an update's {name}", share, "share of its time", device, **sides)


def store(data: memoryview) -> str:
    """Hash the bytes, write them, sync them; the file is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder, (Path(folder) / "checkpoint").open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
        return hashlib.sha256(data).hexdigest()


def matrix_rate(side: int, device: torch.device) -> float:
    """Floating-point operations a second of a (side, side) product, in float32 as torch runs it here."""
    a = torch.randn(side, side, device=device)
    return 2 * side**3 / min(seconds(lambda: a @ a, device))


def flops(work: Callable[[], object]) -> float:
    """Operations of matrix products and convolutions, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode  # noqa: PLC0415 (loads much that only this needs)

    with FlopCounterMode(display=False) as counter:
        work()
    return float(counter.get_total_flops())


def seconds(work: Callable[[], object], device: torch.device) -> list[float]:
    """Wall-clock seconds of several runs, after one that warms up; the device is waited for."""
    taken = []
    for _ in range(REPEATS + 1):
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        taken.append(time.perf_counter() - start)
    return taken[1:]


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def row(name: str, value: float | None, unit: str, device: torch.device, **sides: object) -> Row:
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else CPU
    where = {"device": card, "torch": torch.__version__}
    return {"name": name, "value": value, "target": "reported", "unit": unit, "met": None, "sides": where | sides}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--tiny", action="store_true", help="a network of 44,502 weights: does the script run?")
    arguments = parser.parse_args()
    for measured in rows(TINY if arguments.tiny else None):
        value = "not run" if measured["value"] is None else f"{measured['value']:.4g}"
        line = f"{value:>12} {measured['unit']:18} {measured['name']} ({measured['sides']['device']})"
        print(json.dumps(measured) if arguments.json else line, flush=True)


if __name__ == "__main__":
    main()
