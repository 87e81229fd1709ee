"""What a preparation will hold in memory and how long its readings will take, before anything large is begun."""

from __future__ import annotations

import time

import torch

from unlearning.methods.recollection.room import require_room
from unlearning.model.method import Method
from unlearning.recipe import Recipe
from unlearning.types import Json, Refused, Tensors, block_of

COLUMN_BYTES = 600
"""of a sample in ids, people and digests, while the recipe is read a second time (measured: large_sources)"""
HELD_TIMES = 8
"""how many times its own size a sample takes that is held: itself, its features in float64, and copies of both"""
READ_BYTES = 3 * 2**30
"""of a row group and of the blocks that are in work where samples are read"""
READINGS = 80
"""of all samples, in a preparation of newton: a solve is about 16, and it solves once and for its calibration sets"""


def require_fits(recipe: Recipe, method: Method, device: torch.device, most: int) -> dict[str, Json]:
    """Return what the preparation is expected to take: ``bytes`` and, where samples are read by blocks, ``seconds``.

    Samples that take at most ``most`` bytes are held in memory; tensors are there already.

    Raises:
        Refused: it does not fit into the free memory, or the training or the method needs all samples at once and they
            are too large.
    """
    samples, rows = recipe.samples, recipe.samples.rows
    size = len(samples) * rows.row_bytes
    held = isinstance(rows, Tensors) or size <= most
    if not held and (recipe.train is not None or not method.reads_blocks):
        who = "The recipe's own train" if recipe.train is not None else method.name
        raise Refused(
            f"{who} is handed all samples at once; the {len(samples):,} samples take {size / 1e9:.1f} GB, and at most "
            f"{most / 1e9:.1f} GB are held (EXPUNGE_SAMPLE_BYTES).",
            "Use newton on a linear head with Training(epochs=0, converge=...), which reads by blocks; or raise "
            "EXPUNGE_SAMPLE_BYTES where the machine has the memory.",
        )
    expected = COLUMN_BYTES * len(samples) + (HELD_TIMES * size if held else READ_BYTES)
    hint = "Use a machine with more memory; or read from Parquet, .npy or a dataset, with a lower EXPUNGE_SAMPLE_BYTES."
    require_room(f"The preparation's arrays for {len(samples):,} samples", expected, device, hint)
    return {"bytes": expected} if held else {"bytes": expected, "seconds": READINGS * _seconds(recipe)}


def _seconds(recipe: Recipe) -> float:
    """Return about how long one reading of all samples takes: the first block, timed."""
    samples, start = recipe.samples, time.perf_counter()
    first = torch.arange(min(len(samples), block_of(samples.rows)))
    next(iter(samples.rows.read([first])))
    return (time.perf_counter() - start) * len(samples) / len(first)
