"""The page of the papers, made from ``benchmarks/results/papers.json``: ``python -m benchmarks.papers.page`` writes it.

The file holds for each paper its words, the day of the run and its rows. Papers keep their places, so that two branches
that each add a paper merge.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.papers.row import JUDGED, Row, Verdict, row_of

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "benchmarks" / "results" / "papers.json"
PAGE = ROOT / "build" / "reports" / "papers.md"
NAMES = ("hf", "mini", "cns", "r2d", "safe")
_HEAD = """\
# What each paper promised, what we measured

Expunge builds on five published papers. Each says what its method can do, in tables and figures. This page puts our
figures next to theirs, for the settings that two CPU cores can repeat, and says where we could not reach the paper's
number and why. It is written for readers who are no specialists:

- **Retraining** means training again without the people who asked to be forgotten. It is what every method imitates.
- **Distance** is how far the forgotten model's weights lie from the retrained ones. 0 is perfect. The distance of
  "doing nothing" says how much there was to forget.
- **Seeds**: every figure was measured at least three times with other random choices. `0.1 ± 0.02` is the mean and the
  standard deviation. A figure without `±` follows from arithmetic.
- **A verdict** compares our mean with a number that the paper prints. It stands only where our figure can tell
  something: a retraining here meets the number, the same model with nobody forgotten misses it, and the standard
  error of our mean is below what the row allows around the number. **Reached** and **not reached** mean that our mean
  lies on that side by at least its standard error; nearer to the limit it is **within the error**. A time is compared
  as a share of a retraining's time on the same machine, with the shortest and the longest run; seconds of another
  machine, and figures that arithmetic gives, have no verdict.
- **Without a verdict** lists every other figure, with the first of these reasons that holds.
- **s** is the CPU time in seconds that our figures of the row took, on cores that others used as well. A long paper
  was run in parts, by the functions that the command calls.

`make papers` repeats everything that was run (`python -m benchmarks.papers NAME` one paper), and
`python -m benchmarks.papers --publish` keeps the figures. MNIST here is the 10,000 images of its test split. Where a
paper does not say which images it drew, its figure and ours cannot agree in their last digits.
"""
_COLUMNS = """
| where | what | the paper | ours | retraining | doing nothing | {} | what differs from the paper | s |
|---|---|---|---|---|---|---|---|---|
"""


def page(papers: dict[str, Any]) -> str:
    """Return the text of the page. ``papers``: what ``read`` returns."""
    return _HEAD + "".join(_section(name, papers[name]) for name in NAMES)


def _section(name: str, paper: dict[str, Any]) -> str:
    rows = [row_of(entry) for entry in paper["rows"]]
    if not rows:
        return f"\n## {name}\n\nNo row was run yet.\n"
    judged = [row for row in rows if row.verdict in JUDGED]
    waiting = [row for row in rows if row.verdict is Verdict.NOT_RUN]
    unjudged = [row for row in rows if row.verdict not in {*JUDGED, Verdict.NOT_RUN}]
    return (
        f"\n## {paper['title']}\n\n[{paper['link']}]({paper['link']}). "
        f"Run on {paper['at']}, `python -m benchmarks.papers {name}`.\n\n"
        f"**What it promised.** {paper['promised']}\n\n**What we measured.** {paper['measured']}\n"
        + _table("verdict", judged)
        + _table("no verdict, because", unjudged, "\nWithout a verdict:\n")
        + ("\nNot run:\n\n" + "".join(map(_waiting, waiting)) if waiting else "")
    )


def _table(reasons: str, rows: Sequence[Row], heading: str = "") -> str:
    """Return the rows below a heading of the column that holds verdicts or reasons; nothing where there is no row."""
    return heading + _COLUMNS.format(reasons) + "".join(map(_line, rows)) if rows else ""


def _line(row: Row) -> str:
    cells = (
        *(row.place, row.measured, row.published, row.shown()),
        *("" if mean is None else f"{mean:.3g}" for mean in (row.retrained, row.nothing)),
        f"**{row.judged()}**. {row.why}" if row.why else f"**{row.judged()}**",
        *(row.differs, f"{row.seconds:.0f}"),
    )
    return "| " + " | ".join(cells) + " |\n"


def _waiting(row: Row) -> str:
    published = f" (the paper: {row.published})" if row.published else ""
    return f"- {row.place}: {row.measured}{published}. {row.why}\n"


def read() -> dict[str, Any]:
    """Return the published words and rows of each paper."""
    papers: dict[str, Any] = json.loads(PUBLISHED.read_text())
    return papers


def write(papers: dict[str, Any]) -> None:
    """Write the page."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(papers))


def publish(papers: dict[str, Any]) -> None:
    """Keep the papers for the repository."""
    PUBLISHED.write_text(json.dumps(papers, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    write(read())
