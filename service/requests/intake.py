"""Taking in a deletion request: the request, its suppression entries, its tasks and the audit entry, in one
transaction.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Select, insert, select
from sqlalchemy.orm import Session

from service.audit.log import canonical, entry, recorded_at
from service.infra.fault_injection import crash_point
from service.infra.pseudonyms import Pepper, digest, new_id, sample_digest, subject_digest
from service.infra.tables import AuditEntry, DeletionRequest, Generation, Model, SuppressionEntry, Task
from service.infra.time import SECOND, instant, moment
from service.infra.trace import carried
from service.requests import suppression as suppressions
from service.requests.concerns import latest_registration, others
from service.requests.reasons import Reason
from service.requests.states import Regulation, Status, Suppress, due_at
from service.requests.status import record_status

FORGETTING = ("preparing", "live", "exhausted")


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
    verified: bool = True
    """whether the controller knows that the person asked; where not, ``identity_check`` takes the order in"""
    suppress: Suppress = Suppress.EVERYWHERE
    """of an order that names models: whether later registrations of other models leave the person out as well"""


@dataclass(frozen=True)
class Windows:
    """What a request waits for before it is worked on. ``large_samples`` 0: no request is blocked for its size."""

    cancel_seconds: float = 0
    large_samples: int = 0
    large_seconds: float = 0


AT_ONCE = Windows()


@dataclass(frozen=True)
class Accepted:
    request: DeletionRequest
    models: tuple[str, ...]
    """names of the models that have work now"""
    to_notify: tuple[str, ...]
    """ids of those among them whose workers were not rung yet"""
    large: frozenset[str] = frozenset()
    """names of the models in which it is blocked for its size"""
    remains_in: tuple[str, ...] | None = ()
    """names of the models that the order leaves alone and that hold somebody it names, or may; None: nobody looked"""


def accept(session: Session, pepper: Pepper, tenant_id: str, order: Order, windows: Windows = AT_ONCE) -> Accepted:
    """Write everything a request needs. When the transaction commits, the request cannot be lost.

    Every model that is preparing gets a task, whatever it will turn out to hold; any other one gets a task where
    it was trained on the subject, blocked as ``large`` where that are unusually many samples. Without any task the
    request is completed at once. No row of ``models`` is changed: intake takes them in share mode, so that requests do
    not wait for each other, only for a publication.

    Raises UnknownModels, ReceivedInFuture.
    """
    # in share mode: no publication can pass between our matching and our commit
    models = session.scalars(named_models(session, tenant_id, order).with_for_update(read=True)).all()
    named = digests(pepper, tenant_id, order)
    found = reach(session, models, named, windows)
    at, places, large = recorded_at(session), found.places, found.large
    drawn = draft(pepper, tenant_id, order, named, at=at, touched=places, windows=windows, large=large)
    drawn.row["suppress_after"] = suppress_after(session, order)
    if not places:
        drawn.row["reason"] = why_nothing(session, tenant_id, named)
    session.execute(insert(DeletionRequest), drawn.row)
    crash_point("api-after-request")
    session.execute(insert(SuppressionEntry), drawn.suppressions)
    if drawn.tasks:
        session.execute(insert(Task), drawn.tasks)
    session.execute(insert(AuditEntry), drawn.entry)
    if not places or large:
        record_status(session, drawn.request)
    session.flush()
    crash_point("api-after-audit")
    left = remains_in(session, tenant_id, order, named)
    return Accepted(drawn.request, drawn.names, found.to_notify, found.large_names, left)


@dataclass(frozen=True)
class Named:
    """Whom an order names, by keyed digests of one pepper: one subject, or samples."""

    pepper_id: str
    subject: str | None
    samples: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reach:
    """Where an order has work. ``places``: models as (id, name); ``large``: ids of those that hold it for its size."""

    places: tuple[tuple[str, str], ...]
    large: frozenset[str]
    to_notify: tuple[str, ...]
    """ids of the models that have work now and whose workers were not rung yet"""

    @property
    def large_names(self) -> frozenset[str]:
        return frozenset(name for key, name in self.places if key in self.large)


def reach(session: Session, models: Iterable[Model], named: Sequence[Named], windows: Windows) -> Reach:
    """Which of the models the order touches; ``named`` once for each pepper.

    The models' rows are locked: no publication passes before our commit.
    """
    models = list(models)
    certain = {model.id for model in models if _touches(session, model, named)}
    certain |= _foreign(session, [model for model in models if model.id not in certain], named)
    touched = [model for model in models if model.id in certain]
    large = frozenset(model.id for model in touched if _is_large(session, model, named, windows))
    to_notify = tuple(model.id for model in touched if model.notified_at == 0 and model.id not in large)
    return Reach(tuple((model.id, model.name) for model in touched), large, to_notify)


def suppress_after(session: Session, order: Order) -> int | None:
    """What the request's row keeps of how far it reaches beyond the models that it names."""
    if order.models is None or order.suppress is Suppress.NAMED_MODELS:
        return None
    return latest_registration(session)


def remains_in(session: Session, tenant_id: str, order: Order, named: Sequence[Named]) -> tuple[str, ...]:
    """Names of the models that the order leaves alone although they hold somebody it names, or may, sorted."""
    if order.models is None:
        return ()
    left = session.scalars(others(tenant_id, order.models, FORGETTING)).all()
    return tuple(sorted(name for _, name in reach(session, left, named, AT_ONCE).places))


def why_nothing(session: Session, tenant_id: str, named: Sequence[Named]) -> Reason:
    """The reason of a request that touches no model."""
    known = any(suppressions.carried_out(session, tenant_id, each.subject, each.samples) for each in named)
    if known:
        return Reason.ALREADY_FORGOTTEN
    subjects = [each.subject for each in named if each.subject is not None]
    return Reason.IN_HOLDOUT if suppressions.in_holdout(session, tenant_id, subjects) else Reason.NO_MATCH


def digests(pepper: Pepper, tenant_id: str, order: Order) -> tuple[Named, ...]:
    """Whom the tenant's order names under each pepper, the current one first."""
    return tuple(_named(each, tenant_id, order) for each in pepper.every)


def _named(pepper: Pepper, tenant_id: str, order: Order) -> Named:
    if order.subject_id is not None:
        return Named(pepper.id, subject_digest(pepper, tenant_id, order.subject_id))
    samples = {sample_digest(pepper, tenant_id, sample) for sample in order.sample_ids or ()}
    return Named(pepper.id, None, tuple(sorted(samples)))


@dataclass(frozen=True)
class Draft:
    """Every row of a request, not yet written."""

    row: dict[str, Any]
    suppressions: list[dict[str, Any]]
    tasks: list[dict[str, Any]]
    entry: dict[str, Any]
    """of the audit log"""
    names: tuple[str, ...]
    """of the models that have work now"""

    @property
    def request(self) -> DeletionRequest:
        return DeletionRequest(**self.row)


def draft(
    pepper: Pepper,
    tenant_id: str,
    order: Order,
    named: Sequence[Named],
    *,
    at: int,
    touched: Sequence[tuple[str, str]],
    windows: Windows,
    large: frozenset[str] = frozenset(),
) -> Draft:
    """The rows of an order that touches these models (id, name); in those of ``large`` (ids) it is blocked.

    Raises ReceivedInFuture.
    """
    row = _request(tenant_id, order, named[0], at)
    if not touched:
        row |= {"status": Status.COMPLETED.value, "reason": Reason.NO_MATCH, "completed_at": at}
    if large:
        row |= {"status": Status.BLOCKED.value, "reason": Reason.LARGE}
    names = tuple(sorted(name for _, name in touched))
    accepted = entry(
        at,
        tenant_id,
        "request.accepted",
        request_id=row["id"],
        commitment=commitment(opening(pepper, row["salt"]), order),
        samples_named=len(named[0].samples) or None,
        models=list(names),
        suppress=None if order.models is None else order.suppress.value,
        regulation=row["regulation"],
        received_at=row["received_at"],
        due_at=row["due_at"],
        verified=order.verified,
    )
    tasks = tasks_of(tenant_id, row["id"], at, models=[key for key, _ in touched], windows=windows, large=large)
    return Draft(row, [stone for each in named for stone in _suppressions(row, each)], tasks, accepted, names)


def opening(pepper: Pepper, salt: bytes) -> bytes:
    """The 32 bytes that open the request's commitment. They follow from its row's salt under the pepper.

    They are handed to the controller and stored nowhere: whoever reads the database without the pepper cannot
    try subjects against the commitment.
    """
    return bytes.fromhex(digest(pepper, "opening", salt))


def commitment(salt: bytes, order: Order) -> str:
    """HMAC-SHA-256 over the canonical JSON of who is named, keyed by the opening: 64 hex digits."""
    named = (
        {"subject": order.subject_id} if order.subject_id is not None else {"samples": sorted(order.sample_ids or ())}
    )
    return hmac.new(salt, canonical(named).encode(), "sha256").hexdigest()


def named_models(session: Session, tenant_id: str, order: Order) -> Select[Model]:
    """The models that the order is about and that can forget, in id order. Raises UnknownModels."""
    if order.models is None:
        return forgetters(tenant_id, None)
    known = set(session.scalars(select(Model.name).where(Model.tenant_id == tenant_id)))
    unknown = [place for place, name in enumerate(order.models) if name not in known]
    if unknown:
        raise UnknownModels(unknown)
    return forgetters(tenant_id, order.models)


def forgetters(tenant_id: str, names: Sequence[str] | None) -> Select[Model]:
    """The tenant's models that can forget, in id order; only those of ``names``, unless it is None."""
    chosen = select(Model).where(Model.tenant_id == tenant_id, Model.status.in_(FORGETTING)).order_by(Model.id)
    return chosen if names is None else chosen.where(Model.name.in_(names))


def _touches(session: Session, model: Model, named: Sequence[Named]) -> bool:
    """Whether the model gets a task. While it is preparing nobody knows yet whom it holds: it always does."""
    if model.status == "preparing" or model.generation_id is None:
        return model.status == "preparing"
    generation_id = model.generation_id
    return any(suppressions.matches(session, generation_id, each.subject, each.samples) for each in named)


def _foreign(session: Session, models: Iterable[Model], named: Sequence[Named]) -> set[str]:
    """Ids of the models that were prepared under a pepper which is none of ours.

    Whom they hold cannot be told here: they get a task, and their worker will hold it.
    """
    generations = {model.generation_id: model.id for model in models if model.generation_id is not None}
    if not generations:
        return set()
    made_under = Generation.manifest["pepper_id"].as_string()
    ours = [each.pepper_id for each in named]
    query = select(Generation.id).where(Generation.id.in_(generations), made_under.not_in(ours))
    return {generations[generation_id] for generation_id in session.scalars(query)}


def _is_large(session: Session, model: Model, named: Sequence[Named], windows: Windows) -> bool:
    """Whether a subject has unusually many samples in the model. A request that names samples has a limit already."""
    if not windows.large_samples or model.status == "preparing":
        return False
    generation_id, usual = model.generation_id or 0, windows.large_samples
    return any(each.subject and suppressions.exceeds(session, generation_id, each.subject, usual) for each in named)


def _request(tenant_id: str, order: Order, named: Named, at: int) -> dict[str, Any]:
    received = instant(at) if order.received_at is None else order.received_at.astimezone(UTC)
    if moment(received) > at:
        raise ReceivedInFuture
    due = due_at(received, order.regulation)
    return {
        "id": new_id(),
        "tenant_id": tenant_id,
        "subject_digest": named.subject,
        "pepper_id": named.pepper_id,
        "status": Status.QUEUED.value,
        "reason": None,
        "models": None if order.models is None else sorted(set(order.models)),
        "suppress_after": None,
        "regulation": None if order.regulation is None else order.regulation.value,
        "salt": secrets.token_bytes(32),
        "received_at": moment(received),
        "due_at": None if due is None else moment(due),
        "created_at": at,
        "completed_at": None,
        "traceparent": carried(),
    }


def _suppressions(request: dict[str, Any], named: Named) -> list[dict[str, Any]]:
    """One for the subject, or one for each sample."""
    pairs: list[tuple[str | None, str | None]] = [(None, sample) for sample in named.samples]
    if named.subject is not None:
        pairs = [(named.subject, None)]
    return [
        {
            "id": new_id(),
            "tenant_id": request["tenant_id"],
            "request_id": request["id"],
            "subject_digest": subject,
            "sample_digest": sample,
            "pepper_id": named.pepper_id,
            "created_at": request["created_at"],
        }
        for subject, sample in pairs
    ]


def tasks_of(
    tenant_id: str, request_id: str, at: int, *, models: Iterable[str], windows: Windows, large: frozenset[str]
) -> list[dict[str, Any]]:
    """A task for each of ``models`` (ids); held in those where the request is ``large``."""
    waits = {True: windows.large_seconds, False: windows.cancel_seconds}
    return [
        {
            "id": new_id(),
            "tenant_id": tenant_id,
            "request_id": request_id,
            "model_id": model_id,
            "status": "blocked" if model_id in large else "queued",
            "reason": Reason.LARGE if model_id in large else None,
            "attempts": 0,
            "not_before": at + int(waits[model_id in large] * SECOND),
            "created_at": at,
        }
        for model_id in models
    ]
