"""One figure of a paper next to ours, and the paper that it belongs to."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Literal

SEEDS = 3
"""as many figures a measured row has at the least"""


Cost = Literal["seconds", "ratio", "bytes"]
"""a time by itself, a time over that of a retraining, or a size"""


class Verdict(StrEnum):
    """What became of a promise, or the first reason why our figure cannot tell."""

    REACHED = "reached"
    WITHIN_ERROR = "within the error"
    NOT_REACHED = "not reached"
    ARITHMETIC = "arithmetic, nothing was measured"
    OTHER_MACHINE = "seconds of another machine"
    NOT_COMPARED = "retraining or doing nothing was not measured"
    RETRAINING_MISSES = "retraining misses it"
    BY_NOTHING_TOO = "doing nothing reaches it too"
    SCATTERED = "our runs scatter more than the goal allows"
    NO_NUMBER = "the paper has no number"
    NOT_RUN = "not run"


JUDGED = frozenset({Verdict.REACHED, Verdict.WITHIN_ERROR, Verdict.NOT_REACHED})


@dataclass(frozen=True)
class Goal:
    """A number that the paper prints, and where our mean must lie: at most there, at least there, or around it."""

    side: Literal["at most", "at least", "within"]
    number: float
    slack: float = 0.0

    def margin(self, figure: float) -> float:
        """Return how far ``figure`` lies inside the goal's limit; below 0, how far outside."""
        match self.side:
            case "at most":
                return self.number + self.slack - figure
            case "at least":
                return figure - (self.number - self.slack)
            case "within":
                return self.slack - abs(figure - self.number)

    def met(self, figure: float) -> bool:
        return self.margin(figure) >= 0.0


def standard_error(figures: tuple[float, ...]) -> float:
    """Return the standard error of the mean of two figures or more."""
    return statistics.stdev(figures) / math.sqrt(len(figures))


def judge(
    goal: Goal, ours: tuple[float, ...], nothing: float | None, retrained: float | None, cost: Cost | None = None
) -> Verdict:
    """Judge measured figures by a printed one.

    A figure can tell something only where retraining meets the goal, doing nothing misses it, and the standard error
    is below the goal's slack (a limit without slack allows any). A mean that lies nearer to the limit than its standard
    error, on either side, is neither reached nor missed. A cost is compared with neither: doing nothing has none, and
    a retraining's is the one to be saved. Seconds of another machine are not compared at all; their ratio to a
    retraining on the same machine is.
    """
    if len(ours) < SEEDS:
        return Verdict.ARITHMETIC
    if cost == "seconds":
        return Verdict.OTHER_MACHINE
    if cost is None and (reason := _tells_nothing(goal, nothing, retrained)):
        return reason
    margin, error = goal.margin(statistics.mean(ours)), standard_error(ours)
    if 0.0 < goal.slack <= error:
        return Verdict.SCATTERED
    if margin < -error:
        return Verdict.NOT_REACHED
    return Verdict.REACHED if margin >= error else Verdict.WITHIN_ERROR


def _tells_nothing(goal: Goal, nothing: float | None, retrained: float | None) -> Verdict | None:
    """Return why no figure can tell how well people are forgotten, whatever it is; None: it can."""
    if nothing is None or retrained is None:
        return Verdict.NOT_COMPARED
    if not goal.met(retrained):
        return Verdict.RETRAINING_MISSES
    return Verdict.BY_NOTHING_TOO if goal.met(nothing) else None


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
        retrained: the same figure of a retraining without those who left, mean over the seeds. None: it was not
            measured.
        cost: what is spent, where the figure is a time or a size; None: it is neither.

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
    retrained: float | None = None
    cost: Cost | None = None

    def __post_init__(self) -> None:
        if 1 < len(self.ours) < SEEDS:
            raise ValueError(f"{self.place}: {len(self.ours)} figures; measure {SEEDS} seeds or more, or compute one.")
        if self.goal and not (self.published and self.ours):
            raise ValueError(f"{self.place}: a goal needs a figure of the paper and one of ours.")
        if self.verdict in (Verdict.NOT_REACHED, Verdict.NOT_RUN) and not self.why:
            raise ValueError(f"{self.place}: {self.verdict}, and no reason is given.")

    @property
    def verdict(self) -> Verdict:
        if self.goal is None:
            return Verdict.NO_NUMBER if self.ours else Verdict.NOT_RUN
        return judge(self.goal, self.ours, self.nothing, self.retrained, self.cost)

    def judged(self) -> str:
        """Return the verdict; with the range of the runs where the figure is a time, which the machine moves."""
        if self.cost != "ratio" or self.verdict not in JUDGED:
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
