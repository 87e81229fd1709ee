"""The API dies by SIGKILL at each of its crash points; the client retries with its key: one request, never none."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select

from expunge_service.api.dependencies import Service
from expunge_service.infra.tables import AuditEntry, DeletionRequest, IdempotencyKey, SuppressionEntry, Task
from tests.harness.deaths import crash, post, post_together, variables_of
from tests.service.worlds import live_model

pytestmark = pytest.mark.both_engines
POINTS = ("api-before-transaction", "api-after-request", "api-after-audit", "api-inside-commit", "api-after-commit")


def rows(service: Service) -> list[int]:
    tables = (DeletionRequest, SuppressionEntry, Task, IdempotencyKey)
    with service.database.read() as session:
        counts = [session.scalar(select(func.count()).select_from(table)) or 0 for table in tables]
        accepted = session.scalar(select(func.count()).where(AuditEntry.kind == "request.accepted")) or 0
    return [*counts, accepted]


ON_BOTH = ("api-inside-commit", "api-after-commit")
"""what a process has not sent to the database yet does not depend on it"""


@pytest.mark.parametrize(
    ("database_url", "point"),
    [
        *(("sqlite", point) for point in POINTS),
        *(("postgresql", point) for point in ON_BOTH),
        *(pytest.param("postgresql", point, marks=pytest.mark.drill) for point in POINTS if point not in ON_BOTH),
    ],
    indirect=["database_url"],
)
def test_a_death_loses_nothing_and_doubles_nothing(client: TestClient, service: Service, point: str) -> None:
    live_model(service)
    headers = {"Authorization": str(client.headers["Authorization"]), "Idempotency-Key": "once"}
    sent = ("/v1/deletion-requests", {"subject_id": "ada"}, headers)
    assert crash(point, post, *sent, **variables_of(service.settings)) == -9
    time.sleep(0.2)  # PostgreSQL may still be ending the dead client's transaction
    left = rows(service)
    assert left in ([0] * 5, [1] * 5)
    if point != "api-inside-commit":
        assert left == [int(point == "api-after-commit")] * 5
    answer = client.post("/v1/deletion-requests", json={"subject_id": "ada"}, headers={"Idempotency-Key": "once"})
    assert answer.status_code == 202
    assert rows(service) == [1] * 5


@pytest.mark.parametrize("point", POINTS)
def test_a_death_with_many_calls_loses_no_answer(
    client: TestClient, service: Service, tmp_path: Path, point: str
) -> None:
    """Eight calls are written together. Whoever was answered finds the request; who was not has one after a retry."""
    live_model(service)
    keys, answered = [f"k-{number}" for number in range(8)], tmp_path / "answered"
    sent = ("/v1/deletion-requests", {"subject_id": "ada"}, str(client.headers["Authorization"]), keys, str(answered))
    assert crash(point, post_together, *sent, **variables_of(service.settings)) == -9
    time.sleep(0.2)  # PostgreSQL may still be ending the dead client's transaction
    told = dict(line.split() for line in answered.read_text().splitlines()) if answered.exists() else {}
    left = rows(service)
    assert left in ([0] * 5, [8] * 5)
    if point != "api-inside-commit":
        assert left == [8 * (point == "api-after-commit")] * 5
    for key in keys:
        answer = client.post("/v1/deletion-requests", json={"subject_id": "ada"}, headers={"Idempotency-Key": key})
        assert answer.status_code == 202
        assert told.get(key, answer.json()["id"]) == answer.json()["id"]
    assert rows(service) == [8] * 5
