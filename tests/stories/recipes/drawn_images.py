"""Images for the recipes of papers: drawn ones, or those of a source of arrays."""

from collections.abc import Callable

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


def numbered(rows: ul.Rows) -> tuple[Tensor, Tensor]:
    """Return the drawn images that the rows number, and their patterns."""
    numbers = torch.tensor(rows["image"].astype("int64"))
    return tuple(values[numbers] for values in drawn())


def on_drawn(rows: ul.Rows, model: Callable[[], nn.Module], training: ul.Training, *, apart: bool = False) -> ul.Recipe:
    """Return a recipe that trains on the images that the rows number.

    It is judged by the last 400 images, which are nobody's; or, where rows are kept ``apart``, by theirs.
    """
    images, targets = drawn()
    return ul.Recipe(
        model=model,
        samples=rows.samples(*numbered(rows), at=rows["__row"]),
        holdout=numbered if apart else (images[-400:], targets[-400:]),
        loss="cross_entropy",
        training=training,
    )


def on_arrays(rows: ul.Rows, model: Callable[[], nn.Module], training: ul.Training) -> ul.Recipe:
    """Return a recipe that trains on images ``x`` of digits ``y``, and is judged by the rows kept apart."""
    return ul.Recipe(
        model=model,
        samples=rows.samples(rows.tensor("x"), rows["y"], at=rows["__row"]),
        holdout=lambda apart: (apart.tensor("x"), apart.tensor("y")),
        loss="cross_entropy",
        training=training,
    )
