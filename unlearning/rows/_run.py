"""What a recipe is told of the part of a training that it is called for."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from unlearning.types import RecipeError

MOST_PROCESSES = 64
"""of one part"""


@dataclass(frozen=True)
class TrainingRun:
    """The part that a recipe trains.

    Args:
        start: the files that the part before published, by name; None in the first part.
        rank, world: the number of this process of the part, from 0, and how many there are.
        resumed: what ``checkpoint`` was last given before the part was interrupted; None: it begins. So far it always
            does.
    """

    start: Mapping[str, bytes] | None = None
    rank: int = 0
    world: int = 1
    resumed: Any = None

    def checkpoint(self, make: Callable[[], Any]) -> None:
        """Offer a point to go on from, which ``make`` gives. So far none is taken: an interrupted part begins anew."""


@dataclass(frozen=True)
class RunParameter(TrainingRun):
    """Marks the parameter that gets a ``TrainingRun``, see ``run``.

    Where nobody fills it in, as by hand, it is the first part's; under torchrun, that of its process.
    """

    processes: int = 1


def run(processes: int = 1) -> Any:
    """Ask for the part's ``TrainingRun``: ``def recipe(rows=ul.table(...), run=ul.run())``.

    Args:
        processes: how many train a part together, 1 to 64. Each calls the recipe, and finds the others as under
            torchrun: by ``torch.distributed.init_process_group()``, Accelerate, Lightning or Transformers. What the
            first one returns is the result. Another number gives other bits: to change it is to change the recipe.

    Raises:
        RecipeError: ``processes`` is out of range.
    """
    if not isinstance(processes, int) or not 1 <= processes <= MOST_PROCESSES:
        what = f"ul.run(processes={processes!r}) is out of range."
        raise RecipeError(what, f"Write a whole number from 1 to {MOST_PROCESSES}.")
    rank, world = (int(os.environ.get(name, usual)) for name, usual in (("RANK", "0"), ("WORLD_SIZE", "1")))
    return RunParameter(rank=rank, world=world, processes=processes)
