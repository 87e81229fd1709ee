"""The link that ``expunge up`` prints: it logs in once, within five minutes, on this machine alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge_service.access import sessions
from expunge_service.access.api_keys import Scope, create_key, revoke_key
from expunge_service.access.sessions import make_link
from expunge_service.api.cookies import COOKIE
from expunge_service.api.dependencies import Service
from expunge_service.app import create_app
from expunge_service.infra.settings import Settings
from expunge_service.infra.tables import EndedSession


@pytest.fixture
def local(settings: Settings) -> Iterator[TestClient]:
    """A browser on the service's own machine."""
    with TestClient(create_app(settings), client=("127.0.0.1", 50_000)) as client:
        yield client


@pytest.fixture
def service(local: TestClient) -> Service:
    return local.app.state.service  # type: ignore[attr-defined]


def link(service: Service) -> tuple[str, str]:
    """A link, and the id of its key."""
    with service.database.write() as session:
        key = create_key(session, service.pepper, label="up", scopes=list(Scope))
        return make_link(session, service.session_key, key.id), key.id


@pytest.mark.both_engines
def test_it_logs_in_once(local: TestClient, service: Service) -> None:
    value, _ = link(service)
    entered = local.post("/console/link", data={"link": value})
    assert entered.status_code == 200 and "Log out" in entered.text and COOKIE in local.cookies
    local.cookies.clear()
    again = local.post("/console/link", data={"link": value})
    assert again.status_code == 401 and "was used before" in again.text and COOKIE not in local.cookies
    with service.database.read() as session:
        assert len(session.scalars(select(EndedSession)).all()) == 1


def test_it_is_over_after_five_minutes(local: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sessions.LINK_SECONDS == 300
    monkeypatch.setattr(sessions, "LINK_SECONDS", 0)
    assert local.post("/console/link", data={"link": link(service)[0]}).status_code == 401


def test_a_forged_one_a_sessions_cookie_and_a_revoked_keys_link_open_nothing(
    local: TestClient, service: Service
) -> None:
    value, key_id = link(service)
    text, _, seal = value.rpartition(".")
    key, name, ends = text.split(".")
    for forged in ("", "...", "x", f"{key}.{name}.{int(ends) + 1}.{seal}", f"{'0' * 32}.{name}.{ends}.{seal}"):
        assert local.post("/console/link", data={"link": forged}).status_code == 401, forged
    assert local.post("/console/link", data={"link": value}).status_code == 200
    cookie = local.cookies[COOKIE]
    local.cookies.clear()
    assert local.post("/console/link", data={"link": cookie}).status_code == 401
    local.cookies.set(COOKIE, link(service)[0])
    assert local.get("/").status_code == 401, "a link is no cookie"
    local.cookies.clear()
    other, revoked = link(service)
    with service.database.write() as session:
        revoke_key(session, revoked)
    assert local.post("/console/link", data={"link": other}).status_code == 401
    assert key_id != revoked


@pytest.mark.parametrize(
    "headers", [{"X-Forwarded-For": "127.0.0.1"}, {"Forwarded": "for=::1"}, {"Sec-Fetch-Site": "cross-site"}], ids=str
)
def test_it_does_not_work_through_a_proxy_or_from_another_site(
    local: TestClient, service: Service, headers: dict[str, str]
) -> None:
    value, _ = link(service)
    assert local.post("/console/link", data={"link": value}, headers=headers).status_code == 403
    assert local.post("/console/link", data={"link": value}).status_code == 200, "the refusal used it up"


@pytest.mark.parametrize(("host", "status"), [("192.0.2.7", 403), ("::1", 200), ("127.8.9.1", 200), ("unix", 403)])
def test_only_this_machine_may_use_it(local: TestClient, service: Service, host: str, status: int) -> None:
    value, _ = link(service)
    with TestClient(local.app, client=(host, 1)) as other:
        assert other.post("/console/link", data={"link": value}).status_code == status
