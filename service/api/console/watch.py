"""Verification of the audit log for the status page: entry by entry, going on where the last look ended.

Whole from the first entry again every ten minutes, so that an entry edited after it was checked is found too.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Literal

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.audit import merkle as tree
from service.audit.log import newest_head
from service.audit.signed_note import Checkpoint, NoteError, Signer, Verifier
from service.infra.db import Database
from service.infra.settings import Settings, SettingsError
from service.infra.tables import AuditEntry

_STEP = 20_000
_AGAIN_SECONDS = 600.0


@dataclass(frozen=True)
class AuditState:
    """How far the log is verified: ``checked`` of ``size`` entries against the head signed at ``signed_at``."""

    status: Literal["verified", "checking", "tampered", "empty", "unknown"]
    checked: int = 0
    size: int = 0
    signed_at: int | None = None
    detail: str = ""


@dataclass
class _Progress:
    """A verification under way. ``began`` is on the monotonic clock, in seconds."""

    began: float
    size: int = 0
    frontier: list[bytes] = field(default_factory=list)


class AuditWatch:
    """One for each API process; its threads take turns."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = Lock()
        self._progress = _Progress(time.monotonic())
        self._kept: Checkpoint | None = None

    def check(self, database: Database) -> AuditState:
        """Verify what was added since the last look, at most 20,000 entries at once."""
        try:
            verifier = Signer.of(self._settings).verifier
        except SettingsError as error:
            return AuditState("unknown", detail=str(error))
        with self._lock, database.read() as session:
            return self._check(session, verifier)

    def _check(self, session: Session, verifier: Verifier) -> AuditState:
        head = newest_head(session)
        if head is None:
            return self._broken(0, "The log is gone.") if self._kept else AuditState("empty")
        try:
            signed = verifier.checkpoint(head.note)
        except NoteError as error:
            return self._broken(head.size, f"The newest head does not verify. {error}")
        if self._kept and signed.size < self._kept.size:
            return self._broken(signed.size, "The log is shorter than it was.")
        if time.monotonic() - self._progress.began > _AGAIN_SECONDS or self._progress.size > signed.size:
            self._progress = _Progress(time.monotonic())
        fault = self._advance(session, signed)
        if fault:
            return self._broken(signed.size, fault)
        state = AuditState("checking", self._progress.size, signed.size, head.created_at)
        if self._progress.size < signed.size:
            return state
        self._kept = signed
        return replace(state, status="verified")

    def _advance(self, session: Session, signed: Checkpoint) -> str:
        """Add the next entries to the tree; returns what does not fit, or nothing."""
        progress = self._progress
        rows = (
            select(AuditEntry.log_index, AuditEntry.body)
            .where(AuditEntry.log_index >= progress.size, AuditEntry.log_index < signed.size)
            .order_by(AuditEntry.log_index)
            .limit(_STEP)
        )
        for index, body in session.execute(rows):
            if index != progress.size:
                return f"Entry {progress.size} is missing."
            tree.append(progress.frontier, index, tree.leaf_hash(body.encode()))
            progress.size += 1
            if self._kept and progress.size == self._kept.size and tree.root(progress.frontier) != self._kept.root:
                return f"One of the first {progress.size} entries was edited."
        if progress.size == signed.size and tree.root(progress.frontier) != signed.root:
            return "The entries do not have the root that was signed: one was edited, removed or moved."
        return ""

    def _broken(self, size: int, detail: str) -> AuditState:
        checked = self._progress.size
        self._progress = _Progress(time.monotonic())
        return AuditState("tampered", min(checked, size), size, detail=detail)
