"""The attacker of a claim: knows everything but the noise, sees all versions since a deletion, and guesses the world.

In one world the versions come from weights that forgot her, in the other from a retraining that never had her. The
attacker holds both sets of weights and so takes the optimal test: that of the likelihood ratio (Neyman and Pearson
1933). For Gaussian noise of one size it asks on which side of the middle the versions lie, along the line that joins
both sets; versions whose difference matters are weighted against each other by the same sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from expunge_lab.experiment.lower_bound import Guesses
from unlearning.types import Progress, silent

Publish: TypeAlias = Callable[[Tensor], Tensor]
"""weights before noise (d,) -> what is published of them (d,)"""


@dataclass(frozen=True)
class Worlds:
    """What is published, before noise: ``never`` (t, d) float64, the retraining at each of t versions, and ``moved``
    (t, d), what the forgotten weights differ by from it."""

    never: Tensor
    moved: Tensor

    def first(self, count: int) -> Worlds:
        """Return the first ``count`` versions."""
        return Worlds(self.never[:count], self.moved[:count])

    def seen_at(self, places: Tensor) -> Worlds:
        """Return these weights alone: an attacker who looks at fewer is no stronger."""
        return Worlds(self.never[:, places], self.moved[:, places])

    def as_far_as_allowed(self, max_distance: float, *, turning: bool = False) -> Worlds:
        """Return worlds whose forgotten weights lie ``max_distance`` off at each version, in the first one's direction.

        ``turning``: to the other side at every second version, so that comparing versions is what pays. Where the first
        version is not moved at all, the direction is that of the first weight.
        """
        direction = self.moved[0] / self.moved[0].norm()
        if not bool(torch.isfinite(direction).all()):
            direction = torch.eye(1, self.moved.shape[1], dtype=torch.float64)[0]
        signs = torch.ones(len(self.never), 1, dtype=torch.float64)
        if turning:
            signs[1::2] = -1.0
        return Worlds(self.never, max_distance * signs * direction)


def side_by_side(count: int, max_distance: float) -> Worlds:
    """Return ``count`` versions of a single weight as one row: a long sequence, published in one call."""
    return Worlds(torch.zeros(1, count, dtype=torch.float64), torch.full((1, count), max_distance, dtype=torch.float64))


def looks_forgotten(published: Tensor, worlds: Worlds) -> bool:
    """Tell whether published versions (t, d) are likelier if she was forgotten than if she was never there."""
    return bool(((published.double() - worlds.never - worlds.moved / 2) * worlds.moved).sum() > 0)


def attack(
    worlds: Sequence[Worlds], publish: Publish, trials: int, generator: torch.Generator, progress: Progress = silent
) -> Guesses:
    """Publish and guess ``trials`` times. A fair coin chooses each trial's world, and a canary among ``worlds``."""
    forgotten = missed = alarms = 0
    coins = torch.randint(2, (trials,), generator=generator).tolist()
    canaries = torch.randint(len(worlds), (trials,), generator=generator).tolist()
    for trial, (coin, canary) in enumerate(zip(coins, canaries, strict=True), start=1):
        scene = worlds[canary]
        published = torch.stack([publish(weights) for weights in scene.never + coin * scene.moved])
        guess = looks_forgotten(published, scene)
        forgotten += coin
        missed += coin and not guess
        alarms += guess and not coin
        progress(trial / trials)
    return Guesses(forgotten, missed, trials - forgotten, alarms)
