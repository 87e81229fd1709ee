"""The papers' table for a user's own model: every method next to the retrained and the untouched model.

Measurements, never claims. They look at what the method itself gives, not at what an update makes of it when it works
on until its bound is under the cap; accuracies and attacks with the update's noise, distances without. Two fields look
at what would be published: ``published_accuracy`` and ``difference_attack_top1``. One seed fixes the forget set and,
where we train, the training (its seed plus this one).

A method that trains in its own order is compared with its own cold training. ``relearn_epochs`` and
``difference_attack_top1`` need gradients, which running statistics lack: a recipe that trains by itself gets none.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from unlearning.evaluation.attacks import (
    Shadows,
    Signatures,
    likelihood_ratio_auc,
    membership,
    relearn_epochs,
    shadows,
    signatures,
)
from unlearning.evaluation.metrics import CertifiedWeights, Instruments, Plan, Row
from unlearning.model.method import Method, require_followed
from unlearning.model.problem import Problem
from unlearning.model.training import learn, train
from unlearning.quality.distance_left import distance_left
from unlearning.quality.simulate import choose, forget_set, left_by, release
from unlearning.recipe import Recipe
from unlearning.types import Examples, ForgetSet, Learned, Progress, RecipeError, Refused, State

UNTOUCHED = "untouched"


def evaluate(
    recipe: Recipe,
    methods: Mapping[str, Method],
    plan: Plan,
    instruments: Instruments,
    device: torch.device | str = "cpu",
) -> tuple[Row, ...]:
    """Measure every method, and the untouched model, at every fraction and seed; ``retrain`` only where it is named.

    A method that refuses gets a row that says why; it ends nothing else.
    """
    done = _steps(instruments.progress, len(plan.seeds) * (1 + len(methods) * (1 + len(plan.fractions))))
    rows: list[Row] = []
    for seed in plan.seeds:
        scene = _scene(recipe, plan, instruments, seed, device)
        done()
        cases = [_case(scene, fraction) for fraction in plan.fractions]
        rows += [_measured(scene, case, _untouched(case, scene)) for case in cases]
        for name, method in methods.items():
            prepared = _prepare(scene, name, method)
            done()
            for case in cases:
                rows.append(_row(case, prepared))
                done()
    return tuple(rows)


def stream(
    recipe: Recipe,
    methods: Mapping[str, Method],
    plan: Plan,
    instruments: Instruments,
    *,
    rounds: int,
    samples: int,
    device: torch.device | str = "cpu",
) -> tuple[Row, ...]:
    """Run SAFE's protocol: ``rounds`` updates in turn, each of about ``samples`` samples (whole people).

    A row for each method and round. m, and what is forgotten, count from the first round on; attacks are left out.
    """
    quick = replace(plan, shadows=0, trials=0)
    done = _steps(instruments.progress, len(plan.seeds) * len(methods) * rounds)
    rows: list[Row] = []
    for seed in plan.seeds:
        scene = _scene(recipe, quick, instruments, seed, device)
        batches = _rounds(scene, rounds, samples)
        for name, method in methods.items():
            rows += _streamed(_prepare(scene, name, method), batches, samples, done)
    return tuple(rows)


# One seed: a trained model and what is measured on it


@dataclass(frozen=True)
class _Scene:
    problem: Problem
    examples: Examples
    holdout: tuple[Tensor, Tensor]
    learned: Learned
    plan: Plan
    instruments: Instruments
    seed: int
    references: dict[tuple[str, tuple[int, ...]], tuple[Tensor, float]] = field(default_factory=dict)
    """retrained weights and seconds, by reference and forget set: measured once, used by every method"""
    order: Method | None = None
    """trains the model in its own order; None: the recipe does"""

    @cached_property
    def marks(self) -> Signatures:
        """Draw the difference attack's candidates, in random order, and what each one's deletion would look like."""
        names = sorted(self.examples.people.distinct())
        order = [names[index] for index in torch.randperm(len(names), generator=_generator(self)).tolist()]
        return signatures(self.problem, self.learned.weights, self.examples, order[: self.plan.candidates])

    def retrained(self, reference: str, forget: ForgetSet) -> tuple[Tensor, float]:
        key = (reference, forget.positions)
        if key not in self.references:
            start = self.instruments.clock()
            retain = left_by(self.examples, forget)
            if self.order is None:
                weights = train(self.problem, retain, planned=self.examples.positions, reference=reference).weights
            else:
                weights = self.order.prepare(self.problem, retain, Learned(self.problem.initial())).weights
            self.references[key] = weights, self.instruments.clock() - start
        return self.references[key]


@dataclass(frozen=True)
class _Case:
    """A forget set of a scene. ``shadow`` is None where the attack is left out."""

    fraction: float
    forget: ForgetSet
    retain: Examples
    shadow: Shadows | None


@dataclass(frozen=True)
class _Prepared:
    """A method's state on the model of ``scene``, which the method trained where it has its own order."""

    scene: _Scene
    name: str
    method: Method
    state: State | None
    seconds: float
    size: int
    reference: str
    refused: str | None = None


@dataclass(frozen=True)
class _Outcome:
    """One update to be measured. ``weights`` (d,) are the method's own, before certification."""

    name: str
    reference: str
    weights: Tensor
    certified: CertifiedWeights
    size: int
    prepare_seconds: float | None = None
    forget_seconds: float | None = None
    certify_seconds: float | None = None
    top1: float | None = None
    round: int = 1


def _scene(recipe: Recipe, plan: Plan, instruments: Instruments, seed: int, device: torch.device | str) -> _Scene:
    if recipe.train is not None:
        seeded = replace(recipe, seed=recipe.seed + seed)
    elif recipe.weights is None:
        seeded = replace(recipe, training=replace(recipe.training, seed=recipe.training.seed + seed))
    else:
        seeded = recipe
    problem = Problem(seeded, device)
    examples = seeded.samples.examples(device=device)
    holdout = (recipe.holdout[0].to(device), recipe.holdout[1].to(device))
    return _Scene(problem, examples, holdout, learn(seeded, problem, examples), plan, instruments, seed)


def _case(scene: _Scene, fraction: float) -> _Case:
    count = max(1, round(fraction * len(scene.examples)))
    forget = choose(scene.examples, count, _generator(scene))
    retain = left_by(scene.examples, forget)
    shadow = None
    if scene.plan.shadows:
        gone = scene.examples.only(torch.tensor(forget.positions))
        shadow = shadows(scene.problem, retain, gone, scene.holdout, count=scene.plan.shadows, seed=scene.seed)
    return _Case(fraction, forget, retain, shadow)


def _prepare(scene: _Scene, name: str, method: Method) -> _Prepared:
    """Prepare; a method that trains the model itself is compared with its own cold training, not with the recipe's."""
    reference = str(getattr(method, "reference", None) or scene.plan.reference)
    start = scene.instruments.clock()
    try:
        require_followed(method, scene.problem.recipe)
        if method.trains:
            scene = _scene_of(scene, method)
        state = method.prepare(scene.problem, scene.examples, scene.learned)
    except (Refused, RecipeError) as error:
        return _Prepared(scene, name, method, None, scene.instruments.clock() - start, 0, reference, str(error))
    if method.trains:
        scene = replace(scene, learned=Learned(state.weights))
    report = state.facts.get("report")
    if isinstance(report, dict) and isinstance(report.get("reference"), str):
        reference = str(report["reference"])
    return _Prepared(scene, name, method, state, scene.instruments.clock() - start, _bytes_of(state), reference)


def _scene_of(scene: _Scene, method: Method) -> _Scene:
    """Return the scene with the method's model, not trained yet, and the method's training."""
    problem = Problem(method.recipe(scene.problem.recipe), scene.problem.device)
    return replace(scene, problem=problem, learned=Learned(problem.initial()), references={}, order=method)


def _row(case: _Case, prepared: _Prepared) -> Row:
    if prepared.state is None:
        return _refusal(case, prepared, prepared.refused or "")
    try:
        outcome, _ = _update(prepared, prepared.state, case.forget, case.retain)
        top1 = _difference_attack(prepared)
    except (Refused, RecipeError) as error:
        return _refusal(case, prepared, str(error))
    return _measured(prepared.scene, case, replace(outcome, top1=top1))


def _update(
    prepared: _Prepared, state: State, batch: ForgetSet, retain: Examples, *, earlier: int = 0
) -> tuple[_Outcome, State]:
    """Forget ``batch`` and certify; ``retain`` is who is left after it and the ``earlier`` updates."""
    scene = prepared.scene
    clock, certify = scene.instruments.clock, scene.instruments.certify
    start = clock()
    forgotten = release(prepared.method, scene.problem, state, batch, retain, generator=_generator(scene))
    between = clock()
    certified = certify(scene.problem, prepared.name, forgotten, forget=batch, retain=retain, updates=earlier)
    end = clock()
    outcome = _Outcome(
        prepared.name,
        prepared.reference,
        forgotten.state.weights,
        certified,
        prepared.size,
        prepared.seconds,
        forget_seconds=between - start,
        certify_seconds=end - between,
    )
    return outcome, replace(forgotten.state, weights=certified.weights)


def _measured(scene: _Scene, case: _Case, outcome: _Outcome) -> Row:
    problem, gone = scene.problem, scene.examples.only(torch.tensor(case.forget.positions))
    shown = _noised(replace(outcome.certified, weights=outcome.weights), scene.seed)
    reference, seconds = scene.retrained(outcome.reference, case.forget)
    shadow = None if scene.order else case.shadow  # the shadows are trained as the recipe says
    guess = membership(
        problem,
        shown,
        scene.instruments.classifier,
        forgotten=gone.inputs,
        retained=case.retain.inputs,
        holdout=scene.holdout[0],
        seed=scene.seed,
    )
    return Row(
        method=outcome.name,
        forget_fraction=case.fraction,
        seed=scene.seed,
        n=len(scene.examples),
        m=len(gone),
        reference=outcome.reference,
        round=outcome.round,
        **_geometry(scene.learned.weights, outcome.weights, reference),
        retained_accuracy=_accuracy(problem, shown, case.retain.inputs, case.retain.targets),
        forgotten_accuracy=_accuracy(problem, shown, gone.inputs, gone.targets),
        test_accuracy=_accuracy(problem, shown, *scene.holdout),
        published_accuracy=_accuracy(problem, _noised(outcome.certified, scene.seed), *scene.holdout),
        mia_accuracy=guess.accuracy,
        mia_auc=guess.auc,
        lira_auc=None if shadow is None else likelihood_ratio_auc(problem, shown, shadow),
        relearn_epochs=None
        if problem.recipe.train
        else relearn_epochs(problem, shown, scene.learned.weights, gone, scene.plan.relearn_limit),
        difference_attack_top1=outcome.top1,
        prepare_seconds=outcome.prepare_seconds,
        forget_seconds=outcome.forget_seconds,
        certify_seconds=outcome.certify_seconds,
        retrain_seconds=seconds,
        state_bytes=outcome.size,
        claim=outcome.certified.claim,
    )


def _difference_attack(prepared: _Prepared) -> float | None:
    """Return the share of single deletions whose person is named from two versions, each with separate noise."""
    scene = prepared.scene
    state = prepared.state
    if state is None or not scene.plan.trials or scene.problem.recipe.train is not None:
        return None
    tried = scene.marks.people[: scene.plan.trials]
    hits = 0
    for trial, person in enumerate(tried):
        forget = forget_set(scene.examples, [person])
        outcome, _ = _update(prepared, state, forget, left_by(scene.examples, forget))
        before = _noised(replace(outcome.certified, weights=state.weights), 2 * trial)
        hits += scene.marks.named(before, _noised(outcome.certified, 2 * trial + 1)) == person
    return hits / len(tried)


def _streamed(
    prepared: _Prepared, batches: Sequence[ForgetSet], samples: int, done: Callable[[], None]
) -> Iterator[Row]:
    scene = prepared.scene
    state, so_far = prepared.state, ForgetSet(frozenset(), ())
    for number, batch in enumerate(batches, start=1):
        done()
        so_far = forget_set(scene.examples, so_far.people | batch.people)
        case = _Case(number * samples / len(scene.examples), so_far, left_by(scene.examples, so_far), None)
        if state is None:
            yield replace(_refusal(case, prepared, prepared.refused or ""), round=number)
            return
        try:
            outcome, state = _update(prepared, state, batch, case.retain, earlier=number - 1)
        except (Refused, RecipeError) as error:
            yield replace(_refusal(case, prepared, str(error)), round=number)
            return
        yield _measured(scene, case, replace(outcome, round=number, size=_bytes_of(state)))


def _rounds(scene: _Scene, rounds: int, samples: int) -> tuple[ForgetSet, ...]:
    generator, left, chosen = _generator(scene), scene.examples, []
    for _ in range(rounds):
        batch = choose(left, samples, generator)
        chosen.append(batch)
        left = left_by(left, batch)
    return tuple(chosen)


def _untouched(case: _Case, scene: _Scene) -> _Outcome:  # noqa: ARG001  (the same for every forget set)
    weights = scene.learned.weights
    return _Outcome(UNTOUCHED, scene.plan.reference, weights, CertifiedWeights(weights), _bytes_of(State(weights)))


def _refusal(case: _Case, prepared: _Prepared, reason: str) -> Row:
    return Row(
        prepared.name,
        case.fraction,
        prepared.scene.seed,
        len(prepared.scene.examples),
        len(case.forget.positions),
        prepared.reference,
        prepare_seconds=prepared.seconds,
        refused=reason,
    )


def _geometry(untouched: Tensor, unlearned: Tensor, retrained: Tensor) -> dict[str, Any]:
    before, after = (retrained.double() - untouched.double()), (unlearned.double() - untouched.double())
    lengths = float(before.norm()) * float(after.norm())
    return {
        "distance_to_retrain": float((retrained.double() - unlearned.double()).norm()),
        "distance_untouched": float(before.norm()),
        "distance_left": distance_left(untouched, unlearned, retrained),
        "cosine": float(before.dot(after)) / lengths if lengths else math.nan,
    }


def _accuracy(problem: Problem, w: Tensor, x: Tensor, y: Tensor) -> float:
    return problem.accuracy(w.to(problem.dtype), x, y)


def _noised(certified: CertifiedWeights, seed: int) -> Tensor:
    if certified.noise_std == 0.0:
        return certified.weights
    generator = torch.Generator().manual_seed(0x9E3779B9 + seed)
    noise = torch.randn(len(certified.weights), dtype=torch.float64, generator=generator)
    return certified.weights + (certified.noise_std * noise).to(certified.weights)


def _bytes_of(state: State) -> int:
    tensors = (state.weights, *state.tensors.values(), *state.vectors.values())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _generator(scene: _Scene) -> torch.Generator:
    return torch.Generator().manual_seed(scene.seed)


def _steps(progress: Progress, total: int) -> Callable[[], None]:
    """Return what is called after each of ``total`` steps: it tells ``progress`` the share that is done."""
    count = itertools.count(1)
    return lambda: progress(min(1.0, next(count) / total))
