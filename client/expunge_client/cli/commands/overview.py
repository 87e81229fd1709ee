"""``expunge status``: how the service is, in the terminal or in the browser."""

from __future__ import annotations

import os
import webbrowser
from collections import Counter
from typing import Annotated, Any

import typer

from expunge_client.cli.client import REQUESTS, Client, connect, read_servers, servers_file
from expunge_client.cli.output import (
    WHAT_TO_DO,
    CommandError,
    as_json,
    due_in,
    errors,
    for_people,
    output,
    show_facts,
    show_hint,
    show_json,
    show_rows,
)

OPEN = ("blocked", "running", "queued")
MOST_SHOWN = 10


def status(
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in the browser as well.")] = False,
) -> None:
    """Show whether the service works, its models, and which requests are open, blocked or late."""
    with connect() as client:
        if open_page:
            errors.print(client.url, markup=False)
            if not webbrowser.open(client.url):
                raise CommandError("There is no browser here.", f"Open {client.url} in one.")
        found = _overview(client)
    if as_json():
        show_json(found)
        return
    show_facts({name: value for name, value in found.items() if name != "blocked"})
    if found["blocked"]:
        rows = [row | {"due in": due_in(row)} for row in found["blocked"][:MOST_SHOWN]]
        output.print()
        show_rows(for_people(rows), ("id", "case_id", "status", "reason", "due in"))
        show_hint(WHAT_TO_DO)


def _overview(client: Client) -> dict[str, Any]:
    requests = [row for state in OPEN for row in client.pages(REQUESTS, status=state, limit=200)]
    late = [row for row in requests if due_in(row).startswith("late")]
    due = [row["due_at"] for row in requests if row["due_at"] and row not in late]
    return {
        "server": client.url,
        "ready": _readiness(client),
        "models": dict(Counter(row["status"] for row in client.pages("/v1/models"))) or "none",
        "open": dict(Counter(row["status"] for row in requests)) or "no request",
        "late": len(late),
        "next_due": min(due, default=None),
        "others": sorted(read_servers(servers_file(os.environ))) or "none",
        "blocked": [row for row in requests if row["status"] == "blocked"],
    }


def _readiness(client: Client) -> str:
    """Return "yes", with how many workers there are; or why it is not ready."""
    try:
        return f"yes, with {client.get('/readyz')['workers']} worker(s)"
    except CommandError as error:
        return f"no: {error.what}"
