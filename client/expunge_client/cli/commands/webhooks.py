"""``expunge webhooks``: endpoints, and what was sent to them."""

from __future__ import annotations

from typing import Annotated

import typer

from expunge_client.cli.client import connect
from expunge_client.cli.completion import endpoint_ids
from expunge_client.cli.output import AsCsv, AsJson, errors, show_facts, show_json, show_list

commands = typer.Typer(no_args_is_help=True, help="Webhooks: add, list, test, disable, deliveries, replay.")
Endpoint = Annotated[str, typer.Argument(help="Id of an endpoint, or its first digits.", autocompletion=endpoint_ids)]
_PATH = "/v1/webhooks"


@commands.command("add")
def add(
    url: Annotated[str, typer.Argument(help="Where to, https.")],
    kind: Annotated[list[str] | None, typer.Option(help="Only this news; may be repeated.")] = None,
    as_json: AsJson = False,
) -> None:
    """Add an endpoint. Its secret is shown once."""
    with connect() as client:
        made = client.post(_PATH, {"url": url} | ({"kinds": kind} if kind else {}))
    show_json(made) if as_json else show_facts(made)


@commands.command("list")
def list_endpoints(as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """List all endpoints, disabled ones included."""
    with connect() as client:
        rows = client.get(_PATH)["data"]
    show_list(rows, ("id", "url", "kinds", "disabled_at"), as_json, as_csv)


@commands.command("test")
def test(endpoint: Endpoint, as_json: AsJson = False) -> None:
    """Send a delivery that says nothing; `deliveries` shows what the receiver answered."""
    with connect() as client:
        sent = client.post(f"{_PATH}/{client.whole_id(_PATH, endpoint)}/test", {})
    show_json(sent) if as_json else show_facts(sent)


@commands.command("disable")
def disable(endpoint: Endpoint) -> None:
    """Send nothing more to an endpoint."""
    with connect() as client:
        client.delete(f"{_PATH}/{client.whole_id(_PATH, endpoint)}")
    errors.print("disabled.")


@commands.command("deliveries")
def deliveries(endpoint: Endpoint, as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """List what was sent to an endpoint, newest first."""
    with connect() as client:
        path, rows, cursor = f"{_PATH}/{client.whole_id(_PATH, endpoint)}", [], None
        while True:
            page = client.get(path, cursor=cursor)["deliveries"]
            rows += page["data"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
    show_list(rows, ("id", "kind", "state", "attempts", "last_outcome", "last_status", "next_at"), as_json, as_csv)


@commands.command("replay")
def replay(
    endpoint: Endpoint,
    delivery: Annotated[str, typer.Argument(help="Id of a delivery, msg_...")],
    as_json: AsJson = False,
) -> None:
    """Send a delivery again, under the same id."""
    with connect() as client:
        sent = client.post(f"{_PATH}/{client.whole_id(_PATH, endpoint)}/deliveries/{delivery}/replay", {})
    show_json(sent) if as_json else show_facts(sent)
