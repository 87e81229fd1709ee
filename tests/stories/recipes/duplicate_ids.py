"""Two samples of one name."""

import torch

import unlearning as ul


def recipe() -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=ul.Samples(
            ids=["tiny-person-7/1", "b", "tiny-person-7/1"],
            subjects=["x", "y", "z"],
            inputs=torch.ones(3, 4),
            targets=torch.tensor([0, 1, 0]),
        ),
        holdout=(torch.ones(2, 4), torch.tensor([0, 1])),
        loss="cross_entropy",
        training=ul.Training(epochs=1, learning_rate=0.1),
    )
