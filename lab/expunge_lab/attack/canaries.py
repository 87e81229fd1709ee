"""Canaries: people of the recipe's own data whose samples get other targets, so that a model has to learn them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unlearning.recipe import Recipe, Samples
from unlearning.types import Refused


@dataclass(frozen=True)
class Cast:
    """A recipe with canaries, and everyone in random order. ``people`` begins with the canaries."""

    recipe: Recipe
    people: tuple[str, ...]
    canaries: int

    def leaving(self, canary: int, count: int) -> tuple[str, ...]:
        """Return who leaves, one an update: this canary first, then ``count - 1`` people who are no canaries."""
        return (self.people[canary], *self.people[self.canaries : self.canaries + count - 1])


def with_canaries(recipe: Recipe, canaries: int, updates: int, generator: torch.Generator) -> Cast:
    """Choose canaries at random and exchange their targets.

    Raises:
        Refused: the model was trained elsewhere, or there are too few people.
    """
    if recipe.weights is not None:
        raise Refused("This model was trained elsewhere: canaries cannot be trained into it.", "Give a recipe.")
    samples = recipe.samples
    names = sorted(samples.people.map("+".join).distinct())
    if len(names) <= canaries + updates:
        what = f"{len(names)} people are too few for {canaries} canaries and {updates} updates."
        raise Refused(what, "Lower --canaries or --updates.")
    order = [names[place] for place in torch.randperm(len(names), generator=generator).tolist()]
    marked = frozenset(order[:canaries])
    places = samples.people.map("+".join).where(marked.__contains__).nonzero().squeeze(1)
    inputs, targets = samples.tensors()
    mistaught = Samples(samples.ids, samples.subjects, inputs, _exchanged(targets, places.tolist(), generator))
    return Cast(replace(recipe, samples=mistaught), tuple(order), canaries)


def _exchanged(targets: Tensor, places: Sequence[int], generator: torch.Generator) -> Tensor:
    """Return targets (n, ...) where each of ``places`` has that of a random sample whose target differs."""
    out, flat = targets.clone(), targets.reshape(len(targets), -1)
    for place in places:
        others = (flat != flat[place]).any(dim=1).nonzero().squeeze(1)
        if len(others):
            out[place] = targets[others[int(torch.randint(len(others), (1,), generator=generator))]]
    return out
