"""Intake's fast way: one subject, in every model, under an Idempotency-Key that nobody used.

The same rows as ``intake.accept``, by compiled statements: on PostgreSQL the questions take one round trip, and the
rows with their COMMIT another. Whatever is not this common case writes nothing here and is left to the plain way,
which is also its twin in the tests.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sqlalchemy import BigInteger, Integer, and_, cast, func, literal_column, select, true

from service.infra.db import CLOCKS, Database
from service.infra.fault_injection import crash_point
from service.infra.pseudonyms import Pepper
from service.infra.tables import (
    ApiKey,
    AuditEntry,
    DeletionRequest,
    IdempotencyKey,
    Membership,
    Model,
    Restoration,
    SuppressionEntry,
    Task,
)
from service.infra.wire import Statement, Wire, given, inserting
from service.requests.idempotency import Stored, Use, row_of
from service.requests.intake import FORGETTING, Accepted, Draft, Order, Windows, digests, draft

_FORGETTERS = (Model.tenant_id == given("tenant_id"), Model.status.in_(FORGETTING))


def _begin(dialect: str) -> Any:
    """Whether the Idempotency-Key is ours now, the clock, whether the API key stands and the service may write; and
    beside it every model.

    The models are taken in share mode as in ``intake.accept``: no publication passes between matching and commit.
    """
    clock = literal_column(f"({CLOCKS[dialect]})", Integer)
    # SQLite's writers are alone: nobody else can be working under the key
    ours = func.pg_try_advisory_xact_lock(cast(given("lock"), BigInteger)) if dialect == "postgresql" else true()
    key = select(ApiKey.id).where(
        ApiKey.id == given("key_id"), ApiKey.revoked_at.is_(None), func.coalesce(ApiKey.expires_at > clock, true())
    )
    restored = select(Restoration.id).where(Restoration.confirmed_at.is_(None))
    stands = and_(key.exists(), ~restored.exists()).label("stands")
    start = select(ours.label("ours"), clock.label("at"), stands).subquery("start")
    models = (
        select(Model.id, Model.name, Model.status, Model.generation_id, Model.notified_at)
        .where(*_FORGETTERS)
        .order_by(Model.id)
        .with_for_update(read=True)
        .subquery("found")
    )
    return select(start, models).select_from(start.outerjoin(models, true()))


_BEGIN = Statement({dialect: _begin(dialect) for dialect in CLOCKS})
_USED, _LARGE = -1, -2
_ANY = 2**62
"""more samples than anybody has"""
_HERE = select(Membership.position).where(
    Membership.generation_id == Model.generation_id, Membership.subject_digest == given("subject")
)
_MATCHES = Statement.of(
    select(literal_column(str(_USED)))
    .where(
        IdempotencyKey.tenant_id == given("tenant_id"),
        IdempotencyKey.key_id == given("key_id"),
        IdempotencyKey.key == given("key"),
    )
    .union_all(
        select(Model.generation_id).where(*_FORGETTERS, _HERE.exists()),
        select(literal_column(str(_LARGE))).where(
            *_FORGETTERS, _HERE.offset(cast(given("usual"), BigInteger)).exists()
        ),
    )
)
"""the generations that hold the subject; ``_USED`` where the Idempotency-Key was used before, ``_LARGE`` where one of
them holds more samples of the subject than is usual. Asked after ``_BEGIN``, for a statement sees what was committed
before it began"""
_REQUEST = inserting(
    DeletionRequest,
    *("id", "tenant_id", "subject_digest", "pepper_id", "status", "reason", "models", "suppress_after"),
    *("regulation", "salt", "received_at", "due_at", "created_at", "completed_at", "traceparent"),
)
_SUPPRESSION = inserting(
    SuppressionEntry, "id", "tenant_id", "request_id", "subject_digest", "sample_digest", "pepper_id", "created_at"
)
_TASK = inserting(Task, "id", "tenant_id", "request_id", "model_id", "status", "attempts", "not_before", "created_at")
_ENTRY = inserting(AuditEntry, "tenant_id", "kind", "request_id", "model_id", "body", "created_at")
_ANSWER = inserting(
    IdempotencyKey,
    *("tenant_id", "key_id", "key", "body_digest", "status_code", "headers", "answer", "expires_at"),
)


def accept(
    database: Database,
    pepper: Pepper,
    order: Order,
    use: Use,
    answer: Callable[[Accepted], Stored],
    *,
    windows: Windows,
    lifetime_seconds: float,
) -> tuple[Accepted, Stored] | None:
    """Take an order in and commit; ``answer`` makes what is stored under the Idempotency-Key.

    None, and nothing was written: the order, the key, or what it meets asks for the plain way.
    Raises ReceivedInFuture, Busy.
    """
    if order.subject_id is None or order.models is not None or not order.verified or not pepper.alone:
        return None
    named = digests(pepper, use.caller.tenant_id, order)
    with database.wire(crash="api-inside-commit") as wire:
        at, touched = _look(wire, use, named[0].subject, windows.large_samples or _ANY)
        if not touched:
            return None
        places = [(model_id, name) for model_id, name, *_ in touched]
        drawn = draft(pepper, use.caller.tenant_id, order, named, at=at, touched=places, windows=windows)
        rung = tuple(model_id for model_id, _, _, _, notified_at in touched if notified_at == 0)
        accepted = Accepted(drawn.request, drawn.names, rung)
        stored = answer(accepted)
        _write(wire, drawn, row_of(use, stored, at, lifetime_seconds))
    return accepted, stored


def _look(wire: Wire, use: Use, subject: str | None, usual: int) -> tuple[int, list[Any]]:
    """The clock, and the models (id, name, status, generation, notified) with work; none where the plain way must
    look.
    """
    tenant_id, key_id, key = use.place
    named = {"tenant_id": tenant_id, "key_id": key_id, "key": key, "lock": use.lock, "subject": subject, "usual": usual}
    begun = wire.send(_BEGIN, named)
    matches = wire.send(_MATCHES, named)
    rows = begun.fetchall()
    ours, at, stands = rows[0][:3]
    holding = {generation_id for (generation_id,) in matches.fetchall()}
    if not (ours and stands) or not holding.isdisjoint({_USED, _LARGE}):
        return at, []
    return at, [row[3:] for row in rows if row[5] == "preparing" or (row[6] is not None and row[6] in holding)]


def _write(wire: Wire, drawn: Draft, kept: dict[str, Any]) -> None:
    wire.insert(
        (_REQUEST, drawn.row | {"models": "null"}),
        *((_SUPPRESSION, suppression) for suppression in drawn.suppressions),
        *((_TASK, task) for task in drawn.tasks),
        (_ENTRY, drawn.entry),
        (_ANSWER, kept | {"headers": json.dumps(kept["headers"]), "answer": json.dumps(kept["answer"])}),
    )
    crash_point("api-after-request")
    crash_point("api-after-audit")
