"""The built-in training with all that it knows: AdamW, a schedule, dropout, batch normalisation, augmentation."""

import torch

import unlearning as ul
from tests.workers import meanwhile
from tests.workers.recipes.own_training import build
from unlearning.settings import Draw


def jitter(x: torch.Tensor, draw: Draw) -> torch.Tensor:
    """Move each number by up to .05."""
    return x + 0.1 * (draw(x.shape[1]) - 0.5)


def recipe() -> ul.Recipe:
    ids, subjects, inputs, targets = meanwhile.people(24, 1)
    return ul.Recipe(
        model=build,
        samples=ul.Samples(ids=ids, subjects=subjects, inputs=inputs, targets=targets),
        holdout=(inputs[:10], targets[:10]),
        loss="cross_entropy",
        training=ul.Training(
            epochs=10,
            batch_size=8,
            learning_rate=0.05,
            weight_decay=0.01,
            optimizer=ul.AdamW(),
            schedule=ul.Schedule("cosine", warmup=0.1),
            augment=jitter,
        ),
    )
