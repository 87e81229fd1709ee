"""The digits of 60 people, four each: small enough to train the papers' architectures in a second."""

import torch
from sklearn.datasets import load_digits

import unlearning as ul

PEOPLE, EACH, HELD_OUT = 60, 4, 200


def images() -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs (n, 1, 8, 8) and targets (n,)."""
    digits = load_digits()
    return torch.tensor(digits.images / 8 - 1, dtype=torch.float32).unsqueeze(1), torch.tensor(digits.target)


def samples(paper: str) -> ul.Samples:
    """Return the first images, of people whose names occur in no other recipe."""
    count = PEOPLE * EACH
    inputs, targets = (part[:count] for part in images())
    people = [f"{paper}-person-{place % PEOPLE}" for place in range(count)]
    return ul.Samples([f"{paper}-{place}" for place in range(count)], people, inputs, targets)


def holdout() -> tuple[torch.Tensor, torch.Tensor]:
    inputs, targets = images()
    return inputs[-HELD_OUT:], targets[-HELD_OUT:]
