"""Measure the other methods on a model that its method does not help, to suggest one."""

from __future__ import annotations

import time
from dataclasses import replace

from expunge.workers.guarantee.choose import guarantee_of, require_needs
from expunge.workers.runtime.method_options import method_of
from expunge.workers.runtime.model import Bench
from unlearning.accounting.policy import Policy
from unlearning.methods import NAMES, load
from unlearning.model.method import Divisible
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.quality.probe import SMOOTH, Probed, probe, smoothed
from unlearning.recipe import Recipe
from unlearning.types import Examples, Learned, Progress, RecipeError, Refused

SECONDS = 120.0
"""for all changes of the model together that are tried"""
CERTAIN = "retrain"
"""The method whose distance to retraining is zero."""


def hint(bench: Bench, policy: Policy, examples: Examples, learned: Learned, progress: Progress) -> str:
    """Return one sentence: which methods stay below the policy's threshold on this model, best first, with figures.

    Each prepares as a registration with its default options does. That takes a few retrainings each, which is little
    compared with the preparation of recollection.
    """
    others = [name for name in NAMES if name != policy.method and not load(name).exact]
    policies = {name: replace(policy, method=name, fallback=None, options={}) for name in others}
    left = {name: _left(bench, policies[name], examples, learned, progress) for name in others}
    helping = sorted((value, name) for name, value in left.items() if value is not None and value < policy.threshold)
    if not helping:
        instead = "Train it in the recipe" if bench.recipe.weights is not None else f"Use {CERTAIN}"
        return f"{instead}: no other method stays below {policy.threshold:g} with its default options."
    measured = ", ".join(f"{name} (leaves {value:.2f})" for value, name in helping)
    also = "" if bench.recipe.weights is not None else f", and {CERTAIN}"
    return f"Measured to work on this model: {measured}{also}."


def gentler(bench: Bench, policy: Policy, examples: Examples, before: Probed | None) -> str:
    """Return one sentence: a smoother activation or a smaller step with which the method works on a few people.

    Each is really trained and probed, for two minutes at most. Empty where none is better and below the threshold.
    """
    recipe, start, best = bench.recipe, time.monotonic(), None
    method = bench.method
    if before is None or recipe.weights is not None or not isinstance(method, Divisible):
        return ""
    changed = {f"{name} in place of ReLU": smoothed(recipe, kind) for name, kind in SMOOTH.items()}
    half = replace(recipe.training, learning_rate=recipe.training.learning_rate / 2)
    changed["half the learning rate"] = replace(recipe, training=half)
    for name, other in changed.items():
        found = None if other is None or time.monotonic() - start > SECONDS else _probed(bench, method, other, examples)
        if (
            found is not None
            and found[0] < min(policy.threshold, before.distance_left)
            and (best is None or found[0] < best[0])
        ):
            best = (*found, name)
    if best is None:
        return ""
    left, accuracy, name = best
    return f"With {name} the same probe leaves {left:.2f}, at a holdout accuracy of {accuracy:.3f}."


def _probed(bench: Bench, method: Divisible, recipe: Recipe, examples: Examples) -> tuple[float, float] | None:
    """Train a changed recipe; return its distance left on a few people and its holdout accuracy; None if refused."""
    try:
        problem = Problem(recipe, bench.problem.device, bench.problem.dtype)
        learned = train(problem, examples)
        found = probe(method, problem, examples, learned, time.perf_counter)
    except (Refused, RecipeError):
        return None
    holdout = (part.to(problem.device) for part in recipe.holdout)
    return found.distance_left, problem.accuracy(learned.weights, *holdout)


def _left(bench: Bench, policy: Policy, examples: Examples, learned: Learned, progress: Progress) -> float | None:
    """Return the method's distance left; None where it cannot serve the model, or where that is not known."""
    try:
        method = method_of(policy)
        require_needs(policy, method, bench.recipe)
        guarantee_of(policy, bench.problem, method)
        made = method.prepare(bench.problem, examples, learned, progress)
    except (Refused, RecipeError):
        return None
    report = made.facts.get("report")
    value = report.get("distance_left") if isinstance(report, dict) else None
    return value if isinstance(value, float) else None
