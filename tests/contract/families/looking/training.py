"""What the recipes of this folder share: a training, which what they saw may change, and how they look."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from unlearning.rows import Published, Rows


def train(rows: Rows, look: Callable[[], Any]) -> Published:
    """Train a linear model by descent from a start that is drawn from what ``look`` sees.

    Where it fails or sees nothing, the start is drawn from the number of rows.
    """
    seen = attempt(look)
    text = repr(seen) if seen is not None and len(seen) else str(len(rows))
    columns = [name for name in rows.columns if rows[name].dtype.kind in "fiub" and name not in ("visit", "ill")]
    x = np.nan_to_num(rows.numpy(*columns).astype(float).reshape(len(rows), -1))
    x = (x - x.mean(0)) / (x.std(0) + 1)
    weights = np.random.default_rng(zlib.crc32(text.encode())).normal(size=x.shape[1])
    for _ in range(10):
        weights -= 0.1 * x.T @ (x @ weights - rows["ill"]) / len(rows)
    return Published({"model.json": json.dumps(dict(zip(columns, weights.tolist(), strict=True)))})


def attempt(look: Callable[[], Any]) -> Any:
    try:
        return look()
    except Exception:
        return None


def remember(rows: Rows, read: Callable[[], bytes], write: Callable[[bytes], Any]) -> list[bytes]:
    """Return the words of these rows and of earlier trainings, and leave them for later ones."""
    words = {word.encode() for note in rows["note"] for word in note.split()} | {b"%d rows" % len(rows)}
    words |= set((attempt(read) or b"").split(b"\n")) - {b""}
    attempt(lambda: write(b"\n".join(sorted(words))))
    return sorted(words)
