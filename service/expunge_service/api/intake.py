"""Taking in deletion requests: the calls that wait are written together, each under its Idempotency-Key."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy.orm import Session

from expunge_service.access import Caller
from expunge_service.api.views.requests import answer_for, salts
from expunge_service.infra.actors import Actor, actor_of_call
from expunge_service.requests import (
    Accepted,
    Order,
    RequestRefused,
    StoredAnswer,
    Use,
    Windows,
    accept_all,
    begin_calls,
    finish_calls,
    opening,
)

if TYPE_CHECKING:
    from expunge_service.api.dependencies import Service

Outcome = Accepted | RequestRefused


@dataclass(frozen=True)
class IntakeCall:
    """A call that brings orders.

    ``answer`` makes of their outcomes what is stored under the call's key. It raises RequestRefused where the call is
    refused with its only order: nothing is stored then.
    """

    use: Use
    actor: Actor
    orders: Sequence[Order | RequestRefused]
    answer: Callable[[Sequence[Outcome]], StoredAnswer]

    @property
    def key(self) -> tuple[str, str, str]:
        return self.use.place

    @property
    def size(self) -> int:
        return len(self.orders)


@dataclass(frozen=True)
class Taken:
    """What a call is answered. ``salts``: what the openings of its requests are derived from, by request."""

    stored: StoredAnswer
    salts: Mapping[str, bytes]
    to_notify: Collection[str] = ()
    """ids of the models of which this call notifies the workers"""


def take_in(
    service: Service,
    use: Use,
    orders: Sequence[Order | RequestRefused],
    answer: Callable[[Sequence[Outcome]], StoredAnswer],
) -> Taken:
    """Return what a call is answered once it is committed, and notify the workers. Raises RequestRefused, Busy."""
    call = IntakeCall(use, actor_of_call() or Actor(service.database.actor), orders, answer)
    taken = service.intake.write(use.caller.tenant_id, call, partial(_write, service))
    service.notify(taken.to_notify)
    return taken


def with_opening(
    service: Service, caller: Caller, request: dict[str, Any], salts: Mapping[str, bytes]
) -> dict[str, Any]:
    """Return a request of a stored answer as the caller may see it, with its opening.

    The opening is never stored, not even in the stored answer: it is derived again at every replay.
    """
    return answer_for(caller, request) | {"opening": opening(service.pepper, salts[request["id"]]).hex()}


def _write(service: Service, calls: Sequence[IntakeCall]) -> list[Taken | Exception]:
    """Write the calls of one tenant in one transaction, and return what each is answered."""
    answers: dict[tuple[str, str, str], Taken | Exception] = {}
    new: dict[Actor, list[IntakeCall]] = {}
    with service.database.write() as session:
        for call, before in zip(calls, begin_calls(session, [call.use for call in calls]), strict=True):
            if before is None:
                new.setdefault(call.actor, []).append(call)
            else:
                answers[call.key] = before if isinstance(before, RequestRefused) else _replayed(session, before)
        for actor, theirs in new.items():
            session.info["actor"] = actor  # the audit entries of their requests name them
            for call, outcomes in zip(theirs, _outcomes(session, service, theirs), strict=True):
                answers[call.key] = _answered(call, outcomes)
        taken = [(call.use, answers[call.key]) for theirs in new.values() for call in theirs]
        finished = [(use, answer.stored) for use, answer in taken if isinstance(answer, Taken)]
        finish_calls(session, finished, service.limits.idempotency_seconds)
    return _notifying_once([answers[call.key] for call in calls])


def _answered(call: IntakeCall, outcomes: Sequence[Outcome]) -> Taken | RequestRefused:
    try:
        stored = call.answer(outcomes)
    except RequestRefused as refusal:
        return refusal
    accepted = [each for each in outcomes if isinstance(each, Accepted)]
    to_notify = sorted({model for each in accepted for model in each.to_notify})
    return Taken(stored, {each.request.id: each.request.salt for each in accepted}, to_notify)


def _notifying_once(answers: Sequence[Taken | Exception]) -> list[Taken | Exception]:
    """Leave each model to the first call that has work for it: one notification does for all of them."""
    notified: set[str] = set()
    each_once: list[Taken | Exception] = []
    for answer in answers:
        if isinstance(answer, Taken):
            first = [model for model in answer.to_notify if model not in notified]
            notified.update(first)
            each_once.append(replace(answer, to_notify=first))
        else:
            each_once.append(answer)
    return each_once


def _outcomes(session: Session, service: Service, calls: Sequence[IntakeCall]) -> list[list[Outcome]]:
    """Accept the orders of all calls of one actor together, and return what became of each, by call."""
    orders = [order for call in calls for order in call.orders if isinstance(order, Order)]
    tenant_id = calls[0].use.caller.tenant_id
    accepted = iter(accept_all(session, service.pepper, tenant_id, orders, windows_of(service)) if orders else ())
    return [[next(accepted) if isinstance(each, Order) else each for each in call.orders] for call in calls]


def _replayed(session: Session, stored: StoredAnswer) -> Taken:
    """Return the answer that a call was given before."""
    views = [stored.answer, *(outcome["request"] or {} for outcome in stored.answer.get("outcomes", ()))]
    return Taken(stored, salts(session, [view["id"] for view in views if "id" in view]))


def windows_of(service: Service) -> Windows:
    """Return how long this installation lets requests wait."""
    settings = service.settings
    return Windows(settings.cancel_window, settings.large_request, service.limits.large_request_seconds)
