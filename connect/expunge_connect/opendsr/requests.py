"""Accept an OpenDSR request, find it again, and note what its caller is to be told.

A request is noted before the service is asked, and its deletion request after it. So a death in between loses nothing
and doubles nothing: the caller's next try finds what the service accepted.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from expunge_client import DeletionRequest, Expunge, Refused
from expunge_connect.opendsr.orders import API_VERSION, SubjectRequest, order
from expunge_connect.opendsr.processor import Processor
from expunge_connect.places import opened, secret_of, writing

PENDING, IN_PROGRESS, COMPLETED, CANCELLED = "pending", "in_progress", "completed", "cancelled"
WORDS = {
    "queued": PENDING,
    "blocked": PENDING,
    "running": IN_PROGRESS,
    "completed": COMPLETED,
    "cancelled": CANCELLED,
    "rejected": CANCELLED,
}
"""OpenDSR's words for the service's statuses"""
STEPS = {PENDING: 0, IN_PROGRESS: 1, COMPLETED: 2, CANCELLED: 2}
ASKED_AT_ONCE = 100
TABLES = """
CREATE TABLE IF NOT EXISTS requests (
    id TEXT PRIMARY KEY,            -- the caller's, a UUID: the same id again is the same request
    request TEXT,                   -- of the service; NULL: it has not accepted it, or does not know it any more
    digest BLOB NOT NULL,           -- of what was asked, under the secret: another order under the same id is refused
    received TEXT NOT NULL,         -- RFC 3339
    due TEXT,
    addresses TEXT NOT NULL,        -- JSON: where its status is announced
    announced TEXT,                 -- the status that was announced last; NULL: there is no address
    asked_at INTEGER NOT NULL       -- when the service was last asked for its status, in seconds since 1970
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS callbacks (
    id INTEGER PRIMARY KEY,
    url TEXT NOT NULL,
    body BLOB NOT NULL,
    attempts INTEGER NOT NULL,
    next_at REAL NOT NULL           -- in seconds since 1970
);
"""


@dataclass(frozen=True)
class Intake:
    """Where requests come in: what is known of them, the service, and who answers."""

    database: sqlite3.Connection
    secret: bytes = field(repr=False)
    service: Expunge
    processor: Processor
    lock: threading.RLock = field(default_factory=threading.RLock)
    """held by the one thread that uses the database"""

    @classmethod
    def open(cls, folder: Path, service: Expunge, processor: Processor) -> Intake:
        secret = secret_of(folder)
        return cls(opened(folder / "opendsr.db", TABLES), secret, service, processor)


def receive(intake: Intake, sent: SubjectRequest) -> dict[str, Any]:
    """Accept the request, or find it under the caller's id; return its row.

    Raises:
        Refused: another body under the same id (409), or what the service refuses: then nothing is noted.
        Unreachable: the service does not answer. Repeated, the call finds what it may have accepted.
    """
    name, digest = sent.subject_request_id, sent.digest(intake.secret)
    with intake.lock:
        known = find(intake, name)
        if known is None:
            urls = sorted(set(sent.status_callback_urls))
            received = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            values = (name, digest, received, json.dumps(urls), PENDING if urls else None, int(time.time()))
            new = (
                "INSERT INTO requests (id, digest, received, addresses, announced, asked_at) VALUES (?, ?, ?, ?, ?, ?)"
            )
            intake.database.execute(new, values)
        elif known["digest"] != digest:
            what = "This subject_request_id was used with another body. Take a new one."
            raise Refused(409, "subject_request_id_reused", what, [])
        elif known["request"] is not None:
            return known
        accepted = next(intake.service.requests(case_id=name), None) if known else None
        try:
            accepted = accepted or intake.service.delete(**order(sent), idempotency_key=f"opendsr-{name}")
        except Refused:
            intake.database.execute("DELETE FROM requests WHERE id = ? AND request IS NULL", (name,))
            raise
        made = "UPDATE requests SET request = ?, due = ? WHERE id = ?"
        intake.database.execute(made, (accepted["id"], accepted["due_at"], name))
        return dict(intake.database.execute("SELECT * FROM requests WHERE id = ?", (name,)).fetchone())


def find(intake: Intake, subject_request_id: str) -> dict[str, Any] | None:
    """Return the row of the caller's request; None: there is no such request."""
    with intake.lock:
        here = "SELECT * FROM requests WHERE id = ?"
        row = intake.database.execute(here, (subject_request_id.lower(),)).fetchone()
    return None if row is None else dict(row)


def ask(intake: Intake, row: dict[str, Any]) -> DeletionRequest | None:
    """Return the service's request; None: it knows none. After a restore the caller must send it again."""
    if row["request"] is None:
        return None
    try:
        return intake.service.request(row["request"])
    except Refused as error:
        if error.status != 404:
            raise
    with intake.lock:
        lost = "UPDATE requests SET request = NULL WHERE id = ? AND request = ?"
        intake.database.execute(lost, (row["id"], row["request"]))
    return None


def state_of(processor: Processor, request: DeletionRequest, subject_request_id: str) -> dict[str, Any]:
    """Return what OpenDSR says about a request's state. It names no person."""
    return {
        "api_version": API_VERSION,
        "controller_id": processor.controller,
        "expected_completion_time": request["due_at"],
        "subject_request_id": subject_request_id.lower(),
        "request_status": WORDS["running" if request.get("erasing") else request["status"]],
    }


def announce(intake: Intake) -> int:
    """Note a callback for each request that has gone on since the last one; return how many requests did.

    ``in_progress``, ``completed`` and ``cancelled`` are announced at most once each, and never a step back.
    """
    waiting = (
        "SELECT * FROM requests WHERE announced IN ('pending', 'in_progress') AND request IS NOT NULL "
        "ORDER BY asked_at, id LIMIT ?"
    )
    with intake.lock:
        rows = [dict(row) for row in intake.database.execute(waiting, (ASKED_AT_ONCE,))]
    gone_on = 0
    for row in rows:
        request = ask(intake, row)
        said = None if request is None else state_of(intake.processor, request, row["id"])
        further = said is not None and STEPS[said["request_status"]] > STEPS[row["announced"]]
        with intake.lock, writing(intake.database):
            asked = "UPDATE requests SET asked_at = ? WHERE id = ?"
            intake.database.execute(asked, (int(time.time()), row["id"]))
            if said is None or not further:
                continue
            gone_on += 1
            intake.database.execute(
                "UPDATE requests SET announced = ? WHERE id = ?", (said["request_status"], row["id"])
            )
            for url in json.loads(row["addresses"]):
                body = json.dumps(said | {"status_callback_url": url}, sort_keys=True, separators=(",", ":")).encode()
                callback = "INSERT INTO callbacks (url, body, attempts, next_at) VALUES (?, ?, 0, ?)"
                intake.database.execute(callback, (url, body, time.time()))
    return gone_on
