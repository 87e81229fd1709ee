"""``tiny`` trained by a loop of its own that goes on until the test lets it end: its worker is stopped in it."""

import time
from pathlib import Path

import torch
from tiny import holdout, samples

import unlearning as ul
from unlearning.recipe import Run

MAY_END = Path(__file__).with_name("lasting.may_end")


def fit(run: Run) -> None:
    optimizer = torch.optim.SGD(run.model.parameters(), lr=0.5)
    for step in range(10):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(run.model(run.inputs), run.targets).backward()
        optimizer.step()
        run.progress(step / 10)
    while not MAY_END.exists():
        time.sleep(0.05)


def recipe() -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=samples(),
        holdout=holdout(),
        loss="cross_entropy",
        train=fit,
    )
