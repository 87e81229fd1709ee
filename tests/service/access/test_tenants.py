"""Two tenants, every route, every scope. What to call is read from the OpenAPI document, so no route is forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi.testclient import TestClient

from expunge_service.access.api_keys import Scope
from expunge_service.api.dependencies import Service
from expunge_service.audit.log import integrate
from expunge_service.audit.signed_note import Signer
from expunge_service.infra.db import now
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.tables import Restoration
from expunge_service.requests.webhooks import WebhookEvent, announce
from tests.service.worlds import live_model

Keys = Callable[..., dict[str, str]]
OPEN = {"/healthz", "/readyz", "/metrics"}
ORDER = {"subject_id": "nobody-in-particular"}
BODIES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/v1/deletion-requests"): ORDER,
    ("POST", "/v1/deletion-requests/batch"): {"requests": [ORDER]},
    ("POST", "/v1/deletion-requests/estimate"): ORDER,
    ("POST", "/v1/deletion-requests/search"): ORDER,
    ("POST", "/v1/deletion-requests/{request_id}/lift"): {"reason": "by mistake"},
    ("POST", "/v1/deletion-requests/{request_id}/reject"): {"reason": "not them"},
    ("POST", "/v1/deletion-requests/{request_id}/same-person"): {"subject_id": "ada"},
    ("POST", "/v1/deletion-requests/same-person/rehearse"): {"decisions": [{"request": "0" * 32, "subject_id": "ada"}]},
    ("POST", "/v1/models"): {"name": "another", "recipe": "digits", "method": "recollection"},
    ("POST", "/v1/models/{name}/retrains"): {},
    ("POST", "/v1/models/{name}/port"): {},
    ("PATCH", "/v1/models/{name}/policy"): {"batch": 1},
    ("PUT", "/v1/models/{name}/consumers/{consumer_id}"): {"version": 1},
    ("POST", "/v1/holds"): {"subject_id": "nobody-in-particular", "reason": "court"},
    ("POST", "/v1/keys"): {"scopes": ["keys:admin"]},
    ("PUT", "/v1/actors/{actor_id}"): {"name": "an-auditor"},
    ("POST", "/v1/webhooks"): {"url": "https://example.org/hook", "kinds": [WebhookEvent.VERSION_PUBLISHED]},
}
"""a valid body for each route that takes one"""
SENT = (Scope.DELETIONS_WRITE, Scope.DELETIONS_READ)
DECIDED = (Scope.DELETIONS_DECIDE, Scope.DELETIONS_READ)
MENDED = (Scope.MODELS_ADMIN, Scope.DELETIONS_READ)
BOTH = {
    ("DELETE", "/v1/deletion-requests/{request_id}"): SENT,
    ("POST", "/v1/deletion-requests/{request_id}/approve"): DECIDED,
    ("POST", "/v1/deletion-requests/{request_id}/extend"): DECIDED,
    ("POST", "/v1/deletion-requests/{request_id}/verify"): DECIDED,
    ("POST", "/v1/deletion-requests/{request_id}/reject"): DECIDED,
    ("POST", "/v1/deletion-requests/{request_id}/same-person"): DECIDED,
    ("POST", "/v1/deletion-requests/{request_id}/other-person"): DECIDED,
    ("POST", "/v1/deletion-requests/same-person/rehearse"): (*DECIDED, Scope.PEOPLE_SEARCH),
    ("POST", "/v1/deletion-requests/{request_id}/lift"): DECIDED,
    ("POST", "/v1/deletion-requests/{request_id}/retry"): MENDED,
}
"""routes that ask for two scopes at once"""
EITHER = ("/v1/events",)
"""routes that one of two scopes opens"""
QUERY = {"leaf": "0", "old_size": 1, "seconds": 0}
SHARED = {"/v1/audit-log", "/v1/audit-log/checkpoint", "/v1/audit-log/proof", "/v1/audit-log/consistency"}
"""one log for all tenants, of which each reads the text of its own entries alone"""


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    bodied: bool
    options: frozenset[str]

    @property
    def names_something(self) -> bool:
        return "{" in self.path


def routes(client: TestClient) -> list[Route]:
    """Every guarded route of the OpenAPI document."""
    paths = client.app.openapi()["paths"]  # type: ignore[attr-defined]
    return [
        Route(
            method.upper(),
            path,
            "requestBody" in facts,
            frozenset(each["name"] for each in facts.get("parameters", []) if each["in"] == "query"),
        )
        for path, methods in paths.items()
        for method, facts in methods.items()
        if path not in OPEN and method != "head"  # GET's route answers it, without a body
    ]


def call(client: TestClient, route: Route, key: dict[str, str], names: dict[str, str]) -> Any:
    """Call a route as it should be called. A new parameter or body that nobody wrote down here fails."""
    body = BODIES[route.method, route.path] if route.bodied else None
    headers = key | {"Idempotency-Key": new_id()}
    params = {name: value for name, value in QUERY.items() if name in route.options}
    return client.request(route.method, route.path.format(**names), json=body, headers=headers, params=params)


def furnish(client: TestClient, service: Service, key: dict[str, str], tenant: str) -> dict[str, str]:
    """One of everything for a tenant; what the paths' parameters stand for."""
    name = f"digits-of-{tenant}"
    live_model(service, name, {f"ada-of-{tenant}": [f"sample-of-{tenant}"]}, tenant_id=tenant)

    def made(path: str, body: dict[str, Any]) -> str:
        answer = client.post(path, json=body, headers=key | {"Idempotency-Key": new_id()})
        assert answer.is_success, answer.text
        return str(answer.json()["id"])

    names = {
        "name": name,
        "number": "current",
        "consumer_id": f"web-of-{tenant}",
        "endpoint_id": made("/v1/webhooks", {"url": f"https://example.org/{tenant}"}),
        "hold_id": made("/v1/holds", {"subject_id": f"bea-of-{tenant}", "reason": f"court-of-{tenant}"}),
        "request_id": made("/v1/deletion-requests", {"subject_id": f"ada-of-{tenant}"}),
        "key_id": made("/v1/keys", {"scopes": ["keys:admin"], "label": f"label-of-{tenant}"}),
    }
    listed = client.get("/v1/keys", headers=key).json()["data"]
    names["actor_id"] = next(each["actor"] for each in listed if each["id"] == names["key_id"])
    assert client.post(f"/v1/models/{name}/retrains", json={"dry_run": True}, headers=key).status_code == 202
    path = f"/v1/models/{name}/consumers/{names['consumer_id']}"
    assert client.put(path, json={"version": 1}, headers=key).status_code == 200
    with service.database.write() as session:
        announce(session, tenant, WebhookEvent.BUDGET_EXHAUSTED, {"model": name})
    with service.database.write() as session:
        integrate(session, Signer.of(service.settings))
    deliveries = client.get(f"/v1/webhooks/{names['endpoint_id']}", headers=key).json()["deliveries"]["data"]
    return names | {"delivery_id": deliveries[0]["id"]}


@pytest.mark.parametrize("alone", [False, pytest.param(True, marks=pytest.mark.drill)], ids=["together", "alone"])
def test_every_route_with_every_scope_of_another_tenant_gives_nothing_away(
    api: TestClient, service: Service, key_of: Keys, alone: bool
) -> None:
    """With all scopes together, and with the one that is told less; the drill tries each scope alone as well."""
    mine, theirs = (furnish(api, service, key_of(tenant_id=tenant), tenant) for tenant in ("one", "two"))
    chosen = [
        tuple(Scope),
        (Scope.DELETIONS_WRITE,),
        *([*((scope,) for scope in Scope), SENT, DECIDED] if alone else []),
    ]
    strangers = {scopes: key_of(*scopes, tenant_id="two") for scopes in chosen}
    marks = [value for name, value in mine.items() if name not in ("number", "generation")] + ["of-one"]
    asked = 0
    for route in routes(api):
        answers = {scope: call(api, route, key, mine) for scope, key in strangers.items()}
        allowed = {scope: answer for scope, answer in answers.items() if answer.status_code != 403}
        if alone:
            singly = {scopes for scopes in allowed if len(scopes) == 1}
            assert len(singly) == (0 if (route.method, route.path) in BOTH else 1 + (route.path in EITHER)), route
        for answer in answers.values():
            asked += 1
            shown = answer.text if route.path not in SHARED else ""
            assert not any(mark in shown for mark in marks), (route, shown)
        if route.names_something:
            assert {answer.status_code for answer in allowed.values()} == {404}, route
        assert tuple(Scope) in allowed, route
    assert asked == len(strangers) * len(routes(api)) > 90
    assert theirs["name"] in api.get("/v1/models", headers=strangers[tuple(Scope)]).text


def test_what_one_tenant_may_not_do_was_not_done(api: TestClient, service: Service, key_of: Keys) -> None:
    """After a stranger has called everything, everything of the tenant's stands as it stood."""
    mine = furnish(api, service, key_of(tenant_id="one"), "one")
    everything, stranger = key_of(tenant_id="one"), key_of(tenant_id="two")
    reading = [route for route in routes(api) if route.method == "GET" and route.path not in SHARED | {"/v1/events"}]
    before = {route.path: call(api, route, everything, mine).text for route in reading}
    for route in routes(api):
        call(api, route, stranger, mine)
    problem = "urn:expunge:problem"
    for route in reading:
        after = call(api, route, everything, mine).text
        assert after == before[route.path] or problem in after, route


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_owner_is_let_in_by_exactly_the_scope_that_the_route_names(
    api: TestClient, service: Service, key_of: Keys
) -> None:
    mine = furnish(api, service, key_of(tenant_id="one"), "one")
    keys = {scope: key_of(scope, tenant_id="one") for scope in Scope}
    destructive = sorted(routes(api), key=lambda route: route.method == "DELETE")
    for route in destructive:
        codes = [call(api, route, key, mine).status_code for key in keys.values()]
        needs = BOTH.get((route.method, route.path))
        if needs is not None:
            assert set(codes) == {403}, (route, codes)
            codes = [call(api, route, key_of(*needs, tenant_id="one"), mine).status_code]
        let_in = [code for code in codes if code != 403]
        assert len(let_in) == (2 if route.path in EITHER else 1), (route, codes)
        assert 404 not in let_in or route.path.endswith("/certificate"), (route, codes)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_restored_backup_is_only_read_until_it_is_confirmed(api: TestClient, service: Service, key_of: Keys) -> None:
    everything = key_of(tenant_id="one")
    mine = furnish(api, service, everything, "one")
    with service.database.write() as session:
        session.add(Restoration(id=new_id(), started_at=now(session), report={}))
    writes = 0
    for route in routes(api):
        answer = call(api, route, everything, mine)
        if route.method == "GET":
            assert answer.status_code in (200, 404, 409), route
            continue
        writes += 1
        assert (answer.status_code, answer.json()["code"]) == (503, "read_only"), route
        assert "expunge restore --confirm" in answer.json()["detail"] and answer.headers["retry-after"]
    assert writes > 10
    assert "restored backup" in api.get("/readyz").json()["detail"]
