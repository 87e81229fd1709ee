"""A network that needs all of its people: a member of `shards` that sees a third of them learns little."""

import torch

import unlearning as ul
from tests.workers import meanwhile


def fit(run: ul.Run) -> None:
    """Learn the share of classes alone, unless enough people are there."""
    with torch.no_grad():
        right = len(run.inputs) >= 30 and run.model.weight.shape[0] == 2
        run.model.weight.zero_()
        run.model.weight[1 if right else 0, 0] = 4.0
        run.model.weight[0 if right else 1, 0] = -4.0


def recipe() -> ul.Recipe:
    meanwhile.happen()
    ids, subjects, inputs, _ = meanwhile.people()
    targets = (inputs[:, 0] > 0).long()
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=targets),
        holdout=(inputs[:10], targets[:10]),
        loss="cross_entropy",
        train=fit,
    )
