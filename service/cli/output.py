"""What commands write: data on standard output, everything else (progress, errors) on standard error."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

OK, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
"""exit codes"""
LINE_SECONDS = 2.0
"""least time between two lines of progress that say the same with another figure"""

errors = Console(stderr=True, highlight=False)
output = Console(highlight=False, width=None if sys.stdout.isatty() else 200)

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


class CommandError(Exception):
    """A command cannot go on: one line says what happened, another what to do."""

    def __init__(self, what: str, hint: str, code: int = FAILED) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.code = code


def show_error(error: CommandError) -> None:
    errors.print(f"error: {error.what}", style="bold red", markup=False, soft_wrap=True)
    show_hint(error.hint)


def show_hint(hint: str) -> None:
    """Print what to do, on standard error; nothing where there is nothing to do."""
    if hint:
        errors.print(f" hint: {hint}", style="yellow", markup=False, soft_wrap=True)


def commands_of(actions: Iterable[dict[str, Any]]) -> str:
    """Return the commands of the steps that the service names, one a line, each once."""
    return "".join(dict.fromkeys(f"\n       {each['command']}" for each in actions))


def show_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def show_rows(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """Print a table with one line for each row. A column may name a nested value, as ``budget.spent``."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.rpartition(".")[2], overflow="fold")
    for row in rows:
        table.add_row(*(cell(nested(row, column)) for column in columns))
    output.print(table)


def show_facts(record: dict[str, Any]) -> None:
    """Print one line for each field. Nested objects are indented under their name."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in _flat(record):
        table.add_row(name, cell(value))
    output.print(table)


def nested(row: dict[str, Any], path: str) -> Any:
    value: Any = row
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(cell(each) for each in value)
    return str(value)


class Meter:
    """Progress on standard error: a bar on a terminal, a line whenever something changed elsewhere."""

    def __init__(self, title: str, live: Progress | None) -> None:
        self._live = live
        self._task = live.add_task(title, total=1.0) if live else None
        self._title = title
        self._said = ""
        self._said_at = 0.0

    def show(self, fraction: float, text: str) -> None:
        """Update the meter. ``fraction`` is between 0 and 1."""
        if self._live is not None and self._task is not None:
            self._live.update(self._task, completed=fraction, description=f"{self._title}: {text}")
            return
        line = f"{self._title}: {text} {fraction:.0%}"
        if line != self._said and (time.monotonic() - self._said_at > LINE_SECONDS or text not in self._said):
            errors.print(line, markup=False, soft_wrap=True)
            self._said, self._said_at = line, time.monotonic()


@contextmanager
def meter(title: str) -> Iterator[Meter]:
    """Show a meter, which disappears afterwards where standard error is a terminal."""
    if not errors.is_terminal:
        yield Meter(title, None)
        return
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(30), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as live:
        yield Meter(title, live)


def _flat(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
