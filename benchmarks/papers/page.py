"""The page of the papers, made from ``benchmarks/results/papers.json``: ``python -m benchmarks.papers.page`` writes it.

The file holds for each paper its words, the day of the run and its rows. Papers keep their places, so that two branches
that each add a paper merge.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.papers.row import Row, Verdict, row_of

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
- **Reached** means that our mean is at least as good as a number that the paper prints, or as near to it as the row
  says, and that the same model with nobody forgotten is not. Runs scatter too much
  to say where the standard error of the mean exceeds what the row allows around the paper's figure. A row without a
  number in the paper has no verdict. The verdict on a time gives the shortest and the longest run.
- **s** is the CPU time in seconds that our figures of the row took, on cores that others used as well. A long paper
  was run in parts, by the functions that the command calls.

`make papers` repeats everything that was run (`python -m benchmarks.papers NAME` one paper), and
`python -m benchmarks.papers --publish` keeps the figures. MNIST here is the 10,000 images of its test split. Where a
paper does not say which images it drew, its figure and ours cannot agree in their last digits.
"""
_COLUMNS = """
| where | what | the paper | ours | verdict | what differs from the paper | s |
|---|---|---|---|---|---|---|
"""


def page(papers: dict[str, Any]) -> str:
    """Return the text of the page. ``papers``: what ``read`` returns."""
    return _HEAD + "".join(_section(name, papers[name]) for name in NAMES)


def _section(name: str, paper: dict[str, Any]) -> str:
    rows = [row_of(entry) for entry in paper["rows"]]
    if not rows:
        return f"\n## {name}\n\nNo row was run yet.\n"
    ran = [each for each in rows if each.verdict is not Verdict.NOT_RUN]
    waiting = [each for each in rows if each.verdict is Verdict.NOT_RUN]
    return (
        f"\n## {paper['title']}\n\n[{paper['link']}]({paper['link']}). "
        f"Run on {paper['at']}, `python -m benchmarks.papers {name}`.\n\n"
        f"**What it promised.** {paper['promised']}\n\n**What we measured.** {paper['measured']}\n"
        + _COLUMNS
        + "".join(map(_line, ran))
        + ("\nNot run:\n\n" + "".join(map(_waiting, waiting)) if waiting else "")
    )


def _line(row: Row) -> str:
    verdict = f"**{row.judged()}**. {row.why}".strip() if row.why else f"**{row.judged()}**"
    cells = (row.place, row.measured, row.published, row.shown(), verdict, row.differs, f"{row.seconds:.0f}")
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
