"""Unverified requests on the status page: what their page says, and who may decide there."""

from __future__ import annotations

from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge.service.api.dependencies import Service
from expunge.service.infra.tables import Task
from tests.service.api.test_console import ACT, token_in
from tests.service.conftest import Login
from tests.service.worlds import live_model


def ask_unverified(client: TestClient) -> str:
    body, key = {"subject_id": "ada", "verified": False}, {"Idempotency-Key": "k"}
    return str(client.post("/v1/deletion-requests", json=body, headers=key).json()["id"])


def test_an_unverified_request_says_what_it_waits_for_and_a_rejected_one_why(login: Login, client: TestClient) -> None:
    request = ask_unverified(client)
    page = login().get(f"/console/requests/{request}").text
    assert "Not yet confirmed that this request comes from the person." in page and 'value="retry"' not in page
    assert "no model was changed" in page
    client.post(f"/v1/deletion-requests/{request}/reject", json={"reason": "<b>not them</b>"})
    page = login().get(f"/console/requests/{request}").text
    assert "badge rejected" in page and "&lt;b&gt;not them" in page and "<strong>Rejected</strong>" in page


def test_an_unverified_request_is_verified_by_who_may(login: Login, client: TestClient, service: Service) -> None:
    model = live_model(service)
    request = ask_unverified(client)
    place, verify = f"/console/requests/{request}", {"act": "verify", "request_id": request}
    page = login("deletions:read").get(place).text
    assert "Verify and continue" not in page
    assert client.post(ACT, data=verify | {"token": token_in(page)}).status_code == 403
    page = login("deletions:read", "deletions:decide").get(place).text
    assert client.post(ACT, data=verify | {"token": "0" * 64}).status_code == 403
    after = client.post(ACT, data=verify | {"token": token_in(page), "sure": "yes"})
    assert after.status_code == 200 and "badge queued" in after.text and "Verify and continue" not in after.text
    late = {"act": "reject", "request_id": request, "reason": "late", "sure": "yes"}
    assert client.post(ACT, data=late | {"token": token_in(page)}).status_code == 409
    with service.database.read() as session:
        assert session.scalars(select(Task.model_id)).all() == [model.id]


def test_an_unverified_request_is_rejected_with_a_reason(login: Login, client: TestClient, service: Service) -> None:
    request = ask_unverified(client)
    place = f"/console/requests/{request}"
    reject = {"act": "reject", "request_id": request, "token": token_in(login().get(place).text)}
    for reason in ("", "  ", "x" * 1001, "a\x00b"):
        answer = client.post(ACT, data=reject | {"reason": reason})
        assert answer.status_code == 422 and "Nothing was changed" in answer.text
    after = client.post(ACT, data=reject | {"sure": "yes", "reason": "could not show <who> they are"})
    assert "badge rejected" in after.text and "could not show &lt;who&gt; they are" in after.text
    assert client.post(ACT, data=reject | {"act": "verify", "sure": "yes"}).status_code == 409
