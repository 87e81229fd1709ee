"""SAFE's network of two convolutions, by Adam."""

from paper_images import holdout, samples
from torch import nn

import unlearning as ul


def recipe() -> ul.Recipe:
    return ul.Recipe(
        model=lambda: nn.Sequential(
            *(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(64, 10)),
        ),
        samples=samples("safe-cnn"),
        holdout=holdout(),
        loss="cross_entropy",
        training=ul.Training(epochs=10, batch_size=32, learning_rate=1e-2, weight_decay=1e-4, optimizer=ul.AdamW()),
    )
