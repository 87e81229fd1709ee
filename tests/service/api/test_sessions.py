"""Log-in and log-out of the status page: who may begin a session, and that its end is one."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient

from expunge_service.api.cookies import COOKIE
from tests.service.conftest import Login


def test_log_out_ends_every_copy_of_the_cookie(login: Login) -> None:
    client = login()
    copies = [client.cookies[COOKIE]]
    page = client.get("/").text
    copies.append(client.cookies[COOKIE])
    token = re.search(r'name="token" value="([0-9a-f]+)"', page)
    assert token is not None
    answer = client.post("/console/logout", data={"token": token[1]}, follow_redirects=False)
    assert answer.status_code == 303
    for copy in copies:
        client.cookies.clear()
        client.cookies.set(COOKIE, copy)
        for path in ("/", "/v1/events?seconds=0"):
            refused = client.get(path)
            assert refused.status_code == 401
            assert "set-cookie" not in refused.headers, "a visit does not renew it"
    assert login().get("/").status_code == 200, "a new session of whom it was"


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ({}, True),
        ({"Origin": "http://testserver"}, True),
        ({"Origin": "http://127.0.0.1:8750"}, True),
        ({"Origin": "null", "Sec-Fetch-Site": "same-origin"}, True),
        ({"Origin": "https://evil.example"}, False),
        ({"Origin": "http://testserver.evil.example"}, False),
        ({"Origin": "null"}, False),
        ({"Origin": "http://["}, False),
        ({"Origin": "http://testserver", "Sec-Fetch-Site": "cross-site"}, False),
        ({"Sec-Fetch-Site": "same-site"}, False),
    ],
)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_log_in_is_refused_from_another_origin(
    api: TestClient, key_of: Callable[..., dict[str, str]], headers: dict[str, str], allowed: bool
) -> None:
    key = key_of()["Authorization"].removeprefix("Bearer ")
    answer = api.post("/console/login", data={"key": key}, headers=headers, follow_redirects=False)
    assert answer.status_code == (303 if allowed else 403)
    assert ("set-cookie" in answer.headers) is allowed
