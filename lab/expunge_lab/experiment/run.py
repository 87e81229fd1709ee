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

from expunge_lab.experiment.measure import UNTOUCHED, Outcome, measured, noised, ranked
from expunge_lab.experiment.metrics import CertifiedWeights, Instruments, Plan, Row
from expunge_lab.experiment.stage import Case, Stage, case_of, drawn_case, generator_of, stage_of
from unlearning.model.method import Method, require_followed
from unlearning.quality.simulate import choose, forget_set, left_by, release
from unlearning.recipe import Recipe
from unlearning.types import Examples, ForgetSet, Progress, RecipeError, Refused, State


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
        stage = stage_of(recipe, plan, instruments, seed, device)
        done()
        cases = [drawn_case(stage, fraction) for fraction in plan.fractions]
        rows += [measured(stage, case, _untouched(case, stage)) for case in cases]
        for name, method in methods.items():
            prepared = _prepare(stage, name, method)
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
        stage = stage_of(recipe, quick, instruments, seed, device, label=label)
        batches = _rounds(stage, rounds, samples)
        for name, method in methods.items():
            rows += _streamed(_prepare(stage, name, method), batches, samples, done)
    return ranked(rows)


@dataclass(frozen=True)
class _Prepared:
    """A method's state on the model of ``stage``, which the method trained where it has its own order."""

    stage: Stage
    name: str
    method: Method
    state: State | None
    seconds: float
    size: int
    reference: str
    refused: str | None = None


def _prepare(stage: Stage, name: str, method: Method) -> _Prepared:
    """Prepare. An exact method is compared with a training without the forgotten, the others with same-order ones."""
    reference = str(getattr(method, "reference", None) or stage.plan.reference)
    start = stage.instruments.clock()
    try:
        require_followed(method, stage.problem.recipe)
        if method.exact:
            stage = replace(stage, same_order=False, references={})
        state = method.prepare(stage.problem, stage.examples, stage.learned)
    except (Refused, RecipeError) as error:
        return _Prepared(stage, name, method, None, stage.instruments.clock() - start, 0, reference, str(error))
    report = state.facts.get("report")
    if isinstance(report, dict) and isinstance(report.get("reference"), str):
        reference = str(report["reference"])
    return _Prepared(stage, name, method, state, stage.instruments.clock() - start, _bytes_of(state), reference)


def _row(case: Case, prepared: _Prepared) -> Row:
    if prepared.state is None:
        return _refusal(case, prepared, prepared.refused or "")
    try:
        outcome, _ = _update(prepared, prepared.state, case.forget, case.retain)
        top1 = _difference_attack(prepared)
    except (Refused, RecipeError) as error:
        return _refusal(case, prepared, str(error))
    return measured(prepared.stage, case, replace(outcome, top1=top1))


def _update(
    prepared: _Prepared, state: State, batch: ForgetSet, retain: Examples, *, earlier: int = 0
) -> tuple[Outcome, State]:
    """Forget ``batch`` and certify; ``retain`` is who is left after it and the ``earlier`` updates."""
    stage = prepared.stage
    clock, certify = stage.instruments.clock, stage.instruments.certify
    start = clock()
    forgotten = release(prepared.method, stage.problem, state, batch, retain, generator=generator_of(stage))
    between = clock()
    certified = certify(stage.problem, prepared.name, forgotten, forget=batch, retain=retain, updates=earlier)
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
    stage = prepared.stage
    state = prepared.state
    if state is None or not stage.plan.trials:
        return None
    tried = stage.marks.people[: stage.plan.trials]
    hits = 0
    for trial, person in enumerate(tried):
        forget = forget_set(stage.examples, [person])
        outcome, _ = _update(prepared, state, forget, left_by(stage.examples, forget))
        before = noised(replace(outcome.certified, weights=state.weights), 2 * trial)
        hits += stage.marks.named(before, noised(outcome.certified, 2 * trial + 1)) == person
    return hits / len(tried)


def _streamed(
    prepared: _Prepared, batches: Sequence[ForgetSet], samples: int, done: Callable[[], None]
) -> Iterator[Row]:
    stage, regret = prepared.stage, 0.0
    state, so_far = prepared.state, ForgetSet(frozenset(), ())
    for number, batch in enumerate(batches, start=1):
        done()
        so_far = forget_set(stage.examples, so_far.people | batch.people)
        case = case_of(stage, number * samples / len(stage.examples), so_far)
        if state is None:
            yield replace(_refusal(case, prepared, prepared.refused or ""), round=number)
            return
        try:
            outcome, state = _update(prepared, state, batch, case.retain, earlier=number - 1)
        except (Refused, RecipeError) as error:
            yield replace(_refusal(case, prepared, str(error)), round=number)
            return
        row = measured(stage, case, replace(outcome, round=number, size=_bytes_of(state)))
        regret += row.divergence or 0.0
        yield row if row.divergence is None else replace(row, dynamic_regret=regret)


def _rounds(stage: Stage, rounds: int, samples: int) -> tuple[ForgetSet, ...]:
    if stage.label is not None:
        return _rounds_of_class(stage, rounds, samples, stage.label)
    generator, left, chosen = generator_of(stage), stage.examples, []
    for _ in range(rounds):
        batch = choose(left, samples, generator)
        chosen.append(batch)
        left = left_by(left, batch)
    return tuple(chosen)


def _rounds_of_class(stage: Stage, rounds: int, samples: int, label: int) -> tuple[ForgetSet, ...]:
    """Divide the samples of a class into rounds, in random order. Each is its own name among the stage's examples."""
    names = list(stage.examples.only(stage.examples.positions[stage.examples.targets == label]).people)
    if len(names) < rounds * samples:
        raise Refused(
            f"Class {label} has {len(names)} samples, and {rounds} rounds of {samples} are asked for.", "Ask for fewer."
        )
    order = [names[place] for place in torch.randperm(len(names), generator=generator_of(stage)).tolist()]
    return tuple(
        forget_set(stage.examples, order[first : first + samples]) for first in range(0, rounds * samples, samples)
    )


def _untouched(case: Case, stage: Stage) -> Outcome:  # noqa: ARG001  (the same for every forget set)
    weights = stage.learned.weights
    return Outcome(UNTOUCHED, stage.plan.reference, weights, CertifiedWeights(weights), _bytes_of(State(weights)))


def _refusal(case: Case, prepared: _Prepared, reason: str) -> Row:
    return Row(
        prepared.name,
        case.fraction,
        prepared.stage.seed,
        len(prepared.stage.examples),
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
