"""The plots of an evaluation, as one PNG."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from expunge_lab.experiment.metrics import Row, spread
from unlearning.accounting.budget import epsilon_of
from unlearning.accounting.policy import Policy

UPDATES = 200


def draw(rows: Sequence[Row], policies: Mapping[str, Policy], path: Path) -> Path:
    """Write the PNG: distance left and accuracy against the share forgotten or the round, epsilon against updates."""
    figure = Figure(figsize=(15, 4.5), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    streamed = max((row.round for row in rows), default=1) > 1
    _lines(left, rows, "distance_left", by_round=streamed)
    left.axhline(1.0, color="grey", linestyle=":", linewidth=1)
    left.set_title("Distance to retraining / that of doing nothing", fontsize="medium")
    for name, style in (("test_accuracy", "o-"), ("retained_accuracy", "^--"), ("forgotten_accuracy", "x:")):
        _lines(middle, rows, name, by_round=streamed, style=style, labelled=name == "test_accuracy")
    middle.set_title("Accuracy: holdout (o), retained (^), forgotten (x)", fontsize="medium")
    _epsilons(right, next(iter(policies.values())))
    for axes in (left, middle):
        axes.set_xlabel("round" if streamed else "share of the samples forgotten")
        axes.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", dpi=120)
    return path


def _lines(
    axes: Axes, rows: Sequence[Row], name: str, *, by_round: bool, style: str = "o-", labelled: bool = True
) -> None:
    found = spread(rows, name)
    for index, method in enumerate(dict.fromkeys(row.method for row in rows)):
        points = sorted(
            (float(each_round if by_round else fraction), *value)
            for (who, fraction, each_round), value in found.items()
            if who == method
        )
        if points:
            x, y, deviation = zip(*points, strict=True)
            label = method if labelled else None
            axes.errorbar(x, y, yerr=deviation, fmt=style, color=f"C{index}", capsize=2, label=label)


def _epsilons(axes: Axes, policy: Policy) -> None:
    """Draw the epsilon over updates, from the policy alone: each update costs the same."""
    fitting = policy.limit // policy.budget_cost
    steps = sorted({max(1, round(math.exp(math.log(fitting) * part / UPDATES))) for part in range(UPDATES + 1)})
    axes.plot(steps, [epsilon_of(step * policy.budget_cost, policy.delta) for step in steps])
    axes.axhline(policy.epsilon, color="grey", linestyle=":", linewidth=1)
    axes.set_xscale("log")
    axes.set_xlabel("updates")
    title = (
        f"epsilon at delta {policy.delta:g}, where claimed (cap {policy.max_distance:g}, noise {policy.noise_std:g})"
    )
    axes.set_title(title, fontsize="medium")
