"""The built-in training with all that it knows: AdamW, a schedule, dropout, batch normalisation, augmentation."""

import people
import torch
from own_training import build

import unlearning as ul
from unlearning.settings import Draw


def jitter(x: torch.Tensor, draw: Draw) -> torch.Tensor:
    """Move each number by up to .05."""
    return x + 0.1 * (draw(x.shape[1]) - 0.5)


def recipe(rows: ul.Rows = ul.table("few.csv", person="person", id="id")) -> ul.Recipe:
    return ul.Recipe(
        model=build,
        samples=people.samples(rows),
        holdout=people.strangers(),
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
