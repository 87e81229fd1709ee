"""Roles: every route of the API with a key of every role; what each may do is written out here."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from expunge_service.access.api_keys import Scope
from expunge_service.access.roles import SCOPES, KeyRole, role_of
from expunge_service.api.dependencies import Service
from expunge_service.infra.tables import Task
from tests.service.access.test_tenants import call, furnish, routes
from tests.service.conftest import Login
from tests.service.worlds import live_model

Keys = Callable[..., dict[str, str]]
SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
VIEWS = {
    *("GET /v1/models/{name}/commitments", "GET /v1/audit-log/suppressions"),
    *("GET /v1/deletion-requests", "GET /v1/deletion-requests/{request_id}", "GET /v1/events", "GET /v1/models"),
    "GET /v1/deletion-requests/{request_id}/certificate",
    *("GET /v1/models/{name}", "GET /v1/models/{name}/budget", "GET /v1/models/{name}/consumers"),
    *("GET /v1/models/{name}/versions", "GET /v1/models/{name}/versions/{number}"),
    *("GET /v1/audit-log", "GET /v1/audit-log/checkpoint", "GET /v1/audit-log/proof", "GET /v1/audit-log/consistency"),
}
OPERATES = {
    *("POST /v1/models", "POST /v1/models/{name}/retrains", "PATCH /v1/models/{name}/policy"),
    *("PUT /v1/models/{name}/consumers/{consumer_id}", "DELETE /v1/models/{name}/consumers/{consumer_id}"),
    *("GET /v1/webhooks", "POST /v1/webhooks", "GET /v1/webhooks/{endpoint_id}", "DELETE /v1/webhooks/{endpoint_id}"),
    "POST /v1/webhooks/{endpoint_id}/test",
    "POST /v1/webhooks/{endpoint_id}/deliveries/{delivery_id}/replay",
    *("POST /v1/models/{name}/retire", "POST /v1/models/{name}/publish", "POST /v1/models/{name}/port"),
    "POST /v1/deletion-requests/{request_id}/retry",
    "GET /v1/models/{name}/versions/{number}/checkpoint",
}
DECIDES = {
    "POST /v1/deletion-requests/same-person/rehearse",
    *("POST /v1/deletion-requests/{request_id}/same-person", "POST /v1/deletion-requests/{request_id}/other-person"),
    *("POST /v1/deletion-requests", "POST /v1/deletion-requests/batch", "POST /v1/deletion-requests/estimate"),
    *("POST /v1/deletion-requests/search", "DELETE /v1/deletion-requests/{request_id}"),
    *("POST /v1/deletion-requests/{request_id}/verify", "POST /v1/deletion-requests/{request_id}/reject"),
    *("POST /v1/deletion-requests/{request_id}/extend", "POST /v1/deletion-requests/{request_id}/approve"),
    *("POST /v1/deletion-requests/{request_id}/retry", "POST /v1/deletion-requests/{request_id}/lift"),
    *("GET /v1/holds", "POST /v1/holds", "GET /v1/holds/{hold_id}", "DELETE /v1/holds/{hold_id}"),
}
MAY = {KeyRole.VIEWER: VIEWS, KeyRole.OPERATOR: VIEWS | OPERATES, KeyRole.PRIVACY: VIEWS | DECIDES}


@SQLITE
def test_every_route_with_every_role(api: TestClient, service: Service, key_of: Keys) -> None:
    mine = furnish(api, service, key_of(tenant_id="one"), "one")
    everything = {f"{route.method} {route.path}" for route in routes(api)}
    for role in KeyRole:
        key = key_of(*SCOPES[role], tenant_id="one")
        answers = {f"{route.method} {route.path}": call(api, route, key, mine) for route in routes(api)}
        refused = {name for name, answer in answers.items() if answer.status_code == 403}
        assert {answers[name].json()["code"] for name in refused} <= {"scope_missing", "scope_exceeded"}
        assert everything - refused == MAY.get(role, everything), role


@SQLITE
def test_a_key_is_made_for_a_role_and_says_it(api: TestClient, key_of: Keys) -> None:
    made = api.post("/v1/keys", json={"role": "privacy", "label": "dpo"}, headers=key_of())
    assert (made.status_code, made.json()["role"]) == (201, "privacy")
    assert set(made.json()["scopes"]) == SCOPES[KeyRole.PRIVACY]
    more = {"role": "viewer", "scopes": ["checkpoints:read"]}
    assert api.post("/v1/keys", json=more, headers=key_of()).json()["role"] is None
    assert api.post("/v1/keys", json={}, headers=key_of()).json()["code"] == "no_scopes"
    lesser = key_of("keys:admin", *SCOPES[KeyRole.VIEWER])
    assert api.post("/v1/keys", json={"role": "operator"}, headers=lesser).json()["code"] == "scope_exceeded"
    assert api.post("/v1/keys", json={"role": "viewer"}, headers=lesser).status_code == 201
    assert role_of(list(Scope)) is KeyRole.ADMIN and role_of([]) is None


@SQLITE
def test_the_page_makes_a_key_for_a_role(login: Login) -> None:
    api = login()
    token = api.get("/console/keys").text.partition('name="token" value="')[2].partition('"')[0]
    answer = api.post("/console/keys", data={"token": token, "label": "a guest", "role": "viewer"})
    assert answer.status_code == 200 and "exp_" in answer.text
    assert "<strong>viewer</strong>" in api.get("/console/keys").text


@SQLITE
@pytest.mark.parametrize("act", ["retry", "lift"])
def test_no_answer_to_a_decision_tells_a_key_without_reading_who_is_known(
    api: TestClient, service: Service, key_of: Keys, act: str
) -> None:
    """The answer is the same for a person in the data and for any other."""
    live_model(service, people={"ada": ["a1"]})
    key = key_of("deletions:write", "models:admin", "deletions:decide")
    body = {"reason": "came back"} if act == "lift" else None
    for person in ("ada", "zoe"):
        order = {"json": {"subject_id": person}, "headers": key | {"Idempotency-Key": person}}
        request = api.post("/v1/deletion-requests", **order).json()["id"]
        with service.database.write() as session:
            session.execute(update(Task).where(Task.request_id == request).values(reason="awaiting_batch"))
        answer = api.post(f"/v1/deletion-requests/{request}/{act}", json=body, headers=key)
        assert (answer.status_code, answer.json()["code"]) == (403, "scope_missing")
