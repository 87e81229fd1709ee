"""The checks of a recipe that need no service: it runs, it fits together, it is repeatable, and its data may grow."""

from __future__ import annotations

import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from expunge.service.cli.checks import Finding
from expunge.workers.check.reading import Reading, SecondReading, digest_of_id, reading
from expunge.workers.runtime import recipes
from expunge.workers.runtime.failures import refusal_of_recipe
from expunge.workers.training.person_ids import READ_AS_TEXT, lint_people
from expunge.workers.training.shortened import every_tenth, shorten
from unlearning.accounting.certificate import Guarantee
from unlearning.holdout import held_out
from unlearning.model.problem import Problem
from unlearning.recipe import UNNAMED_HOLDOUT, Recipe, everyone, holdout_people, on_both_sides
from unlearning.types import RecipeError, Refused

FEW = 8
"""samples that the forward pass, the loss and the gradient are tried on"""
STEPS = ("The forward pass", "The loss", "The gradient, or the holdout")
LEAST_SECONDS = 60.0
"""that a second reading is waited for; it may take ten times the first one"""
ADVICE = (
    "Split by a hash of the person (`samples.split()` or `unlearning.held_out`), take ids from the data, and compute "
    "no feature, setting or choice of samples from all rows. Number people by `ul.person_numbers`."
)


FIXED_SIZE = (
    "The model's shape follows the data. Write its sizes as constants; for a table with a row for each person use "
    "ul.Index with room to grow, and run.index."
)


@dataclass(frozen=True)
class Subject:
    """A recipe to look at: its folder, its name there, what it gave, and the seconds that this took."""

    folder: Path
    name: str
    loaded: recipes.LoadedRecipe
    seconds: float

    @property
    def recipe(self) -> Recipe:
        """Return what the recipe gave."""
        return self.loaded.recipe


@dataclass(frozen=True)
class Possible:
    """A method's guarantee on a recipe; or why the method is refused."""

    method: str
    guarantee: Guarantee | None
    refused: str | None = None


STRONGEST = (Guarantee.EXACT, Guarantee.PROVED, Guarantee.CALIBRATED, Guarantee.ESTIMATED, Guarantee.NONE)


def strongest_first(methods: Iterable[Possible]) -> list[Possible]:
    """Order methods by the strength of their guarantee; those that are refused come last."""

    def place(method: Possible) -> int:
        return len(STRONGEST) if method.guarantee is None else STRONGEST.index(method.guarantee)

    return sorted(methods, key=place)


def read(folder: Path, name: str) -> Subject:
    """Run the recipe. Raises Refused with the line that raised."""
    recipes.load(folder, name)  # imports what the recipe imports, which a worker does once
    start = time.perf_counter()
    loaded = recipes.load(folder, name)
    return Subject(folder, name, loaded, time.perf_counter() - start)


def counts(recipe: Recipe) -> dict[str, Any]:
    """Return how many samples, people and weights there are, and the dtype and shape of what is trained on."""
    inputs, targets = next(iter(recipe.samples.unweighted.read([torch.arange(len(recipe.samples))])))
    weight = recipe.samples.weight
    each = Counter(name for people in recipe.samples.people for name in people)
    return {
        "samples": len(recipe.samples),
        "people": len(each),
        "most_samples_of_a_person": max(each.values()),
        "holdout": len(recipe.holdout_tensors[0]),
        "inputs": shape_of(inputs),
        "targets": shape_of(targets),
        "weights": None if weight is None else f"{float(weight.min()):g} to {float(weight.max()):g}",
    }


def shape_of(value: Tensor) -> str:
    """Return dtype and shape in words: ``float32 (120, 4)``."""
    return f"{str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}"


def inspect(subject: Subject) -> Iterator[Finding]:
    """Make every check in order. What follows is left out where the model does not fit the data."""
    fits = _fits(subject)
    yield fits
    if not fits.well:
        return
    yield _ids(subject.recipe)
    yield _holdout(subject.recipe)
    with tempfile.TemporaryDirectory() as place:
        people = everyone(subject.recipe)
        named = shorten(subject.folder, Path(place), people)
        tables = named or shorten(subject.folder, Path(place))
        again = SecondReading(subject.folder, subject.name, seed=1)
        shorter = SecondReading(Path(place).resolve(), subject.name, seed=0) if tables else None
        first, patience = reading(subject.recipe), max(LEAST_SECONDS, 10.0 * subject.seconds)
        yield _repeats(first, again, patience)
        grown = _grows(subject.recipe, first, shorter, tables, patience, by_person=bool(named))
        yield grown if grown.well else _with_whole_arrays(subject, first, named, patience) or grown


def _fits(subject: Subject) -> Finding:
    """Try the forward pass, the loss and the gradient on a few samples; name dtypes and shapes where one raises."""
    recipe = subject.recipe
    inputs, targets = recipe.samples.tensors()
    x, y = inputs[:FEW], targets[:FEW]
    told = [f"inputs {shape_of(x)}", f"targets {shape_of(y)}"]
    try:
        problem = Problem(recipe)
        w = problem.initial()
        if problem.artefact is not None:
            what = f"The model is bytes (.{problem.artefact.suffix}): the training tells whether they fit."
            return Finding("model, loss and data", True, f"{what} On {len(x)} samples: {', '.join(told)}.")
        outputs = problem.outputs(w, x)
        told.append(f"outputs {shape_of(outputs)}")
        losses = problem.losses(outputs, y)
        told.append(f"losses {shape_of(losses)}")
        gradient = problem.gradient(w, x, y)
        problem.score(problem.outputs(w, recipe.holdout_tensors[0][:FEW]), recipe.holdout_tensors[1][:FEW])
    except MemoryError:
        raise
    except (RecipeError, Refused) as error:
        return Finding("model, loss and data", False, f"{error.what} ({', '.join(told)})", error.hint)
    except Exception as error:
        step = STEPS[min(len(told) - 2, len(STEPS) - 1)]
        found = refusal_of_recipe(error, subject.folder)
        place = found.what if _in_folder(error, subject.folder) else f"{step} raised {type(error).__name__}."
        return Finding("model, loss and data", False, f"{place} ({', '.join(told)})", found.hint)
    if losses.shape != (len(x),):
        what = f"The loss gives {shape_of(losses)} for {len(x)} samples."
        return Finding("model, loss and data", False, what, "Return one loss for each sample: reduction='none'.")
    if not bool(torch.isfinite(losses).all() and torch.isfinite(gradient).all()):
        what = f"The loss or its gradient is not finite before any training ({', '.join(told)})."
        return Finding(
            "model, loss and data", False, what, "Scale the inputs, and look for a logarithm or a root of 0."
        )
    return Finding("model, loss and data", True, f"{len(w):,} weights; on {len(x)} samples: {', '.join(told)}.")


def _in_folder(error: Exception, folder: Path) -> bool:
    """Return whether a line of the recipe's folder was reached: else the place is a library's."""
    frames = traceback.extract_tb(error.__traceback__)
    return any(Path(frame.filename).resolve().is_relative_to(folder) for frame in frames)


def _ids(recipe: Recipe) -> Finding:
    """Lint the ids of people, as a registration does."""
    findings = lint_people(recipe.samples)
    if not findings:
        return Finding("ids of people", True, "They look like ids that requests can name.")
    damaged = any(finding.refused for finding in findings)
    what = "; ".join(finding.describe("sample") for finding in findings)
    return Finding("ids of people", not damaged, f"{what[0].upper()}{what[1:]}.", READ_AS_TEXT if damaged else "")


def _holdout(recipe: Recipe) -> Finding:
    """Look for people of both training and holdout."""
    if recipe.holdout_subjects is None:
        return Finding("holdout", True, f"Warning: {UNNAMED_HOLDOUT}")
    both, held = on_both_sides(recipe), holdout_people(recipe)
    if both and not any(held.issuperset(people) for people in recipe.samples.people.distinct()):
        what = f"{len(both)} people of the holdout are trained on too, in samples that they share with others."
        return Finding("holdout", True, what)
    if both:
        what = f"{len(both)} people are trained on and in the holdout: its accuracy is too good."
        return Finding("holdout", False, what, "Split by the person, not by the sample.")
    return Finding("holdout", True, "No person of the holdout is trained on.")


def _repeats(first: Reading, again: SecondReading, seconds: float) -> Finding:
    """Compare with a reading by another process, with other seeds."""
    try:
        second = again.result(seconds)
    except Refused as error:
        return Finding("repeatable", False, f"Read a second time: {error.what}", error.hint)
    hint = "Seed every draw, sort every set, and read no clock: a worker that starts again must find the same."
    missing, changed = _differences(first, second)
    more = len(second.samples.keys() - first.samples.keys())
    if missing or changed or more:
        what = f"Read a second time, {missing} samples are missing, {more} are new and {changed} have another content."
        return Finding("repeatable", False, what, hint)
    if first.start != second.start:
        what = "Read a second time, the model starts from other weights under the same seed."
        return Finding("repeatable", False, what, "Draw the weights by torch alone, inside model().")
    if first.settings != second.settings:
        return Finding("repeatable", False, "Read a second time, the training settings are others.", hint)
    return Finding("repeatable", True, "Another process with other seeds reads the same samples, weights and settings.")


def _with_whole_arrays(subject: Subject, full: Reading, tables: list[str], seconds: float) -> Finding | None:
    """Return what is found where arrays stay whole, whose rows a table may name by their number; None: no better."""
    with tempfile.TemporaryDirectory() as place:
        fewer = shorten(subject.folder, Path(place), everyone(subject.recipe), parallel=False) if tables else []
        if fewer == tables:
            return None
        shorter = SecondReading(Path(place).resolve(), subject.name, seed=0)
        found = _grows(subject.recipe, full, shorter, fewer, seconds, by_person=True)
    return found if found.well else None


def _grows(
    recipe: Recipe,
    full: Reading,
    shorter: SecondReading | None,
    tables: list[str],
    seconds: float,
    *,
    by_person: bool,
) -> Finding:
    """Compare with a reading of tables that lack every tenth person: the others' samples must be there in the whole.

    And those of the whole must be there without these people, if the rows left out are theirs.
    """
    without = f"Without every tenth person in {', '.join(tables[:3])}{' and others' if len(tables) > 3 else ''}"
    try:
        part = None if shorter is None else shorter.result(seconds)
    except Refused as error:
        return Finding("growing data", False, f"{without}: {error.what}", error.hint)
    if part is None or part == full:
        return _by_hash(recipe)
    gone = every_tenth(everyone(recipe)) if by_person else frozenset()
    theirs = recipe.samples.people.where(lambda names: not gone.isdisjoint(names)).nonzero().flatten()
    ids = {digest_of_id(each) for each in recipe.samples.names.take(theirs)}
    rest, whole = (
        replace(each, samples={name: content for name, content in each.samples.items() if name not in ids})
        for each in (part, full)
    )
    moved, changed = _differences(rest, whole)
    lost = _differences(whole, rest)[0] if by_person else 0
    if moved or changed or lost:
        what = (
            f"{without}, {moved} of {len(part.samples)} samples are not in training when the rows are there, {lost} of "
            f"people who stay are missing, and {changed} have another content. A retained sample that moves, is "
            "missing or changes blocks every update."
        )
        return Finding("growing data", False, what, ADVICE)
    if part.numbers != full.numbers:
        what = f"{without} the model has {part.numbers:,} weights, and {full.numbers:,} with them."
        return Finding("growing data", False, what, FIXED_SIZE)
    if part.settings != full.settings:
        return Finding("growing data", False, f"{without} the training settings are others.", ADVICE)
    return Finding("growing data", True, f"{without} no person changes sides and no other sample changes.")


def _by_hash(recipe: Recipe) -> Finding:
    """Say whether the split is that of ``held_out``, where the data are no tables in the recipe's folder."""
    apart = "The recipe's data are no tables in its folder, so their growth was not tried."
    held, trained = recipe.holdout_subjects, recipe.samples.people
    if held and all(held_out(people) for people in held) and not any(held_out(people) for people in trained):
        return Finding("growing data", True, f"{apart} The split is by unlearning.held_out: no person changes sides.")
    return Finding("growing data", True, apart, ADVICE)


def _differences(part: Reading, whole: Reading) -> tuple[int, int]:
    """Return how many samples of ``part`` are missing in ``whole``, and how many have another content there."""
    missing = sum(1 for name in part.samples if name not in whole.samples)
    changed = sum(1 for name, content in part.samples.items() if whole.samples.get(name, content) != content)
    return missing, changed
