"""Accepting deletion requests: the requests, their suppression entries, their tasks and the audit entries.

All of them are written in one transaction.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, bindparam, insert, select
from sqlalchemy.orm import Session

from expunge.service.audit import canonical, entry, recorded_at
from expunge.service.infra.actors import Actor
from expunge.service.infra.fault_injection import crash_point
from expunge.service.infra.pseudonyms import Pepper, digest, new_id, sample_digest, subject_digest
from expunge.service.infra.tables import AuditEntry, DeletionRequest, Generation, Model, SuppressionEntry, Task
from expunge.service.infra.time import SECOND, instant, moment, offset_of, time_zone
from expunge.service.infra.tracing import carried
from expunge.service.requests import suppression
from expunge.service.requests.deadlines import Regulation, due_at
from expunge.service.requests.near_misses import Asked, Question, Searched, Written, ask
from expunge.service.requests.reasons import Cause, Reason, stored
from expunge.service.requests.states import RequestRefused, Status, Suppress
from expunge.service.requests.status import announce_requests, record_status
from expunge.service.requests.webhooks import WebhookEvent
from unlearning.accounting.ids import nfc
from unlearning.accounting.policy import Twins

FORGETTING = ("preparing", "live", "exhausted")
_MODELS = Model.__table__.c
_FORGETTERS = (
    select(_MODELS.id, _MODELS.name, _MODELS.status, _MODELS.generation_id, _MODELS.notified_at)
    .add_columns(_MODELS.policy["twins"].as_string())
    .where(_MODELS.tenant_id == bindparam("tenant"), _MODELS.status.in_(FORGETTING))
    .order_by(_MODELS.id)
)
_LOCKED = _FORGETTERS.with_for_update(read=True)
_INSERTS = {kind: insert(kind.__table__) for kind in (DeletionRequest, SuppressionEntry, AuditEntry, Task)}


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
    time_zone: str | None = None
    """the controller's, in which a regulation's months are counted; None: the offset of ``received_at``, else UTC"""
    verified: bool = True
    """whether the controller knows that the person asked; where not, ``identity_check`` accepts the order"""
    suppress: Suppress = Suppress.EVERYWHERE
    """of an order that names models: whether later registrations of other models leave the person out as well"""
    expected_samples: int | None = None
    """samples of the person that the models hold, by the controller's books: where they disagree, a person decides"""
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
    """ids of those among them without a notification yet"""
    large: frozenset[str] = frozenset()
    """names of the models in which it is blocked for its size"""
    remains_in: tuple[str, ...] | None = ()
    """names of the models that the order leaves alone and that hold the person, or may; None: not searched"""
    note: str | None = None
    """what the text of its ids alone says: it looks damaged, or as no id does"""


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
    """ids of those that have work now and no notification yet"""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(name for _, name in self.places))


class Forgetter(NamedTuple):
    """What intake reads of a model that can forget. ``generation_id``: the one served; while preparing, prepared."""

    id: str
    name: str
    status: str
    generation_id: int | None
    notified_at: int
    twins: str | None
    """the field of the policy; None: its default"""


class IntakeOutcome(StrEnum):
    """What is known of a request's person when it is accepted."""

    MATCHED = "matched"
    NEAR_MISS = "near_miss"
    NO_MATCH = "no_match"
    ALREADY_DELETED = "already_deleted"
    IN_HOLDOUT = "in_holdout"


NOWHERE = Reach((), frozenset(), ())


@dataclass(frozen=True)
class NewRequest:
    """A request that is about to be written: its order, what that names, and the request's row."""

    order: Order
    named: Named
    row: dict[str, Any]
    found: Reach = NOWHERE
    written: Mapping[str, Written] = field(default_factory=dict)
    """how the ids of the subject are written, by digest"""
    asked: Asked | None = None
    """None: no question was asked yet, the request is not verified"""

    @property
    def in_force(self) -> Reason | None:
        """Return why the suppression entries are not in force yet; None: they are."""
        if self.asked is None:
            return Reason.UNVERIFIED
        return None if self.asked.question is None else Reason.NEAR_MISS


def accept(session: Session, pepper: Pepper, tenant_id: str, order: Order, windows: Windows = NO_WINDOWS) -> Accepted:
    """Accept one order, see ``accept_all``."""
    return accept_all(session, pepper, tenant_id, [order], windows)[0]


def accept_all(
    session: Session, pepper: Pepper, tenant_id: str, orders: Sequence[Order], windows: Windows = NO_WINDOWS
) -> list[Accepted]:
    """Write everything that the requests need. When the transaction commits, none of them can be lost.

    A model gets a task where it was trained on the subject; the task is blocked as ``large`` where the subject has
    unusually many samples. One that is preparing gets a task until its members are written: they are not known yet.
    Without any task a request is completed at once. A near miss gets none until a person has decided. The rows of
    ``models`` are locked in share mode and not changed, so requests wait for a publication and not for each other.

    Raises RequestRefused for unknown models and for a receipt in the future; then none of the orders is accepted.
    """
    names = require_known(session, tenant_id, orders)
    models = locked_forgetters(session, tenant_id, *(() if names is None else (Model.name.in_(names),)))
    new = [_new_request(session, pepper, tenant_id, order, models, windows=windows) for order in orders]
    requests = write(session, pepper, new)
    written = list(zip(requests, new, strict=True))
    tasks = [
        task for request, each in written for task in tasks_of(request, each.found, each.row["created_at"], windows)
    ]
    write_tasks(session, tasks)
    announce_requests(session, *((WebhookEvent.REQUEST_ACCEPTED, request) for request in requests))
    record_status(session, *(request for request, each in written if not each.found.places or each.found.large))
    session.flush()
    crash_point("api-after-audit")
    return [_answer(session, tenant_id, request, each) for request, each in written]


def decide(session: Session, pepper: Pepper, tenant_id: str, order: Order, windows: Windows = NO_WINDOWS) -> NewRequest:
    """Return what ``accept`` would write for the order, without writing it. Raises RequestRefused."""
    names = require_known(session, tenant_id, [order])
    models = forgetters(session, tenant_id, *(() if names is None else (Model.name.in_(names),)))
    return _new_request(session, pepper, tenant_id, order, models, windows=windows)


def _answer(session: Session, tenant_id: str, request: DeletionRequest, each: NewRequest) -> Accepted:
    large = frozenset(name for key, name in each.found.places if key in each.found.large)
    remains_in = _remains_in(session, tenant_id, each.order, each.named)
    text = None if each.asked is None else each.asked.text
    note = None if text is None else Reason.NEAR_MISS.says({"cause": text})
    return Accepted(request, each.found.names, each.found.to_notify, large, remains_in, note)


def _new_request(
    session: Session, pepper: Pepper, tenant_id: str, order: Order, models: Sequence[Forgetter], *, windows: Windows
) -> NewRequest:
    """Decide what becomes of an order. ``models``: those that it covers, and maybe others, all locked."""
    named = Named.of(pepper, tenant_id, order)
    covered = [model for model in models if order.models is None or model.name in order.models]
    found = reach(session, covered, named, windows)
    row = new_row(session, tenant_id, order, named)
    written = written_ids(pepper, tenant_id, order)
    asked = ask_about(session, tenant_id, written, covered, waits=True)
    if asked.question is None and _disagrees(session, covered, named, order.expected_samples):
        asked = replace(asked, question=Question(Cause.COUNT))
    if asked.question is not None:
        found = NOWHERE
        row |= {"status": Status.BLOCKED.value, "reason": Reason.NEAR_MISS, "near": list(asked.question.near)}
        row["facts"], row["outcome"] = stored(Reason.NEAR_MISS, asked.question.facts), IntakeOutcome.NEAR_MISS
    elif found.large:
        row |= {"status": Status.BLOCKED.value, "reason": Reason.LARGE}
    elif not found.places:
        why, facts = why_nothing(session, tenant_id, named, covered, order.models, compared=asked.compared)
        row |= {"status": Status.COMPLETED.value, "reason": why, "completed_at": row["created_at"]}
        row["facts"] = stored(why, facts)
        row["outcome"] = _OUTCOMES.get(why, IntakeOutcome.NO_MATCH)
    return NewRequest(order, named, row, found, written, asked)


_OUTCOMES = {Reason.ALREADY_DELETED: IntakeOutcome.ALREADY_DELETED, Reason.IN_HOLDOUT: IntakeOutcome.IN_HOLDOUT}


def _disagrees(session: Session, models: Sequence[Forgetter], named: Named, expected: int | None) -> bool:
    """Return whether the models hold another number of the person's samples than the order expects.

    Models with people not known yet hold nothing so far.
    """
    if expected is None or not named.subjects:
        return False
    known = {model.generation_id for model in models} - _unknown(session, models) - {None}
    trained = suppression.trained_on(session, known, named.subjects, ())
    return sum(trained.values()) - sum(suppression.removed_from(session, known, named.subjects).values()) != expected


def written_ids(pepper: Pepper, tenant_id: str, order: Order) -> dict[str, Written]:
    """Return how each id of the order's subject is written, by its digest; none where it names samples."""
    return {
        subject_digest(pepper, tenant_id, subject): Written.of(pepper, tenant_id, subject) for subject in order.subjects
    }


def ask_about(
    session: Session,
    tenant_id: str,
    written: Mapping[str, Written | None],
    models: Sequence[Forgetter],
    decided: Collection[int] | None = None,
    *,
    waits: bool = False,
) -> Asked:
    """Ask whether the ids may be another spelling of those of people of these models; see ``near_misses.ask``.

    ``waits``: the request will wait for those of the models whose people are not known yet.
    """
    unknown = _unknown(session, models)
    searched = [
        Searched(model.id, model.generation_id, model.twins != Twins.IGNORE)
        for model in models
        if model.generation_id is not None and model.generation_id not in unknown
    ]
    waits = waits and bool(unknown)
    return ask(session, tenant_id, written, searched, unknown=bool(unknown), waits=waits, decided=decided)


def write(session: Session, pepper: Pepper, new: Sequence[NewRequest]) -> list[DeletionRequest]:
    """Insert the requests' rows, their suppression entries and their entries in the audit log."""
    session.execute(_INSERTS[DeletionRequest], [each.row for each in new])
    crash_point("api-after-request")
    session.execute(_INSERTS[SuppressionEntry], [row for each in new for row in _suppressions(each)])
    session.execute(_INSERTS[AuditEntry], [_accepted(session, pepper, each) for each in new])
    return [DeletionRequest(**each.row) for each in new]


def _accepted(session: Session, pepper: Pepper, each: NewRequest) -> dict[str, Any]:
    order, row = each.order, each.row
    return entry(
        session,
        row["tenant_id"],
        "request.accepted",
        request_id=row["id"],
        commitment=commitment(opening(pepper, row["salt"]), order),
        suppressions=suppression.entries_digest(pepper, row["id"], _pairs(each)),
        samples_named=len(each.named.samples) or None,
        models=list(each.found.names),
        suppress=None if order.models is None else order.suppress.value,
        regulation=row["regulation"],
        received_at=row["received_at"],
        time_zone=row["time_zone"],
        due_at=row["due_at"],
        verified=order.verified,
    )


def reach(session: Session, models: Sequence[Forgetter], named: Named, windows: Windows) -> Reach:
    """Return which of the models the order has work in. The caller has locked the models' rows.

    A request is never large where it names samples, which has a limit already, or where a model is still prepared.
    """
    touched, count = _touched(session, models, named)
    most = windows.large_samples if named.subjects else 0
    measured = [
        model for model in touched if most and model.status != "preparing" and count[model.generation_id] > most
    ]
    gone = suppression.removed_from(session, [model.generation_id for model in measured], named.subjects)
    large = frozenset(model.id for model in measured if count[model.generation_id] - gone[model.generation_id] > most)
    to_notify = tuple(model.id for model in touched if model.notified_at == 0 and model.id not in large)
    return Reach(tuple((model.id, model.name) for model in touched), large, to_notify)


def _remains_in(session: Session, tenant_id: str, order: Order, named: Named) -> tuple[str, ...]:
    """Return the sorted names of the models that the order leaves alone although they hold the person, or may."""
    if order.models is None:
        return ()
    left = forgetters(session, tenant_id, Model.name.not_in(order.models))
    return tuple(sorted(model.name for model in _touched(session, left, named)[0]))


def why_nothing(
    session: Session,
    tenant_id: str,
    named: Named,
    searched: Sequence[Forgetter],
    limited_to: Collection[str] | None,
    *,
    compared: bool,
) -> tuple[Reason, dict[str, Any]]:
    """Return the reason of a request that has no task, and what its sentence names.

    ``searched``: the models that were searched. ``limited_to``: the names that the request is limited to; None: it is
    not. What other models know of the person is then no reason of this request. ``compared``: other spellings of the
    ids were looked for.
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
    facts = {"searched": len(searched), "cause": Cause.COMPARED if compared else Cause.EXACTLY}
    return (Reason.NO_MATCH if limited_to is None else Reason.NOT_IN_NAMED_MODELS), facts


def opening(pepper: Pepper, salt: bytes) -> bytes:
    """Return the 32 bytes that open the request's commitment. They follow from its row's salt under the pepper.

    The controller gets them, and they are not stored: the database alone does not allow to try subjects against the
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


def require_known(session: Session, tenant_id: str, orders: Sequence[Order]) -> list[str] | None:
    """Return the names of the models that the orders are limited to, sorted. None: one of them is not.

    Raises RequestRefused where the tenant lacks one of the models that an order names.
    """
    named = [order.models for order in orders if order.models is not None]
    known = set(session.scalars(select(Model.name).where(Model.tenant_id == tenant_id))) if named else set()
    for names in named:
        unknown = [place for place, name in enumerate(names) if name not in known]
        if unknown:
            errors = [{"pointer": f"/models/{place}", "detail": "There is no such model."} for place in unknown]
            raise RequestRefused(422, "unknown_model", "The request names models that do not exist.", errors)
    return sorted({name for names in named for name in names}) if len(named) == len(orders) else None


def forgetters(session: Session, tenant_id: str, *which: ColumnElement[bool]) -> list[Forgetter]:
    """Return the tenant's models that can forget, in id order; of them, ``which``."""
    return [Forgetter(*row) for row in session.execute(_FORGETTERS.where(*which), {"tenant": tenant_id})]


def locked_forgetters(session: Session, tenant_id: str, *which: ColumnElement[bool]) -> list[Forgetter]:
    """Return the same with their rows locked in share mode: no publication passes between matching and commit."""
    query = _LOCKED.where(*which) if which else _LOCKED
    return [Forgetter(*row) for row in session.execute(query, {"tenant": tenant_id})]


def _touched(
    session: Session, models: Sequence[Forgetter], named: Named
) -> tuple[list[Forgetter], Counter[int | None]]:
    """Return the models that get a task, and how many of the named samples each generation was trained on.

    A model that is preparing does until its members are known.
    """
    unknown = _unknown(session, models)
    known = {model.generation_id for model in models} - unknown - {None}
    count = suppression.trained_on(session, known, named.subjects, named.samples)
    return [each for each in models if each.generation_id in unknown or count[each.generation_id]], count


def _unknown(session: Session, models: Sequence[Forgetter]) -> set[int | None]:
    """Return the generations with people not known yet: those in preparation whose members are not written."""
    preparing = {model.generation_id for model in models if model.status == "preparing"}
    notes = select(Generation.id, Generation.manifest).where(Generation.id.in_(preparing))
    found = session.execute(notes).all() if preparing else ()
    return preparing.difference(key for key, notes in found if notes and suppression.MEMBERS_FROZEN in notes)


def new_row(session: Session, tenant_id: str, order: Order, named: Named) -> dict[str, Any]:
    """Return the row of a queued request. Raises RequestRefused where it was received in the future, or due before."""
    at = recorded_at(session)
    received = order.received_at or instant(at)
    zone = order.time_zone or offset_of(received)
    if moment(received) > at:
        errors = [{"pointer": "/received_at", "detail": "It must not be in the future."}]
        raise RequestRefused(422, "received_in_future", "received_at lies in the future.", errors)
    due = order.due_at or due_at(received.astimezone(time_zone(zone)), order.regulation)
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
        "caller": _caller(session),
        "outcome": IntakeOutcome.MATCHED if order.verified else None,
        "near": None,
        "salt": secrets.token_bytes(32),
        "received_at": moment(received),
        "time_zone": zone,
        "due_at": None if due is None else moment(due),
        "created_at": at,
        "completed_at": None,
        "traceparent": carried(),
    }


def _caller(session: Session) -> str | None:
    """Return the id of the key that this transaction acts for; None: no key was shown."""
    actor: Actor | None = session.info.get("actor")
    return None if actor is None else actor.key


def _suppressions(each: NewRequest) -> list[dict[str, Any]]:
    """Return the rows of the suppression entries: one for each id of the subject, or one for each sample."""
    request, lifted = each.row, each.in_force
    return [
        {
            "id": new_id(),
            "tenant_id": request["tenant_id"],
            "request_id": request["id"],
            "subject_digest": subject,
            "sample_digest": sample,
            "created_at": request["created_at"],
            "lifted_at": None if lifted is None else request["created_at"],
            "lifted_reason": lifted,
            "spelling": each.written[subject].to_json() if subject is not None and subject in each.written else None,
        }
        for subject, sample in _pairs(each)
    ]


def _pairs(each: NewRequest) -> list[tuple[str | None, str | None]]:
    """Return (subject, sample) of each entry, of which one is None."""
    return [(None, sample) for sample in each.named.samples] + [(subject, None) for subject in each.named.subjects]


def write_tasks(session: Session, tasks: Sequence[dict[str, Any]]) -> None:
    if tasks:
        session.execute(_INSERTS[Task], tasks)


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
