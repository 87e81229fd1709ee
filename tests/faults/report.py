"""The table that every run of the drills ends with, on the screen and in benchmarks/results/drills.md."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.faults.result import HARM, Result

COUNTS = ("cases", "faults", *HARM)
BEGIN, END = "<!-- the last full run -->", "<!-- end of the last full run -->"


def header() -> list[str]:
    return ["drill", *(name.replace("_", " ") for name in COUNTS), "planted bugs caught", "seconds"]


def cells(result: Result) -> list[str]:
    caught = f"{result.caught} of {result.planted}" if result.planted else ""
    return [result.name, *(f"{getattr(result, name):,}" for name in COUNTS), caught, f"{result.seconds:.0f}"]


def total(results: Iterable[Result]) -> Result:
    kept = list(results)
    sums = {name: sum(getattr(result, name) for result in kept) for name in (*COUNTS, "planted", "caught", "seconds")}
    return Result("all", **sums)


def rich_table(results: list[Result]) -> Table:
    shown = Table(*header(), show_footer=False)
    for result in results:
        shown.add_row(*cells(result), style="" if result.clean else "bold red")
    shown.add_section()
    shown.add_row(*cells(total(results)), style="bold")
    return shown


def markdown(record: Mapping[str, Any], before: str = "") -> str:
    """Return the record of a run as a table with a row for each drill and version of Python.

    Rows of ``before`` stay if this run has none of that drill and Python. The notes below the table are those of each
    drill's last run.
    """
    results = [Result.from_json(values) for values in record["results"]]
    python = record["python"]
    ran = f"{record['at']}, seed {record['seed']}, scale {record['scale']:g}, commit {record['commit']}"
    fresh = {(name, python): [name, python, *counted, ran] for name, *counted in map(cells, results)}
    rows = _rows(before) | fresh
    notes = {result.name: [f"- {result.name}: {note}" for note in result.notes] for result in results}
    below = [line for name in sorted({name for name, _ in rows}) for line in notes.get(name, _notes(before, name))]
    lines = [columns(), ["---"] * len(columns()), *(rows[name] for name in sorted(rows)), _sums(rows)]
    failed = [f"Without a result in the run of {record['at']} on {python}: {', '.join(record['failed'])}.", ""]
    table = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([*(failed if record["failed"] else []), *table, "", *below])


def columns() -> list[str]:
    """Return the header of the page's table."""
    drill, *counts = header()
    return [drill, "Python", *counts, "run"]


def write_into(page: Path, record: Mapping[str, Any]) -> None:
    """Put the run's rows into the table between the page's two marks; other drills keep theirs, with their own date."""
    head, before, tail = parts(page)
    page.write_text(f"{head}{BEGIN}\n{markdown(record, before)}\n{END}{tail}")


def parts(page: Path) -> tuple[str, str, str]:
    """Return the text before, between and after the page's two marks. Raises ValueError where one is missing."""
    text = page.read_text()
    if BEGIN not in text or END not in text:
        raise ValueError(f"{page} has no place for the table: it needs the lines {BEGIN} and {END}")
    head, _, rest = text.partition(BEGIN)
    before, _, tail = rest.partition(END)
    return head, before, tail


def last_seconds(table: str, drill: str, python: str) -> int | None:
    """Return how long the drill took in the run that the table has, at scale 1; None where it has none."""
    row = _rows(table).get((drill.replace("_", " "), python))
    return None if row is None else int(dict(zip(columns(), row, strict=True))["seconds"])


def _rows(text: str) -> dict[tuple[str, str], list[str]]:
    """Return the rows of an earlier table by drill and Python, unchanged; neither the header nor the sums."""
    found = [[cell.strip() for cell in line[1:-1].split("|")] for line in text.splitlines() if line.startswith("| ")]
    named = [row for row in found if len(row) == len(columns()) and row[0] not in ("drill", "---", "all")]
    return {(row[0], row[1]): row for row in named}


def _notes(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"- {name}: ")]


def _sums(rows: Mapping[tuple[str, str], list[str]]) -> list[str]:
    """Return the last line of the table: over runs that may differ in date and commit."""
    cells_of = dict(zip(columns(), zip(*rows.values(), strict=True), strict=True))
    counts = [sum(int(cell.replace(",", "")) for cell in cells_of[name.replace("_", " ")]) for name in COUNTS]
    bugs = [cell.split(" of ") for cell in cells_of["planted bugs caught"] if cell]
    caught = f"{sum(int(seen) for seen, _ in bugs)} of {sum(int(planted) for _, planted in bugs)}" if bugs else ""
    seconds = sum(int(cell) for cell in cells_of["seconds"])
    return ["all", "", *(f"{count:,}" for count in counts), caught, str(seconds), ""]
