"""``tiny`` with people of its own: they are deleted for every later registration, which other tests must not notice."""

import torch
from tiny import holdout, samples

import unlearning as ul


def recipe() -> ul.Recipe:
    others = samples()
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=ul.Samples(
            ids=[name.replace("tiny", "returning") for name in others.ids],
            subjects=[f"returning-person-{index // 3}" for index in range(len(others.ids))],
            inputs=others.inputs,
            targets=others.targets,
        ),
        holdout=holdout(),
        loss="cross_entropy",
        training=ul.Training(epochs=10, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
    )
