"""One page about an evaluation, for a reader without a service: HTML with drawings and without scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from expunge_lab.drawing import Dot, dots
from expunge_lab.experiment.measure import RETRAIN, UNTOUCHED
from expunge_lab.experiment.metrics import Row, spread
from expunge_lab.figures import Figure, cell, claimed, lines, refusals, shown

DRAWN = {
    "distance_left": "Distance of the weights to a real retraining. 0 is retrained, 1 is untouched.",
    "lira_auc": "Likelihood-ratio attack (LiRA). 0.5 is guessing; 1 names every forgotten sample.",
    "u_lira_accuracy": "The same, example by example (U-LiRA). 0.5 is guessing.",
    "unseen_auc": "Attack against people who were never there. 0.5 is guessing.",
    "quantised_lira_auc": "The likelihood-ratio attack after rounding the weights to 4 bits.",
    "forgotten_accuracy": "Share of right answers on the forgotten samples. It should be what retraining has.",
    "test_accuracy": "Share of right answers on samples that nobody trained on. More is better.",
    "dynamic_regret": "Sum over the rounds of how far the answers are from retraining's, in nats. Less is better.",
}

NOT_PROVED = (
    "A measurement bounds nothing. An attack that finds nothing may be too weak; a stronger one may find more. Only a "
    "certificate of the guarantee exact or proved says how far an update can be from a retraining.",
    "One attack that works on a row shows that something of the forgotten is left there.",
    "The figures are those of the people who were drawn here. Others may be easier to find.",
    "The recipe's data were taken as they are. Whether the samples are named after the right people was not checked.",
    "Nothing is said of copies of a model that were made before an update, nor of what was learned from them.",
    "Two versions side by side tell who left, also after a real retraining. The columns named and two models show it.",
)

LEFT_OUT = "Nobody who has asked to be forgotten was among them, nor was the model trained on their samples."
NOT_READ = (
    "No deletion request was read. If a recipe still holds samples of people who were deleted, they can be drawn. Take "
    "them out of it first, or name the tenant whose requests are to be read (<code>--tenant</code>)."
)

STYLE = """
:root { color-scheme: light dark; --ground: #ffffff; --text: #16202e; --quiet: #556275; --line: #c9d0da;
  --dot: #1f5fbf; --good: #17713f; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --ground: #0f141b; --text: #e6ebf2; --quiet: #a0acbc; --line: #3a4656;
  --dot: #7fb2ff; --good: #6fd79a; --bad: #ff9a92; } }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 60rem; background: var(--ground); color: var(--text);
  font: 16px/1.55 system-ui, "Segoe UI", Roboto, "DejaVu Sans", Arial, sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
code { font: .88em ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace; overflow-wrap: anywhere; }
.quiet { color: var(--quiet); font-size: .9rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border-top: 1px solid var(--line); }
thead th { border-top: 0; color: var(--quiet); }
td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
figure { margin: 1.5rem 0; break-inside: avoid; } figcaption { margin-bottom: .3rem; font-weight: 600; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--text); font-size: 12px; } svg .quiet { fill: var(--quiet); font-size: 11px; }
svg .axis { stroke: var(--line); } svg .dot { fill: var(--dot); } svg .spread { stroke: var(--dot); stroke-width: 2; }
svg .retrained { stroke: var(--good); stroke-dasharray: 2 3; }
svg .untouched { stroke: var(--bad); stroke-dasharray: 6 3; }
@media print { :root { --ground: #ffffff; --text: #000000; --quiet: #444444; --line: #999999; --dot: #1f5fbf;
  --good: #17713f; --bad: #b3261e; } body { max-width: none; padding: 0; font-size: 11pt; } .wide { overflow: visible; }
  table { font-size: 8pt; } tr { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class About:
    """What the page says of the run: the recipe's name, command, date, which rows are comparators, how many seeds,
    and whether those who asked to be forgotten were left out.
    """

    name: str
    command: str
    date: str
    comparators: tuple[str, ...]
    seeds: int
    requests_read: bool = False


def write(rows: Sequence[Row], about: About, path: Path) -> None:
    """Write the page to ``path``; folders that are missing are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page(rows, about), encoding="utf-8")


def page(rows: Sequence[Row], about: About) -> str:
    """Return the page as HTML."""
    figures = shown(rows)
    parts = (
        f"<h1>How well <em>{escape(about.name)}</em> forgets</h1>",
        f'<p class="quiet">Measured on {escape(about.date)}. To repeat it: <code>{escape(about.command)}</code></p>',
        "<h2>What was measured, and on whom</h2>",
        _on_whom(rows, about),
        "<h2>What it shows</h2>",
        _list(_sentences(rows, about)),
        *(_drawing(rows, figure) for figure in figures if figure.field in DRAWN),
        "<h2>All figures</h2>",
        '<p class="quiet">Mean and standard deviation over the draws.</p>',
        _table(rows, figures, about),
        _list(escape(each) for each in refusals(rows)),
        "<h2>What each number counts</h2>",
        _meanings(figures),
        "<h2>What it does not prove</h2>",
        _list(escape(each) for each in NOT_PROVED),
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>How well {escape(about.name)} forgets</title><style>{STYLE}</style></head>\n<body><main>\n"
        + "\n".join(parts)
        + "\n</main></body></html>\n"
    )


def _on_whom(rows: Sequence[Row], about: About) -> str:
    first = rows[0]
    sizes = " and ".join(str(size) for size in sorted({row.m for row in rows})[:4])
    return (
        f"<p>A model was trained on the {first.n} samples of the recipe. People were drawn at random, and all their "
        f"samples ({escape(sizes)} of them) were forgotten by each method. There were {about.seeds} such draws, each "
        "with other people and, where the recipe trains the model, with another training. Every result stands beside "
        "two models: one that was really trained without these people (<code>retrain</code>), and one where nothing "
        "was done (<code>untouched</code>).</p>"
        "<p>The people were drawn for this measurement: being drawn is no request. "
        f"{LEFT_OUT if about.requests_read else NOT_READ}</p>"
    )


def _sentences(rows: Sequence[Row], about: About) -> Iterable[str]:
    """Say of each row, in words, what is left and what an attacker found."""
    left, attack = spread(rows, "distance_left"), spread(rows, "lira_auc")
    for row, _ in lines(rows, ()):
        if row.method in (UNTOUCHED, RETRAIN):
            continue
        key = (row.method, row.forget_fraction, row.round)
        name = f"<code>{escape(row.method)}</code> ({row.m} of {row.n} samples forgotten)"
        note = (
            " It is a baseline of another paper and is not offered as a method."
            if row.method in about.comparators
            else ""
        )
        if key not in left:
            yield f"{name} refused this model.{note}"
            continue
        found = f"{name} left {_share(left[key][0])} the way to a real retraining."
        yield found + _attacked(attack, key) + note


def _attacked(attack: dict[tuple[str, float, int], tuple[float, float]], key: tuple[str, float, int]) -> str:
    if key not in attack:
        return ""
    ends = [attack.get((method, *key[1:])) for method in (UNTOUCHED, RETRAIN)]
    beside = "".join(
        f", {cell(end)} {words}"
        for end, words in zip(ends, ("where nothing is done", "after retraining"), strict=True)
        if end
    )
    return f" The likelihood-ratio attack scores {cell(attack[key])}{beside} (0.5 is guessing)."


def _share(value: float) -> str:
    return f"{value:.1%} of" if value < 2 else f"{value:.3g} times"


def _drawing(rows: Sequence[Row], figure: Figure) -> str:
    """Draw one figure of every method at the last round of each share."""
    found, last = spread(rows, figure.field), max(row.round for row in rows)
    several = len({row.forget_fraction for row in rows if row.round == last}) > 1
    marks = [
        Dot(f"{method}, {fraction:.0%}" if several else method, *value)
        for (method, fraction, turn), value in found.items()
        if turn == last
    ]
    ends = {
        name: next((value[0] for (each, _, turn), value in found.items() if each == method and turn == last), None)
        for name, method in (("retrained", RETRAIN), ("untouched", UNTOUCHED))
    }
    drawn = dots(marks, ends, f"{figure.heading}: {figure.counts}")
    return f"<figure><figcaption>{escape(DRAWN[figure.field])}</figcaption>{drawn}</figure>"


def _table(rows: Sequence[Row], figures: Sequence[Figure], about: About) -> str:
    heads = "".join(
        f"<th>{escape(each)}</th>" for each in ("method", "forgotten", *(each.heading for each in figures), "guarantee")
    )
    body = "".join(
        f"<tr><td>{escape(row.method)}{' (baseline)' if row.method in about.comparators else ''}</td>"
        f'<td class="number">{row.m} of {row.n}</td>'
        + "".join(f'<td class="number">{escape(each)}</td>' for each in cells)
        + f"<td>{escape(claimed(row.claim)[0])}</td></tr>"
        for row, cells in lines(rows, figures)
    )
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _meanings(figures: Sequence[Figure]) -> str:
    body = "".join(
        f"<tr><td>{escape(each.heading)}</td><td>{escape(each.counts)}</td><td>{escape(each.retrained)}</td>"
        f"<td>{escape(each.untouched)}</td><td>{escape(each.source)}</td></tr>"
        for each in figures
    )
    heads = "".join(f"<th>{each}</th>" for each in ("column", "what it is", "retrained", "nothing done", "source"))
    return f'<div class="wide"><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>'


def _list(items: Iterable[str]) -> str:
    """Return a list of items that are HTML already; nothing where there are none."""
    body = "".join(f"<li>{each}</li>" for each in items)
    return f"<ul>{body}</ul>" if body else ""
