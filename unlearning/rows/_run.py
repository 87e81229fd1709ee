"""What a recipe is told of the part of a training that it is called for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TrainingRun:
    """The part that a recipe trains.

    Args:
        start: the files that the part before published, by name; None in the first part.
        rank, world: the number of this process of the part, and of all of them. So far a part is one process.
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
    """Marks the parameter that gets a ``TrainingRun``, see ``run``; where nobody fills it in, the first part's."""


def run() -> Any:
    """Ask for the part's ``TrainingRun``: ``def recipe(rows=ul.table(...), run=ul.run())``."""
    return RunParameter()
