"""``expunge holds``: legal holds."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from expunge_client.cli.client import connect
from expunge_client.cli.completion import HoldArgument, hold_ids
from expunge_client.cli.output import errors, show_facts, show_hint, show_list

commands = typer.Typer(no_args_is_help=True, help="Legal holds: place, list, lift.")
_PATH = "/v1/holds"


@commands.command("place")
def place(
    reason: Annotated[str, typer.Option(help="Why; it must not name a person.")],
    subject: Annotated[str | None, typer.Option(help="The person's id; - reads it from standard input.")] = None,
    sample: Annotated[str | None, typer.Option(help="A sample's id instead of a person.")] = None,
    confirmed: Annotated[
        bool, typer.Option("--confirmed", help="The id is right as it is written, though it looks misspelled.")
    ] = False,
) -> None:
    """Protect a person's data, or a sample, from deletion."""
    if (subject is None) == (sample is None):
        raise typer.BadParameter("name either --subject or --sample")
    named = {"sample_id": sample} if subject is None else {"subject_id": subject}
    if subject == "-":
        named = {"subject_id": sys.stdin.read().strip()}
    with connect() as client:
        more = {"confirmed": True} if confirmed else {}
        hold = client.post(_PATH, {**named, "reason": reason, **more})
    show_facts(hold)
    if hold.get("note"):
        show_hint(hold["note"])


@commands.command("list")
def list_holds(
    hold: Annotated[
        str | None, typer.Argument(help="Only this one: its id, or its first digits.", autocompletion=hold_ids)
    ] = None,
) -> None:
    """List all holds, newest first, lifted ones included; or one."""
    with connect() as client:
        if hold is not None:
            found = client.get(f"{_PATH}/{client.whole_id(_PATH, hold)}")
            show_facts(found)
            if found["lifted_at"] is None:
                show_hint(f"It is in force. `expunge holds lift {found['id'][:8]}` ends it; what it blocks continues.")
            return
        rows = list(client.pages(_PATH))
    show_list(rows, ("id", "reason", "created_at", "lifted_at"))


@commands.command("lift")
def lift(hold: HoldArgument) -> None:
    """Lift a hold; the requests that it blocked continue."""
    with connect() as client:
        client.delete(f"{_PATH}/{client.whole_id(_PATH, hold)}")
    errors.print("lifted; the requests that it blocked continue.")
