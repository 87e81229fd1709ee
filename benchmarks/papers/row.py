"""One figure of a paper beside ours, and the paper that it belongs to."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

SEEDS = 3
"""as many figures a measured row has at the least"""


class Verdict(StrEnum):
    """What became of a promise."""

    REACHED = "reached"
    NOT_REACHED = "not reached"
    NO_NUMBER = "the paper has no number"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Paper:
    """A paper, and in plain words what it promised and what we measured.

    ``name`` is that of its module. ``seconds`` is the estimate of CPU seconds that is printed before a run.
    """

    name: str
    title: str
    link: str
    promised: str
    measured: str
    seconds: float


@dataclass(frozen=True)
class Row:
    """One cell of a paper's table or figure.

    Args:
        place: the table or figure and the cell: "figure 2a, 20 % deleted, distance".
        measured: what the figure is, with its unit.
        published: the paper's figure as it prints it; empty where it prints none.
        ours: one figure a seed, three at the least; a single one where arithmetic gives it; none where not run.
        differs: what differs in the setting.
        verdict: what became of the promise.
        why: the measured reason, or what a row that is not run needs. Only a promise that is reached needs none.
        seconds: CPU seconds that the figures took.

    Raises:
        ValueError: two figures, a verdict that the figures contradict, or a reason that is missing.
    """

    place: str
    measured: str
    published: str
    ours: tuple[float, ...]
    differs: str
    verdict: Verdict
    why: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if 1 < len(self.ours) < SEEDS:
            raise ValueError(f"{self.place}: {len(self.ours)} figures; measure {SEEDS} seeds or more, or compute one.")
        if (self.verdict is Verdict.NOT_RUN) is bool(self.ours):
            raise ValueError(f"{self.place}: {self.verdict} with {len(self.ours)} figures; only what ran has figures.")
        if self.verdict in (Verdict.NOT_REACHED, Verdict.NOT_RUN) and not self.why:
            raise ValueError(f"{self.place}: {self.verdict}, and no reason is given.")

    def shown(self) -> str:
        """Return our figure: mean ± standard deviation over the seeds; the figure alone where there is one."""
        if len(self.ours) < SEEDS:
            return "".join(f"{value:.3g}" for value in self.ours)
        return f"{statistics.mean(self.ours):.3g} ± {statistics.stdev(self.ours):.2g} ({len(self.ours)} seeds)"

    def as_json(self) -> dict[str, Any]:
        """Return the row for ``docs/papers.json``."""
        return {**vars(self), "ours": list(self.ours), "verdict": str(self.verdict)}


def row_of(entry: dict[str, Any]) -> Row:
    """Return the row that ``as_json`` wrote."""
    return Row(**{**entry, "ours": tuple(entry["ours"]), "verdict": Verdict(entry["verdict"])})


def not_run(place: str, measured: str, published: str, needs: str) -> Row:
    """Return a row that was not run, with what it needs."""
    return Row(place, measured, published, (), "", Verdict.NOT_RUN, needs)


def at_most(ours: Sequence[float], published: float, slack: float = 0.0) -> Verdict:
    """Judge a figure that should be small: its mean over the seeds is at most the paper's, ``slack`` added."""
    return _verdict(statistics.mean(ours) <= published + slack)


def at_least(ours: Sequence[float], published: float, slack: float = 0.0) -> Verdict:
    """Judge a figure that should be large: its mean over the seeds is at least the paper's, less ``slack``."""
    return _verdict(statistics.mean(ours) >= published - slack)


def within(ours: Sequence[float], published: float, slack: float) -> Verdict:
    """Judge a figure that should be the paper's: its mean over the seeds is at most ``slack`` away."""
    return _verdict(abs(statistics.mean(ours) - published) <= slack)


def _verdict(reached: bool) -> Verdict:
    return Verdict.REACHED if reached else Verdict.NOT_REACHED
