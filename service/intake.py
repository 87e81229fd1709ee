"""Taking in a deletion request: the request, its tombstones, its tasks and the audit entry, in one transaction."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

from sqlalchemy import Select, insert, select
from sqlalchemy.orm import Session

from service import tombstones
from service.crash import crash_point
from service.identity import Pepper, digest, new_id, sample_digest, subject_digest
from service.ledger import canonical, record, recorded_at
from service.moments import SECOND, instant, moment
from service.progress import record_status
from service.records import DeletionRequest, Model, Task, Tombstone
from service.requests import Regulation, Status, due_at

_FORGETTING = ("preparing", "live", "exhausted")


class UnknownModels(LookupError):
    """The request names models that the tenant does not have. ``places`` are their indices in the list."""

    def __init__(self, places: list[int]) -> None:
        super().__init__(f"{len(places)} unknown models")
        self.places = places


class ReceivedInFuture(ValueError):
    """``received_at`` lies after the database's now."""


@dataclass(frozen=True)
class Order:
    """What a controller asks: forget this subject, or these samples, in these models (None: in all)."""

    subject_id: str | None = None
    sample_ids: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    regulation: Regulation | None = None
    received_at: datetime | None = None


@dataclass(frozen=True)
class Accepted:
    request: DeletionRequest
    models: tuple[str, ...]
    """names of the models that have work now"""
    nudges: tuple[str, ...]
    """ids of those among them whose workers were not rung yet"""


def accept(
    session: Session, pepper: Pepper, tenant_id: str, order: Order, cancel_window_seconds: float = 0
) -> Accepted:
    """Write everything a request needs. When the transaction commits, the request cannot be lost.

    Every model that is preparing gets a task, whatever it will turn out to hold; any other one gets a task where
    it was trained on the subject. Without any task the request is completed at once. No row of ``models`` is
    changed: intake takes them in share mode, so that requests do not wait for each other, only for a publication.

    Raises UnknownModels, ReceivedInFuture.
    """
    # in share mode: no publication can pass between our matching and our commit
    models = session.scalars(named_models(session, tenant_id, order).with_for_update(read=True)).all()
    request = _request(pepper, tenant_id, order, recorded_at(session))
    samples = sorted({sample_digest(pepper, sample) for sample in order.sample_ids or ()})
    touched = [model for model in models if _touches(session, model, request.subject_digest, samples)]
    if not touched:
        request.status, request.reason, request.completed_at = Status.COMPLETED, "no_match", request.created_at
    session.add(request)
    session.flush()
    crash_point("api-after-request")
    _write_tombstones(session, request, samples)
    _write_tasks(session, request, touched, cancel_window_seconds)
    record(
        session,
        tenant_id,
        "request.accepted",
        request_id=request.id,
        commitment=commitment(opening(pepper, request), order),
        samples_named=len(samples) or None,
        models=sorted(model.name for model in touched),
        regulation=request.regulation,
        received_at=request.received_at,
        due_at=request.due_at,
    )
    if not touched:
        record_status(session, request)
    session.flush()
    crash_point("api-after-audit")
    names = tuple(sorted(model.name for model in touched))
    return Accepted(request, names, tuple(model.id for model in touched if model.nudged_at == 0))


def opening(pepper: Pepper, request: DeletionRequest) -> bytes:
    """The 32 bytes that open the request's commitment. They follow from the row's salt under the pepper.

    They are handed to the controller and stored nowhere: whoever reads the database without the pepper cannot
    try subjects against the commitment.
    """
    return bytes.fromhex(digest(pepper, "opening", request.salt))


def commitment(salt: bytes, order: Order) -> str:
    """HMAC-SHA-256 over the canonical JSON of who is named, keyed by the opening: 64 hex digits."""
    named = (
        {"subject": order.subject_id} if order.subject_id is not None else {"samples": sorted(order.sample_ids or ())}
    )
    return hmac.new(salt, canonical(named).encode(), "sha256").hexdigest()


def named_models(session: Session, tenant_id: str, order: Order) -> Select[Model]:
    """The models that the order is about and that can forget, in id order. Raises UnknownModels."""
    chosen = select(Model).where(Model.tenant_id == tenant_id, Model.status.in_(_FORGETTING)).order_by(Model.id)
    if order.models is None:
        return chosen
    known = set(session.scalars(select(Model.name).where(Model.tenant_id == tenant_id)))
    unknown = [place for place, name in enumerate(order.models) if name not in known]
    if unknown:
        raise UnknownModels(unknown)
    return chosen.where(Model.name.in_(order.models))


def _touches(session: Session, model: Model, subject_digest: str | None, samples: list[str]) -> bool:
    """Whether the model gets a task. While it is preparing nobody knows yet whom it holds: it always does."""
    if model.status == "preparing" or model.lineage_id is None:
        return model.status == "preparing"
    return tombstones.matches(session, model.lineage_id, subject_digest, samples)


def _request(pepper: Pepper, tenant_id: str, order: Order, at: int) -> DeletionRequest:
    received = instant(at) if order.received_at is None else order.received_at.astimezone(UTC)
    if moment(received) > at:
        raise ReceivedInFuture
    due = due_at(received, order.regulation)
    return DeletionRequest(
        id=new_id(),
        tenant_id=tenant_id,
        subject_digest=None if order.subject_id is None else subject_digest(pepper, order.subject_id),
        pepper_id=pepper.id,
        status=Status.QUEUED,
        models=None if order.models is None else sorted(set(order.models)),
        regulation=order.regulation,
        salt=secrets.token_bytes(32),
        received_at=moment(received),
        due_at=None if due is None else moment(due),
        created_at=at,
    )


def _write_tombstones(session: Session, request: DeletionRequest, samples: list[str]) -> None:
    """One for the subject, or one for each sample."""
    pairs: list[tuple[str | None, str | None]] = [(None, sample) for sample in samples]
    if request.subject_digest is not None:
        pairs = [(request.subject_digest, None)]
    rows = [
        {
            "id": new_id(),
            "tenant_id": request.tenant_id,
            "request_id": request.id,
            "subject_digest": subject,
            "sample_digest": sample,
            "pepper_id": request.pepper_id,
            "created_at": request.created_at,
        }
        for subject, sample in pairs
    ]
    session.execute(insert(Tombstone), rows)


def _write_tasks(session: Session, request: DeletionRequest, models: list[Model], window_seconds: float) -> None:
    not_before = request.created_at + int(window_seconds * SECOND)
    rows = [
        {
            "id": new_id(),
            "tenant_id": request.tenant_id,
            "request_id": request.id,
            "model_id": model.id,
            "status": "queued",
            "not_before": not_before,
            "created_at": request.created_at,
        }
        for model in models
    ]
    if rows:
        session.execute(insert(Task), rows)
