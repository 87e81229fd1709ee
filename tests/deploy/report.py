"""What a run says of itself: the table on the screen, the JSON beside it, the row on docs/results.md."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.deploy.step import Ending, Outcome

HEADING = "## Deployment"
HEADER = ("what was run", "kept", "failed", "unverified here", "engine and versions", "date", "commit", "command")


@dataclass(frozen=True)
class Run:
    """One run of the check. ``versions`` are of what ran, by name; ``commit`` is the tree that was deployed.

    ``words``: what chose its steps, as it was typed.
    """

    date: str
    commit: str
    versions: Mapping[str, str]
    outcomes: Sequence[Outcome]
    words: Sequence[str] = ()

    def named(self, ending: Ending) -> list[str]:
        return [each.step for each in self.outcomes if each.ending is ending]

    @property
    def clean(self) -> bool:
        return not self.named(Ending.FAILED)


def table(run: Run) -> Table:
    """Return a line for each step, and its seconds."""
    shown = Table("step", "ended", "seconds", "seen")
    for each in run.outcomes:
        style = {"failed": "bold red", "kept": ""}.get(each.ending, "dim")
        shown.add_row(each.step, each.ending.value, f"{each.seconds:.0f}", first_line(each.said), style=style)
    return shown


def record(run: Run) -> dict[str, Any]:
    """Return the run as JSON's types."""
    return {**asdict(run), "versions": dict(run.versions), "outcomes": [asdict(each) for each in run.outcomes]}


def row(run: Run) -> str:
    """Return the line of the page's table. A cell's bar would begin another cell, so it is escaped."""
    count = len(run.named(Ending.KEPT))
    cells = [
        ", ".join(run.named(Ending.KEPT)) or "nothing",
        f"{count} of {len(run.outcomes)}",
        "; ".join(f"{each.step}: {first_line(each.said)}" for each in run.outcomes if each.ending is Ending.FAILED)
        or "0",
        ", ".join(run.named(Ending.UNVERIFIED) + run.named(Ending.LEFT_OUT)) or "nothing",
        "; ".join(f"{name} {version}" for name, version in run.versions.items()),
        run.date,
        run.commit,
        f"`{' '.join(['python -m tests.deploy', *run.words])}`",
    ]
    return f"| {' | '.join(each.replace('|', chr(92) + '|') for each in cells)} |"


def with_row(page: str, run: Run) -> str:
    """Return the page with the run's row in the section of deployments, in place of the row that stood there."""
    lines = [HEADING, "", f"| {' | '.join(HEADER)} |", f"|{'---|' * len(HEADER)}", row(run)]
    section = re.compile(rf"^{HEADING}\n(?P<text>.*?)^\|.*?(?=\n\n|\Z)", re.MULTILINE | re.DOTALL)
    found = section.search(page)
    if found is None:
        return page.rstrip("\n") + "\n\n" + "\n".join(lines) + "\n"
    said = found["text"]
    return (
        page[: found.start()]
        + "\n".join([HEADING, said.rstrip("\n"), "", *lines[2:]]).replace("\n\n\n", "\n\n")
        + page[found.end() :]
    )


def write(run: Run, reports: Path) -> Path:
    """Write the JSON and return its path."""
    reports.mkdir(parents=True, exist_ok=True)
    path = reports / "deploy.json"
    path.write_text(json.dumps(record(run), indent=2) + "\n")
    return path


def first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0][:300]
