"""``expunge consumers``: who serves a model, and which version."""

from __future__ import annotations

from typing import Annotated

import typer

from expunge_client.cli.client import connect
from expunge_client.cli.completion import ModelArgument, consumer_names
from expunge_client.cli.output import AsCsv, AsJson, errors, show_facts, show_json, show_list

Consumer = Annotated[str, typer.Argument(help="Name of a consumer.", autocompletion=consumer_names)]
commands = typer.Typer(no_args_is_help=True, help="Who serves which version: list, report, remove.")


@commands.command("list")
def list_consumers(model: ModelArgument, as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """List the consumers of a model: current, behind, or unknown after five silent minutes."""
    with connect() as client:
        rows = client.get(f"/v1/models/{model}/consumers")["data"]
    show_list(rows, ("name", "version", "status"), as_json, as_csv)


@commands.command("report")
def report(
    model: ModelArgument,
    consumer: Annotated[str, typer.Argument(help="Your name for the program that serves it.")],
    version: Annotated[int, typer.Argument(help="The version that it serves now.", min=1)],
    as_json: AsJson = False,
) -> None:
    """Report which version is served. Repeat it at least every five minutes."""
    with connect() as client:
        standing = client.put(f"/v1/models/{model}/consumers/{consumer}", {"version": version})
    show_json(standing) if as_json else show_facts(standing)


@commands.command("remove")
def remove(model: ModelArgument, consumer: Consumer) -> None:
    """Remove a consumer that no longer serves the model. Nothing waits for it then."""
    with connect() as client:
        client.delete(f"/v1/models/{model}/consumers/{consumer}")
    errors.print("removed.")
