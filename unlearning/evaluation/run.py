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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from unlearning.evaluation.measure import UNTOUCHED, Outcome, measured, noised, ranked
from unlearning.evaluation.metrics import CertifiedWeights, Instruments, Plan, Row
from unlearning.evaluation.scene import Case, Scene, case_of, drawn_case, generator_of, ordered_by, scene_of
from unlearning.model.method import Method, require_followed
from unlearning.quality.simulate import choose, forget_set, left_by, release
from unlearning.recipe import Recipe
from unlearning.types import Examples, ForgetSet, Learned, Progress, RecipeError, Refused, State


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
        scene = scene_of(recipe, plan, instruments, seed, device)
        done()
        cases = [drawn_case(scene, fraction) for fraction in plan.fractions]
        rows += [measured(scene, case, _untouched(case, scene)) for case in cases]
        for name, method in methods.items():
            prepared = _prepare(scene, name, method)
            done()
            for case in cases:
                rows.append(_row(case, prepared))
                done()
    return ranked(rows)


def stream(
    recipe: Recipe,
    methods: Mapping[str, Method],
    plan: Plan,
    instruments: Instruments,
    *,
    rounds: int,
    samples: int,
    label: int | None = None,
    device: torch.device | str = "cpu",
) -> tuple[Row, ...]:
    """Run SAFE's protocol: ``rounds`` updates in turn, each of about ``samples`` samples (whole people).

    A row for each method and round. m, and what is forgotten, count from the first round on; attacks are left out.
    With a ``label`` it is SAFE's stream for a class (appendix B.7): samples of that class alone are forgotten, each by
    itself and not with its person.

    Raises:
        Refused: the people, or the class, do not suffice for so many rounds.
    """
    quick = replace(plan, shadows=0, trials=0, u_lira=0, klom=0)
    done = _steps(instruments.progress, len(plan.seeds) * len(methods) * rounds)
    rows: list[Row] = []
    for seed in plan.seeds:
        scene = scene_of(recipe, quick, instruments, seed, device, label=label)
        batches = _rounds(scene, rounds, samples)
        for name, method in methods.items():
            rows += _streamed(_prepare(scene, name, method), batches, samples, done)
    return ranked(rows)


@dataclass(frozen=True)
class _Prepared:
    """A method's state on the model of ``scene``, which the method trained where it has its own order."""

    scene: Scene
    name: str
    method: Method
    state: State | None
    seconds: float
    size: int
    reference: str
    refused: str | None = None


def _prepare(scene: Scene, name: str, method: Method) -> _Prepared:
    """Prepare; a method that trains the model itself is compared with its own cold training, not with the recipe's."""
    reference = str(getattr(method, "reference", None) or scene.plan.reference)
    start = scene.instruments.clock()
    try:
        require_followed(method, scene.problem.recipe)
        if method.trains:
            scene = ordered_by(scene, method)
        state = method.prepare(scene.problem, scene.examples, scene.learned)
    except (Refused, RecipeError) as error:
        return _Prepared(scene, name, method, None, scene.instruments.clock() - start, 0, reference, str(error))
    if method.trains:
        scene = replace(scene, learned=Learned(state.weights))
    report = state.facts.get("report")
    if isinstance(report, dict) and isinstance(report.get("reference"), str):
        reference = str(report["reference"])
    return _Prepared(scene, name, method, state, scene.instruments.clock() - start, _bytes_of(state), reference)


def _row(case: Case, prepared: _Prepared) -> Row:
    if prepared.state is None:
        return _refusal(case, prepared, prepared.refused or "")
    try:
        outcome, _ = _update(prepared, prepared.state, case.forget, case.retain)
        top1 = _difference_attack(prepared)
    except (Refused, RecipeError) as error:
        return _refusal(case, prepared, str(error))
    return measured(prepared.scene, case, replace(outcome, top1=top1))


def _update(
    prepared: _Prepared, state: State, batch: ForgetSet, retain: Examples, *, earlier: int = 0
) -> tuple[Outcome, State]:
    """Forget ``batch`` and certify; ``retain`` is who is left after it and the ``earlier`` updates."""
    scene = prepared.scene
    clock, certify = scene.instruments.clock, scene.instruments.certify
    start = clock()
    forgotten = release(prepared.method, scene.problem, state, batch, retain, generator=generator_of(scene))
    between = clock()
    certified = certify(scene.problem, prepared.name, forgotten, forget=batch, retain=retain, updates=earlier)
    end = clock()
    outcome = Outcome(
        prepared.name,
        prepared.reference,
        forgotten.state.weights,
        certified,
        prepared.size,
        prepared.method,
        prepared.seconds,
        forget_seconds=between - start,
        certify_seconds=end - between,
    )
    return outcome, replace(forgotten.state, weights=certified.weights)


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
        before = noised(replace(outcome.certified, weights=state.weights), 2 * trial)
        hits += scene.marks.named(before, noised(outcome.certified, 2 * trial + 1)) == person
    return hits / len(tried)


def _streamed(
    prepared: _Prepared, batches: Sequence[ForgetSet], samples: int, done: Callable[[], None]
) -> Iterator[Row]:
    scene, regret = prepared.scene, 0.0
    state, so_far = prepared.state, ForgetSet(frozenset(), ())
    for number, batch in enumerate(batches, start=1):
        done()
        so_far = forget_set(scene.examples, so_far.people | batch.people)
        case = case_of(scene, number * samples / len(scene.examples), so_far)
        if state is None:
            yield replace(_refusal(case, prepared, prepared.refused or ""), round=number)
            return
        try:
            outcome, state = _update(prepared, state, batch, case.retain, earlier=number - 1)
        except (Refused, RecipeError) as error:
            yield replace(_refusal(case, prepared, str(error)), round=number)
            return
        row = measured(scene, case, replace(outcome, round=number, size=_bytes_of(state)))
        regret += row.divergence or 0.0
        yield row if row.divergence is None else replace(row, dynamic_regret=regret)


def _rounds(scene: Scene, rounds: int, samples: int) -> tuple[ForgetSet, ...]:
    if scene.label is not None:
        return _rounds_of_class(scene, rounds, samples, scene.label)
    generator, left, chosen = generator_of(scene), scene.examples, []
    for _ in range(rounds):
        batch = choose(left, samples, generator)
        chosen.append(batch)
        left = left_by(left, batch)
    return tuple(chosen)


def _rounds_of_class(scene: Scene, rounds: int, samples: int, label: int) -> tuple[ForgetSet, ...]:
    """Deal out the samples of a class in random order. Each is its own name among the scene's examples."""
    names = list(scene.examples.only(scene.examples.positions[scene.examples.targets == label]).people)
    if len(names) < rounds * samples:
        raise Refused(
            f"Class {label} has {len(names)} samples, and {rounds} rounds of {samples} are asked for.", "Ask for fewer."
        )
    order = [names[place] for place in torch.randperm(len(names), generator=generator_of(scene)).tolist()]
    return tuple(
        forget_set(scene.examples, order[first : first + samples]) for first in range(0, rounds * samples, samples)
    )


def _untouched(case: Case, scene: Scene) -> Outcome:  # noqa: ARG001  (the same for every forget set)
    weights = scene.learned.weights
    return Outcome(UNTOUCHED, scene.plan.reference, weights, CertifiedWeights(weights), _bytes_of(State(weights)))


def _refusal(case: Case, prepared: _Prepared, reason: str) -> Row:
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


def _bytes_of(state: State) -> int:
    tensors = (state.weights, *state.tensors.values(), *state.vectors.values())
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _steps(progress: Progress, total: int) -> Callable[[], None]:
    """Return what is called after each of ``total`` steps: it tells ``progress`` the share that is done."""
    count = itertools.count(1)
    return lambda: progress(min(1.0, next(count) / total))
