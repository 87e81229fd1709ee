"""``expunge audit verify``: check a log with its public key, and what the service shows against the log."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from expunge_client.cli.client import LOG, LOG_PAGE, connect, signed_log
from expunge_client.cli.output import CommandError
from expunge_service.audit import NotAuthentic, Signer, Verifier, read_export, verify
from expunge_service.cli.errors import told
from expunge_service.infra.settings import Settings, SettingsError
from expunge_service.models import SERVED, compare_shown, compare_tables, unlogged

PATIENCE_SECONDS = 10
"""how long to wait for the entries of versions that were published a moment ago"""
AGAIN_SECONDS = 1.0
"""between two looks at a difference"""
READING_SECONDS = 600.0
"""within which the service reads all memberships of a model"""
_KEEP = "Keep a copy of what you see; see SECURITY.md."
_UNSIGNED = (
    "`expunge doctor` says whether a scheduler is alive, and the scheduler's log why it signs no entry: after "
    "`expunge audit rotate-key` it needs the new signing.key. When it signs again, repeat this command."
)


@told()
def check(file: Path | None, key: Path | None) -> dict[str, Any]:
    """Return what was found, as ``_checked``. A difference between log and tables is looked at twice before it is said:
    what is published between two calls is no difference.
    """
    try:
        return _checked(file, key)
    except _Differs:
        time.sleep(AGAIN_SECONDS)
        return _checked(file, key)


class _Differs(CommandError):
    """The log verifies, and tables do not agree with it."""


def _checked(file: Path | None, key: Path | None) -> dict[str, Any]:
    """Check the log and what the service shows. Raises CommandError where log or database is not what was signed.

    Args:
        file: an exported log; None: the running service's.
        key: the log's public key; None: that of this installation.
    """
    settings = Settings()
    seen = settings.home / "audit-heads.jsonl"
    versions = [] if file else _versions()  # before the log: what they show was published before it was read
    served, suppressions = ([], []) if file else _tables()
    head, entries = _exported(file) if file else _served(versions)
    try:
        checkpoint = verify(entries, head, _verifier(settings, key), _seen(seen))
    except NotAuthentic as error:
        raise CommandError(f"The audit log does not verify. {error}", _KEEP) from None
    waiting = [] if file else _waiting(entries, versions)
    try:
        compared = None if file else compare_shown(entries, [each for each in versions if each not in waiting])
        if file is None and not waiting:
            compare_tables(entries, served, suppressions)
    except NotAuthentic as error:
        raise _Differs(f"The log verifies, and the database does not agree with it. {error}", _KEEP) from None
    if file is None:
        _require_agreed()
        _remember(seen, head)
    if waiting:
        first = f"version {waiting[0]['number']} of {waiting[0]['model']} ({waiting[0]['published_at']})"
        raise CommandError(
            f"The log verifies up to its signed head of {checkpoint.size} entries. {len(waiting)} version(s) were "
            f"published after it, from {first} on: their entries wait for the scheduler to sign them.",
            _UNSIGNED,
        )
    facts = {"verified": True, "entries": checkpoint.size, "root": checkpoint.root.hex(), "log": checkpoint.origin}
    return facts | {"versions_compared": compared}


def _served(versions: Sequence[Mapping[str, Any]]) -> tuple[str, list[dict[str, Any]]]:
    """Return the signed head and the entries, with those that publish ``versions``: the scheduler adds them within a
    second.
    """
    ends = time.monotonic() + PATIENCE_SECONDS
    with connect() as client:
        while True:
            head, entries = signed_log(client)
            if not unlogged(entries, versions) or time.monotonic() > ends:
                return head, entries
            time.sleep(1)


def _require_agreed() -> None:
    """Raise CommandError where the service sees that its database was put back: an older copy verifies by itself, and
    the store knows what came after it.
    """
    with connect() as client:
        try:
            client.get("/readyz")
        except CommandError as error:  # what else keeps it from being ready says nothing of the log
            if error.problem == "database_put_back":
                raise CommandError(f"The log verifies, and it is not the newest. {error.what}", _KEEP) from None


def _waiting(entries: Sequence[Mapping[str, Any]], versions: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the versions without an entry that were published after the newest signed entry, oldest first.

    One that was published before it can have no entry that waits.
    """
    signed_at = max((entry["at"] for entry in entries if entry["at"]), default="")
    late = [version for version in unlogged(entries, versions) if version["published_at"] >= signed_at]
    return sorted(late, key=lambda version: version["published_at"])


def _versions() -> list[dict[str, Any]]:
    """Return every version of every model, as the service shows them. The key needs models:read."""
    with connect() as client:
        names = [model["name"] for model in client.pages("/v1/models")]
        return [version for name in names for version in client.pages(f"/v1/models/{name}/versions")]


def _tables() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what the tables say of each served version, and of each request. Every membership is read for it."""
    with connect(READING_SECONDS) as client:
        names = [model["name"] for model in client.pages("/v1/models") if model["status"] in SERVED]
        served = [client.get(f"/v1/models/{name}/commitments") for name in names]
        return served, list(client.pages(f"{LOG}/suppressions", limit=LOG_PAGE))


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
