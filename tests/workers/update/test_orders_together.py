"""Orders that are accepted together leave what the same orders leave one after the other."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge_service.infra.tables import AuditEntry, DeletionRequest, SuppressionEntry, Task
from expunge_service.requests.deadlines import Regulation
from expunge_service.requests.intake import Order, Windows, accept, accept_all
from expunge_service.requests.states import RequestRefused
from tests.workers.worlds import TENANT, World

ORDERS = [
    Order(subject_id="p0"),
    Order(subject_id="p1", models=("m",), regulation=Regulation.GDPR),
    Order(subject_id="nobody"),
    Order(subject_ids=("p2", "p3"), case_id="case-7"),
    Order(sample_ids=("s4", "no-such-sample")),
    Order(subject_id="p0", verified=True),
]
WINDOWS = Windows(cancel_seconds=60, large_samples=1, large_seconds=120)
OWN = {"entry", "at", "request", "commitment", "suppressions", "received_at", "due_at", "completed_at", "outcome"}
"""facts of an audit entry that differ between any two requests"""


class Undone(Exception):
    """Rolls a transaction back."""


def left(world: World, act: Callable[[Session], object]) -> list[Any]:
    """Return what ``act`` writes and what it returns, in an order that does not depend on ids; write nothing."""
    found: list[Any] = []
    with suppress(Undone), world.database.write() as session:
        act(session)
        session.flush()
        for row in session.scalars(select(DeletionRequest)):
            tasks = session.scalars(select(Task).where(Task.request_id == row.id)).all()
            named = session.scalars(select(SuppressionEntry).where(SuppressionEntry.request_id == row.id)).all()
            audit = session.scalars(select(AuditEntry).where(AuditEntry.request_id == row.id)).all()
            facts = [row.subject_digest, row.status, row.reason, row.models, row.regulation, row.case_id]
            facts.append(sorted((each.model_id, each.status, str(each.reason)) for each in tasks))
            facts.append(sorted((str(each.subject_digest), str(each.sample_digest)) for each in named))
            bodies = (json.loads(each.body) for each in audit)
            facts.append(sorted(repr({k: v for k, v in body.items() if k not in OWN}) for body in bodies))
            found.append(facts)
        raise Undone
    return sorted(found, key=repr)


@pytest.mark.both_engines
def test_orders_together_leave_what_they_leave_one_by_one(world: World) -> None:
    world.live()
    pepper = world.storage.pepper
    singly = left(world, lambda session: [accept(session, pepper, TENANT, each, WINDOWS) for each in ORDERS])
    together = left(world, lambda session: accept_all(session, pepper, TENANT, ORDERS, WINDOWS))
    assert len(singly) == len(ORDERS)
    assert {facts[1] for facts in singly} == {"queued", "blocked", "completed"}
    assert together == singly


def test_each_order_is_answered_for_itself(world: World) -> None:
    model_id = world.live()
    with world.database.write() as session:
        answers = accept_all(session, world.storage.pepper, TENANT, ORDERS[:3])
    assert [each.models for each in answers] == [("m",), ("m",), ()]
    assert [each.to_notify for each in answers] == [(model_id,), (model_id,), ()]
    assert [each.request.regulation for each in answers] == [None, "gdpr", None]


def test_one_that_is_refused_leaves_the_others_as_they_are(world: World) -> None:
    world.live()
    orders = [Order(subject_id="p0"), Order(subject_id="p1", models=("m", "unknown"))]
    with world.database.write() as session:
        accepted, refused = accept_all(session, world.storage.pepper, TENANT, orders)
    assert isinstance(refused, RequestRefused)
    assert refused.errors == [{"pointer": "/models/1", "detail": "There is no such model."}]
    with world.database.read() as session:
        assert list(session.scalars(select(DeletionRequest.id))) == [accepted.request.id]
