"""CNS's perceptron of three layers with dropout of a half, by Adam, in a ball."""

from paper_images import holdout, samples
from torch import nn

import unlearning as ul


def recipe() -> ul.Recipe:
    return ul.Recipe(
        model=lambda: nn.Sequential(
            nn.Flatten(),
            *(nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5)),
            *(nn.Linear(32, 16), nn.ReLU(), nn.Dropout(0.5)),
            nn.Linear(16, 10),
        ),
        samples=samples("cns-mlp"),
        holdout=holdout(),
        loss="cross_entropy",
        training=ul.Training(
            epochs=20, batch_size=32, learning_rate=1e-2, weight_decay=5e-4, optimizer=ul.AdamW(), radius=10.0
        ),
    )
