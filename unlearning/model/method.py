"""What a method is: a frozen object with its options as fields, in one file of ``unlearning/methods``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

from unlearning.accounting.certificate import Constant, Guarantee
from unlearning.artefact import Artefact
from unlearning.model.descent.ingredients import INSTEAD, Ingredient, ingredients_of
from unlearning.model.problem import Problem, build
from unlearning.recipe import Recipe
from unlearning.types import (
    Examples,
    ForgetSet,
    Forgotten,
    Json,
    Learned,
    Need,
    Progress,
    Refused,
    State,
    silent,
)

INTERNAL: Mapping[str, bool] = {"internal": True}
"""metadata of a field that only Python sets: no option of a policy"""
OF_POLICY: Mapping[str, bool] = {"policy": True}
"""metadata of a field that takes the value of the policy's field of that name: a policy names it once"""


class Bound(ABC):
    """How far the weights of an update can be from retraining.

    ``assumptions`` and ``checked`` are the sentences of a certificate: what the bound assumes of the training and the
    reference, and what the service verifies of it.
    """

    assumptions: ClassVar[tuple[str, ...]]
    checked: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def require_possible(self, problem: Problem) -> None:
        """Raise Refused where this bound does not hold for the problem or the method's options."""

    def constants(self, problem: Problem, examples: Examples, state: State) -> tuple[Constant, ...]:
        """Measure what the bound depends on, once, before any deletion."""
        return ()

    @abstractmethod
    def require_useful(
        self, problem: Problem, examples: Examples, state: State, max_distance: float, constants: Mapping[str, float]
    ) -> dict[str, Json]:
        """Return what registration reports of the bound.

        Raises:
            Refused: the bound is vacuous, or no update can be expected to stay within ``max_distance``.
        """

    def refine(
        self,
        problem: Problem,
        forgotten: Forgotten,
        retain: Examples | None,
        max_distance: float,
        constants: Mapping[str, float],
    ) -> tuple[Tensor, float]:
        """Return the weights (d,) of ``forgotten``, moved until the bound is at most ``max_distance`` where the bound
        can be worked on; and their bound. Raises Refused as ``distance`` does.
        """
        return forgotten.state.weights, self.distance(problem, forgotten, retain, constants)

    @abstractmethod
    def distance(
        self, problem: Problem, forgotten: Forgotten, retain: Examples | None, constants: Mapping[str, float]
    ) -> float:
        """Return the bound at the weights of ``forgotten``, in units of the weights; 0 where none was forgotten and
        the weights are the training's own.

        Raises:
            Refused: the bound is vacuous at these weights.
        """


class Method(ABC):
    """A way to forget. A subclass is a frozen dataclass; its fields are the options that a policy may set, those marked
    ``INTERNAL`` or ``OF_POLICY`` excepted.

    ``prepare`` is called once in the life of a training and ``forget`` once per update. Both are pure: no I/O, no
    clock, no global random state. ``exact``: an update equals a cold retraining. ``near``: it aims at the retrained
    weights, so that preparation refuses it where it leaves too much of the distance. ``trains``: ``prepare`` trains
    the model itself, and ``learned`` is the model's start. ``assumptions`` are a certificate's sentences where the
    method is exact. ``secret_state`` lists, for certificates, what the method keeps that still depends on deleted
    people. ``follows`` names what a built-in training may use beyond plain gradient steps; an exact method repeats the
    training with all that it uses. ``needs_no_steps``: the method starts from the weights that a training ended in,
    whatever its steps were. ``begins_anew``: an update follows from the weights and the retained samples alone, so
    that samples which moved since cost it steps and not its aim.
    """

    name: ClassVar[str]
    exact: ClassVar[bool] = False
    near: ClassVar[bool] = False
    trains: ClassVar[bool] = False
    assumptions: ClassVar[tuple[str, ...]] = ()
    follows: ClassVar[frozenset[Ingredient]] = frozenset()
    needs_no_steps: ClassVar[bool] = False
    begins_anew: ClassVar[bool] = False
    secret_state: ClassVar[tuple[str, ...]] = ("The method's own state depends on the deleted people.",)

    def recipe(self, recipe: Recipe) -> Recipe:
        """Return the recipe of the published model: ``recipe`` itself, unless the method publishes another module."""
        return recipe

    @property
    @abstractmethod
    def needs(self) -> frozenset[Need]:
        """Name what is needed at forget time (RETAINED, FORGOTTEN, VECTORS) or at prepare (TRAJECTORY)."""

    @property
    def reads_holdout(self) -> bool:
        """Whether ``prepare`` is tuned by the holdout."""
        return False

    @abstractmethod
    def prepare(self, problem: Problem, examples: Examples, learned: Learned, progress: Progress = silent) -> State:
        """Compute what the method keeps. Raises Refused where it cannot serve this model."""

    @abstractmethod
    def forget(
        self,
        problem: Problem,
        state: State,
        forget: ForgetSet,
        retain: Examples | None,
        generator: torch.Generator,
    ) -> Forgotten:
        """Forget. ``retain`` is every sample that stays, None where it is not needed. An empty set returns ``state``.

        Raises:
            Refused: the method cannot make this update.
        """

    def afresh(self, state: State) -> State:
        """Return ``state`` without what an update of an exact method would use again of an earlier training."""
        return state

    def repeats(self, problem: Problem, subjects: Collection[tuple[str, ...]]) -> float:
        """Return the share of a whole training, 0 to 1, that forgetting samples of these subjects repeats.

        ``subjects`` gives the persons of each sample, as ``Examples.subjects`` does. 0: no training is repeated.
        """
        return 0.0

    def expected_repeats(self, requests: int) -> float | None:
        """Return what ``repeats`` is on average, for ``requests`` people drawn at random; None: it is always 0."""
        return None

    def most_updates(self) -> int | None:
        """Return how many updates the method makes of one training; None: any number."""
        return None

    def under(self, guarantee: Guarantee, recipe: Recipe) -> Method:
        """Return the method as it works for a generation of this guarantee: what follows from it is no option."""
        return self

    def bound(self, guarantee: Guarantee) -> Bound | None:
        """Return the method's own bound for ``proved`` or ``estimated``; None where it has none.

        Without one, ``proved`` is computed at the weights, by any method with a training that ends in a minimiser.
        """
        return None

    def growth(self, problem: Problem) -> int:
        """Return the power of the number of people that the time of ``prepare``, training aside, grows with."""
        return 1

    def require_size(self, problem: Problem, samples: int) -> None:
        """Raise Refused, before any training on ``samples`` samples, where what preparation holds does not fit."""


def require_followed(method: Method, recipe: Recipe) -> None:
    """Require that the method can follow the recipe's training. Raises Refused.

    Of the built-in training a method follows plain gradient steps, with any schedule of the step size, and what it
    names in ``follows``; one that needs no steps follows any. No approximating method changes a model of bytes.
    """
    if method.exact:
        return
    if isinstance(recipe.model, Artefact):
        raise Refused(
            f"The recipe trains the model itself, and {method.name} only follows the built-in training.",
            "Choose late, shards or retrain, which repeat your own training.",
        )
    if method.needs_no_steps:
        return
    for used, where in ingredients_of(recipe.training, build(recipe, recipe.training.seed)).items():
        if used not in method.follows:
            raise Refused(
                f"{method.name} follows plain gradient steps, and this training has {where}.",
                f"Choose late, shards or retrain, which repeat the training; or {INSTEAD[used]}.",
            )


@runtime_checkable
class KeepsVectors(Protocol):
    """A method that keeps a vector for each person, and needs it to forget the person."""

    def length(self, problem: Problem) -> int:
        """Return how many numbers each person's vector has at least."""

    def holders(self, problem: Problem, examples: Examples) -> list[str]:
        """Return the people with a vector, in sorted order."""


@runtime_checkable
class InParts(Protocol):
    """A method that trains parts which know nothing of each other, on machines that share a start and the samples."""

    def start(self) -> State:
        """Return what ``prepare`` starts from."""

    def chains(
        self, problem: Problem, examples: Examples, start: State
    ) -> Mapping[int, Sequence[tuple[object, Examples]]]:
        """Return what ``Fresh`` is asked for to train each unfinished part: pieces in order, each with its samples."""
