"""Accepting deletion requests: the requests, their suppression entries, their tasks and the audit entries.

All of them are written in one transaction.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, insert, select
from sqlalchemy.orm import Session

from expunge.service.audit import canonical, entry, recorded_at
from expunge.service.infra.fault_injection import crash_point
from expunge.service.infra.pseudonyms import Pepper, digest, new_id, sample_digest, subject_digest
from expunge.service.infra.tables import AuditEntry, DeletionRequest, Model, SuppressionEntry, Task
from expunge.service.infra.time import SECOND, instant, moment
from expunge.service.infra.tracing import carried
from expunge.service.requests import suppression
from expunge.service.requests.deadlines import Regulation, due_at
from expunge.service.requests.reasons import Reason, stored
from expunge.service.requests.states import RequestRefused, Status, Suppress
from expunge.service.requests.status import announce_requests, record_status
from expunge.service.requests.webhooks import WebhookEvent
from unlearning.accounting.ids import nfc

FORGETTING = ("preparing", "live", "exhausted")


@dataclass(frozen=True)
class Order:
    """What a controller asks for: forget this subject, or these samples, in these models (None: in all)."""

    subject_id: str | None = None
    subject_ids: tuple[str, ...] | None = None
    """several ids of one person, in place of ``subject_id``"""
    sample_ids: tuple[str, ...] | None = None
    models: tuple[str, ...] | None = None
    regulation: Regulation | None = None
    due_at: datetime | None = None
    """a deadline of the controller's own, in place of a regulation's"""
    received_at: datetime | None = None
    verified: bool = True
    """whether the controller knows that the person asked; where not, ``identity_check`` accepts the order"""
    suppress: Suppress = Suppress.EVERYWHERE
    """of an order that names models: whether later registrations of other models leave the person out as well"""
    case_id: str | None = None
    """the controller's own name for the case; it is in the table and under the commitment, and not in the audit log"""

    @property
    def subjects(self) -> tuple[str, ...]:
        """Return the ids of the person in their NFC form, sorted, each once; none where the order names samples."""
        ids = self.subject_ids or (() if self.subject_id is None else (self.subject_id,))
        return tuple(sorted(set(map(nfc, ids))))


@dataclass(frozen=True)
class Windows:
    """How long a request waits before it is worked on. ``large_samples`` 0: no request is blocked for its size."""

    cancel_seconds: float = 0
    large_samples: int = 0
    large_seconds: float = 0


NO_WINDOWS = Windows()


@dataclass(frozen=True)
class Accepted:
    """A request that was written, and what its answer says."""

    request: DeletionRequest
    models: tuple[str, ...]
    """names of the models that have work now"""
    to_notify: tuple[str, ...]
    """ids of those among them whose workers were not notified yet"""
    large: frozenset[str] = frozenset()
    """names of the models in which it is blocked for its size"""
    remains_in: tuple[str, ...] | None = ()
    """names of the models that the order leaves alone and that hold the person, or may; None: nobody looked"""


@dataclass(frozen=True)
class Named:
    """The keyed digests of what an order names: one person's ids, or samples."""

    subjects: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()

    @classmethod
    def of(cls, pepper: Pepper, tenant_id: str, order: Order) -> Named:
        return cls(
            tuple(sorted(subject_digest(pepper, tenant_id, each) for each in order.subjects)),
            tuple(sorted({sample_digest(pepper, tenant_id, each) for each in order.sample_ids or ()})),
        )

    @property
    def subject(self) -> str | None:
        """Return the digest of the only id; None: there are several, or samples are named."""
        return self.subjects[0] if len(self.subjects) == 1 else None


@dataclass(frozen=True)
class Reach:
    """The models in which an order has work."""

    places: tuple[tuple[str, str], ...]
    """the models as (id, name)"""
    large: frozenset[str]
    """ids of those that block it for its size"""
    to_notify: tuple[str, ...]
    """ids of those that have work now and whose workers were not notified yet"""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(name for _, name in self.places))


NOWHERE = Reach((), frozenset(), ())


@dataclass(frozen=True)
class NewRequest:
    """A request that is about to be written: its order, what that names, and the request's row."""

    order: Order
    named: Named
    row: dict[str, Any]
    found: Reach = NOWHERE


def accept(session: Session, pepper: Pepper, tenant_id: str, order: Order, windows: Windows = NO_WINDOWS) -> Accepted:
    """Accept one order, see ``accept_all``."""
    return accept_all(session, pepper, tenant_id, [order], windows)[0]


def accept_all(
    session: Session, pepper: Pepper, tenant_id: str, orders: Sequence[Order], windows: Windows = NO_WINDOWS
) -> list[Accepted]:
    """Write everything that the requests need. When the transaction commits, none of them can be lost.

    Every model that is preparing gets a task, because its members are not known yet. Any other model gets a task where
    it was trained on the subject; the task is blocked as ``large`` where the subject has unusually many samples.
    Without any task a request is completed at once. The rows of ``models`` are locked in share mode and not changed,
    so requests wait for a publication and not for each other.

    Raises RequestRefused for unknown models and for a receipt in the future; then none of the orders is accepted.
    """
    # in share mode: no publication can pass between our matching and our commit
    models = session.scalars(named_models(session, tenant_id, orders).with_for_update(read=True)).all()
    new = [_new_request(session, pepper, tenant_id, order, models, windows=windows) for order in orders]
    requests = write(session, pepper, new)
    written = list(zip(requests, new, strict=True))
    tasks = [
        task for request, each in written for task in tasks_of(request, each.found, each.row["created_at"], windows)
    ]
    if tasks:
        session.execute(insert(Task), tasks)
    announce_requests(session, *((WebhookEvent.REQUEST_ACCEPTED, request) for request in requests))
    record_status(session, *(request for request, each in written if not each.found.places or each.found.large))
    session.flush()
    crash_point("api-after-audit")
    return [_answer(session, tenant_id, request, each) for request, each in written]


def _answer(session: Session, tenant_id: str, request: DeletionRequest, each: NewRequest) -> Accepted:
    large = frozenset(name for key, name in each.found.places if key in each.found.large)
    remains_in = _remains_in(session, tenant_id, each.order, each.named)
    return Accepted(request, each.found.names, each.found.to_notify, large, remains_in)


def _new_request(
    session: Session, pepper: Pepper, tenant_id: str, order: Order, models: Sequence[Model], *, windows: Windows
) -> NewRequest:
    """Decide what becomes of an order. ``models``: those that it covers, and maybe others, all locked."""
    named = Named.of(pepper, tenant_id, order)
    covered = [model for model in models if order.models is None or model.name in order.models]
    found = reach(session, covered, named, windows)
    row = new_row(session, tenant_id, order, named)
    if found.large:
        row |= {"status": Status.BLOCKED.value, "reason": Reason.LARGE}
    if not found.places:
        why, facts = why_nothing(session, tenant_id, named, covered, order.models)
        row |= {"status": Status.COMPLETED.value, "reason": why, "completed_at": row["created_at"]}
        row["facts"] = stored(why, facts)
    return NewRequest(order, named, row, found)


def write(session: Session, pepper: Pepper, new: Sequence[NewRequest]) -> list[DeletionRequest]:
    """Insert the requests' rows, their suppression entries and their entries in the audit log."""
    session.execute(insert(DeletionRequest), [each.row for each in new])
    crash_point("api-after-request")
    session.execute(insert(SuppressionEntry), [row for each in new for row in _suppressions(each)])
    session.execute(insert(AuditEntry), [_accepted(session, pepper, each) for each in new])
    return [DeletionRequest(**each.row) for each in new]


def _accepted(session: Session, pepper: Pepper, each: NewRequest) -> dict[str, Any]:
    order, row = each.order, each.row
    return entry(
        session,
        row["tenant_id"],
        "request.accepted",
        request_id=row["id"],
        commitment=commitment(opening(pepper, row["salt"]), order),
        samples_named=len(each.named.samples) or None,
        models=list(each.found.names),
        suppress=None if order.models is None else order.suppress.value,
        regulation=row["regulation"],
        received_at=row["received_at"],
        due_at=row["due_at"],
        verified=order.verified,
    )


def reach(session: Session, models: Iterable[Model], named: Named, windows: Windows) -> Reach:
    """Return which of the models the order has work in. The caller has locked the models' rows."""
    touched = [model for model in models if _touches(session, model, named)]
    large = frozenset(model.id for model in touched if _is_large(session, model, named, windows))
    to_notify = tuple(model.id for model in touched if model.notified_at == 0 and model.id not in large)
    return Reach(tuple((model.id, model.name) for model in touched), large, to_notify)


def _remains_in(session: Session, tenant_id: str, order: Order, named: Named) -> tuple[str, ...]:
    """Return the sorted names of the models that the order leaves alone although they hold the person, or may."""
    if order.models is None:
        return ()
    left = session.scalars(suppression.others(tenant_id, order.models, FORGETTING)).all()
    return tuple(sorted(model.name for model in left if _touches(session, model, named)))


def why_nothing(
    session: Session, tenant_id: str, named: Named, searched: Sequence[Model], limited_to: Collection[str] | None
) -> tuple[Reason, dict[str, Any]]:
    """Return the reason of a request that has no task, and what its sentence names.

    ``searched``: the models that were searched. ``limited_to``: the names that the request is limited to; None: it is
    not. What other models know of the person is then no reason of this request.
    """
    kinds: list[tuple[str | None, Sequence[str]]] = [(subject, ()) for subject in named.subjects]
    for kind in kinds or [(None, named.samples)]:
        for each in suppression.carried_out(session, tenant_id, *kind):
            if limited_to is None or each.model in limited_to:
                return Reason.ALREADY_DELETED, {"earlier": each.request}
    generations = None if limited_to is None else [model.generation_id or 0 for model in searched]
    reason, facts = suppression.why_unknown(session, tenant_id, named.subjects, generations)
    if reason is not Reason.NO_MATCH:
        return reason, facts
    return (Reason.NO_MATCH if limited_to is None else Reason.NOT_IN_NAMED_MODELS), {"searched": len(searched)}


def opening(pepper: Pepper, salt: bytes) -> bytes:
    """Return the 32 bytes that open the request's commitment. They follow from its row's salt under the pepper.

    The controller gets them, and they are not stored: with the database alone nobody can try subjects against the
    commitment.
    """
    return bytes.fromhex(digest(pepper, "opening", salt))


def commitment(salt: bytes, order: Order) -> str:
    """Return HMAC-SHA-256 over the canonical JSON of what the order names, keyed by the opening: 64 hex digits.

    One id is under ``subject``, several sorted under ``subjects``, samples sorted under ``samples``; the
    controller's case, where there is one, under ``case``.
    """
    subjects = order.subjects
    named: dict[str, Any] = {"samples": sorted(map(nfc, order.sample_ids or ()))}
    if subjects:
        named = {"subject": subjects[0]} if len(subjects) == 1 else {"subjects": list(subjects)}
    if order.case_id is not None:
        named["case"] = order.case_id
    return hmac.new(salt, canonical(named).encode(), "sha256").hexdigest()


def named_models(session: Session, tenant_id: str, orders: Sequence[Order]) -> Select[Model]:
    """Select the models that the orders cover and that can forget, in id order.

    Raises RequestRefused where the tenant lacks one of the models that an order names.
    """
    named = [order.models for order in orders if order.models is not None]
    known = set(session.scalars(select(Model.name).where(Model.tenant_id == tenant_id))) if named else set()
    for names in named:
        unknown = [place for place, name in enumerate(names) if name not in known]
        if unknown:
            errors = [{"pointer": f"/models/{place}", "detail": "There is no such model."} for place in unknown]
            raise RequestRefused(422, "unknown_model", "The request names models that do not exist.", errors)
    limited = len(named) == len(orders)
    return forgetters(tenant_id, sorted({name for names in named for name in names}) if limited else None)


def forgetters(tenant_id: str, names: Sequence[str] | None) -> Select[Model]:
    """Select the tenant's models that can forget, in id order; only those of ``names``, unless it is None."""
    chosen = select(Model).where(Model.tenant_id == tenant_id, Model.status.in_(FORGETTING)).order_by(Model.id)
    return chosen if names is None else chosen.where(Model.name.in_(names))


def _touches(session: Session, model: Model, named: Named) -> bool:
    """Return whether the model gets a task. A model that is preparing always does: its members are not known yet."""
    if model.status == "preparing" or model.generation_id is None:
        return model.status == "preparing"
    if not named.subjects:
        return suppression.matches(session, model.generation_id, None, named.samples)
    return any(suppression.matches(session, model.generation_id, each, ()) for each in named.subjects)


def _is_large(session: Session, model: Model, named: Named, windows: Windows) -> bool:
    """Return whether the subject has unusually many samples in the model.

    A request that names samples has a limit already.
    """
    if not windows.large_samples or model.status == "preparing" or not named.subjects:
        return False
    return suppression.exceeds(session, model.generation_id or 0, named.subjects, windows.large_samples)


def new_row(session: Session, tenant_id: str, order: Order, named: Named) -> dict[str, Any]:
    """Return the row of a queued request. Raises RequestRefused where it was received in the future, or due before."""
    at = recorded_at(session)
    received = instant(at) if order.received_at is None else order.received_at.astimezone(UTC)
    if moment(received) > at:
        errors = [{"pointer": "/received_at", "detail": "It must not be in the future."}]
        raise RequestRefused(422, "received_in_future", "received_at lies in the future.", errors)
    due = due_at(received, order.regulation) if order.due_at is None else order.due_at.astimezone(UTC)
    if due is not None and due < received:
        errors = [{"pointer": "/due_at", "detail": "It must not be before received_at."}]
        raise RequestRefused(422, "due_before_receipt", "due_at lies before the receipt.", errors)
    everywhere_later = order.models is not None and order.suppress is not Suppress.NAMED_MODELS
    return {
        "id": new_id(),
        "tenant_id": tenant_id,
        "subject_digest": named.subject,
        "case_id": order.case_id,
        "status": Status.QUEUED.value,
        "reason": None,
        "facts": None,
        "models": None if order.models is None else sorted(set(order.models)),
        "suppress_after": suppression.latest_registration(session) if everywhere_later else None,
        "regulation": None if order.regulation is None else order.regulation.value,
        "salt": secrets.token_bytes(32),
        "received_at": moment(received),
        "due_at": None if due is None else moment(due),
        "created_at": at,
        "completed_at": None,
        "traceparent": carried(),
    }


def _suppressions(each: NewRequest) -> list[dict[str, Any]]:
    """Return the rows of the suppression entries: one for each id of the subject, or one for each sample."""
    request, in_force = each.row, each.order.verified
    pairs: list[tuple[str | None, str | None]] = [(None, sample) for sample in each.named.samples]
    pairs += [(subject, None) for subject in each.named.subjects]
    return [
        {
            "id": new_id(),
            "tenant_id": request["tenant_id"],
            "request_id": request["id"],
            "subject_digest": subject,
            "sample_digest": sample,
            "created_at": request["created_at"],
            "lifted_at": None if in_force else request["created_at"],
            "lifted_reason": None if in_force else Reason.UNVERIFIED,
        }
        for subject, sample in pairs
    ]


def tasks_of(request: DeletionRequest, found: Reach, at: int, windows: Windows) -> list[dict[str, Any]]:
    """Return the rows of one task for each model, made ``at``; blocked in those where the request is large."""
    rows = []
    for model_id, _ in found.places:
        large = model_id in found.large
        wait = windows.large_seconds if large else windows.cancel_seconds
        rows.append(
            {
                "id": new_id(),
                "tenant_id": request.tenant_id,
                "request_id": request.id,
                "model_id": model_id,
                "status": "blocked" if large else "queued",
                "reason": Reason.LARGE if large else None,
                "facts": stored(Reason.LARGE, {"limit": windows.large_samples}) if large else None,
                "attempts": 0,
                "not_before": at + int(wait * SECOND),
                "created_at": at,
            }
        )
    return rows
