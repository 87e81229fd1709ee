"""Images for the recipes of papers: drawn ones, or MNIST's 10,000 from the folder that ``MNIST10K`` names."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import unlearning as ul


def drawn() -> tuple[Tensor, Tensor]:
    """Return 800 images (n, 1, 8, 8) in [0, 1], each one of ten patterns with noise, and their patterns (n,)."""
    generator = torch.Generator().manual_seed(7)
    patterns = torch.rand(10, 1, 8, 8, generator=generator)
    targets = torch.randint(10, (800,), generator=generator)
    noise = 0.3 * torch.randn(800, 1, 8, 8, generator=generator)
    return (patterns[targets] + noise).clamp(0.0, 1.0), targets


def mnist() -> tuple[Tensor, Tensor]:
    """Return 10,000 images (n, 1, 28, 28) in [0, 1] and their digits (n,)."""
    folder = Path(os.environ["MNIST10K"])

    def values(name: str, header: int) -> Tensor:
        with gzip.open(folder / name) as file:
            return torch.tensor(np.frombuffer(file.read(), dtype=np.uint8, offset=header))

    images = values("images-idx3-ubyte.gz", 16).reshape(-1, 1, 28, 28).float() / 255
    return images, values("labels-idx1-ubyte.gz", 8).long()


def dealt(images: Tensor, targets: Tensor, people: int) -> ul.Samples:
    """Return the images as samples that are dealt to ``people`` in turn."""
    places = range(len(images))
    return ul.Samples(
        ids=[f"image-{place}" for place in places],
        subjects=[f"drawn-{place % people}" for place in places],
        inputs=images,
        targets=targets,
    )


def recipe_on(
    images: tuple[Tensor, Tensor], trained: int, people: int, model: Callable[[], nn.Module], training: ul.Training
) -> ul.Recipe:
    """Return a recipe that trains on the first ``trained`` images and is judged by the last 400."""
    inputs, targets = images
    return ul.Recipe(
        model=model,
        samples=dealt(inputs[:trained], targets[:trained], people),
        holdout=(inputs[-400:], targets[-400:]),
        loss="cross_entropy",
        training=training,
    )
