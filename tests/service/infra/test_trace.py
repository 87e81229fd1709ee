"""A call's traceparent is kept with the request it makes, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from expunge_service.api.dependencies import Service
from expunge_service.infra.tables import DeletionRequest
from tests.service.worlds import live_model

PATH = "/v1/deletion-requests"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def kept(client: TestClient, service: Service, subject: str, **headers: str) -> str | None:
    made = client.post(PATH, json={"subject_id": subject}, headers={"Idempotency-Key": subject, **headers}).json()
    with service.database.read() as session:
        return session.get_one(DeletionRequest, made["id"]).traceparent


def test_the_trace_of_the_call_is_kept_with_the_request(client: TestClient, service: Service) -> None:
    live_model(service)
    assert kept(client, service, "ada", traceparent=TRACE) == TRACE
    assert kept(client, service, "nobody", traceparent=TRACE) == TRACE
    assert kept(client, service, "bob") is None  # and no call inherits another's


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize(
    "header",
    ["ada@example.com", TRACE.upper(), TRACE + "-x", "00-" + "0" * 32 + TRACE[35:], TRACE[:36] + "0" * 16 + "-01"],
)
def test_a_malformed_trace_is_ignored(client: TestClient, service: Service, header: str) -> None:
    assert kept(client, service, "ada", traceparent=header) is None
