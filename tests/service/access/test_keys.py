"""API keys: who may call what, on every route."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge_service.access.api_keys import Scope, authenticate, create_key, list_keys, revoke_key
from expunge_service.api.dependencies import Service
from expunge_service.api.http.limits import Limiter, client_of
from expunge_service.app import create_app
from expunge_service.infra.db import now
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.settings import Settings
from expunge_service.infra.tables import ApiKey, AuditEntry
from expunge_service.infra.time import rfc_3339
from tests.service.access.test_tenants import BOTH

Keys = Callable[..., dict[str, str]]
OPEN = {"/healthz", "/readyz", "/metrics"}


def routes(client: TestClient) -> Iterator[tuple[str, str]]:
    """Every (method, path) of the OpenAPI document, its parameters filled in."""
    for path, methods in client.app.openapi()["paths"].items():  # type: ignore[attr-defined]
        for method in methods.keys() - {"head"}:  # GET's route answers it, without a body
            filled = path.replace("{request_id}", "0" * 32).replace("{name}", "digits").replace("{number}", "current")
            yield (
                method.upper(),
                filled.replace("{hold_id}", "0" * 32)
                .replace("{consumer_id}", "web")
                .replace("{endpoint_id}", "0" * 32)
                .replace("{key_id}", "0" * 32)
                .replace("{actor_id}", "0" * 32)
                .replace("{delivery_id}", "msg_" + "0" * 32),
            )


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_every_route_asks_for_a_key(api: TestClient, key_of: Keys) -> None:
    asked = 0
    for method, path in routes(api):
        if path in OPEN:
            continue
        asked += 1
        missing = api.request(method, path, json={"any": 1} if method in ("POST", "PUT") else None)
        assert (missing.status_code, missing.json()["code"]) == (401, "key_missing"), (method, path)
        assert missing.headers["www-authenticate"].startswith("Bearer")
        wrong = api.request(method, path, headers={"Authorization": f"Bearer exp_{'0' * 12}_{'0' * 64}"})
        assert (wrong.status_code, wrong.json()["code"]) == (401, "key_invalid"), (method, path)
        assert 'error="invalid_token"' in wrong.headers["www-authenticate"]
    assert asked > 10


@pytest.mark.drill  # test_tenants.py shows it with bodies: the owner is let in by exactly the scope named
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_every_route_asks_for_exactly_one_scope(api: TestClient, key_of: Keys) -> None:
    keys: dict[object, dict[str, str]] = {scope: key_of(scope) for scope in Scope}
    for method, path in routes(api):
        if path in OPEN:
            continue
        allowed = []
        needs = next((scopes for (verb, shape), scopes in BOTH.items() if verb == method and _fits(shape, path)), None)
        tried = keys if needs is None else {needs: key_of(*needs)}
        if needs is not None:
            alone = [api.request(method, path, headers=key_of(scope)) for scope in needs]
            assert {answer.json()["code"] for answer in alone} == {"scope_missing"}, (method, path)
        for scope, key in tried.items():
            answer = api.request(method, path, headers=key, params={"leaf": "0", "old_size": 1, "seconds": 0})
            if answer.status_code != 403:
                allowed.append(scope)
            else:
                assert answer.json()["code"] == "scope_missing"
        assert len(allowed) == (2 if path == "/v1/events" else 1), (method, path, allowed)


def _fits(shape: str, path: str) -> bool:
    return shape.replace("{request_id}", "0" * 32) == path


def _flattened(routes: Iterable[object]) -> Iterator[APIRoute]:
    """The application's own routes, those of included routers among them."""
    for route in routes:
        if isinstance(route, APIRoute):
            yield route
        elif isinstance(inner := getattr(route, "original_router", None), APIRouter):
            yield from _flattened(inner.routes)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_every_route_of_the_application_is_documented(api: TestClient) -> None:
    documented = set(api.app.openapi()["paths"])  # type: ignore[attr-defined]
    made = {route.path_format for route in _flattened(api.app.routes)}  # type: ignore[attr-defined]
    assert len(made) > 30
    assert documented <= made
    assert {path for path in made if not path.startswith("/console/")} <= documented | {"/", "/runbooks", "/verify"}


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Basic YTpi",
        "Bearer exp_",
        "Bearer exp_zz_zz",
        "Bearer " + "x" * 5000,
        b"Bearer caf\xc3\xa9",
    ],
)
def test_a_malformed_key_is_refused(api: TestClient, header: str | bytes) -> None:
    answer = api.get("/v1/models", headers={"Authorization": header})  # type: ignore[dict-item]
    assert answer.status_code == 401


def test_a_key_with_another_secret_does_not_work(service: Service, key_of: Keys) -> None:
    key = key_of()["Authorization"].removeprefix("Bearer ")
    wrong = key[:-1] + ("0" if key[-1] != "0" else "1")
    with service.database.read() as session:
        assert authenticate(session, service.pepper, key) is not None
        assert authenticate(session, service.pepper, wrong) is None
        assert authenticate(session, Pepper.of(b"p" * 32), key) is None


def test_a_revoked_or_expired_key_does_not_work(api: TestClient, service: Service, key_of: Keys) -> None:
    with service.database.read() as session:
        at = now(session)
    lasting, expired = key_of(expires_at=at + 60_000_000), key_of(expires_at=at)
    assert api.get("/v1/models", headers=lasting).status_code == 200
    assert api.get("/v1/models", headers=expired).status_code == 401
    with service.database.write() as session:
        prefix = lasting["Authorization"].split("_")[1]
        assert revoke_key(session, prefix)
        assert not revoke_key(session, prefix)
        assert not revoke_key(session, "unknown")
    assert api.get("/v1/models", headers=lasting).status_code == 401


def test_the_secret_is_kept_nowhere(service: Service) -> None:
    with service.database.write() as session:
        key = create_key(session, service.pepper, label="one", scopes=["models:read"])
    with service.database.read() as session:
        (row,) = list_keys(session)
        assert (row.id, row.prefix, row.scopes) == (key.id, key.prefix, ["models:read"])
        for table in (ApiKey, AuditEntry):
            assert key.secret[-64:] not in repr(session.execute(select(table.__table__)).all())  # type: ignore[arg-type]
    assert key.secret not in repr(key)


@pytest.mark.parametrize(("scopes", "tenant"), [([], "default"), (["all"], "default"), (["models:read"], "../x")])
def test_a_key_needs_known_scopes_and_a_tenant(service: Service, scopes: list[str], tenant: str) -> None:
    with pytest.raises(ValueError), service.database.write() as session:
        create_key(session, service.pepper, label="one", scopes=scopes, tenant_id=tenant)


def test_two_tenants_see_nothing_of_each_other(api: TestClient, key_of: Keys, settings: Settings) -> None:
    one, two = key_of(), key_of(tenant_id="two")
    body = {"name": "digits", "recipe": "digits", "method": "recollection"}
    assert api.post("/v1/models", json=body, headers=one).status_code == 202
    made = api.post("/v1/deletion-requests", json={"subject_id": "ada"}, headers=one | {"Idempotency-Key": "k"}).json()
    for path in ("/v1/models/digits", "/v1/models/digits/versions", f"/v1/deletion-requests/{made['id']}"):
        assert api.get(path, headers=one).status_code == 200
        assert api.get(path, headers=two).status_code == 404
    for path in ("/v1/models", "/v1/deletion-requests"):
        assert len(api.get(path, headers=one).json()["data"]) == 1
        assert api.get(path, headers=two).json()["data"] == []
    limited = {"subject_id": "ada", "models": ["digits"]}
    answer = api.post("/v1/deletion-requests", json=limited, headers=two | {"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_model")
    assert create_app(settings) is not None


def test_keys_are_made_listed_and_revoked_over_http(api: TestClient, key_of: Keys) -> None:
    admin = key_of("keys:admin", "models:read")
    assert api.post("/v1/keys", json={"scopes": ["audit:read"]}, headers=admin).json()["code"] == "scope_exceeded"
    past = {"scopes": ["models:read"], "expires_at": "2001-01-01T00:00:00Z"}
    assert api.post("/v1/keys", json=past, headers=admin).status_code == 422
    for named in ({"label": "\x9b31m", "role": "viewer"}, {"label": "\x7f", "role": "viewer"}):
        refused = api.post("/v1/keys", json=named, headers=key_of())
        assert refused.json()["errors"][0]["pointer"] == "/label", "a terminal that lists keys obeys it"
    made = api.post("/v1/keys", json={"label": "web", "scopes": ["models:read"]}, headers=admin)
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    new = made.json()
    bearer = {"Authorization": f"Bearer {new.pop('key')}"}
    assert api.get("/v1/models", headers=bearer).status_code == 200
    assert new | {"key": None} in api.get("/v1/keys", headers=admin).json()["data"]
    assert new["scopes"] == ["models:read"] and new["label"] == "web"
    stranger = key_of("keys:admin", tenant_id="other")
    assert api.delete(f"/v1/keys/{new['id']}", headers=stranger).status_code == 404
    assert len(api.get("/v1/keys", headers=stranger).json()["data"]) == 1
    for _ in range(2):
        assert api.delete(f"/v1/keys/{new['id']}", headers=admin).json()["revoked_at"] is not None
    assert api.get("/v1/models", headers=bearer).status_code == 401


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_key_that_calls_too_often_is_told_when_to_come_back_and_others_are_not(
    api: TestClient, service: Service, key_of: Keys
) -> None:
    service.limiter.burst, service.limiter.per_second = 2, 0.1
    busy, other = key_of(), key_of()
    assert [api.get("/v1/models", headers=busy).status_code for _ in range(3)] == [200, 200, 429]
    refused = api.get("/v1/models", headers=busy)
    assert refused.json()["code"] == "too_many_calls" and 1 <= int(refused.headers["retry-after"]) <= 10
    assert api.get("/v1/models", headers=other).status_code == 200


def test_a_bucket_fills_at_its_rate_and_no_further_than_its_burst() -> None:
    time = [0.0]
    limiter = Limiter(per_second=2, burst=3, clock=lambda: time[0])
    assert [limiter.wait_of("a") for _ in range(4)] == [0, 0, 0, 1]
    time[0] += 0.5
    assert [limiter.wait_of("a") for _ in range(2)] == [0, 1]
    time[0] += 100
    assert [limiter.wait_of("a") for _ in range(4)] == [0, 0, 0, 1]


def test_a_key_is_rotated_with_an_overlap_and_grants_no_more(api: TestClient, service: Service, key_of: Keys) -> None:
    with service.database.read() as session:
        at = now(session)
    admin, old = key_of("keys:admin", "models:read"), key_of("models:read", expires_at=at + 3_600_000_000)
    prefix = old["Authorization"].split("_")[1]
    (row,) = (each for each in api.get("/v1/keys", headers=admin).json()["data"] if each["prefix"] == prefix)
    path = f"/v1/keys/{row['id']}/rotate"
    poor = key_of("keys:admin")
    assert api.post(path, headers=poor).json()["code"] == "scope_exceeded", "no way to a scope that one lacks"
    assert api.post(path, headers=key_of("keys:admin", tenant_id="other")).status_code == 404
    unread = api.post(path, headers=admin, json={"overlap_seconds": 0})
    assert (unread.status_code, unread.json()["code"]) == (422, "body_not_read"), "not an overlap of a day, in silence"
    assert "overlap_seconds" in unread.json()["detail"]
    made = api.post(path, headers=admin, params={"overlap_seconds": 60})
    assert (made.status_code, made.headers["cache-control"]) == (201, "no-store")
    new = made.json()
    assert (new["scopes"], new["label"]) == (row["scopes"], row["label"]) and new["expires_at"] > row["expires_at"]
    for bearer in (old, {"Authorization": f"Bearer {new['key']}"}):
        assert api.get("/v1/models", headers=bearer).status_code == 200, "both, during the overlap"
    assert api.post(path, headers=admin, params={"overlap_seconds": 0}).status_code == 201
    assert api.get("/v1/models", headers=old).status_code == 401
    assert api.post(path, headers=admin).json()["code"] == "key_ended"
    with service.database.read() as session:
        kinds = session.scalars(select(AuditEntry.kind).order_by(AuditEntry.id)).all()
    assert kinds.count("key.rotated") == 2


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_client_that_tries_many_wrong_keys_has_to_wait_and_a_right_key_in_use_goes_on(
    api: TestClient, service: Service, key_of: Keys
) -> None:
    service.wrong_keys.burst, service.wrong_keys.per_second = 3, 0.01
    inside, outside = key_of(), key_of()
    assert api.get("/v1/models", headers=inside).status_code == 200
    wrong = {"Authorization": f"Bearer exp_{'0' * 12}_{'0' * 64}"}
    codes = [api.get("/v1/models", headers=wrong).status_code for _ in range(5)]
    assert codes == [401, 401, 401, 429, 429]
    refused = api.get("/v1/models", headers=wrong)
    assert refused.json()["code"] == "too_many_wrong_keys" and int(refused.headers["retry-after"]) >= 1
    order = {"json": {"subject_id": "a"}, "headers": wrong | {"Idempotency-Key": "k"}}
    assert api.post("/v1/deletion-requests", **order).status_code == 429  # type: ignore[arg-type]
    assert api.post("/console/login", data={"key": "x"}).status_code == 429
    assert api.get("/v1/models", headers=outside).status_code == 429, "else it could be guessed"
    assert api.get("/v1/models", headers=inside).status_code == 200
    assert api.get("/v1/models").status_code == 401, "no key is no guess"


def test_wrong_keys_are_counted_for_a_client_and_for_so_many_clients_alone() -> None:
    assert client_of("192.0.2.7") == client_of("::ffff:192.0.2.7") != client_of("192.0.2.8")
    assert client_of("2001:db8::1") == client_of("2001:db8::ffff:1%eth0") != client_of("2001:db8:0:1::1")
    assert client_of(None) == "" and client_of("testclient") == "testclient" and client_of("::1") == "::/64"
    limiter = Limiter(per_second=0.001, burst=1, largest=3)
    assert [limiter.wait_of(name) for name in "aabcd"] == [0, 1000, 0, 0, 0]
    assert len(limiter._buckets) == 3
    assert limiter.shut_for("d") == 1000 and limiter.shut_for("a") == 0, "the one unused for longest is forgotten"
    assert limiter.shut_for("d") == 1000, "asking counts nothing"


def test_an_expiring_key_makes_none_that_outlives_it(api: TestClient, service: Service, key_of: Keys) -> None:
    with service.database.read() as session:
        at = now(session)
    ends = at + 3_600_000_000
    admin = key_of("keys:admin", "models:read", expires_at=ends)
    later = {"scopes": ["models:read"], "expires_at": rfc_3339(ends + 60_000_000)}
    for body in ({"scopes": ["models:read"]}, later):
        assert api.post("/v1/keys", json=body, headers=admin).json()["code"] == "outlives_its_maker"
    sooner = api.post("/v1/keys", json=later | {"expires_at": rfc_3339(ends - 60_000_000)}, headers=admin)
    assert sooner.status_code == 201
    lasting = key_of("models:read")["Authorization"].split("_")[1]
    own = admin["Authorization"].split("_")[1]
    for row in api.get("/v1/keys", headers=admin).json()["data"]:
        if row["prefix"] in (lasting, own):
            refused = api.post(f"/v1/keys/{row['id']}/rotate", headers=admin)
            assert (refused.status_code, refused.json()["code"]) == (403, "outlives_its_maker")
