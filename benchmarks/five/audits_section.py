"""What the page of the table says of the audits, made from ``benchmarks/results/five_audits.json``."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.five.audits import PLAIN
from benchmarks.five.entrants import ENTRANTS, RETRAINING
from expunge_lab.experiment.rulers.klom import BINS

CLEAR = 2.0
"""standard errors that a difference from retraining must exceed"""
DIVERGENCE = "binned 95th"
_COLUMNS = """
| row | U-LiRA: right answers, % | more than retraining | AUC | KLoM: forgotten | to the plain retraining | retained \
| unseen | agreement more than retraining: forgotten | unseen |
|---|---|---|---|---|---|---|---|---|---|
"""


def section(table: dict[str, Any]) -> str:
    """Return the section on one setting's audits. ``table``: what ``audits.audited`` yields last."""
    rows = [row for row in table["rows"] if not row["refused"]]
    retraining = next(row for row in rows if row["name"] == RETRAINING)
    others = [row for row in rows if row["name"] != RETRAINING]
    lines = [_line(row, retraining) for row in rows]
    lines += [
        f"| {row['name']} | refused: {row['refused']} |" + " |" * 8 + "\n" for row in table["rows"] if row["refused"]
    ]
    return (
        _head(table)
        + _COLUMNS
        + "".join(lines)
        + _missing(table)
        + _u_lira(table, retraining, others)
        + _klom(table, retraining, others)
        + _ignorance(table, retraining, others)
    )


def more_right(row: dict[str, Any], retraining: dict[str, Any]) -> list[float]:
    """Return by pair of models, in points, how much more often U-LiRA is right of this row than of retraining."""
    mine, its = (_pairs(each["u_lira"]["right"]) for each in (row, retraining))
    return [100 * (one - other) for one, other in zip(mine, its, strict=True)]


def more_agreement(row: dict[str, Any], retraining: dict[str, Any], part: str) -> list[float]:
    """Return by model, in points, how much more often this row agrees with the strangers than retraining does."""
    return [one - other for one, other in zip(row["agreement"][part], retraining["agreement"][part], strict=True)]


def clear(differences: Sequence[float]) -> bool:
    """Tell whether the mean lies off 0 by more than ``CLEAR`` standard errors."""
    return abs(statistics.mean(differences)) > CLEAR * error(differences)


def error(figures: Sequence[float]) -> float:
    """Return the standard error of the mean."""
    return statistics.stdev(figures) / math.sqrt(len(figures))


def floors(retraining: dict[str, Any], part: str) -> list[float]:
    """Return KLoM of each set of retrainings against the first."""
    sets = [retraining["klom"][PLAIN], *retraining["floors"]]
    return [divergences[part][DIVERGENCE] for divergences in sets]


def _head(table: dict[str, Any]) -> str:
    return (
        "\n## Audits over many trainings\n\nThe digits' softmax regression again, trained many times: each model has a "
        f"start of its own. {table['share']:.0%} leave together: {table['people']} people with "
        f"{table['forgotten']} samples; {table['retained']:,} samples stay, {table['unseen']} are unseen. "
        f"{table['models']} models of each kind, {table['cpu_seconds'] / 60:.0f} minutes of one core, "
        f"run on {table['at']} at commit {table['commit']}, "
        "`python -m benchmarks five.audits`. Vectors of HF are computed for those who leave alone: a person's is the "
        "same whoever else has one.\n\n"
        "The row *retraining* is what a perfect method gets: models that were retrained with other seeds than those "
        "they are compared with. ± is the standard error over models.\n"
    )


def _missing(table: dict[str, Any]) -> str:
    """Return a line for the rows that a run which was interrupted did not come to; empty where there is none."""
    present = {row["name"] for row in table["rows"]}
    names = [name for name in ENTRANTS if name not in present]
    return f"\nThe run was interrupted. Not audited: {_names(names)}.\n" if names else ""


def _u_lira(table: dict[str, Any], retraining: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    told = _sorted(others, lambda row: more_right(row, retraining), lambda more: clear(more) and sum(more) > 0)
    return (
        "\n**U-LiRA** (Hayes et al. 2024, arXiv 2403.01218) *asks:* was this sample in the training and then "
        f"forgotten, or was it never there? {table['models']} models see half of the people who stay and half of those "
        "who leave, and forget the latter. For each sample two normal distributions are fitted to the model's "
        "confidence, with and without it, and each model is judged by means of all others. 50 % is guessing. "
        f"*It finds:* right more often than after a retraining, by more than twice the error: {_names(told[True])}. "
        f"Not told from a retraining: {_names(told[False])}. *Limit:* a row that this attack cannot tell is not shown "
        "to be safe: more models, or a better attack, may tell it. A person's samples leave together, so they are no "
        "independent trials.\n"
    )


def _klom(table: dict[str, Any], retraining: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    least, most = min(floors(retraining, "forgotten")), max(floors(retraining, "forgotten"))
    higher = _sorted(others, _own_divergence, lambda values: values[0] > most)
    return (
        "\n**KLoM** (Georgiev et al. 2024, arXiv 2410.23232) *asks:* over many trainings, is the model's confidence in "
        "a sample distributed as after a retraining? For each sample, the Kullback-Leibler divergence of "
        f"{table['models']} models that forgot from {table['models']} that were retrained, by histograms of {BINS} "
        "bins as its authors evaluate; the 95th percentile over samples, in nats. 0 is the same distribution; about "
        f"11.5 is the most. So few models never read 0: {1 + table['floors']} sets of retrainings read {least:.2f} to "
        f"{most:.2f} on the forgotten. *It finds:* above all of these, to the retraining that the method approximates: "
        f"{_names(higher[True])}. Not above: {_names(higher[False])}. *Limit:* these trainings hardly differ by their "
        "seeds, so that a shift which no user would notice lies outside of their spread. KLoM says that models differ, "
        "not that a person can be found. Its authors have 100 models.\n"
    )


def _ignorance(table: dict[str, Any], retraining: dict[str, Any], others: Sequence[dict[str, Any]]) -> str:
    other = _sorted(others, lambda row: more_agreement(row, retraining, "forgotten"), clear)
    level = statistics.mean(retraining["agreement"]["forgotten"])
    return (
        "\n**Proof of ignorance** (Ye et al. 2026, arXiv 2606.16110) *was not run.* We had its abstract and a "
        "summary by others, not its text. They say: models that are trained on about "
        "15 % of the data that stay stand for ignorance, and the model that forgot is compared with them; methods by "
        "the Fisher information or the Hessian fail in spite of their certificates. They do not say how the "
        "comparison decides. A public repository that fits the abstract, AISecurityNPrivacy/UnlearningVerification, "
        "names no paper and was not taken for its code. To run the audit, its protocol and thresholds are needed. In "
        "its place stands a measure of our own, which gives no verdict: **agreement with strangers.** "
        f"{table['strangers']} models see {table['stranger_share']:.0%} of the samples that stay and nobody who "
        "leaves. *It asks:* how often does the model that forgot name the same class as they do? A retraining does "
        f"for {level:.1f} % of the forgotten samples. *It finds:* other than a retraining, by more than twice the "
        f"error: {_names(other[True])}. Not other: {_names(other[False])}. *Limit:* it looks at classes alone. Where "
        "it cannot tell the model that forgot nobody, it says nothing of the others, however well they agree.\n"
    )


def _own_divergence(row: dict[str, Any]) -> list[float]:
    return [row["klom"][row["reference"]]["forgotten"][DIVERGENCE]]


def _line(row: dict[str, Any], retraining: dict[str, Any]) -> str:
    own, plain = row["klom"][row["reference"]], row["klom"][PLAIN]
    pairs, same = _pairs(row["u_lira"]["right"]), row["name"] == RETRAINING
    cells = [
        f"{100 * statistics.mean(pairs):.1f} ± {100 * error(pairs):.1f}",
        "" if same else _signed(more_right(row, retraining)),
        f"{row['u_lira']['auc']:.3f}",
        *(f"{divergences[part][DIVERGENCE]:.2f}" for divergences, part in ((own, "forgotten"), (plain, "forgotten"))),
        *(f"{own[part][DIVERGENCE]:.2f}" for part in ("retained", "unseen")),
        *("" if same else _signed(more_agreement(row, retraining, part), 2) for part in ("forgotten", "unseen")),
    ]
    return f"| {row['name']} | " + " | ".join(cells) + " |\n"


def _pairs(figures: Sequence[float]) -> list[float]:
    """Return the means of models that share out the people who leave: together they have seen everyone once."""
    return [(one + other) / 2 for one, other in zip(figures[::2], figures[1::2], strict=True)]


def _sorted(
    rows: Sequence[dict[str, Any]],
    values: Callable[[dict[str, Any]], list[float]],
    holds: Callable[[list[float]], bool],
) -> dict[bool, list[str]]:
    """Return the names of the rows for which ``holds`` is true of their values, and of the others."""
    names: dict[bool, list[str]] = {True: [], False: []}
    for row in rows:
        names[holds(values(row))].append(row["name"])
    return names


def _names(names: Sequence[str]) -> str:
    return "; ".join(names) if names else "none"


def _signed(differences: Sequence[float], digits: int = 1) -> str:
    mean = f"{abs(statistics.mean(differences)):.{digits}f}"
    sign = "" if float(mean) == 0.0 else "+" if statistics.mean(differences) > 0 else "−"
    return f"{sign}{mean} ± {error(differences):.{digits}f}"
