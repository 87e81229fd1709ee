"""What may change of a model's policy after registration, what may not and why, and what a change sets going."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge_service.api.dependencies import Service
from expunge_service.infra.tables import AuditEntry, Generation, Model, Task
from expunge_service.models.policy import CHANGEABLE, FIXED
from expunge_service.requests.reasons import Reason
from expunge_service.requests.status import settle
from tests.harness.ways_out import run
from tests.service.worlds import live_model
from unlearning.accounting.policy import GONE

PATH = "/v1/models/digits/policy"
CHANGES: dict[str, Any] = {
    "fallback": "hold",
    "batch": 60,
    "retrain_every": 604_800,
    "place": "west",
    "complete_when": "served",
    "max_accuracy_drop": None,
    "twins": "ignore",
}


def changed(service: Service) -> list[dict[str, Any]]:
    with service.database.read() as session:
        bodies = session.scalars(select(AuditEntry.body).where(AuditEntry.kind == "model.policy_changed"))
        return [json.loads(body)["changed"] for body in bodies]


def test_every_field_that_may_change_changes_and_is_logged_once(client: TestClient, service: Service) -> None:
    live_model(service)
    assert set(CHANGES) == set(CHANGEABLE)
    answer = client.patch(PATH, json=CHANGES)
    assert answer.status_code == 200 and answer.json()["policy"] == {"method": "recollection"} | CHANGES
    shown = client.get("/v1/models/digits")
    assert shown.json() | {"preparation": None} == answer.json()
    assert shown.headers["etag"] == answer.headers["etag"]
    again = client.patch(PATH, json=CHANGES)
    assert (again.json(), changed(service)) == (answer.json(), [CHANGES])
    with service.database.read() as session:
        assert session.scalars(select(Model.retrain_at)).one() is not None


@pytest.mark.parametrize(("method", "path"), [("PATCH", PATH), ("POST", "/v1/models")], ids=["change", "registration"])
def test_a_field_of_former_releases_is_refused_with_the_new_way(
    client: TestClient, service: Service, method: str, path: str
) -> None:
    live_model(service)
    named = {} if method == "PATCH" else {"name": "other", "recipe": "digits"}
    refused = client.request(method, path, json=named | {"collect_seconds": 60})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_policy")
    (fault,) = refused.json()["errors"]
    assert fault["pointer"] == "/collect_seconds" and "batch" in fault["detail"]


@pytest.mark.parametrize("name", sorted(FIXED))
def test_what_claims_rest_on_is_refused_with_the_reason(client: TestClient, service: Service, name: str) -> None:
    live_model(service)
    refused = client.patch(PATH, json={name: 1, "batch": 5})
    assert (refused.status_code, refused.json()["code"]) == (422, "fixed_at_registration")
    (fault,) = refused.json()["errors"]
    assert fault["pointer"] == f"/{name}" and "Register the recipe under another name" in fault["detail"]
    assert changed(service) == []


@pytest.mark.parametrize("body", [{"unknown": 1}, {"batch": -1}, {"fallback": "rewind"}, {"complete_when": "never"}])
def test_a_value_that_is_not_allowed_changes_nothing(client: TestClient, service: Service, body: Any) -> None:
    live_model(service)
    assert client.patch(PATH, json=body).status_code == 422 and changed(service) == []


@pytest.mark.parametrize("name", GONE)
@pytest.mark.parametrize("registers", [True, False], ids=["registration", "change"])
def test_a_field_of_before_is_refused_with_the_way_of_today(
    client: TestClient, service: Service, name: str, registers: bool
) -> None:
    live_model(service)
    order = {"name": "new", "recipe": "digits", name: "retrain"}
    refused = client.post("/v1/models", json=order) if registers else client.patch(PATH, json={name: "retrain"})
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid_policy")
    assert refused.json()["errors"] == [{"pointer": f"/{name}", "detail": GONE[name]}]


def test_a_model_that_is_not_served_keeps_its_policy(client: TestClient) -> None:
    client.post("/v1/models", json={"name": "digits", "recipe": "digits", "method": "retrain"})
    refused = client.patch(PATH, json={"batch": 5})
    assert (refused.status_code, refused.json()["code"]) == (409, "not_served")
    assert [each["verb"] for each in refused.json()["actions"]] == ["retire"]


@pytest.mark.parametrize(
    ("change", "reason", "goes_on"),
    [
        ({"fallback": "retrain"}, Reason.BUDGET_EXHAUSTED, True),
        ({"fallback": "retrain"}, Reason.NEEDS_RETRAIN, True),
        ({"batch": 5}, Reason.BUDGET_EXHAUSTED, False),
        ({"fallback": "retrain"}, Reason.LEGAL_HOLD, False),
    ],
)
def test_what_the_new_policy_lets_go_on_goes_on(
    client: TestClient, service: Service, change: dict[str, Any], reason: Reason, goes_on: bool
) -> None:
    model = live_model(service)
    client.patch(PATH, json={"fallback": "hold"})
    order = {"subject_id": "ada"}
    request = client.post("/v1/deletion-requests", json=order, headers={"Idempotency-Key": "1"}).json()["id"]
    with service.database.write() as session:
        session.get_one(Model, model.id).status = "exhausted"
        for task in session.scalars(select(Task)):
            task.status, task.reason = "blocked", reason
        settle(session, [request])
    client.patch(PATH, json=change)
    shown = client.get(f"/v1/deletion-requests/{request}").json()
    assert shown["status"] == ("queued" if goes_on else "blocked")
    with service.database.read() as session:
        planned = session.scalars(select(Generation.id).where(Generation.status == "candidate")).all()
    assert bool(planned) == ("fallback" in change)


def test_a_change_that_was_decided_on_an_older_state_is_refused(client: TestClient, service: Service) -> None:
    live_model(service)
    seen = {"If-Match": client.get("/v1/models/digits").headers["ETag"]}
    assert client.patch(PATH, json={"batch": 5}, headers=seen).status_code == 200
    for method, path in (("PATCH", PATH), ("POST", "/v1/models/digits/retire")):
        answer = client.request(method, path, json={"batch": 7} if method == "PATCH" else None, headers=seen)
        assert answer.status_code == 412


def test_the_terminal_changes_and_shows_a_policy(
    client: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    live_model(service)
    typed = ["--fallback", "hold", "--batch", "60s", "--retrain-every", "7d"]
    typed += [
        word
        for each in ("complete_when=served", "place=west", "max_accuracy_drop=null", "twins=ignore")
        for word in ("--set", each)
    ]
    done = run(client, monkeypatch, "models", "policy", "digits", *typed)
    assert done.exit_code == 0 and changed(service) == [CHANGES]
    assert "604800" in run(client, monkeypatch, "models", "policy", "digits").output
    for said, batch in (("by-deadline", 31_536_000), ("0", 0)):
        run(client, monkeypatch, "models", "policy", "digits", "--batch", said)
        assert client.get("/v1/models/digits").json()["policy"]["batch"] == batch
    run(client, monkeypatch, "models", "policy", "digits", "--set", "batch=12h")
    assert client.get("/v1/models/digits").json()["policy"]["batch"] == 43_200, "written alike in both ways"
    run(client, monkeypatch, "models", "policy", "digits", "--set", "batch=null")
    assert client.get("/v1/models/digits").json()["policy"]["batch"] is None, "by the rule"
    retired = run(client, monkeypatch, "models", "retire", "digits")
    assert retired.exit_code == 0 and client.get("/v1/models/digits").json()["status"] == "retired"


def test_the_terminal_cancels_a_preparation_and_the_name_is_free(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = {"name": "digits", "recipe": "digits", "method": "retrain"}
    assert client.post("/v1/models", json=body).status_code == 202
    assert "expunge models retire digits" in run(client, monkeypatch, "models", "show", "digits").output
    assert run(client, monkeypatch, "models", "retire", "digits").exit_code == 0
    assert client.post("/v1/models", json=body).status_code == 202
    names = [each["name"] for each in client.get("/v1/models").json()["data"]]
    assert names == ["digits", "digits-cancelled-1"]
