"""``expunge audit``: check the whole log with the public key alone, take it along, give it a new signing key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from expunge_client.cli.client import LOG, LOG_PAGE, connect, signed_log
from expunge_client.cli.output import errors, show_facts, show_list

commands = typer.Typer(no_args_is_help=True, help="The audit log: list, verify, export, rotate-key.")

Key = Annotated[
    Path | None, typer.Option(help="The log's public key (name+hash+base64); that of this installation otherwise.")
]


@commands.command("verify")
def verify(
    file: Annotated[Path | None, typer.Option(help="An exported log; the running service's otherwise.")] = None,
    key: Key = None,
) -> None:
    """Check every entry against the signed head, and the log against every head seen before.

    Of the running service it also checks that each version claims what the log says was published.
    """
    from expunge_service.cli.log_check import check  # noqa: PLC0415  (with the database's library, which no other command needs)

    facts = check(file, key)
    show_facts(facts)


@commands.command("list")
def list_entries() -> None:
    """List what happened with its actors, oldest first."""
    with connect() as client:
        rows = list(client.pages(LOG, limit=LOG_PAGE))
    for row in rows:
        row["who"] = row["actor_name"] or row["actor"]
    show_list(rows, ("index", "at", "kind", "who", "request_id"))


@commands.command("export")
def export(file: Annotated[Path, typer.Argument(help="Where to write it, one entry a line, the head last.")]) -> None:
    """Write the whole log and its signed head to a file; `expunge audit verify --file` checks it anywhere."""
    with connect() as client:
        head, entries = signed_log(client)
    with file.open("w") as out:
        for entry in entries:
            # names of actors can be erased in the service, and not in files
            out.write(json.dumps({name: value for name, value in entry.items() if name != "actor_name"}) + "\n")
        out.write(json.dumps({"checkpoint": head}) + "\n")
    errors.print(f"written: {file}", markup=False)


@commands.command("rotate-key")
def rotate() -> None:
    """Sign the log and certificates with a new key from now on; the old one is retired in the log.

    What was signed before still verifies. Run it where the API and the scheduler read EXPUNGE_SECRETS.
    """
    from expunge_service.cli.log_rotation import rotate_key  # noqa: PLC0415  (with the database's library)

    new = rotate_key()
    errors.print(
        "rotated. Copy signing.key to every other EXPUNGE_SECRETS that has one; in Compose run `docker compose restart "
        "api scheduler`. The log's public key from now on:",
        soft_wrap=True,
    )
    typer.echo(str(new))
