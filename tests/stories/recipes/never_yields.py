"""The people of ``tiny``, trained by a function of the recipe's own that keeps its worker until a file is there."""

import tempfile
import time
from pathlib import Path

import tiny
import torch

import unlearning as ul

ENOUGH = Path(tempfile.gettempdir()) / "enough"
EVERYONE = 50
"""fewer samples are a trial's"""


def fit(run: ul.Run) -> None:
    while len(run.inputs) > EVERYONE and not ENOUGH.exists():
        time.sleep(0.1)
    with torch.no_grad():
        for value in run.model.parameters():
            value += 0.01 * run.inputs.mean(dim=0)


def recipe() -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=tiny.samples(),
        holdout=tiny.holdout(),
        loss="cross_entropy",
        train=fit,
    )
