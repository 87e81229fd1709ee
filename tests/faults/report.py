"""The table that every run of the drills ends with, on the screen and in docs/drills.md."""

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
    """Return the record of a run as a table. Rows and notes of ``before`` stay if this run has none of that name."""
    results = [Result.from_json(values) for values in record["results"]]
    ran = f"{record['at']}, seed {record['seed']}, scale {record['scale']:g}, commit {record['commit']}"
    rows = _rows(before) | {result.name: [*cells(result), ran] for result in results}
    fresh = {result.name: [f"- {result.name}: {note}" for note in result.notes] for result in results}
    notes = [line for name in sorted(rows) for line in fresh.get(name, _notes(before, name))]
    lines = [[*header(), "run"], ["---"] * (len(header()) + 1), *(rows[name] for name in sorted(rows)), _sums(rows)]
    failed = [f"Without a result in the run of {record['at']}: {', '.join(record['failed'])}.", ""]
    table = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join([*(failed if record["failed"] else []), *table, "", *notes])


def write_into(page: Path, record: Mapping[str, Any]) -> None:
    """Put the run's rows into the table between the page's two marks; other drills keep theirs, with their own date."""
    text = page.read_text()
    if BEGIN not in text or END not in text:
        raise ValueError(f"{page} has no place for the table: it needs the lines {BEGIN} and {END}")
    head, _, rest = text.partition(BEGIN)
    before, _, tail = rest.partition(END)
    page.write_text(f"{head}{BEGIN}\n{markdown(record, before)}\n{END}{tail}")


def _rows(text: str) -> dict[str, list[str]]:
    """Return the rows of an earlier table by drill, unchanged; neither the header nor the sums."""
    found = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {row[0]: row for row in found if len(row) == len(header()) + 1 and row[0] not in ("drill", "---", "all")}


def _notes(text: str, name: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"- {name}: ")]


def _sums(rows: Mapping[str, list[str]]) -> list[str]:
    """Return the last line of the table: over runs that may differ in date and commit."""
    columns = list(zip(*rows.values(), strict=True))
    counts = [sum(int(cell.replace(",", "")) for cell in columns[1 + number]) for number in range(len(COUNTS))]
    bugs = [cell.split(" of ") for cell in columns[-3] if cell]
    caught = f"{sum(int(seen) for seen, _ in bugs)} of {sum(int(planted) for _, planted in bugs)}" if bugs else ""
    return ["all", *(f"{count:,}" for count in counts), caught, str(sum(int(cell) for cell in columns[-2])), ""]
