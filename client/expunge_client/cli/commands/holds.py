"""``expunge holds``: legal holds."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from expunge_client.cli.client import connect
from expunge_client.cli.completion import HoldArgument
from expunge_client.cli.output import AsCsv, AsJson, errors, show_facts, show_json, show_list

commands = typer.Typer(no_args_is_help=True, help="Legal holds: place, list, show, lift.")
_PATH = "/v1/holds"


@commands.command("place")
def place(
    reason: Annotated[str, typer.Option(help="Why; must not name anybody.")],
    subject: Annotated[str | None, typer.Option(help="The person's id; - reads it from standard input.")] = None,
    sample: Annotated[str | None, typer.Option(help="A sample's id instead of a person.")] = None,
    as_json: AsJson = False,
) -> None:
    """Keep a person's data, or a sample, from being forgotten."""
    if (subject is None) == (sample is None):
        raise typer.BadParameter("name either --subject or --sample")
    named = {"sample_id": sample} if subject is None else {"subject_id": subject}
    if subject == "-":
        named = {"subject_id": sys.stdin.read().strip()}
    with connect() as client:
        hold = client.post(_PATH, {**named, "reason": reason})
    show_json(hold) if as_json else show_facts(hold)


@commands.command("list")
def list_holds(as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """List all holds, newest first, lifted ones included."""
    with connect() as client:
        rows = list(client.pages(_PATH))
    show_list(rows, ("id", "reason", "created_at", "lifted_at"), as_json, as_csv)


@commands.command("show")
def show(hold: HoldArgument, as_json: AsJson = False) -> None:
    """Show one hold: why it was placed, and since when."""
    with connect() as client:
        found = client.get(f"{_PATH}/{client.whole_id(_PATH, hold)}")
    show_json(found) if as_json else show_facts(found)


@commands.command("lift")
def lift(hold: HoldArgument) -> None:
    """Release a hold; the requests that waited for it go on."""
    with connect() as client:
        client.delete(f"{_PATH}/{client.whole_id(_PATH, hold)}")
    errors.print("lifted.")
