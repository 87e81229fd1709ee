"""``expunge webhooks``: endpoints, and what was sent to them."""

from __future__ import annotations

from typing import Annotated

import typer

from expunge_client.cli.client import connect
from expunge_client.cli.completion import endpoint_ids
from expunge_client.cli.output import errors, show_facts, show_list

commands = typer.Typer(no_args_is_help=True, help="Webhooks: add, list, remove.")
Endpoint = Annotated[str, typer.Argument(help="Id of an endpoint, or its first digits.", autocompletion=endpoint_ids)]
_PATH = "/v1/webhooks"


@commands.command("add")
def add(
    url: Annotated[str, typer.Argument(help="Where to, https.")],
    kind: Annotated[list[str] | None, typer.Option(help="Only this news; may be repeated.")] = None,
) -> None:
    """Add an endpoint and send it a test. Its secret is shown once."""
    with connect() as client:
        made = client.post(_PATH, {"url": url} | ({"kinds": kind} if kind else {}))
        try:
            made["test"] = client.post(f"{_PATH}/{made['id']}/test", {})["id"]
        finally:
            show_facts(made)  # its secret is shown this once, also where the test fails


@commands.command("list")
def list_endpoints(
    endpoint: Annotated[
        str | None,
        typer.Argument(help="What was sent to this one: its id, or its first digits.", autocompletion=endpoint_ids),
    ] = None,
) -> None:
    """List all endpoints, removed ones included; or what was sent to one, newest first."""
    with connect() as client:
        if endpoint is not None:
            path, sent, cursor = f"{_PATH}/{client.whole_id(_PATH, endpoint)}", [], None
            while True:
                page = client.get(path, cursor=cursor)["deliveries"]
                sent += page["data"]
                cursor = page["next_cursor"]
                if cursor is None:
                    break
            show_list(sent, ("id", "kind", "state", "attempts", "last_outcome", "last_status", "next_at"))
            return
        rows = client.get(_PATH)["data"]
    show_list(rows, ("id", "url", "kinds", "disabled_at"))


@commands.command("remove")
def remove(endpoint: Endpoint) -> None:
    """Stop sending to an endpoint."""
    with connect() as client:
        client.delete(f"{_PATH}/{client.whole_id(_PATH, endpoint)}")
    errors.print("removed.")
