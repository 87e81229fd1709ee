"""Names that a shell completes, asked of the service while its user types. Where it does not answer there are none."""

from __future__ import annotations

import os
from typing import Annotated, Any

import typer

from expunge_client.cli.client import REQUESTS, Account, Client, read_servers, servers_file
from expunge_client.cli.output import CommandError

PATIENCE_SECONDS = 2.0
MOST = 50


def model_names(incomplete: str) -> list[tuple[str, str]]:
    """Return the models whose names begin so, each with its status."""
    rows = _first("/v1/models", limit=200)
    return [(row["name"], row["status"]) for row in rows if row["name"].startswith(incomplete)]


def request_ids(incomplete: str) -> list[tuple[str, str]]:
    """Return the newest requests whose ids begin so, each with its status and receipt."""
    query = {"id_prefix": incomplete} if incomplete else {}
    rows = _first(REQUESTS, limit=MOST, **query)
    return [(row["id"], f"{row['status']}, received {row['received_at'][:10]}") for row in rows]


def hold_ids(incomplete: str) -> list[tuple[str, str]]:
    """Return the newest holds whose ids begin so, each with its state and reason."""
    rows = (row for row in _first("/v1/holds") if row["id"].startswith(incomplete))
    return [(row["id"], f"{'lifted' if row['lifted_at'] else 'in force'}: {row['reason']}") for row in rows]


def endpoint_ids(incomplete: str) -> list[tuple[str, str]]:
    """Return the webhook endpoints whose ids begin so, each with its address."""
    return [(row["id"], row["url"]) for row in _first("/v1/webhooks") if row["id"].startswith(incomplete)]


def consumer_names(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Return the consumers of the model that was typed before, each with its status."""
    rows = _first(f"/v1/models/{context.params['model']}/consumers")
    return [(row["name"], row["status"]) for row in rows if row["name"].startswith(incomplete)]


def server_names(incomplete: str) -> list[str]:
    """Return the servers that have a name."""
    return [name for name in sorted(read_servers(servers_file(os.environ))) if name.startswith(incomplete)]


def _first(path: str, **query: Any) -> list[dict[str, Any]]:
    try:
        with Client(Account.find(os.environ), attempts=1, timeout_seconds=PATIENCE_SECONDS) as client:
            rows: list[dict[str, Any]] = client.get(path, **query)["data"]
            return rows
    except CommandError:
        return []


Request = Annotated[
    str, typer.Argument(help="Id of a deletion request, its first digits, or your case.", autocompletion=request_ids)
]
OneRequest = Annotated[
    str | None,
    typer.Argument(help="Id of a deletion request, its first digits, or your case.", autocompletion=request_ids),
]
ModelArgument = Annotated[str, typer.Argument(help="The model's name.", autocompletion=model_names)]
HoldArgument = Annotated[str, typer.Argument(help="Id of a hold, or its first digits.", autocompletion=hold_ids)]
