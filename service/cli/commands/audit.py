"""``expunge audit``: check the whole log with the public key alone, or take it along; attack what claims say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from expunge_client.cli.client import LOG, LOG_PAGE, connect, signed_log
from expunge_client.cli.output import AsCsv, AsJson, errors, show_facts, show_json, show_list

commands = typer.Typer(
    no_args_is_help=True, help="The audit log: list, verify, export. And `epsilon`: attack the claims of a recipe."
)
FORWARDED = {"allow_extra_args": True, "ignore_unknown_options": True}
"""every option, --help too, is that of ``python -m expunge_lab.audit_epsilon``"""

Key = Annotated[
    Path | None, typer.Option(help="The log's public key (name+hash+base64); that of this installation otherwise.")
]


@commands.command("verify")
def verify(
    file: Annotated[Path | None, typer.Option(help="An exported log; the running service's otherwise.")] = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Check every entry against the signed head, that the log continues every head seen before, and that every
    version that the running service shows claims what the log says was published."""
    from expunge.service.cli.log_check import check  # noqa: PLC0415  (with the database's library, which no other command needs)

    facts = check(file, key)
    show_json(facts) if as_json else show_facts(facts)


@commands.command("list")
def list_entries(as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """List what happened and who did it, oldest first."""
    with connect() as client:
        rows = list(client.pages(LOG, limit=LOG_PAGE))
    for row in rows:
        row["who"] = row["actor_name"] or row["actor"]
    show_list(rows, ("index", "at", "kind", "who", "request_id"), as_json, as_csv)


@commands.command("epsilon", add_help_option=False, context_settings=FORWARDED)
def epsilon(context: typer.Context) -> None:
    """Try to refute the claims of a recipe (--recipe PATH): canaries, thousands of guesses; fail if one is exceeded."""
    from expunge.service.cli.commands.evaluate import run_module  # noqa: PLC0415  (with the settings' library)

    run_module("expunge_lab.audit_epsilon", context.args)


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
