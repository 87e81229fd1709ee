"""``tiny`` with one more person, whose id, sample ids and numbers occur nowhere else in the world."""

import torch
from tiny import holdout, samples

import unlearning as ul

PERSON = "canary-1f7c0e5b9a"
SAMPLES = ("canary-sample-6d2e", "canary-sample-90b1")
INPUTS = torch.tensor([[0.91735, -1.28461, 0.33127, 2.00411], [-0.50923, 0.77716, -1.61803, 0.12049]])
TARGETS = torch.tensor([1, 0])


def recipe() -> ul.Recipe:
    others = samples()
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=ul.Samples(
            ids=[*others.ids, *SAMPLES],
            subjects=[*others.subjects, PERSON, PERSON],
            inputs=torch.cat([others.inputs, INPUTS]),
            targets=torch.cat([others.targets, TARGETS]),
        ),
        holdout=holdout(),
        loss="cross_entropy",
        training=ul.Training(epochs=10, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
    )
