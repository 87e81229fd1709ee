"""Legal holds, and retrying held requests."""

from __future__ import annotations

import re
import threading
from datetime import datetime
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update

from expunge_service.api.dependencies import Service
from expunge_service.api.routes.requests.holds import NOT_SEARCHED, NOTES
from expunge_service.infra.db import now
from expunge_service.infra.tables import AuditEntry, Generation, Hold, Model, Removal, Task
from expunge_service.infra.time import SECOND, instant
from expunge_service.requests.legal_holds import Keeps
from expunge_service.requests.reasons import Reason
from expunge_service.requests.status import settle
from tests.service.conftest import Login
from tests.service.worlds import live_model, publish

PATH = "/v1/holds"
REASON = {"reason": "case 12/34"}


def held_request(client: TestClient, service: Service, reason: str = "legal_hold", subject: str = "ada") -> str:
    made = client.post(
        "/v1/deletion-requests",
        json={"subject_id": subject, "regulation": "gdpr"},
        headers={"Idempotency-Key": subject + reason},
    ).json()
    with service.database.write() as session:
        for task in session.scalars(select(Task).where(Task.request_id == made["id"])):
            task.status, task.reason, task.attempts = "blocked", reason, 3
        settle(session, [made["id"]])
    return str(made["id"])


def test_a_hold_is_kept_by_digest_and_may_precede_every_request(client: TestClient, service: Service) -> None:
    answer = client.post(PATH, json=REASON | {"subject_id": "canary-person"})
    assert answer.status_code == 201
    assert answer.headers["location"] == f"{PATH}/{answer.json()['id']}"
    client.post(PATH, json=REASON | {"sample_id": "canary-sample"})
    shown = client.get(PATH).json()["data"]
    assert [each["subject_digest"] is None for each in shown] == [True, False]
    with service.database.read() as session:
        for table in (Hold, AuditEntry):
            assert "canary" not in repr(session.execute(select(table.__table__)).all())  # type: ignore[arg-type]
        kinds = session.scalars(select(AuditEntry.kind).where(AuditEntry.kind.like("hold%"))).all()
    assert kinds == ["hold.placed", "hold.placed"]


def test_releasing_a_hold_drives_its_requests_on_and_their_clock_never_stopped(
    client: TestClient, service: Service
) -> None:
    live_model(service)
    hold = client.post(PATH, json=REASON | {"subject_id": "ada"}).json()
    held, lost = held_request(client, service), held_request(client, service, "failed", "bob")
    before = client.get(f"/v1/deletion-requests/{held}").json()
    assert (before["status"], before["reason"]) == ("blocked", "legal_hold") and before["due_at"] is not None
    lifted = client.delete(f"{PATH}/{hold['id']}")
    assert lifted.json()["lifted_at"] is not None
    assert client.delete(f"{PATH}/{hold['id']}").json() == lifted.json()
    after = client.get(f"/v1/deletion-requests/{held}").json()
    assert (after["status"], after["reason"]) == ("queued", None)
    assert (after["received_at"], after["due_at"]) == (before["received_at"], before["due_at"])
    assert client.get(f"/v1/deletion-requests/{lost}").json()["status"] == "blocked"


def test_a_held_request_can_be_driven_on_with_fresh_attempts(client: TestClient, service: Service) -> None:
    live_model(service)
    held = held_request(client, service, "failed")
    answer = client.post(f"/v1/deletion-requests/{held}/retry")
    assert (answer.status_code, answer.json()["status"]) == (200, "queued")
    with service.database.read() as session:
        assert session.scalars(select(Task.attempts)).all() == [0]
        assert "request.retried" in session.scalars(select(AuditEntry.kind)).all()
    assert client.post(f"/v1/deletion-requests/{held}/retry").status_code == 409
    assert client.post(f"/v1/deletion-requests/{'0' * 32}/retry").status_code == 404


def test_who_waits_for_a_batch_is_told_until_when_and_can_be_hurried(client: TestClient, service: Service) -> None:
    live_model(service)
    request = held_request(client, service, "failed")
    with service.database.write() as session:
        task = session.scalars(select(Task)).one()
        tomorrow = now(session) + 86_400 * SECOND
        task.status, task.reason = "queued", Reason.AWAITING_BATCH
        session.get_one(Model, task.model_id).due_at = tomorrow
        settle(session, [request])
    shown = client.get(f"/v1/deletion-requests/{request}").json()["models"][0]
    assert (shown["status"], shown["reason"]) == ("queued", "awaiting_batch")
    assert datetime.fromisoformat(shown["scheduled_at"]) == instant(tomorrow)
    answer = client.post(f"/v1/deletion-requests/{request}/retry")
    (part,) = answer.json()["models"]
    assert (answer.status_code, part["status"], part["reason"], part["scheduled_at"]) == (200, "queued", None, None)


def test_a_hold_that_comes_too_late_is_told_which_version_forgot(client: TestClient, service: Service) -> None:
    model = live_model(service)
    version = publish(service, model, b"two")
    with service.database.write() as session:
        session.add(Removal(generation_id=model.generation_id or 0, position=0, version_id=version.id))
    assert client.post(PATH, json=REASON | {"subject_id": "ada"}).status_code == 201  # ada-2 is still there
    late = client.post(PATH, json=REASON | {"sample_id": "ada-1"})
    assert (late.status_code, late.json()["code"]) == (409, "already_forgotten")
    assert "version 2 of digits" in late.json()["detail"]
    with service.database.write() as session:
        session.add(Removal(generation_id=model.generation_id or 0, position=1, version_id=version.id))
    assert client.post(PATH, json=REASON | {"subject_id": "ada"}).status_code == 409
    assert len(client.get(PATH).json()["data"]) == 1


def test_a_hold_says_at_once_that_no_model_knows_the_id(
    client: TestClient, login: Login, service: Service, key_of: Any
) -> None:
    """A2c: a mistyped id was held without a word. Whether it is known is for keys that may search for people."""
    live_model(service)
    nothing, unseen = NOTES[Keeps.NOTHING], NOT_SEARCHED

    def note(**named: str) -> str | None:
        told: str | None = client.post("/v1/holds", json={**named, "reason": "court"}).json()["note"]
        return told

    assert note(subject_id="adda") == note(sample_id="ada-9") == nothing
    assert note(subject_id="ada") is None and note(sample_id="ada-1") is None
    blind = key_of("deletions:decide")
    for subject in ("adda", "ada"):
        made = client.post("/v1/holds", json={"subject_id": subject, "reason": "court"}, headers=blind).json()
        assert made["note"] == unseen, "the answer does not depend on whether the person is known"
    with service.database.read() as session:
        searches = select(func.count()).where(AuditEntry.kind == "people.searched")
        assert session.scalar(searches) == 4, "a hold without a note tells that the person is known"
    console = login()
    page = console.get("/console/holds")
    (token,) = set(re.findall(r'name="token" value="([^"]+)"', page.text))
    form = {"token": token, "subject_id": "adda", "reason": "court"}
    placed = console.post("/console/holds", data=form)
    assert "No model knows this id" in placed.text
    with service.database.write() as session:
        session.execute(update(Generation).values(status="candidate"))
    assert note(subject_id="adda") == NOTES[Keeps.MAYBE], "the samples of a candidate are not known"


@pytest.mark.parametrize(
    "body",
    [
        {},
        REASON,
        {"subject_id": "ada"},
        REASON | {"subject_id": "a", "sample_id": "b"},
        {"subject_id": "a", "reason": "\x00"},
        {"subject_id": "a", "reason": "\x9b31m"},  # begins a command to some terminals
    ],
)
def test_a_malformed_hold_is_refused(client: TestClient, body: dict[str, Any]) -> None:
    assert client.post(PATH, json=body).status_code == 422


def test_a_hold_of_another_tenant_does_not_exist(client: TestClient, key_of: Any) -> None:
    hold = client.post(PATH, json=REASON | {"subject_id": "ada"}).json()
    other = key_of(tenant_id="other")
    assert client.delete(f"{PATH}/{hold['id']}", headers=other).status_code == 404
    assert client.get(PATH, headers=other).json()["data"] == []


@pytest.mark.both_engines
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("call", ["request", "hold"])
def test_a_publication_and_what_it_must_see_take_turns(client: TestClient, service: Service, call: str) -> None:
    """While a publication holds the model's row, neither an intake nor a hold slips past it."""
    model = live_model(service)
    done = threading.Event()

    def ask() -> None:
        if call == "request":
            client.post("/v1/deletion-requests", json={"subject_id": "ada"}, headers={"Idempotency-Key": "k"})
        else:
            client.post(PATH, json=REASON | {"subject_id": "ada"})
        done.set()

    with service.database.write() as session:
        session.get_one(Model, model.id, with_for_update=True)
        thread = threading.Thread(target=ask)
        thread.start()
        assert not done.wait(0.5)
    thread.join()
    assert done.is_set()
