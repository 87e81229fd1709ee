"""What commands write: data on standard output, everything else (progress, errors) on standard error."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from expunge_client.cli.brief import Line, aligned

if TYPE_CHECKING:
    from rich.progress import Progress

OK, FAILED, USAGE, UNREACHABLE, BLOCKED, NO_MATCH = 0, 1, 2, 3, 4, 5
"""exit codes; the last: no model holds data under the id"""
WHAT_TO_DO = "`expunge requests show ID` says what to do about each that is blocked; a case does for an id."
LINE_SECONDS = 2.0
"""least time between two lines of progress that say the same with another figure"""

# without markup: a text that a person wrote, as a hold's reason, may hold brackets and colons
errors = Console(stderr=True, highlight=False, markup=False, emoji=False)
output = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 200)

_wanted = {"json": False, "csv": False, "verbose": False}
"""the form of this process's output, as the command line named it"""


def _want(parameter: typer.CallbackParam, value: bool) -> None:
    _wanted[str(parameter.name)] = value


_forms = typer.Typer(add_completion=False)


@_forms.command()
def _declared(
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of a table.", callback=_want, expose_value=False)
    ] = False,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print CSV instead of a table.", callback=_want, expose_value=False)
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", help="Print every field.", callback=_want, expose_value=False)
    ] = False,
) -> None: ...


FORMS = typer.main.get_command(_forms).params
"""the options of every command"""


def as_json() -> bool:
    """Return whether JSON was asked for."""
    return _wanted["json"]


def briefly() -> bool:
    """Return whether a few lines are wanted, and no other form."""
    return not any(_wanted.values())


def show_lines(lines: Iterable[Line]) -> None:
    output.print(aligned(lines), soft_wrap=True)


class CommandError(Exception):
    """A command cannot go on: one line says what happened, another what to do. ``problem``: the code of the service's
    answer, where it came from there.
    """

    def __init__(self, what: str, hint: str, code: int = FAILED, problem: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint
        self.code = code
        self.problem = problem


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


@contextmanager
def json_list() -> Iterator[Callable[[Any], None]]:
    """Yield a function that prints an item of a JSON list at once. The list is ended however the command ends."""
    before = "["

    def show(item: Any) -> None:
        nonlocal before
        typer.echo(f"{before}\n{json.dumps(item, indent=2)}", nl=False)
        sys.stdout.flush()
        before = ","

    try:
        yield show
    finally:
        typer.echo("[]" if before == "[" else "\n]")


def show_list(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """Print a list as JSON (every field), as CSV, or as a table (the columns)."""
    if _wanted["json"]:
        show_json(rows)
    else:
        show_rows(rows, columns)


def for_people(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return requests as a table shows them: eight digits of an id, which every command takes, and days for moments."""
    if not briefly():
        return list(rows)
    days = ("received_at", "due_at", "completed_at")
    return [row | {"id": row["id"][:8]} | {name: row[name][:10] for name in days if row.get(name)} for row in rows]


def due_in(request: dict[str, Any]) -> str:
    """Return how long a request has until its deadline, in the two largest units; "-" where nothing is due."""
    due_at = request.get("due_at")
    if due_at is None or request["status"] in {"completed", "cancelled", "rejected"}:
        return "-"
    minutes = round((datetime.fromisoformat(due_at) - datetime.now(UTC)).total_seconds() / 60)
    days, hours, rest = abs(minutes) // 1440, abs(minutes) // 60 % 24, abs(minutes) % 60
    text = f"{days} d {hours} h" if days else f"{hours} h {rest} min"
    return text if minutes > 0 else f"late by {text}"


def _for_a_spreadsheet(value: Any) -> str:
    """Return a cell of CSV. A text that a spreadsheet would compute gets an apostrophe in front of it."""
    text = "" if value is None else cell(value)
    return f"'{text}" if isinstance(value, str) and text[:1] in set("=+-@\t\r") and text != "-" else text


def show_rows(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> None:
    """Print one line for each row, as CSV or as a table. A column may name a nested value, as ``budget.spent``."""
    if _wanted["csv"]:
        written = csv.writer(sys.stdout, lineterminator="\n")
        written.writerow(columns)
        written.writerows([_for_a_spreadsheet(nested(row, column)) for column in columns] for row in rows)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column.rpartition(".")[2], overflow="fold")
    for row in rows:
        table.add_row(*(cell(nested(row, column)) for column in columns))
    output.print(table)


def show_facts(record: dict[str, Any]) -> None:
    """Print a record as JSON, or one line for each field, with nested objects under their name; in CSV two cells."""
    if _wanted["json"]:
        show_json(record)
        return
    if _wanted["csv"]:
        csv.writer(sys.stdout, lineterminator="\n").writerows(
            (name, _for_a_spreadsheet(value)) for name, value in _flat(record)
        )
        return
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
    # here alone: most commands show no progress, and it takes long to import
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(30), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as live:
        yield Meter(title, live)


def _flat(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
