"""That a claim's requests run is stored by one statement; it equals what follows from the tasks of each."""

from __future__ import annotations

import itertools

import pytest
from sqlalchemy import select

from expunge_service.api.dependencies import Service
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.tables import AuditEntry, DeletionRequest, Task
from expunge_service.requests.states import Status
from expunge_service.requests.status import settle, settle_begun
from tests.service.worlds import live_model

OPEN = ("queued", "running", "blocked", "completed")
UNKNOWN = ("queued", "blocked")
"""a request with a blocked task is blocked: no transaction leaves it queued"""


@pytest.mark.both_engines
def test_it_equals_what_follows_from_the_tasks(service: Service) -> None:
    """A request of two models: its task of one has just begun to run; that of the other is in any state."""
    models = [live_model(service), live_model(service, name="people")]
    stored = {}
    for twin in (settle, settle_begun):
        with service.database.write() as session:
            cases = {new_id(): pair for pair in itertools.product(OPEN, (*OPEN, "cancelled")) if pair != UNKNOWN}
            for request_id, (status, other) in cases.items():
                facts = {"tenant_id": "default", "created_at": 1}
                session.add(DeletionRequest(id=request_id, status=status, salt=b"s" * 32, received_at=1, **facts))
                session.flush()
                for model, each in zip(models, ("running", other), strict=True):
                    ids = {"id": new_id(), "request_id": request_id, "model_id": model.id}
                    session.add(Task(status=each, not_before=1, **ids, **facts))
            session.flush()
            twin(session, [*cases])
            rows = session.execute(select(DeletionRequest.id, DeletionRequest.status, DeletionRequest.completed_at))
            found = {cases[key]: (status, done) for key, status, done in rows if key in cases}
            kinds = session.scalars(select(AuditEntry.kind).where(AuditEntry.request_id.in_(cases))).all()
        stored[twin] = found, sorted(kinds)
    assert stored[settle] == stored[settle_begun]
    assert {status for status, _ in stored[settle][0].values()} == {Status.RUNNING, Status.BLOCKED}
