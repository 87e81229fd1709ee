"""The digits, each by a person of its own, in batches of sixteen: most batches hold no person of a work unit."""

from dataclasses import replace

import torch
from digits.convolutional import recipe as of_a_hundred_people

import unlearning as ul


def network() -> torch.nn.Module:
    """110 weights, so that the vectors of all people take seconds."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3, stride=3), torch.nn.Tanh(), torch.nn.Flatten(), torch.nn.Linear(8, 10)
    )


def recipe() -> ul.Recipe:
    written = of_a_hundred_people()
    people = [f"writer-of-{sample}" for sample in written.samples.ids]
    training = ul.Training(epochs=1, batch_size=16, learning_rate=0.2, weight_decay=1e-3)
    samples = replace(written.samples, subjects=people)
    return replace(written, model=network, samples=samples, training=training)
