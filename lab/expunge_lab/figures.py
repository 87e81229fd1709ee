"""The figures of an evaluation: what each counts, its values after retraining and after doing nothing, its source."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from expunge_lab.experiment.metrics import Row, spread


@dataclass(frozen=True)
class Figure:
    """A column. ``counts`` says in plain words what the number is; the next two are its values at both ends."""

    field: str
    heading: str
    counts: str
    retrained: str
    untouched: str
    source: str = ""


FIGURES = (
    Figure(
        "distance_left",
        "distance left",
        "distance of the weights to the retrained ones, over that of the untouched model",
        "0",
        "1",
    ),
    Figure("cosine", "cosine", "cosine of the angle between the method's step and retraining's", "1", "-"),
    Figure("retained_accuracy", "RA", "share of right answers on the samples of those who stay", "what it is", "-"),
    Figure("forgotten_accuracy", "FA", "share of right answers on the forgotten samples", "what it is", "above"),
    Figure("test_accuracy", "TA", "share of right answers on samples that nobody trained on", "what it is", "-"),
    Figure(
        "class_accuracy",
        "TA(F)",
        "TA on the class that a stream forgets",
        "what it is",
        "above",
        "SAFE, appendix B.7",
    ),
    Figure(
        "other_classes_accuracy", "TA(R)", "TA on the other classes", "what it is", "what it is", "SAFE, appendix B.7"
    ),
    Figure(
        "published_accuracy", "published", "TA of what an update would publish, with noise", "what it is", "what it is"
    ),
    Figure(
        "mia_accuracy",
        "MIA",
        "share of right guesses who was trained on, by a classifier that knows other samples",
        "0.5",
        "above",
        "SAFE",
    ),
    Figure(
        "unseen_auc",
        "unseen",
        "chance that a forgotten sample is ranked above one of a person who was never there, by folds of people",
        "0.5",
        "above",
        "R2D, section 4.4",
    ),
    Figure(
        "two_model_auc",
        "two models",
        "the same, for an attacker who has the version before as well",
        "above 0.5",
        "as unseen",
        "Chen et al. 2021, arXiv 2005.02205",
    ),
    Figure(
        "lira_auc",
        "LiRA",
        "chance that a forgotten sample is ranked above one that nobody trained on, by a likelihood ratio",
        "0.5",
        "above",
        "Carlini et al. 2022, arXiv 2112.03570",
    ),
    Figure(
        "u_lira_accuracy",
        "U-LiRA",
        "share of right answers, example by example: was it trained on and forgotten, or never there?",
        "0.5",
        "above",
        "Hayes et al. 2024, arXiv 2403.01218",
    ),
    Figure(
        "klom",
        "KLoM",
        "how far the confidences on the forgotten are from retrained models', in nats, 95th percentile of the samples",
        "near 0; with few models what retrain reads",
        "above",
        "Georgiev et al. 2024, arXiv 2410.23232",
    ),
    Figure(
        "quantised_unseen_auc",
        "4-bit unseen",
        "unseen, of the weights rounded to 4 bits",
        "0.5",
        "above",
        "Zhang et al. 2025, arXiv 2410.16454",
    ),
    Figure(
        "quantised_lira_auc",
        "4-bit LiRA",
        "LiRA, of the weights rounded to 4 bits",
        "0.5",
        "above",
        "Zhang et al. 2025, arXiv 2410.16454",
    ),
    Figure(
        "loss_pearson",
        "Pearson",
        "correlation of the losses' changes on the forgotten samples with retraining's",
        "1",
        "-",
        "HF, figure 2",
    ),
    Figure("loss_spearman", "Spearman", "the same of their ranks", "1", "-", "HF, figure 2"),
    Figure(
        "divergence",
        "divergence",
        "how far the class probabilities are from the retrained model's, in nats: mean over those who stay plus mean "
        "over the forgotten",
        "0",
        "above",
        "SAFE, eq. 5",
    ),
    Figure(
        "dynamic_regret",
        "regret",
        "sum of the divergences of all rounds so far",
        "0",
        "grows",
        "SAFE, theorem 2",
    ),
    Figure(
        "average_rank",
        "rank",
        "mean place among the rows, by nearness to retraining in RA, FA, TA and MIA; 1 is nearest",
        "-",
        "-",
        "SAFE, table 1",
    ),
    Figure("relearn_epochs", "relearn", "epochs until the forgotten are known again", "many", "0", "CNS, table 2"),
    Figure(
        "difference_attack_top1",
        "named",
        "share of single deletions whose person is found among 100 from two versions",
        "1",
        "-",
    ),
    Figure("prepare_seconds", "prepare s", "seconds before the first deletion", "0", "0"),
    Figure("forget_seconds", "forget s", "seconds of an update", "-", "-"),
    Figure("retrain_seconds", "retrain s", "seconds of a retraining", "-", "-"),
)

CAPTION = (
    "distance left: distance to retraining over that of doing nothing (0 is perfect); RA, FA, TA: accuracy on "
    "retained, forgotten, holdout; published: TA of what an update would publish; MIA, unseen, LiRA, U-LiRA: 0.5 is "
    "guessing; named: share of deleted people found from two versions. All columns: docs/measure.md"
)


def shown(rows: Sequence[Row]) -> list[Figure]:
    """Return the figures that some row has."""
    return [each for each in FIGURES if any(getattr(row, each.field) is not None for row in rows)]


def show_table(rows: Sequence[Row]) -> None:
    """Print the table: one line for each method and share, or for each method and round."""
    figures = shown(rows)
    console = Console(width=None if sys.stdout.isatty() else 100 + 14 * len(figures), markup=False, emoji=False)
    table = Table(title="mean ± deviation over seeds", caption=CAPTION)
    for name in ("method", "forgotten", *(each.heading for each in figures), "guarantee", "epsilon"):
        table.add_column(name, justify="left" if name in ("method", "guarantee") else "right", no_wrap=name == "method")
    for row, cells in lines(rows, figures):
        table.add_row(row.method, f"{row.m} of {row.n}", *cells, *claimed(row.claim))
    console.print(table)
    for refusal in refusals(rows):
        console.print(refusal, highlight=False)


def lines(rows: Sequence[Row], figures: Sequence[Figure]) -> list[tuple[Row, list[str]]]:
    """Return, for each method and share or round, one of its rows and the text of each figure over the seeds."""
    spreads = {each.field: spread(rows, each.field) for each in figures}
    found = []
    for key in dict.fromkeys((row.method, row.forget_fraction, row.round) for row in rows):
        row = next(row for row in rows if (row.method, row.forget_fraction, row.round) == key)
        found.append((row, [cell(spreads[each.field].get(key)) for each in figures]))
    return found


def refusals(rows: Sequence[Row]) -> list[str]:
    """Return a sentence for each method that refused the model."""
    return list(dict.fromkeys(f"{row.method}: {row.refused}" for row in rows if row.refused is not None))


def cell(found: tuple[float, float] | None) -> str:
    """Return mean and deviation as text; ``-`` where nothing was measured."""
    if found is None:
        return "-"
    mean, deviation = found
    told = deviation > 1e-9 * max(1.0, abs(mean))  # less is rounding
    return f"{mean:.3g} ± {deviation:.1g}" if told else f"{mean:.3g}"


def claimed(claim: Mapping[str, Any]) -> tuple[str, str]:
    """Return the guarantee and the epsilon of a claim as text."""
    epsilon = claim.get("epsilon")
    return str(claim.get("guarantee", "-")), "-" if epsilon is None else f"{epsilon:.3g}"
