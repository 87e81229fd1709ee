"""The table that every run of the drills ends with, on the screen and in docs/reliability.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from drills.result import HARM, Result

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


def markdown(record: Mapping[str, Any]) -> str:
    """The record of a run as a dated table."""
    results = [Result.from_json(values) for values in record["results"]]
    lines = [header(), ["---"] * len(header()), *(cells(result) for result in [*results, total(results)])]
    rows = [f"| {' | '.join(line)} |" for line in lines]
    command = f"python -m drills --seed {record['seed']} --scale {record['scale']:g}"
    failed = f" Without a result: {', '.join(record['failed'])}." if record["failed"] else ""
    notes = [f"- {result.name}: {note}" for result in results for note in result.notes]
    return "\n".join([f"{record['at']}, `{command}`.{failed}", "", *rows, "", *notes])


def write_into(page: Path, record: Mapping[str, Any]) -> None:
    """Replace what stands between the page's two marks."""
    text = page.read_text()
    if BEGIN not in text or END not in text:
        raise ValueError(f"{page} has no place for the table: it needs the lines {BEGIN} and {END}")
    new = f"{BEGIN}\n{markdown(record)}\n{END}"
    page.write_text(re.sub(re.escape(BEGIN) + ".*" + re.escape(END), lambda _: new, text, flags=re.DOTALL))
