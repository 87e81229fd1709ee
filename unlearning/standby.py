"""A fallback that stands by: a second method's state beside the first's, and updates that it makes in its place.

A method can stand by where all that it reads at an update are the retained samples: its result then does not depend on
who made the updates before. Whom one of the two forgets is gone for the other too (``protocol.Resumable``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, cast

import torch

from unlearning.model.problem import Problem
from unlearning.model.training import silent
from unlearning.types import (
    Examples,
    ForgetSet,
    Forgotten,
    Json,
    Learned,
    Method,
    Need,
    Progress,
    Refused,
    Resumable,
    State,
)

PREFIX = "standby."
READS = frozenset({Need.TRAJECTORY, Need.RETAINED})


def can_stand_by(method: Method) -> bool:
    """Whether its updates depend on the retained samples alone."""
    return Need.RETAINED in method.needs and method.needs <= READS and isinstance(method, Resumable)


@dataclass(frozen=True)
class Accompanied:
    """``first`` makes the updates, and ``second`` stands by."""

    name: ClassVar[str] = "accompanied"
    first: Method
    second: Method

    @property
    def needs(self) -> frozenset[Need]:
        """Those of ``first``: what ``second`` needs is read only when it is called upon."""
        return self.first.needs

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Both states in one. Raises Ineffective as ``first`` does, and Refused where ``second`` cannot serve."""
        own = self.first.prepare(problem, examples, learned, lambda share: progress(0.7 * share))
        try:
            other = self.second.prepare(problem, examples, learned, lambda share: progress(0.7 + 0.3 * share))
        except Refused as error:
            what = f"The fallback {self.second.name} cannot serve this model. {error.what}"
            raise Refused(what, "Name another fallback, retrain for example, or set fallback_options.") from None
        return _joined(own, other, _measured(own, other, self.second.name))

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """The update of ``first``; ``second`` would go on from its weights. Raises Refused as ``first`` does."""
        own, other = _parted(state)
        made = self.first.forget(problem, own, forget, retain, generator)
        return replace(made, state=_joined(made.state, _resumed(self.second, other, made.state, forget)))

    @property
    def stand_in(self) -> StandIn:
        return StandIn(self.first, self.second)


@dataclass(frozen=True)
class StandIn:
    """``second`` makes an update in the place of ``first``, which goes on from its weights. Same states."""

    name: ClassVar[str] = "stand-in"
    first: Method
    second: Method

    @property
    def needs(self) -> frozenset[Need]:
        return self.second.needs

    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """As ``Accompanied``."""
        return Accompanied(self.first, self.second).prepare(problem, examples, learned, progress)

    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """Raises Refused as ``second`` does."""
        own, other = _parted(state)
        made = self.second.forget(problem, other, forget, retain, generator)
        return replace(made, state=_joined(_resumed(self.first, own, made.state, forget), made.state))


def _resumed(method: Method, state: State, made: State, forget: ForgetSet) -> State:
    if not isinstance(method, Resumable):
        raise TypeError(f"{method.name} cannot go on after another method")
    return method.resume(state, made.weights, forget)


def _joined(own: State, other: State, facts: Mapping[str, Json] | None = None) -> State:
    """``own`` with the tensors and facts of ``other`` under names of their own."""
    tensors = {PREFIX + name: tensor for name, tensor in other.tensors.items()}
    theirs = {name: fact for name, fact in other.facts.items() if name != "report"}
    return replace(own, tensors={**own.tensors, **tensors}, facts={**own.facts, **(facts or {}), "standby": theirs})


def _parted(state: State) -> tuple[State, State]:
    """The two that ``_joined`` joined; both have the same weights."""
    facts = dict(state.facts)
    kept = cast(Mapping[str, Json], facts.pop("standby"))
    theirs = {name.removeprefix(PREFIX): value for name, value in state.tensors.items() if name.startswith(PREFIX)}
    mine = {name: value for name, value in state.tensors.items() if not name.startswith(PREFIX)}
    return State(state.weights, mine, facts, state.vectors), State(state.weights, theirs, kept)


def _measured(own: State, other: State, name: str) -> dict[str, Json]:
    """The report of ``own`` with what is known of the fallback."""
    reports = [each.facts.get("report") for each in (own, other)]
    mine, theirs = (dict(report) if isinstance(report, dict) else {} for report in reports)
    fallback: dict[str, Json] = {"method": name}
    if "distance_left" in theirs:
        fallback["distance_left"] = theirs["distance_left"]
    return {"report": {**mine, "fallback": fallback}}
