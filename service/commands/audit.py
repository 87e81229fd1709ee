"""``expunge audit``: check the whole log with the public key alone, or take it along and check it elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from service.commands.client import connect
from service.commands.screen import AsJson, CommandError, errors, show_facts, show_json
from service.continuation import CannotContinue, read_export
from service.notes import NoteError, Signer, Verifier
from service.settings import Settings, SettingsError
from service.verify import Tampered
from service.verify import verify as verify_log

commands = typer.Typer(no_args_is_help=True, help="The audit log: verify, export.")
PAGE = 200

Key = Annotated[
    Path | None, typer.Option(help="The log's public key (name+hash+base64); that of this installation otherwise.")
]


@commands.command("verify")
def verify(
    file: Annotated[Path | None, typer.Option(help="An exported log; the running service's otherwise.")] = None,
    key: Key = None,
    as_json: AsJson = False,
) -> None:
    """Check every entry against the signed head, and that the log continues every head seen before."""
    settings = Settings()
    seen = settings.home / "audit-heads.jsonl"
    head, entries = _exported(file) if file else _served()
    try:
        checkpoint = verify_log(entries, head, _verifier(settings, key), _seen(seen))
    except Tampered as error:
        raise CommandError(
            f"The audit log does not verify. {error}", "Keep a copy of what you see; see SECURITY.md."
        ) from None
    if file is None:
        _remember(seen, head)
    facts = {"verified": True, "entries": checkpoint.size, "root": checkpoint.root.hex(), "log": checkpoint.origin}
    show_json(facts) if as_json else show_facts(facts)


@commands.command("export")
def export(file: Annotated[Path, typer.Argument(help="Where to write it, one entry a line, the head last.")]) -> None:
    """Write the whole log and its signed head to a file; `expunge audit verify --file` checks it anywhere."""
    head, entries = _served()
    with file.open("w") as out:
        for entry in entries:
            out.write(json.dumps(entry) + "\n")
        out.write(json.dumps({"checkpoint": head}) + "\n")
    errors.print(f"written: {file}", markup=False)


def _served() -> tuple[str, Iterator[dict[str, Any]]]:
    """The head first: entries that come meanwhile only make the log longer than it."""
    with connect() as client:
        head = client.text("/v1/audit-log/checkpoint")
        return head, iter(list(client.pages("/v1/audit-log", limit=PAGE)))


def _exported(file: Path) -> tuple[str, Iterator[dict[str, Any]]]:
    try:
        head, lines = read_export(file)
    except CannotContinue as error:
        raise CommandError(str(error), "") from None
    return head, iter(lines)


def _verifier(settings: Settings, key: Path | None) -> Verifier:
    try:
        return Verifier.load(key) if key else Signer.of(settings).verifier
    except (NoteError, SettingsError, OSError) as error:
        hint = "Give the log's public key with --key; `expunge up` writes it to log.vkey in its home."
        raise CommandError(f"The log's public key cannot be read. {error}", hint) from None


def _seen(path: Path) -> list[str]:
    return [str(json.loads(line)) for line in path.read_text().splitlines()] if path.exists() else []


def _remember(path: Path, head: str) -> None:
    """Kept beside the client's key: whoever cuts the log back later contradicts this."""
    if head in _seen(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with path.open("a") as out:
        out.write(json.dumps(head) + "\n")
