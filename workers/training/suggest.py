"""Measure the other methods on a model that its method does not help, to suggest one."""

from __future__ import annotations

from dataclasses import replace

from unlearning.accounting.policy import Policy
from unlearning.methods import NAMES, load
from unlearning.types import Examples, Learned, Progress, RecipeError, Refused
from workers.guarantee.choose import guarantee_of, require_needs
from workers.runtime.method_options import method_of
from workers.runtime.model import Bench

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
