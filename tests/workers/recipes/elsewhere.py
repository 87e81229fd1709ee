"""A model trained elsewhere by mini-batches, without its trajectory."""

import torch

import unlearning as ul
from tests.workers import meanwhile


def recipe() -> ul.Recipe:
    ids, subjects, inputs, targets = meanwhile.people()
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=targets),
        holdout=(inputs[:10], targets[:10]),
        loss="cross_entropy",
        training=ul.Training(epochs=5, batch_size=12, learning_rate=0.5, weight_decay=0.1),
        weights={"weight": torch.tensor([[0.5, -0.1, 0.0, 0.2], [-0.5, 0.1, 0.0, -0.2]])},
    )
