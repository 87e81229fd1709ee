"""Decisions on the page: the question, what is known, two answers with what follows; and the undoing."""

from __future__ import annotations

import re

from fastapi.testclient import TestClient
from sqlalchemy import select, update

from expunge_service.api.dependencies import Service
from expunge_service.infra.db import now
from expunge_service.infra.tables import Generation, Task
from expunge_service.requests.reasons import Reason
from expunge_service.requests.status import settle
from tests.service.api.test_console import ACT, token_in
from tests.service.conftest import Login
from tests.service.worlds import live_model

ASKED = "Does this request come from the person?"


def ask_unverified(client: TestClient) -> str:
    body, key = {"subject_id": "ada", "verified": False}, {"Idempotency-Key": "k"}
    return str(client.post("/v1/deletion-requests", json=body, headers=key).json()["id"])


def test_an_unverified_request_says_what_it_waits_for_and_a_rejected_one_why(login: Login, client: TestClient) -> None:
    request = ask_unverified(client)
    page = login().get(f"/console/requests/{request}").text
    assert (
        "<h1>Not yet confirmed that this request comes from the person</h1>" in page
        and "Nothing is deleted until" in page
        and 'value="retry"' not in page
    )
    assert "no model was changed. It concerns every model." in page and "<dt>Completed</dt>" in page
    client.post(f"/v1/deletion-requests/{request}/reject", json={"reason": "<b>not them</b>"})
    page = login().get(f"/console/requests/{request}").text
    assert "badge rejected" in page and "&lt;b&gt;not them" in page and "<strong>Rejected</strong>" in page
    assert "<dt>Completed</dt>" not in page and "&lt;b&gt;not them" in login().get("/console/requests").text


def test_an_unverified_request_is_verified_by_who_may(login: Login, client: TestClient, service: Service) -> None:
    model = live_model(service)
    request = ask_unverified(client)
    place, verify = f"/console/requests/{request}", {"act": "verify", "request_id": request}
    page = login("deletions:read").get(place).text
    assert ">Verify and continue<" not in page and client.get(f"{place}/decide").status_code == 403
    assert client.post(ACT, data=verify | {"token": token_in(page)}).status_code == 403
    page = login("deletions:read", "deletions:decide").get(place).text
    assert ">Verify and continue</button>" in page and ">Reject</a>" in page
    assert client.post(ACT, data=verify | {"token": "0" * 64}).status_code == 403
    after = client.post(ACT, data=verify | {"token": token_in(page), "sure": "yes"})
    assert after.status_code == 200 and "badge queued" in after.text and ">Verify and continue<" not in after.text
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


def test_a_decision_is_one_question_with_two_answers_and_what_follows(login: Login, client: TestClient) -> None:
    body = {"subject_id": "ada", "verified": False, "case_id": "C-101", "regulation": "gdpr"}
    request = str(client.post("/v1/deletion-requests", json=body, headers={"Idempotency-Key": "k"}).json()["id"])
    place = f"/console/requests/{request}"
    visitor = login()
    shown = visitor.get(place).text
    assert shown.count(f'href="{place}/decide"') == 1 and "<button id=" not in shown
    page = visitor.get(f"{place}/decide").text
    assert f"<h1>{ASKED}</h1>" in page
    assert "<dd>C-101</dd>" in page and "GDPR" in page and not re.search(r"\bada\b", page)
    forms = re.findall(r'<form class="panel fields".*?</form>', page, re.S)
    assert len(forms) == 2
    assert "Verify and continue</button>" in forms[0] and "Reject the request</button>" in forms[1]
    assert "Each model that holds data of this person" in forms[0] and "no model changes" in forms[1]
    sent = {"token": token_in(page), "act": "reject", "request_id": request}
    checked = visitor.post(ACT, data=sent | {"reason": "no <answer>"}).text
    assert "<h1>Check your answer</h1>" in checked and "no &lt;answer&gt;" in checked and request[:8] in checked
    assert f'formaction="{place}/decide">Change</button>' in checked and "badge rejected" not in visitor.get(place).text
    again = visitor.post(f"{place}/decide", data=sent | {"reason": "no <answer>"})
    assert f"<h1>{ASKED}</h1>" in again.text and 'value="no &lt;answer&gt;"' in again.text
    assert not again.url.query and 'value=""' in visitor.get(f"{place}/decide").text
    assert visitor.post(f"{place}/decide", data=sent | {"token": "0" * 64}).status_code == 403
    assert "badge rejected" in visitor.post(ACT, data=sent | {"reason": "no <answer>", "sure": "yes"}).text
    assert str(visitor.post(f"{place}/decide", data=sent).url).endswith(place), "it waits for no decision now"
    after = visitor.get(f"{place}/decide")
    assert str(after.url).endswith(place) and "This request waits for no decision." in after.text


def test_a_large_request_is_approved_or_cancelled(login: Login, client: TestClient, service: Service) -> None:
    live_model(service)
    sent = client.post("/v1/deletion-requests", json={"subject_id": "ada"}, headers={"Idempotency-Key": "k"})
    place = f"/console/requests/{sent.json()['id']}/decide"
    for attempts, answers in ((1, ["approve"]), (0, ["approve", "cancel"])):
        with service.database.write() as session:
            values = {"status": "blocked", "reason": Reason.LARGE, "not_before": now(session), "attempts": attempts}
            session.execute(update(Task).values(values))
            settle(session, [sent.json()["id"]])
        page = login().get(place).text
        assert "<h1>Should the models delete so many samples at once?</h1>" in page
        assert re.findall(r'<button id="(\w+)"', page) == answers


def test_what_was_verified_is_undone_until_a_worker_begins(login: Login, client: TestClient, service: Service) -> None:
    """A model that is trained anew, once the window is over, leaves the person out: that has begun."""
    model = live_model(service)
    with service.database.write() as session:
        row = {"status": "candidate", "method": "retrain", "guarantee": "none", "created_at": 1, "attempts": 1}
        session.add(Generation(tenant_id="default", model_id=model.id, **row))
    for window, undone in ((0, False), (3600, True)):
        service.settings.__dict__["cancel_window"] = window
        body, key = {"subject_id": "ada", "verified": False}, {"Idempotency-Key": str(window)}
        request = str(client.post("/v1/deletion-requests", json=body, headers=key).json()["id"])
        visitor = login()
        verify = {"act": "verify", "request_id": request, "sure": "yes", "token": token_in(visitor.get("/").text)}
        page = visitor.post(ACT, data=verify).text
        assert "Verified." in page and ('<button id="undo"' in page) is undone
        assert 'id="undo"' not in visitor.get(f"/console/requests/{request}").text, "it stands beside the act alone"
    undo = verify | {"act": "cancel"}
    assert "The person stays in the models." in visitor.post(ACT, data=undo).text
