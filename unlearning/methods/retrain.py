"""Retraining without the forgotten: the reference that every other method is measured against."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from unlearning.model.descent.plan import REFERENCES
from unlearning.model.method import OF_POLICY, Method
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.types import Examples, ForgetSet, Forgotten, Learned, Need, Progress, State, retained, silent


@dataclass(frozen=True)
class Retrain(Method):
    """Train again from the data-independent initialisation, in the same batch order, on the retain set.

    The start is always cold; with ``Training.converge`` the end is the retain set's minimiser. Between updates it
    keeps the weights and the manifest's positions (which fix the batch order), and no part of any sample.

    Args:
        reference: ``renormalised`` divides a thinned batch by the samples present, ``fixed-denominator`` by |B_t|.
    """

    name: ClassVar[str] = "retrain"
    reads_blocks: ClassVar[bool] = True
    exact: ClassVar[bool] = True
    checked: ClassVar[tuple[str, ...]] = (
        "The training started from what model() gives, and was handed the samples of those who remain and no others.",
    )
    secret_state: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[frozenset[Need]] = frozenset({Need.RETAINED})
    reference: str = field(default="renormalised", metadata=OF_POLICY)

    def __post_init__(self) -> None:
        if self.reference not in REFERENCES:
            raise ValueError(f"reference is {self.reference!r}; it must be one of {REFERENCES}.")

    def prepare(
        self,
        problem: Problem,
        examples: Examples,
        learned: Learned,
        progress: Progress = silent,
    ) -> State:
        progress(1.0)
        return State(
            learned.weights, {"positions": examples.positions.cpu()}, {"report": {"reference": self.reference}}
        )

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
        learned = train(problem, retained(forget, retain), planned=state.tensors["positions"], reference=self.reference)
        return Forgotten(State(learned.weights, state.tensors, state.facts))

    def repeats(self, problem: Problem, subjects: Collection[tuple[str, ...]]) -> float:
        return 1.0 if subjects else 0.0

    def expected_repeats(self, requests: int) -> float:
        return 1.0 if requests else 0.0


METHOD = Retrain
