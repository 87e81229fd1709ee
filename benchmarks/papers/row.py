"""One figure of a paper next to ours, and the paper that it belongs to."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal

SEEDS = 3
"""as many figures a measured row has at the least"""


class Verdict(StrEnum):
    """What became of a promise."""

    REACHED = "reached"
    BY_NOTHING_TOO = "doing nothing reaches it too"
    NOT_COMPARED = "as good, but doing nothing was not measured"
    SCATTERED = "our runs scatter too much to say"
    NOT_REACHED = "not reached"
    NO_NUMBER = "the paper has no number"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Goal:
    """A number that the paper prints, and where our mean must lie: at most there, at least there, or around it."""

    side: Literal["at most", "at least", "within"]
    number: float
    slack: float = 0.0

    def met(self, figure: float) -> bool:
        match self.side:
            case "at most":
                return figure <= self.number + self.slack
            case "at least":
                return figure >= self.number - self.slack
            case "within":
                return abs(figure - self.number) <= self.slack

    def scattered(self, ours: tuple[float, ...]) -> bool:
        """Return whether the mean's standard error exceeds the slack around a number."""
        if self.side != "within" or len(ours) < SEEDS:
            return False
        return statistics.stdev(ours) / math.sqrt(len(ours)) > self.slack


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
        goal: the paper's number to compare with; None where it prints none.
        why: the measured reason, or what a row that is not run needs.
        seconds: CPU seconds that the figures took.
        nothing: the same figure of the trained model from which nobody was removed, mean over the seeds. None: it was
            not measured.
        cost: the figure is a time or a size. Doing nothing costs nothing, so it is not compared.

    Raises:
        ValueError: two figures, a reason that is missing, or a goal that the paper does not print.
    """

    place: str
    measured: str
    published: str
    ours: tuple[float, ...]
    differs: str
    goal: Goal | None
    why: str = ""
    seconds: float = 0.0
    nothing: float | None = None
    cost: bool = False

    def __post_init__(self) -> None:
        if 1 < len(self.ours) < SEEDS:
            raise ValueError(f"{self.place}: {len(self.ours)} figures; measure {SEEDS} seeds or more, or compute one.")
        if self.goal and not (self.published and self.ours):
            raise ValueError(f"{self.place}: a goal needs a figure of the paper and one of ours.")
        if self.verdict in (Verdict.NOT_REACHED, Verdict.NOT_RUN) and not self.why:
            raise ValueError(f"{self.place}: {self.verdict}, and no reason is given.")

    @property
    def verdict(self) -> Verdict:
        """Return what became of the promise. It is reached only where the model that forgot nobody fails."""
        if self.goal is None:
            return Verdict.NO_NUMBER if self.ours else Verdict.NOT_RUN
        if not self.goal.met(statistics.mean(self.ours)):
            return Verdict.NOT_REACHED
        if self.cost:
            return Verdict.REACHED
        if self.goal.scattered(self.ours):
            return Verdict.SCATTERED
        if self.nothing is None:
            return Verdict.NOT_COMPARED
        return Verdict.BY_NOTHING_TOO if self.goal.met(self.nothing) else Verdict.REACHED

    def judged(self) -> str:
        """Return the verdict; with the range of the runs where the figure is a time, which the machine moves."""
        if not self.cost or len(self.ours) < SEEDS:
            return str(self.verdict)
        return f"{self.verdict}, by runs from {min(self.ours):.3g} to {max(self.ours):.3g}"

    def shown(self) -> str:
        """Return our figure: mean ± standard deviation over the seeds; the figure alone where there is one."""
        if len(self.ours) < SEEDS:
            return "".join(f"{value:.3g}" for value in self.ours)
        return f"{statistics.mean(self.ours):.3g} ± {statistics.stdev(self.ours):.2g} ({len(self.ours)} seeds)"

    def as_json(self) -> dict[str, Any]:
        """Return the row for the published file. The verdict is for its readers; ``row_of`` makes it anew."""
        return {**asdict(self), "ours": list(self.ours), "verdict": str(self.verdict)}


def row_of(entry: dict[str, Any]) -> Row:
    """Return the row that ``as_json`` wrote."""
    facts = {name: value for name, value in entry.items() if name != "verdict"}
    goal = facts.pop("goal")
    return Row(**{**facts, "ours": tuple(entry["ours"])}, goal=Goal(**goal) if goal else None)


def not_run(place: str, measured: str, published: str, needs: str) -> Row:
    """Return a row that was not run, with what it needs."""
    return Row(place, measured, published, (), "", None, needs)


def at_most(published: float, slack: float = 0.0) -> Goal:
    """Aim at a figure that should be small: at most the paper's, ``slack`` added."""
    return Goal("at most", published, slack)


def at_least(published: float, slack: float = 0.0) -> Goal:
    """Aim at a figure that should be large: at least the paper's, less ``slack``."""
    return Goal("at least", published, slack)


def within(published: float, slack: float) -> Goal:
    """Aim at the paper's figure: at most ``slack`` away from it."""
    return Goal("within", published, slack)
