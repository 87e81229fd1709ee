"""Four eyes, and the people whom a proxy names."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from expunge_service.access.api_keys import Scope, create_key
from expunge_service.access.four_eyes import CONSENT_SECONDS
from expunge_service.api.dependencies import Service
from expunge_service.api.http.peers import Peer
from expunge_service.app import create_app
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.settings import Settings, SettingsError
from expunge_service.infra.tables import ActorName, AuditEntry, Consent
from expunge_service.infra.time import SECOND
from expunge_service.serve import serving
from tests.service.worlds import live_model

REQUESTS = "/v1/deletion-requests"
HEADER, PROXY = "X-Auth-Request-User", "10.1.2.3"


@dataclass
class Office:
    """An API under four eyes. ``ada`` has two keys, ``bob`` has one."""

    client: TestClient
    service: Service
    ada: dict[str, str]
    ada_again: dict[str, str]
    bob: dict[str, str]

    def do(self, method: str, path: str, key: dict[str, str], body: Any = None) -> tuple[int, str]:
        answer = self.client.request(method, path, headers=key | {"Idempotency-Key": new_id()}, json=body)
        return answer.status_code, answer.json().get("code", "")

    def entries(self, kind: str) -> list[dict[str, Any]]:
        with self.service.database.read() as session:
            rows = session.scalars(select(AuditEntry.body).where(AuditEntry.kind == kind).order_by(AuditEntry.id))
            return [json.loads(body) for body in rows]


def office_of(client: TestClient, service: Service) -> Office:
    def key(label: str, actor: str | None = None) -> tuple[dict[str, str], str]:
        with service.database.write() as session:
            scopes = ["deletions:write", "deletions:read", "deletions:decide", "models:admin", "models:read"]
            made = create_key(session, service.pepper, label=label, scopes=scopes, actor_id=actor)
        return {"Authorization": f"Bearer {made.secret}"}, made.actor_id

    ada, actor = key("ada")
    return Office(client, service, ada, key("ada's other", actor)[0], key("bob")[0])


@pytest.fixture
def office(settings: Settings) -> Iterator[Office]:
    careful = settings.model_copy(update={"four_eyes": "verify, lift,retire"})
    with TestClient(create_app(careful), raise_server_exceptions=False) as client:
        yield office_of(client, client.app.state.service)  # type: ignore[attr-defined]


def unverified(office: Office) -> str:
    body = {"subject_id": "jane", "verified": False}
    answer = office.client.post(REQUESTS, json=body, headers=office.ada | {"Idempotency-Key": new_id()})
    return str(answer.json()["id"])


def acts(office: Office) -> Iterator[tuple[str, str, Any, Callable[[], str]]]:
    """Each act that takes two people: method, path, body, and what the thing's state is."""
    live_model(office.service)
    request = f"{REQUESTS}/{unverified(office)}"

    def state(path: str, field: str) -> Callable[[], str]:
        return lambda: str(office.client.get(path, headers=office.ada).json()[field])

    yield "POST", f"{request}/verify", None, state(request, "status")
    hold = office.client.post("/v1/holds", json={"subject_id": "kim", "reason": "court"}, headers=office.ada)
    path = f"/v1/holds/{hold.json()['id']}"
    yield "DELETE", path, None, state(path, "lifted_at")
    yield "POST", "/v1/models/digits/retire", None, state("/v1/models/digits", "status")
    done = unverified(office)
    for key in (office.ada, office.bob):  # under a name that no model knows, a verified request completes at once
        office.do("POST", f"{REQUESTS}/{done}/verify", key)
    yield "POST", f"{REQUESTS}/{done}/lift", {"reason": "by mistake"}, lambda: str(office.entries("suppression.lifted"))


def test_an_act_takes_two_people_and_the_second_key_of_one_is_not_a_second(office: Office) -> None:
    tried = 0
    for method, path, body, state in acts(office):
        before, noted = state(), len(office.entries("consent.given"))
        for key in (office.ada, office.ada, office.ada_again):
            assert office.do(method, path, key, body) == (409, "awaits_another_person"), path
            assert state() == before, path
        assert len(office.entries("consent.given")) == noted + 1, "one consent, noted once"
        assert office.do(method, path, office.bob, body)[0] == 200, path
        assert state() != before, path
        tried += 1
    assert tried == 4
    with office.service.database.read() as session:
        assert session.scalars(select(Consent)).all() == [], "a consent is used up"
    verified = office.entries("request.verified")[0]
    consent = next(each for each in office.entries("consent.given") if each["act"] == "verify")
    assert consent["actor"] != verified["actor"] and consent["subject"] == verified["request"]


def test_who_makes_keys_does_not_make_a_second_person(office: Office) -> None:
    """Not by a new actor, not by a key for another one, not by a chain of makers, not by rotating somebody's key."""
    with office.service.database.write() as session:
        everything = {"label": "carol", "scopes": list(Scope)}
        carol = {"Authorization": f"Bearer {create_key(session, office.service.pepper, **everything).secret}"}
    keys = {each["label"]: each for each in office.client.get("/v1/keys", headers=carol).json()["data"]}

    def made(maker: dict[str, str], path: str = "/v1/keys", **order: Any) -> dict[str, str]:
        answer = office.client.post(path, headers=maker, json=order or None)
        assert answer.status_code == 201, answer.text
        return {"Authorization": f"Bearer {answer.json()['key']}"}

    puppet = made(carol, role="admin", label="somebody new")
    as_bob = made(carol, role="admin", actor=keys["bob"]["actor"])
    further = made(puppet, role="admin", label="and another")
    rotated = made(carol, f"/v1/keys/{keys['ada']['id']}/rotate")
    path = f"{REQUESTS}/{unverified(office)}/verify"
    for key in (carol, puppet, as_bob, further, rotated):
        assert office.do("POST", path, key) == (409, "awaits_another_person")
    assert office.do("POST", path, office.bob)[0] == 200, "a key that carol has never seen"
    path = f"{REQUESTS}/{unverified(office)}/verify"
    for key in (as_bob, office.bob):
        assert office.do("POST", path, key) == (409, "awaits_another_person"), "one actor, whoever made the key"
    assert office.do("POST", path, office.ada)[0] == 200


def test_a_consent_stands_for_a_week(office: Office) -> None:
    path = f"{REQUESTS}/{unverified(office)}/verify"
    assert office.do("POST", path, office.ada) == (409, "awaits_another_person")
    with office.service.database.write() as session:
        session.execute(update(Consent).values(created_at=Consent.created_at - CONSENT_SECONDS * SECOND))
    assert office.do("POST", path, office.bob) == (409, "awaits_another_person"), "ada's has lapsed, bob's is the first"
    assert office.do("POST", path, office.ada_again)[0] == 200


def test_without_the_setting_one_person_decides(client: TestClient, service: Service) -> None:
    office = office_of(client, service)
    assert office.do("POST", f"{REQUESTS}/{unverified(office)}/verify", office.ada)[0] == 200


@pytest.fixture
def behind(settings: Settings) -> Iterator[Callable[[str], TestClient]]:
    """Clients of one API from any address, behind a proxy at PROXY; two people verify."""
    named = {"actor_proxy": f"{HEADER}@{PROXY}, 10.9.0.0/16", "four_eyes": "verify"}
    app = create_app(settings.model_copy(update=named))
    yield lambda host: TestClient(app, client=(host, 5000))


def actor_of_last(office: Office, kind: str) -> str:
    return str(office.entries(kind)[-1]["actor"])


def test_a_header_counts_from_the_proxy_alone_and_grants_nothing(behind: Callable[[str], TestClient]) -> None:
    proxy, stranger = behind(PROXY), behind("203.0.113.9")
    office = office_of(proxy, proxy.app.state.service)  # type: ignore[attr-defined]
    jane, kim = {HEADER: "jane@example.org"}, {HEADER: "kim@example.org"}
    hold = {"subject_id": "someone", "reason": "court"}

    def placed_by(client: TestClient, headers: dict[str, str]) -> str:
        assert client.post("/v1/holds", json=hold, headers=office.ada | headers).status_code == 201
        return actor_of_last(office, "hold.placed")

    own = placed_by(proxy, {})
    by_jane = placed_by(proxy, jane)
    assert len({own, by_jane, placed_by(proxy, kim)}) == 3
    assert placed_by(proxy, jane) == by_jane, "the same person again"
    assert placed_by(behind("10.9.8.7"), jane) == by_jane
    for forged in (jane, {HEADER.lower().replace("-", "_"): "jane@example.org"}, {"X-Forwarded-For": PROXY} | jane):
        assert placed_by(stranger, forged) == own, "ignored from anybody else"
    assert placed_by(proxy, {HEADER: "x" * 121}) == own
    assert proxy.get("/v1/models", headers=jane).json()["code"] == "key_missing", "a name is no key"
    assert proxy.get("/v1/audit-log", headers=office.ada | jane).json()["code"] == "scope_missing"
    assert "jane" not in json.dumps(office.entries("hold.placed"))


def test_a_header_that_comes_twice_names_nobody(behind: Callable[[str], TestClient]) -> None:
    client = behind(PROXY)
    office = office_of(client, client.app.state.service)  # type: ignore[attr-defined]
    twice = [*office.ada.items(), (HEADER, "forged@example.org"), (HEADER, "jane@example.org")]
    client.post("/v1/holds", json={"subject_id": "x", "reason": "court"}, headers=twice)
    client.post("/v1/holds", json={"subject_id": "x", "reason": "court"}, headers=office.ada)
    assert len({each["actor"] for each in office.entries("hold.placed")}) == 1


def test_behind_a_proxy_two_people_are_two_whom_it_names(behind: Callable[[str], TestClient]) -> None:
    proxy, around = behind(PROXY), behind("203.0.113.9")
    office = office_of(proxy, proxy.app.state.service)  # type: ignore[attr-defined]
    path = f"{REQUESTS}/{unverified(office)}/verify"
    jane, kim = {HEADER: "jane"}, {HEADER: "kim"}
    assert office.do("POST", path, office.ada | jane) == (409, "awaits_another_person")
    assert office.do("POST", path, office.bob | jane) == (409, "awaits_another_person"), "the same person, other key"
    unnamed = around.post(path, headers=office.bob | kim)
    assert (unnamed.status_code, unnamed.json()["code"]) == (403, "person_unnamed"), "around the proxy nobody is named"
    assert office.do("POST", path, office.ada | kim)[0] == 200, "two people with one key are two people"


def test_an_erased_name_is_found_by_no_later_header(behind: Callable[[str], TestClient]) -> None:
    client = behind(PROXY)
    office = office_of(client, client.app.state.service)  # type: ignore[attr-defined]
    with office.service.database.write() as session:
        admin = create_key(session, office.service.pepper, label="", scopes=["keys:admin", "deletions:decide"])
    key = {"Authorization": f"Bearer {admin.secret}", HEADER: "jane@example.org"}
    client.post("/v1/holds", json={"subject_id": "x", "reason": "court"}, headers=key)
    jane = actor_of_last(office, "hold.placed")
    path = f"{REQUESTS}/{unverified(office)}/verify"
    sees = office.ada | {HEADER: "jane@example.org"}
    assert office.do("POST", path, sees) == (409, "awaits_another_person")
    client.put(f"/v1/actors/{jane}", json={"name": None}, headers={"Authorization": f"Bearer {admin.secret}"})
    with office.service.database.read() as session:
        row = session.get_one(ActorName, jane)
        assert (row.name, row.proxy_digest) == (None, None)
    client.post("/v1/holds", json={"subject_id": "x", "reason": "court"}, headers=key)
    assert actor_of_last(office, "hold.placed") != jane
    assert office.do("POST", path, sees) == (409, "awaits_another_person"), "nor is she her own second person"


def test_the_peer_is_the_connection_and_not_what_a_header_says(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Served with FORWARDED_ALLOW_IPS=*, a stranger who claims to be the proxy is still a stranger."""
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    named = settings.model_copy(update={"actor_proxy": f"{HEADER}@{PROXY}"})
    app = create_app(named)
    monkeypatch.setattr("expunge_service.serve.create_app", lambda **_: app)
    served = serving()
    assert isinstance(served, Peer)
    office = office_of(TestClient(app), app.state.service)
    for host in ("203.0.113.9", PROXY):
        client = TestClient(served, client=(host, 1))
        headers = office.ada | {HEADER: "jane", "X-Forwarded-For": PROXY}
        client.post("/v1/holds", json={"subject_id": "x", "reason": "court"}, headers=headers)
    stranger, proxy = (each["actor"] for each in office.entries("hold.placed"))
    with office.service.database.read() as session:
        assert session.get_one(ActorName, stranger).name == "ada"
        assert session.get_one(ActorName, proxy).name == "jane"


@pytest.mark.parametrize(
    "wrong",
    [
        {"four_eyes": "verify,erase"},
        {"actor_proxy": HEADER},
        {"actor_proxy": f"{HEADER}@"},
        {"actor_proxy": f"{HEADER}@,"},
        {"actor_proxy": f"@{PROXY}"},
        {"actor_proxy": f"{HEADER}@0.0.0.0/0"},
        {"actor_proxy": f"{HEADER}@{PROXY}, ::/0"},
        {"actor_proxy": f"{HEADER}@proxy.example"},
        {"actor_proxy": f"X Y@{PROXY}"},
    ],
)
def test_a_setting_that_would_name_anybody_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises((ValueError, SettingsError)):
        Settings(**wrong)


def test_the_page_tells_the_first_person_that_another_must_agree(office: Office) -> None:
    request = unverified(office)
    secret = office.ada["Authorization"].removeprefix("Bearer ")
    office.client.post("/console/login", data={"key": secret}, follow_redirects=False)
    page = f"/console/requests/{request}"
    token = office.client.get(page).text.partition('name="token" value="')[2].partition('"')[0]
    sent = {"token": token, "sure": "yes", "act": "verify", "request_id": request}
    answer = office.client.post("/console/act", data=sent)
    assert answer.status_code == 409 and "another person must verify it too" in answer.text
    assert "A first person has agreed" in office.client.get(page).text
