"""What a recipe is told of the part of a training that it is called for."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from unlearning.types import RecipeError

MOST_PROCESSES = 64
"""of one part"""
CHECKPOINT_SECONDS = 300.0


class Points(Protocol):
    """Where a part goes on after an interruption, as the service keeps it."""

    def last(self) -> Any:
        """Return what was last made before the interruption, None without one, and put the generators back."""

    def offer(self, make: Callable[[], Any]) -> None:
        """Keep what ``make`` gives, where it is time or the part is to end."""


@dataclass(frozen=True)
class TrainingRun:
    """The part that a recipe trains.

    Args:
        start: the files that the part before published, by name; None in the first part.
        rank, world: the number of this process of the part, from 0, and how many there are.
        points: what the service keeps of the part; None: nothing, as by hand.
    """

    start: Mapping[str, bytes] | None = None
    rank: int = 0
    world: int = 1
    points: Points | None = field(default=None, repr=False)

    @property
    def resumed(self) -> Any:
        """What ``checkpoint`` was last given before the part was interrupted; None: it begins.

        Reading it also puts back the generators of torch, numpy and Python as they were there. So read it last: what is
        drawn between it and the loop was not drawn before the interruption.
        """
        return None if self.points is None else self.points.last()

    def checkpoint(self, make: Callable[[], Any]) -> None:
        """Offer a point to go on from: ``make`` gives all that the rest of the training follows from.

        It is called where ``checkpoint_seconds`` are over or the worker is to stop, and costs a look elsewhere. What it
        gives is tensors and plain values: the state_dicts of model and optimizer, the step. In a part of several
        processes each calls this at the same steps, once they have met (``torch.distributed``).
        """
        if self.points is not None:
            self.points.offer(make)


@dataclass(frozen=True)
class RunParameter(TrainingRun):
    """Marks the parameter that gets a ``TrainingRun``, see ``run``.

    Where nobody fills it in, as by hand, it is the first part's; under torchrun, that of its process.
    """

    processes: int = 1
    checkpoint_seconds: float = CHECKPOINT_SECONDS


def run(processes: int = 1, checkpoint_seconds: float = CHECKPOINT_SECONDS) -> Any:
    """Ask for the part's ``TrainingRun``: ``def recipe(rows=ul.table(...), run=ul.run())``.

    Args:
        processes: how many train a part together, 1 to 64. Each calls the recipe, and finds the others as under
            torchrun: by ``torch.distributed.init_process_group()``, Accelerate, Lightning or Transformers. What the
            first one returns is the result. Another number gives other bits: to change it is to change the recipe.
        checkpoint_seconds: between two points that ``checkpoint`` keeps.

    Raises:
        RecipeError: one of them is out of range.
    """
    if not isinstance(processes, int) or not 1 <= processes <= MOST_PROCESSES:
        what = f"ul.run(processes={processes!r}) is out of range."
        raise RecipeError(what, f"Write a whole number from 1 to {MOST_PROCESSES}.")
    if not isinstance(checkpoint_seconds, int | float) or not 0 < checkpoint_seconds < math.inf:
        raise RecipeError(
            f"ul.run(checkpoint_seconds={checkpoint_seconds!r}) is out of range.", "Write a number of seconds above 0."
        )
    rank, world = (int(os.environ.get(name, usual)) for name, usual in (("RANK", "0"), ("WORLD_SIZE", "1")))
    return RunParameter(rank=rank, world=world, processes=processes, checkpoint_seconds=checkpoint_seconds)
