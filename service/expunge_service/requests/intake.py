"""Accepting deletion requests: the requests, their suppression entries, their tasks and the audit entries.

All of them are written in one transaction.
"""

from __future__ import annotations

import hmac
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, bindparam, insert, select
from sqlalchemy.orm import Session

from expunge_service.audit import canonical, entry, recorded_at
from expunge_service.infra.actors import Actor
from expunge_service.infra.pseudonyms import Pepper, digest, new_id, sample_digest, subject_digest
from expunge_service.infra.tables import AuditEntry, DeletionRequest, Model, SuppressionEntry, Task
from expunge_service.infra.time import SECOND, instant, moment, offset_of, time_zone
from expunge_service.requests import suppression
from expunge_service.requests.deadlines import Regulation, due_at
from expunge_service.requests.near_misses import Asked, Matches, Question, Searched, Written, ask, look_up
from expunge_service.requests.reasons import Cause, Reason, stored
from expunge_service.requests.states import RequestRefused, Status, Suppress
from expunge_service.requests.status import announce_requests, record_status
from expunge_service.requests.webhooks import WebhookEvent
from unlearning.accounting.ids import nfc
from unlearning.accounting.policy import Twins

FORGETTING = ("preparing", "live", "exhausted")
_MODELS = Model.__table__.c


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
    traceparent: str | None = None
    """of the call that brought the order"""

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
    """Accept one order, see ``accept_all``. Raises RequestRefused."""
    (answer,) = accept_all(session, pepper, tenant_id, [order], windows)
    if isinstance(answer, RequestRefused):
        raise answer
    return answer


def accept_all(
    session: Session, pepper: Pepper, tenant_id: str, orders: Sequence[Order], windows: Windows = NO_WINDOWS
) -> list[Accepted | RequestRefused]:
    """Write everything that the requests need. When the transaction commits, none of them can be lost.

    Of each order it returns the request, or why it is refused: it names a model that does not exist, was received in
    the future, or is due before its receipt. A refused order writes nothing, and the others are accepted.

    A model gets a task where it was trained on the subject; the task is blocked as ``large`` where the subject has
    unusually many samples. One that is preparing gets a task until its members are written: they are not known yet.
    Without any task a request is completed at once. A near miss gets none until a person has decided, and a request
    that is not verified none until it is. The rows of ``models`` are locked in share mode and not changed, so requests
    wait for a publication and not for each other.
    """
    answers = _new_requests(session, pepper, tenant_id, orders, windows)
    new = [each for each in answers if isinstance(each, NewRequest)]
    accepted = iter(_written(session, pepper, tenant_id, new, windows) if new else ())
    return [next(accepted) if isinstance(each, NewRequest) else each for each in answers]


def decide(session: Session, pepper: Pepper, tenant_id: str, order: Order, windows: Windows = NO_WINDOWS) -> NewRequest:
    """Return what ``accept`` would write for the order, without writing it. Raises RequestRefused."""
    (new,) = _new_requests(session, pepper, tenant_id, [order], windows, locked=False)
    if isinstance(new, RequestRefused):
        raise new
    return new


def _new_requests(
    session: Session,
    pepper: Pepper,
    tenant_id: str,
    orders: Sequence[Order],
    windows: Windows,
    *,
    locked: bool = True,
) -> list[NewRequest | RequestRefused]:
    """Return what becomes of each order, or why it is refused. One statement looks up what all of them name."""
    models = _covered_models(session, tenant_id, orders, locked=locked)
    limited = any(order.models is not None for order in orders)
    names = set(session.scalars(select(_MODELS.name).where(_MODELS.tenant_id == tenant_id))) if limited else set()
    drafts = [_draft(session, pepper, tenant_id, order, names) for order in orders]
    sought = [each for each in drafts if isinstance(each, NewRequest) and each.order.verified]
    if not sought:
        return drafts
    ids = {subject: written for each in sought for subject, written in each.written.items()}
    samples = {sample for each in sought for sample in each.named.samples}
    matches = look_up(session, tenant_id, ids, generations_of(models), samples)
    decided = iter([_decided(session, each, models, windows, matches) for each in sought])
    return [next(decided) if isinstance(each, NewRequest) and each.order.verified else each for each in drafts]


def _covered_models(session: Session, tenant_id: str, orders: Sequence[Order], *, locked: bool) -> list[Forgetter]:
    """Return the models that the verified orders cover. The others change no model yet."""
    limits = [order.models for order in orders if order.verified]
    if not limits:
        return []
    named = sorted({name for limit in limits for name in limit or ()})
    which = () if None in limits else (_MODELS.name.in_(named),)
    return (locked_forgetters if locked else forgetters)(session, tenant_id, *which)


def _draft(
    session: Session, pepper: Pepper, tenant_id: str, order: Order, names: Collection[str]
) -> NewRequest | RequestRefused:
    """Return the request of an order before its person is looked up. ``names``: of the tenant's models."""
    try:
        _require_known(order, names)
        named = Named.of(pepper, tenant_id, order)
        row = new_row(session, tenant_id, order, named)
    except RequestRefused as refusal:
        return refusal
    if not order.verified:
        row |= {"status": Status.BLOCKED.value, "reason": Reason.UNVERIFIED}
    return NewRequest(order, named, row, written=written_ids(pepper, tenant_id, order))


def _written(
    session: Session, pepper: Pepper, tenant_id: str, new: Sequence[NewRequest], windows: Windows
) -> list[Accepted]:
    """Write the requests, with their tasks, entries and news."""
    requests = write(session, pepper, new)
    written = list(zip(requests, new, strict=True))
    tasks = [
        task for request, each in written for task in tasks_of(request, each.found, each.row["created_at"], windows)
    ]
    write_tasks(session, tasks)
    announce_requests(session, *((WebhookEvent.REQUEST_ACCEPTED, request) for request in requests))
    record_status(session, *(request for request, each in written if not each.found.places or each.found.large))
    session.flush()
    return [_answer(session, tenant_id, request, each) for request, each in written]


def _answer(session: Session, tenant_id: str, request: DeletionRequest, each: NewRequest) -> Accepted:
    large = frozenset(name for key, name in each.found.places if key in each.found.large)
    remains_in = _remains_in(session, tenant_id, each.order, each.named) if each.order.verified else None
    text = None if each.asked is None else each.asked.text
    note = None if text is None else Reason.NEAR_MISS.says({"cause": text})
    return Accepted(request, each.found.names, each.found.to_notify, large, remains_in, note)


def _decided(
    session: Session,
    new: NewRequest,
    models: Sequence[Forgetter],
    windows: Windows,
    matches: Matches,
) -> NewRequest:
    """Decide what becomes of a verified order. ``models``: those that it covers, and maybe others, all locked."""
    order, named, row = new.order, new.named, new.row
    covered = [model for model in models if order.models is None or model.name in order.models]
    found = reach(session, covered, named, windows, matches)
    asked = _asked(matches, new.written, covered, waits=True)
    if asked.question is None and _disagrees(session, covered, named, order.expected_samples, matches):
        asked = replace(asked, question=Question(Cause.COUNT))
    if asked.question is not None:
        found = NOWHERE
        row |= {"status": Status.BLOCKED.value, "reason": Reason.NEAR_MISS, "near": list(asked.question.near)}
        row["facts"], row["outcome"] = stored(Reason.NEAR_MISS, asked.question.facts), IntakeOutcome.NEAR_MISS
    elif found.large:
        row |= {"status": Status.BLOCKED.value, "reason": Reason.LARGE}
    elif not found.places:
        why, facts = why_nothing(session, row["tenant_id"], named, covered, order.models, compared=asked.compared)
        row |= {"status": Status.COMPLETED.value, "reason": why, "completed_at": row["created_at"]}
        row["facts"] = stored(why, facts)
        row["outcome"] = _OUTCOMES.get(why, IntakeOutcome.NO_MATCH)
    return replace(new, row=row, found=found, asked=asked)


_OUTCOMES = {Reason.ALREADY_DELETED: IntakeOutcome.ALREADY_DELETED, Reason.IN_HOLDOUT: IntakeOutcome.IN_HOLDOUT}


def _disagrees(
    session: Session, models: Sequence[Forgetter], named: Named, expected: int | None, matches: Matches
) -> bool:
    """Return whether the models hold another number of the person's samples than the order expects.

    Models with people not known yet hold nothing so far.
    """
    if expected is None or not named.subjects:
        return False
    known = [model.generation_id for model in models if not _unknown(model, matches)]
    trained = _trained_on(known, named, matches)
    return sum(trained.values()) - sum(suppression.removed_from(session, known, named.subjects).values()) != expected


def written_ids(pepper: Pepper, tenant_id: str, order: Order) -> dict[str, Written]:
    """Return how each id of the order's subject is written, by its digest; none where it names samples."""
    return {
        subject_digest(pepper, tenant_id, subject): Written.of(pepper, tenant_id, subject) for subject in order.subjects
    }


def generations_of(models: Iterable[Forgetter]) -> dict[int, str]:
    """Return the models by generation, for ``look_up``."""
    return {model.generation_id: model.id for model in models if model.generation_id is not None}


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
    matches = look_up(session, tenant_id, written, generations_of(models))
    return _asked(matches, written, models, decided, waits=waits)


def _asked(
    matches: Matches,
    written: Mapping[str, Written | None],
    models: Sequence[Forgetter],
    decided: Collection[int] | None = None,
    *,
    waits: bool,
) -> Asked:
    searched = [
        Searched(model.id, model.generation_id, model.twins != Twins.IGNORE)
        for model in models
        if model.generation_id is not None and not _unknown(model, matches)
    ]
    unknown = any(_unknown(model, matches) for model in models)
    return ask(matches, written, searched, unknown=unknown, waits=waits and unknown, decided=decided)


_INSERTS = {kind: insert(kind.__table__) for kind in (DeletionRequest, SuppressionEntry, AuditEntry, Task)}


def write(session: Session, pepper: Pepper, new: Sequence[NewRequest]) -> list[DeletionRequest]:
    """Insert the requests' rows, their suppression entries and their entries in the audit log."""
    session.execute(_INSERTS[DeletionRequest], [each.row for each in new])
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


def reach(session: Session, models: Sequence[Forgetter], named: Named, windows: Windows, matches: Matches) -> Reach:
    """Return which of the models the order has work in. The caller has locked the models' rows.

    A model that is preparing has, until its people are known. A request is never large where it names samples, which
    has a limit already, or where a model is still prepared.
    """
    count = _trained_on([model.generation_id for model in models], named, matches)
    touched = [model for model in models if _unknown(model, matches) or count[model.generation_id]]
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
    left = forgetters(session, tenant_id, _MODELS.name.not_in(order.models))
    matches = look_up(session, tenant_id, dict.fromkeys(named.subjects), generations_of(left), named.samples)
    return tuple(sorted(name for _, name in reach(session, left, named, NO_WINDOWS, matches).places))


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


def _require_known(order: Order, names: Collection[str]) -> None:
    """Raise RequestRefused where the order names a model that is not among ``names``."""
    unknown = [place for place, name in enumerate(order.models or ()) if name not in names]
    if unknown:
        errors = [{"pointer": f"/models/{place}", "detail": "There is no such model."} for place in unknown]
        raise RequestRefused(422, "unknown_model", "The request names models that do not exist.", errors)


_FORGETTERS = (
    select(_MODELS.id, _MODELS.name, _MODELS.status, _MODELS.generation_id, _MODELS.notified_at)
    .add_columns(_MODELS.policy["twins"].as_string())
    .where(_MODELS.tenant_id == bindparam("tenant"), _MODELS.status.in_(FORGETTING))
    .order_by(_MODELS.id)
)


def forgetters(session: Session, tenant_id: str, *which: ColumnElement[bool]) -> list[Forgetter]:
    """Return the tenant's models that can forget, in id order; of them, ``which``."""
    return [Forgetter(*row) for row in session.execute(_FORGETTERS.where(*which), {"tenant": tenant_id})]


_LOCKED = _FORGETTERS.with_for_update(read=True)


def locked_forgetters(session: Session, tenant_id: str, *which: ColumnElement[bool]) -> list[Forgetter]:
    """Return the same with their rows locked in share mode: no publication passes between matching and commit."""
    query = _LOCKED.where(*which) if which else _LOCKED
    return [Forgetter(*row) for row in session.execute(query, {"tenant": tenant_id})]


def _trained_on(generations: Iterable[int | None], named: Named, matches: Matches) -> Counter[int | None]:
    """Return how many samples of the person, or of those that are named, each generation was trained on."""
    names = named.subjects or named.samples
    return Counter({each: sum(matches.samples[name, each] for name in names) for each in generations})


def _unknown(model: Forgetter, matches: Matches) -> bool:
    """Return whether the model's people are not known yet: it is in preparation, and its members are not written."""
    return model.status == "preparing" and model.generation_id not in matches.frozen


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
        "traceparent": order.traceparent,
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
