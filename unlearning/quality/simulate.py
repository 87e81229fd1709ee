"""An update in memory: what the service does with a method, without the service."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import torch

from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.types import Examples, ForgetSet, Forgotten, Need, Refused, State, Vectors


def forget_set(examples: Examples, people: Iterable[str]) -> ForgetSet:
    """Return the forget set of all samples of these people."""
    chosen = frozenset(people)
    positions = examples.positions[examples.people.where(chosen.__contains__).to(examples.positions.device)]
    return ForgetSet(chosen, tuple(positions.tolist()), examples.only(positions))


def choose(examples: Examples, count: int, generator: torch.Generator) -> ForgetSet:
    """Choose random people, whole, until at least ``count`` samples are chosen.

    Raises:
        Refused: no sample would be left.
    """
    names = sorted(examples.people.distinct())
    sizes = {name: 0 for name in names}
    for person in examples.people:
        sizes[person] += 1
    chosen: list[str] = []
    for index in torch.randperm(len(names), generator=generator).tolist():
        if sum(sizes[name] for name in chosen) >= count:
            break
        chosen.append(names[index])
    if len(chosen) == len(names):
        raise Refused(f"Forgetting {count} of {len(examples)} samples leaves none.", "Forget fewer.")
    return forget_set(examples, chosen)


def left_by(examples: Examples, forget: ForgetSet) -> Examples:
    """Return the examples that stay."""
    return examples.without(torch.tensor(forget.positions, dtype=torch.int64))


def release(
    method: Method,
    problem: Problem,
    state: State,
    forget: ForgetSet,
    retain: Examples,
    *,
    generator: torch.Generator,
) -> Forgotten:
    """Forget with the forgotten people's vectors alone; the other people's vectors are put back into the new state.

    A method that needs all vectors is given them, and those that it returns are kept.
    """
    others = {person: vector for person, vector in state.vectors.items() if person not in forget.people}
    asked = replace(forget, vectors=_given(method, state, forget))
    forgotten = method.forget(problem, replace(state, vectors={}), asked, retain, generator)
    vectors = others | dict(forgotten.state.vectors)
    return replace(forgotten, state=replace(forgotten.state, vectors=vectors))


def _given(method: Method, state: State, forget: ForgetSet) -> Vectors:
    if Need.VECTORS in method.needs:
        return Vectors(state.vectors)
    return Vectors({person: vector for person, vector in state.vectors.items() if person in forget.people})
