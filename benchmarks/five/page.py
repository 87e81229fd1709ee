"""The page of the table, made from ``benchmarks/results/five.json``: ``python -m benchmarks.five.page`` writes it.

What was measured in this checkout is published first.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.five import results
from benchmarks.five.audits_section import section as audits_section
from benchmarks.five.entrants import CALLED, NOTHING, RETRAINING
from benchmarks.five.picture import picture
from benchmarks.five.settings import SETTINGS

PAGE = results.ROOT / "docs" / "five.md"
PICTURE = PAGE.with_suffix(".svg")
CLEAR = 2.0
"""standard errors that the best must lie ahead of all others"""
_HEAD = """\
# The five papers in one table

Each method as its paper has it and as it is served here, on the same data and the same people, beside doing nothing, \
a retraining and plain gradient ascent on the forgotten. `python -m benchmarks five` measures it, and \
`python -m benchmarks.five.page` makes this page of `benchmarks/results/five.json`, which has every seed's figures. \
A part: `BENCH_FIVE=digits`.

![Distance left against the CPU seconds of a deletion, on logarithmic scales; open: as published, filled: as served]\
(five.svg)

## How to read it

- **Distance left** is to the retraining that the method approximates: 0 is as retrained, 1 as before, above 1 is \
farther away than before. Retraining keeps the batch order of the first training.
- **To the plain retraining** is the same to a retraining that divides a thinned batch by its size now. HF divides by \
the old size, as its paper does (eq. 5): its vectors follow that training closely, and the plain one not. The other \
methods approximate the plain one, and both columns are equal.
- **Accuracy** on the people who stay, on the forgotten and on unseen people, in %, with the gap to the plain \
retraining in points.
- **AUC** is that of an attack which calls a sample forgotten, and not unseen, where its loss is low. 0.5 is \
guessing; a figure near the retraining's is what counts.
- **Disagreement** is the share of unseen people, in %, whom the plain retraining answers otherwise.
- **CPU s** are those of one update on one thread, after one that warms up. *Together*, one update forgets everyone; \
*one at a time*, each person is an update, and the figure is the mean of them. A retraining costs what it costs, for \
one person or for many.
- Figures are means ± standard errors over the seeds. A seed draws the people who leave, the start and the batches. \
The best method is **bold** where it lies ahead of every other, and of doing nothing, by more than twice the standard \
error of the difference, taken seed by seed; for accuracies and AUC the nearest to the retraining is the best. \
Times, on a shared machine, are never bold.
- **Certificate** is the strongest guarantee that these options can have on this model. A model that was stopped \
early has no minimum to measure a distance to, so that none is `proved`; \
[methods](methods.md) has what heads at their minimum get.

## The methods

| row | method and options |
|---|---|
"""
_NOTES = """
CNS as published takes curvature of all samples and no noise; its step is exact where the paper's is a recursion \
([methods](methods.md#cns) has the differences). SAFE's perturbation and R2D's noise are left out: every row is the \
model before noise.
"""
SERVED_OTHERWISE = ("HF", "SAFE", "CNS", "Mini")
"""the papers whose method has other options here than as published; R2D's has the same"""
_SERVED = """
## As served against as published

How much less of the distance is left as served, seed by seed; **bold** where that is more than twice its standard \
error. Below zero more is left. R2D is served as published.

| case | HF | SAFE | CNS | Mini |
|---|---|---|---|---|
"""
_COSTS = """
| row | CPU s before | kept for a person | kept for all | an update reads | certificate |
|---|---|---|---|---|---|
"""
_COLUMNS = """
| row | distance left | to the plain retraining | accuracy: retained | forgotten | unseen | AUC | disagreement | CPU s |
|---|---|---|---|---|---|---|---|---|
"""
ACCURACIES = ("retained", "forgotten", "unseen")
NAMES = {"digits": "The digits", "mnist": "MNIST", "adult": "Adult"}


def page(tables: Sequence[dict[str, Any]], audits: Sequence[dict[str, Any]] = ()) -> str:
    """Return the text of the page. ``tables`` and ``audits``: what ``results.read`` returns of either file."""
    called = "".join(f"| {name} | {words} |\n" for name, words in CALLED.items())
    parts = (*map(_section, tables), *map(audits_section, audits))
    return _HEAD + called + _NOTES + _served(tables) + "".join(parts) + _missing(tables)


def ahead(best: Sequence[float], other: Sequence[float]) -> bool:
    """Tell whether ``best`` is smaller than ``other`` by more than ``CLEAR`` standard errors of the difference.

    Differences are taken by seed: both forget the same people from the same model.
    """
    gaps = [theirs - its for theirs, its in zip(other, best, strict=True)]
    return len(gaps) > 1 and statistics.mean(gaps) > CLEAR * error(gaps)


def error(figures: Sequence[float]) -> float:
    """Return the standard error of the mean; 0 of one figure."""
    return statistics.stdev(figures) / math.sqrt(len(figures)) if len(figures) > 1 else 0.0


def costs(column: str, figures: dict[str, list[float]], retraining: dict[str, list[float]]) -> list[float]:
    """Return by seed what the column's best has least of: the figure, or its distance to the retraining's."""
    if column in (*ACCURACIES, "AUC"):
        return [abs(mine - its) for mine, its in zip(figures[column], retraining[column], strict=True)]
    return figures[column]


def best(column: str, rows: Sequence[dict[str, Any]]) -> str | None:
    """Return the name of the row that is clear of all others in the column; None where none is."""
    figures = {row["name"]: row["figures"] for row in rows if not row["refused"]}
    retraining = figures[RETRAINING]
    by_name = {name: costs(column, each, retraining) for name, each in figures.items() if name != RETRAINING}
    first = min(by_name, key=lambda name: statistics.mean(by_name[name]))
    others = [each for name, each in by_name.items() if name != first]
    return first if first != NOTHING and all(ahead(by_name[first], each) for each in others) else None


def _served(tables: Sequence[dict[str, Any]]) -> str:
    """Return the section that sets each method as served beside the same as published."""
    lines = []
    for table in tables:
        for case in table["cases"]:
            rows = {row["name"]: row for row in case["rows"]}
            cells = [_gain(rows[f"{paper}, as published"], rows[f"{paper}, as served"]) for paper in SERVED_OTHERWISE]
            where = f"{NAMES[table['data']]}, {table['model']}: {case['share']:.0%} {case['manner']}"
            lines.append(f"| {where} | " + " | ".join(cells) + " |\n")
    return _SERVED + "".join(lines)


def _gain(published: dict[str, Any], served: dict[str, Any]) -> str:
    """Return by how much less of the distance is left as served, bold where that is clear; negative: more is left."""
    if published["refused"] or served["refused"]:
        return "refused"
    before, after = (row["figures"]["distance left"] for row in (published, served))
    gains = [theirs - ours for theirs, ours in zip(before, after, strict=True)]
    shown = f"{statistics.mean(gains):.3f} ± {error(gains):.3f}".replace("-", "−")
    return f"**{shown}**" if ahead(after, before) else shown


def _section(table: dict[str, Any]) -> str:
    title = f"\n## {NAMES[table['data']]}, {table['model']}\n\n"
    said = (
        f"{table['says'][0].upper()}{table['says'][1:]}: {table['weights']:,} weights, {table['samples']:,} samples of "
        f"{table['people']} people, {table['unseen']:,} unseen samples. {table['seeds']} seeds, run on {table['at']} "
        f"at commit {table['commit']}, `BENCH_FIVE={table['data']} python -m benchmarks five`.\n"
    )
    return title + said + _costs(table) + "".join(_case(case) for case in table["cases"])


def _costs(table: dict[str, Any]) -> str:
    lines = []
    for name, cost in table["costs"].items():
        if name == NOTHING:
            continue
        if name == RETRAINING:
            before = f"the training itself, {_mean(cost['training seconds'])}"
            lines.append(f"| {name} | {before} | 0 | 0 | everyone who stays | `exact` |")
            continue
        before = _mean(cost["seconds before"]) if cost["seconds before"] else "refused"
        kept = [_bytes(cost[kind]) if kind in cost else "" for kind in ("bytes for a person", "bytes for all")]
        lines.append(f"| {name} | {before} | {kept[0]} | {kept[1]} | {cost['reads']} | `{cost['guarantee']}` |")
    return _COSTS + "\n".join(lines) + "\n"


def _case(case: dict[str, Any]) -> str:
    rows = case["rows"]
    retraining = next(row["figures"] for row in rows if row["name"] == RETRAINING)
    columns = ("distance left", "to the plain retraining", *ACCURACIES, "AUC", "disagreement", "seconds")
    clear = {column: best(column, rows) for column in columns if column != "seconds"}
    lines = [_line(row, columns, retraining, clear) for row in rows]
    return f"\n### {case['share']:.0%} leave, {case['manner']}\n{_COLUMNS}" + "".join(lines)


def _line(
    row: dict[str, Any], columns: Sequence[str], retraining: dict[str, list[float]], clear: dict[str, str | None]
) -> str:
    if row["refused"]:
        return f"| {row['name']} | refused: {row['refused']} |" + " |" * (len(columns) - 1) + "\n"
    cells = []
    for column in columns:
        shown = _shown(column, row["figures"][column])
        if column in ACCURACIES and row["name"] != RETRAINING:
            gaps = [mine - its for mine, its in zip(row["figures"][column], retraining[column], strict=True)]
            shown = f"{statistics.mean(row['figures'][column]):.1f} ({_signed(gaps)})"
        cells.append(f"**{shown}**" if clear.get(column) == row["name"] else shown)
    return f"| {row['name']} | " + " | ".join(cells) + " |\n"


def _shown(column: str, figures: Sequence[float]) -> str:
    digits = {"distance left": 3, "to the plain retraining": 3, "AUC": 3}.get(column, 1)
    if column == "seconds":
        return _mean(figures)
    return f"{statistics.mean(figures):.{digits}f} ± {error(figures):.{digits}f}"


def _mean(seconds: Sequence[float]) -> str:
    """Return CPU seconds with two digits, their error with one."""
    return f"{_digits(statistics.mean(seconds), 2)} ± {_digits(error(seconds), 1)}"


def _digits(value: float, digits: int) -> str:
    if value == 0.0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{places}f}"


def _signed(gaps: Sequence[float]) -> str:
    mean = round(statistics.mean(gaps), 1) + 0.0  # no minus before a zero
    return f"{mean:+.1f} ± {error(gaps):.1f}".replace("-", "−").replace("+0.0", "0.0")


def _bytes(count: int) -> str:
    for unit, name in ((10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            return f"{count / unit:.3g} {name}"
    return f"{count} B" if count else "0"


def _missing(tables: Sequence[dict[str, Any]]) -> str:
    present = {(table["data"], table["model"]) for table in tables}
    lines = [
        f"- {NAMES[setting.data]}, {setting.model}: not run yet.\n"
        for setting in SETTINGS
        if (setting.data, setting.model) not in present
    ]
    return "\n## Not measured\n\n" + "".join(lines) if lines else ""


def write(tables: Sequence[dict[str, Any]], audits: Sequence[dict[str, Any]]) -> None:
    """Write the page and its picture."""
    PAGE.write_text(page(tables, audits))
    PICTURE.write_text(picture(tables))


if __name__ == "__main__":
    results.publish()
    write(results.read(), results.read(results.AUDITS_PUBLISHED))
