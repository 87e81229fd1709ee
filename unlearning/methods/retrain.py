"""Retraining without the forgotten: what a registration that never held them would train."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

import torch

from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import Examples, ForgetSet, Forgotten, Learned, Need, Progress, State, retained, silent


@dataclass(frozen=True)
class Retrain(Method):
    """Train again from the data-independent initialisation on the retain set, as a registration without the forgotten
    would: the batch order is drawn over those who remain.

    The start is always cold; with ``Training.converge`` the end is the retain set's minimiser. Between updates it
    keeps the weights, and nothing of any sample. A retraining in the batch order of the first training, with holes, is
    what ``distance_left`` and the laboratory compare other methods with (``train(planned=...)``); none is published.
    """

    name: ClassVar[str] = "retrain"
    exact: ClassVar[bool] = True
    secret_state: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RETAINED})

    def prepare(
        self,
        problem: Problem,
        examples: Examples,
        learned: Learned,
        progress: Progress = silent,
    ) -> State:
        progress(1.0)
        return _state(learned)

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """Train on ``retain``. Raises Refused where it is not given or contains a forgotten sample."""
        if not forget:
            return Forgotten(state)
        return Forgotten(_state(train(problem, retained(forget, retain))))

    def repeats(self, problem: Problem, subjects: Collection[tuple[str, ...]]) -> float:
        return 1.0 if subjects else 0.0

    def expected_repeats(self, requests: int) -> float:
        return 1.0 if requests else 0.0


def _state(learned: Learned) -> State:
    return State(learned.weights, {}, {"report": {"reference": "renormalised"}})


METHOD = Retrain
