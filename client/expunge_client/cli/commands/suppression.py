"""``expunge suppressions``: let somebody who was deleted come back."""

from __future__ import annotations

from typing import Annotated

import typer

from expunge_client.cli.client import REQUESTS, connect
from expunge_client.cli.completion import Request
from expunge_client.cli.output import AsJson, show_facts, show_json

commands = typer.Typer(no_args_is_help=True, help="Suppression entries: lift.")


@commands.callback()
def suppressions() -> None:
    """Keep deleted people from coming back: suppression entries."""


@commands.command("lift")
def lift(
    request: Request,
    reason: Annotated[str, typer.Option(help="Why; must not name anybody.")],
    as_json: AsJson = False,
) -> None:
    """Admit the person of an ended request to models that are trained from now on."""
    with connect() as client:
        lifted = client.post(f"{REQUESTS}/{client.whole_id(REQUESTS, request)}/lift", {"reason": reason})
    show_json(lifted) if as_json else show_facts(lifted)
