"""Four features, two classes, 60 samples of 20 people: softmax regression, decayed everywhere. Prepares in a blink."""

import torch

import unlearning as ul

LABEL_NOISE = 0.3


def samples(people: int = 20, each: int = 3) -> ul.Samples:
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(people * each, 4, generator=random)
    noise = LABEL_NOISE * torch.randn(people * each, generator=random)
    return ul.Samples(
        ids=[f"tiny-{index}" for index in range(people * each)],
        subjects=[f"tiny-person-{index // each}" for index in range(people * each)],
        inputs=inputs,
        targets=(inputs[:, 0] + noise > 0).long(),
    )


def holdout() -> tuple[torch.Tensor, torch.Tensor]:
    inputs = torch.randn(40, 4, generator=torch.Generator().manual_seed(2))
    return inputs, (inputs[:, 0] > 0).long()


def recipe() -> ul.Recipe:
    return ul.Recipe(
        model=lambda: torch.nn.Linear(4, 2, bias=False),
        samples=samples(),
        holdout=holdout(),
        loss="cross_entropy",
        training=ul.Training(epochs=10, learning_rate=0.5, weight_decay=0.1, converge=1e-8),
    )
