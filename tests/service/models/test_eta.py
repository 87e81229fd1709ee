"""About when an open part of a request will be carried out: from what is known, and without changing by itself."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import event, select

from expunge_service.api.dependencies import Service
from expunge_service.console.words import machine_time
from expunge_service.infra.db import now
from expunge_service.infra.tables import Generation, Model, PhaseSeconds, Task
from expunge_service.infra.time import SECOND, instant
from expunge_service.models.generations import open_generation
from expunge_service.requests.reasons import Reason
from expunge_service.requests.status import settle
from tests.service.conftest import Login
from tests.service.worlds import live_model, publish

PATH = "/v1/deletion-requests"


def asked(client: TestClient, service: Service, wait_seconds: int, **columns: Any) -> tuple[str, int]:
    """Send a request, and put its part off; returns its id, and when the part is ready."""
    request = client.post(PATH, json={"subject_id": "ada"}, headers={"Idempotency-Key": "k"}).json()["id"]
    with service.database.write() as session:
        task = session.scalars(select(Task)).one()
        ready = task.not_before = now(session) + wait_seconds * SECOND
        for name, value in columns.items():
            setattr(task, name, value)
        settle(session, [request])
    return request, ready


def shown(client: TestClient, request: str) -> datetime | None:
    (part,) = client.get(f"{PATH}/{request}").json()["models"]
    return None if part["expected_at"] is None else datetime.fromisoformat(part["expected_at"])


def took(service: Service, model: Model, *updates: tuple[float, ...]) -> None:
    """Publish a version for each update, whose phases took so many seconds."""
    for number, phases in enumerate(updates):
        version = publish(service, model, b"update %d" % number)
        with service.database.write() as session:
            session.add_all(
                PhaseSeconds(
                    model_id=model.id,
                    version_id=version.id,
                    method="recollection",
                    phase=f"phase-{place}",
                    seconds=seconds,
                    created_at=now(session),
                )
                for place, seconds in enumerate(phases)
            )


@pytest.mark.both_engines
def test_the_median_of_the_last_updates_is_added_to_when_the_part_is_ready(
    client: TestClient, service: Service, login: Login
) -> None:
    model = live_model(service)
    took(service, model, *[(1000.0,)] * 9, (1.0, 1.0), (4.0, 2.0), (8.0,), (2.0, 2.0), (64.0, 64.0))
    request, ready = asked(client, service, 3600)
    assert shown(client, request) == instant(ready + 6 * SECOND)
    page = login("deletions:read").get(f"/console/requests/{request}").text
    assert f'expected <time datetime="{machine_time(ready + 6 * SECOND)}"' in page
    first, second = (client.get(f"{PATH}/{request}").headers["ETag"] for _ in range(2))
    assert first == second


def test_before_the_first_update_it_is_the_share_of_the_training_that_one_repeats(
    client: TestClient, service: Service
) -> None:
    model = live_model(service)
    request, ready = asked(client, service, 3600)
    assert shown(client, request) is None, "nothing is known"
    with service.database.write() as session:
        served = session.get_one(Generation, model.generation_id)
        served.report = {"seconds": 500.0, "expected_repeats": [{"requests": 1, "share": 0.1}]}
    assert shown(client, request) == instant(ready + 50 * SECOND)


def test_a_moment_that_has_passed_is_not_told_and_neither_is_that_of_an_ended_part(
    client: TestClient, service: Service
) -> None:
    model = live_model(service)
    took(service, model, (2.0,))
    request, _ = asked(client, service, -60)
    assert shown(client, request) is None
    with service.database.write() as session:
        task = session.scalars(select(Task)).one()
        task.not_before = now(session) + 3600 * SECOND
    assert shown(client, request) is not None
    with service.database.write() as session:
        session.scalars(select(Task)).one().status = "completed"
        settle(session, [request])
    assert shown(client, request) is None


def test_who_waits_for_a_retrain_is_told_when_that_ends(client: TestClient, service: Service) -> None:
    model = live_model(service)
    took(service, model, (2.0,))
    request, _ = asked(client, service, 0, reason=Reason.AWAITING_RETRAIN)
    assert shown(client, request) is None, "none is planned yet"
    with service.database.write() as session:
        planned = now(session)
        candidate = Generation(
            tenant_id="default",
            model_id=model.id,
            status="candidate",
            method="recollection",
            guarantee="proved",
            report={"eta_seconds": 900.0},
            created_at=planned,
        )
        open_generation(session, candidate)
    assert shown(client, request) == instant(planned + 900 * SECOND)


@pytest.mark.parametrize("reason", [None, Reason.AWAITING_RETRAIN, Reason.AWAITING_BATCH])
def test_a_person_in_many_models_costs_no_more_statements_than_in_one(
    client: TestClient, service: Service, reason: Reason | None
) -> None:
    counts = {}
    for person, models in (("ada", 1), ("bob", 12)):
        names = [f"{person}-{number}" for number in range(models)]
        for name in names:
            took(service, live_model(service, name, {person: [f"{person}-1"], "other": ["o"]}), (2.0,), (4.0,))
        order = {"subject_id": person, "models": names}
        made = client.post(PATH, json=order, headers={"Idempotency-Key": person}).json()["id"]
        with service.database.write() as session:
            for task in session.scalars(select(Task).where(Task.request_id == made)):
                task.reason, task.not_before = reason, now(session) + 3600 * SECOND
                session.get_one(Model, task.model_id).due_at = (
                    task.not_before if reason == Reason.AWAITING_BATCH else None
                )
            settle(session, [made])
        statements: list[str] = []
        event.listen(service.database.engine, "before_cursor_execute", lambda *seen, to=statements: to.append(seen[2]))
        parts = client.get(f"{PATH}/{made}").json()["models"]
        counts[models] = len(statements)
        assert [part["expected_at"] is not None for part in parts] == [reason != Reason.AWAITING_RETRAIN] * models
    assert counts[12] == counts[1], counts
