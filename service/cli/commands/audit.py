"""``expunge audit``: check the whole log with the public key alone, or take it along; attack what claims say."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from service.audit.import_export import read_export
from service.audit.signed_note import NotAuthentic, Signer, Verifier
from service.audit.verify import verify as verify_log
from service.cli.client import connect
from service.cli.output import AsJson, CommandError, errors, show_facts, show_json, show_rows
from service.infra.settings import Settings, SettingsError
from service.models.publications import compare_shown, unlogged

commands = typer.Typer(
    no_args_is_help=True, help="The audit log: list, verify, export. And `epsilon`: attack the claims of a recipe."
)
PAGE = 200
FORWARDED = {"allow_extra_args": True, "ignore_unknown_options": True}
"""every option, --help too, is that of ``python -m workers.audit``"""
PATIENCE_SECONDS = 10
"""how long to wait for the entries of versions that were published a moment ago"""
_KEEP = "Keep a copy of what you see; see SECURITY.md."

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
    settings = Settings()
    seen = settings.home / "audit-heads.jsonl"
    versions = [] if file else _versions()  # before the log: what they show was published before it was read
    head, entries = _exported(file) if file else _served(versions)
    try:
        checkpoint = verify_log(entries, head, _verifier(settings, key), _seen(seen))
    except NotAuthentic as error:
        raise CommandError(f"The audit log does not verify. {error}", _KEEP) from None
    try:
        compared = None if file else compare_shown(entries, versions)
    except NotAuthentic as error:
        raise CommandError(f"The log verifies, and the database does not agree with it. {error}", _KEEP) from None
    if file is None:
        _remember(seen, head)
    facts = {"verified": True, "entries": checkpoint.size, "root": checkpoint.root.hex(), "log": checkpoint.origin}
    facts |= {"versions_compared": compared}
    show_json(facts) if as_json else show_facts(facts)


@commands.command("list")
def list_entries(as_json: AsJson = False) -> None:
    """List what happened and who did it, oldest first."""
    with connect() as client:
        rows = list(client.pages("/v1/audit-log", limit=PAGE))
    for row in rows:
        row["who"] = row["actor_name"] or row["actor"]
    show_json(rows) if as_json else show_rows(rows, ("index", "at", "kind", "who", "request_id"))


@commands.command("epsilon", add_help_option=False, context_settings=FORWARDED)
def epsilon(context: typer.Context) -> None:
    """Try to refute the claims of a recipe (--recipe PATH): canaries, thousands of guesses; fail if one is exceeded."""
    done = subprocess.run([sys.executable, "-m", "workers.audit", *context.args], check=False)  # noqa: S603
    raise typer.Exit(done.returncode)


@commands.command("export")
def export(file: Annotated[Path, typer.Argument(help="Where to write it, one entry a line, the head last.")]) -> None:
    """Write the whole log and its signed head to a file; `expunge audit verify --file` checks it anywhere."""
    head, entries = _served(())
    with file.open("w") as out:
        for entry in entries:
            # names of actors can be erased in the service, and not in files
            out.write(json.dumps({name: value for name, value in entry.items() if name != "actor_name"}) + "\n")
        out.write(json.dumps({"checkpoint": head}) + "\n")
    errors.print(f"written: {file}", markup=False)


def _served(versions: Sequence[Mapping[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Return the signed head and the entries, with those that publish ``versions``: the scheduler adds them within a
    second.

    The head is read first: entries that come meanwhile only make the log longer than it.
    """
    ends = time.monotonic() + PATIENCE_SECONDS
    with connect() as client:
        while True:
            head = client.text("/v1/audit-log/checkpoint")
            entries = list(client.pages("/v1/audit-log", limit=PAGE))
            if not unlogged(entries, versions) or time.monotonic() > ends:
                return head, entries
            time.sleep(1)


def _versions() -> list[dict[str, Any]]:
    """Return every version of every model, as the service shows them. The key needs models:read."""
    with connect() as client:
        names = [model["name"] for model in client.pages("/v1/models")]
        return [version for name in names for version in client.pages(f"/v1/models/{name}/versions")]


def _exported(file: Path) -> tuple[str, list[dict[str, Any]]]:
    try:
        head, lines = read_export(file)
    except NotAuthentic as error:
        raise CommandError(str(error), "") from None
    return head, list(lines)


def _verifier(settings: Settings, key: Path | None) -> Verifier:
    try:
        return Verifier.load(key) if key else Signer.of(settings).verifier
    except (NotAuthentic, SettingsError, OSError) as error:
        hint = "Give the log's public key with --key; `expunge up` writes it to log.vkey in its home."
        raise CommandError(f"The log's public key cannot be read. {error}", hint) from None


def _seen(path: Path) -> list[str]:
    return [str(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _remember(path: Path, head: str) -> None:
    """Keep the head with the client's key: a log that is cut back later contradicts it."""
    if head in _seen(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("a") as out:
        out.write(json.dumps(head) + "\n")
