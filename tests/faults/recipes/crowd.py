"""Softmax regression of many people with one sample each. DRILL_PEOPLE says how many."""

import os

import torch

import unlearning as ul

PEOPLE = int(os.environ.get("DRILL_PEOPLE", "1000"))


def people(count: int) -> ul.Recipe:
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 4, generator=random)
    targets = (inputs[:, 0] + 0.3 * torch.randn(count, generator=random) > 0).long()
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=ul.Samples(
            ids=[f"crowd-{index}" for index in range(count)],
            subjects=[f"crowd-person-{index}" for index in range(count)],
            inputs=inputs,
            targets=targets,
        ),
        holdout=(inputs[:100], targets[:100]),
        loss="cross_entropy",
        training=ul.Training(epochs=2, batch_size=256, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
    )


def recipe() -> ul.Recipe:
    return people(PEOPLE)
