"""The samples of ``tiny`` for recipes of the old form, which wait for a file beside them."""

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
