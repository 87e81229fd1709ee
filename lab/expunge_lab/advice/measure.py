"""What each method does on a model: it is really prepared and really forgets, on a part of the people if time is short.

A method is tried on more and more people until the next step would not fit into its share of the time. Nothing of it
is kept: figures alone leave this room.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar

import torch
from torch.func import grad, vmap

from expunge_lab.advice.choice import Offer
from expunge_lab.advice.growth import Point, scaled
from expunge_lab.in_process import certify, establish, generator, open_model, refine
from expunge_service.queue import ForgottenCount
from expunge_workers.guarantee.certify import published_of
from expunge_workers.guarantee.terms import (
    Terms,
    design_of,
    guarantee_of,
    reference_of,
    require_all_forgotten,
    require_vectors_fit,
    terms_of,
)
from expunge_workers.runtime.model import OpenModel
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import Fallback, Policy
from unlearning.bounds.calibration import Design
from unlearning.methods import NAMES
from unlearning.model.method import Method, require_followed
from unlearning.model.training import learn
from unlearning.quality.distance_left import with_distance_left
from unlearning.quality.simulate import forget_set, left_by, release
from unlearning.recipe import Recipe
from unlearning.settings import SGD
from unlearning.types import Examples, Learned, Need, Progress, RecipeError, Refused, State, Vectors

STEPS = (64, 16, 4, 1)
"""a step of the trial takes one in so many people"""
LEAST_PEOPLE = 8
FORGOTTEN = 2
"""people who are forgotten, one after the other, to time an update"""
BRIEF_PART = 0.1
"""of the time that is left: a step below it is made three times, and the middle one counts. What loads once, and what
another program's burst costs, is then no part of it."""
TRAINING_PART = 0.3
"""of the time, for the plain training; the other methods share the rest"""

WORLDS = 3
"""that a version asks: for its samples, to train or forget, and to measure"""

T = TypeVar("T")
Limit: TypeAlias = Callable[[float], AbstractContextManager[Progress]]
"""gives a block so many seconds and a progress to report to; OutOfTime is raised in the block once they are over"""


class OutOfTime(Exception):
    """A trial takes longer than it was given."""


@dataclass(frozen=True)
class Scene:
    """What is measured on.

    Args:
        examples: everyone who may be trained on.
        policy: what is asked of the model; its method is replaced by each one in turn.
        reading: seconds that running the recipe takes in a world, which a version does several times (``readings``).
        vector_bytes: the most that exact vectors may take.
        options: fields of methods, by the method's name.
        opening: seconds that opening the sources takes, once for every version.
    """

    recipe: Recipe
    examples: Examples
    policy: Policy
    device: torch.device
    reading: float
    vector_bytes: int
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    opening: float = 0.0

    def readings(self, method: Method) -> int:
        """Return how often an update runs the recipe, or does in a world what takes about as long."""
        return WORLDS + int(Need.FORGOTTEN in method.needs)


@dataclass(frozen=True)
class Findings:
    """What was measured. ``retraining``: seconds of one, reading included."""

    offers: tuple[Offer, ...]
    retraining: float


@dataclass(frozen=True)
class _Step:
    """One method on a part of the people.

    Args:
        made: seconds of its preparation, its own training included.
        update: seconds of an update.
        took: seconds of all that was done.
    """

    people: int
    made: float
    update: float
    took: float
    accuracy: float | None
    fixed_bytes: int
    bytes_per_person: float


@dataclass
class _Trainings:
    """The plain trainings on parts of the people, each made once for all methods. ``learned``: by number of people."""

    scene: Scene
    bench: OpenModel
    learned: dict[int, tuple[Learned, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = sorted(set(self.scene.examples.people))
        drawn = torch.randperm(len(names), generator=torch.Generator().manual_seed(0)).tolist()
        self.order = [names[place] for place in drawn]

    @property
    def points(self) -> list[Point]:
        """Return the trainings' shares and seconds."""
        return [(count / len(self.order), seconds) for count, (_, seconds) in sorted(self.learned.items())]

    def make(self, seconds: float, limit: Limit) -> None:
        """Train on more and more people, until the time is used. Raises OutOfTime where not even the first fits."""
        end = time.perf_counter() + seconds
        sizes = {max(min(LEAST_PEOPLE, len(self.order)), len(self.order) // step) for step in STEPS}
        for count in sorted(sizes):
            left = end - time.perf_counter()
            if self.learned and scaled(self.points, count / len(self.order)) > left:
                return
            try:
                with limit(left) as progress:
                    once = partial(self._once, count, progress)
                    self.learned[count] = _middle(once, BRIEF_PART * left, lambda made: made[1])
            except OutOfTime:
                if not self.learned:
                    raise
                return

    def _once(self, count: int, progress: Progress) -> tuple[Learned, float]:
        examples, start = self.of(count), time.perf_counter()
        found = learn(self.bench.recipe, self.bench.problem, examples, progress)
        return found, time.perf_counter() - start

    def of(self, count: int) -> Examples:
        """Return the samples of the first ``count`` people in a fixed random order."""
        return left_by(self.scene.examples, forget_set(self.scene.examples, self.order[count:]))


def measure(
    scene: Scene, seconds: float, limit: Limit, tell: Callable[[str], None], names: Sequence[str] = NAMES
) -> Findings:
    """Measure every method within about so many seconds; ``tell`` is called with the name of what is tried next.

    Raises:
        Refused, RecipeError: the recipe cannot be trained at all.
        OutOfTime: not even a training on the fewest people fits; the text says how many.
    """
    _load_torch(scene.recipe)
    end = time.perf_counter() + seconds
    trainings = _Trainings(scene, open_model(scene.recipe, _policy_of(scene, "retrain"), scene.device))
    tell("training")
    try:
        trainings.make(TRAINING_PART * seconds, limit)
    except OutOfTime:
        fewest = min(LEAST_PEOPLE, len(trainings.order))
        raise OutOfTime(f"Training on {fewest} people takes more than {TRAINING_PART * seconds:.3g} s.") from None
    offers: dict[str, Offer] = {}
    able: list[tuple[int, str, OpenModel, Guarantee]] = []
    for name in names:
        try:
            bench, guarantee = _checked(scene, name)
            able.append((bench.method.growth(bench.problem), name, bench, guarantee))
        except (Refused, RecipeError) as why:
            offers[name] = Offer(name, refused=str(why))
    able.sort(key=lambda each: each[:2])
    for place, (_, name, bench, guarantee) in enumerate(able):
        tell(name)
        fair = max(0.0, end - time.perf_counter()) / (len(able) - place)
        offers[name] = _offer(trainings, bench, guarantee, fair, limit)
    everything = tuple(offers[name] for name in names)
    return Findings(everything, scaled(trainings.points, 1.0) + scene.reading)


def _load_torch(recipe: Recipe) -> None:
    """Use a derivative once, and an optimiser where the recipe may: their first use imports for seconds."""
    vmap(grad(lambda w: w.square().sum()))(torch.ones(2, 1))
    if recipe.training.optimizer == SGD():
        return
    weight = torch.ones(1, requires_grad=True)
    optimizer = torch.optim.AdamW([weight])
    weight.grad = torch.ones(1)
    optimizer.step()


def _policy_of(scene: Scene, name: str) -> Policy:
    """Return the policy with that method and its options, and no other in its place where it does not help."""
    return replace(scene.policy, method=name, options=scene.options.get(name, {}), fallback=Fallback.HOLD)


def _checked(scene: Scene, name: str) -> tuple[OpenModel, Guarantee]:
    """Return the opened model and its guarantee, by the checks of a registration. Raises Refused, RecipeError."""
    policy = _policy_of(scene, name)
    bench = open_model(scene.recipe, policy, scene.device)
    require_followed(bench.method, bench.recipe)
    require_all_forgotten(policy, bench.method, bench.recipe)
    guarantee = guarantee_of(policy, bench.problem, bench.method)
    bench = bench.under(guarantee)
    require_vectors_fit(bench, scene.examples, scene.vector_bytes)
    return bench, guarantee


def _offer(trainings: _Trainings, bench: OpenModel, guarantee: Guarantee, seconds: float, limit: Limit) -> Offer:
    """Try one method on more and more people for so many seconds; the largest trial that ended decides."""
    end, everyone, growth = time.perf_counter() + seconds, len(trainings.order), bench.method.growth(bench.problem)
    steps: list[_Step] = []
    why, tried = "", 0
    taken: list[Point] = []
    try:
        for count in sorted(trainings.learned):
            left = end - time.perf_counter()
            if taken and scaled(taken, count / everyone, growth) > left:
                break
            start = time.perf_counter()
            with limit(left) as progress:
                try:
                    once = partial(_step, trainings, bench, guarantee, count, progress)
                    step, why = _middle(once, BRIEF_PART * left, lambda step: step.took), ""
                except (Refused, RecipeError) as error:  # with so few people it may not mean much
                    step, why = None, str(error)
            tried = count
            taken.append((count / everyone, time.perf_counter() - start if step is None else step.took))
            steps += [] if step is None else [step]
    except OutOfTime:
        pass
    name = bench.method.name
    if why:
        part = "" if tried == everyone else f" (On {tried} of {everyone} people.)"
        return Offer(name, guarantee, refused=why + part)
    if not steps:
        why = f"a part of it takes longer than {seconds:.2g} s" if seconds > 0.01 else "the time was used up"
        return Offer(name, guarantee, refused=f"It was not measured: {why}.")
    return _scaled_up(trainings, bench, guarantee, steps)


def _scaled_up(trainings: _Trainings, bench: OpenModel, guarantee: Guarantee, steps: Sequence[_Step]) -> Offer:
    scene, method, everyone = trainings.scene, bench.method, len(trainings.order)
    training = scaled(trainings.points, 1.0)
    made = scaled([(step.people / everyone, step.made) for step in steps], 1.0, method.growth(bench.problem))
    update = scaled([(step.people / everyone, step.update) for step in steps], 1.0)
    update += scene.opening + scene.readings(method) * scene.reading
    design = _design(scene, guarantee, everyone)
    if design is not None:
        made += design.orders * len(design.sizes) * training
    last = steps[-1]
    return Offer(
        method.name,
        guarantee,
        accuracy=last.accuracy,
        preparation=scene.opening + WORLDS * scene.reading + training + made,
        update=update,
        state_bytes=round(last.fixed_bytes + everyone * last.bytes_per_person),
        share=last.people / everyone,
    )


def _step(trainings: _Trainings, bench: OpenModel, guarantee: Guarantee, count: int, progress: Progress) -> _Step:
    """Prepare the method on ``count`` people and forget two. Raises Refused, RecipeError, OutOfTime."""
    method, problem = bench.method, bench.problem
    examples, (learned, _) = trainings.of(count), trainings.learned[count]
    start = time.perf_counter()
    state = method.prepare(problem, examples, learned, progress)
    state = with_distance_left(method, problem, examples, learned, state, vectors=Vectors(state.vectors))
    policy = _policy_of(trainings.scene, method.name)
    terms = terms_of(policy, guarantee, reference_of(policy, state), len(examples))
    terms = establish(bench, replace(terms, design=_design(trainings.scene, guarantee, count)), examples, state)
    made = time.perf_counter() - start
    y = published_of(terms, state.weights, problem.dtype, trained=problem.trained).to(problem.device)
    accuracy = problem.accuracy(y, *(part.to(problem.device) for part in bench.recipe.holdout_tensors))
    rows = sum(vector.numel() * vector.element_size() for vector in state.vectors.values())
    fixed = sum(tensor.numel() * tensor.element_size() for tensor in (state.weights, *state.tensors.values()))
    update = _update(bench, terms, state, examples, trainings.order[:FORGOTTEN])
    return _Step(count, made, update, time.perf_counter() - start, accuracy, fixed, rows / count)


def _update(bench: OpenModel, terms: Terms, state: State, examples: Examples, people: Sequence[str]) -> float:
    """Forget each of ``people`` alone, refine, certify: return the mean seconds."""
    method, problem = bench.method, bench.problem
    forget_sets = [forget_set(examples, [person]) for person in people]
    start = time.perf_counter()
    for forget in forget_sets:
        retain = left_by(examples, forget)
        forgotten = release(method, problem, state, forget, retain, generator=generator(problem.device))
        refined, size = refine(bench, terms, forgotten, retain), ForgottenCount(len(forget.positions), 1, 1)
        certify(bench, terms, refined, size)
    return (time.perf_counter() - start) / len(forget_sets)


def _middle(make: Callable[[], T], brief: float, seconds: Callable[[T], float]) -> T:
    """Return what ``make`` gives; where it takes less than ``brief`` seconds, the middle one of three by its time."""
    first = make()
    if seconds(first) >= brief:
        return first
    return sorted((first, make(), make()), key=seconds)[1]


def _design(scene: Scene, guarantee: Guarantee, people: int) -> Design | None:
    return design_of(scene.policy, people) if guarantee is Guarantee.CALIBRATED else None
