"""The session key is rotated by replacing its file: sessions end, webhooks are signed anew, API keys go on."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge_service.api.dependencies import Service
from expunge_service.app import create_app
from expunge_service.infra.settings import adopt_secret
from expunge_service.infra.tables import WebhookEndpoint
from expunge_service.requests.webhooks import webhook_signature
from tests.service.conftest import Login

HOOK = {"url": "https://hooks.example.com/x"}


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_replacing_the_session_key_ends_sessions_and_renews_every_webhook_secret(
    login: Login, key_of: Callable[..., dict[str, str]], service: Service
) -> None:
    api_key = key_of()
    browser = login()
    old = browser.post("/v1/webhooks", json=HOOK, headers=api_key).json()
    assert browser.get("/").status_code == 200
    adopt_secret(service.settings.session_key_file)
    with TestClient(create_app(service.settings), cookies=browser.cookies) as after:
        assert after.get("/", follow_redirects=False).status_code == 401, "a cookie of before opens nothing"
        shown = after.get(f"/v1/webhooks/{old['id']}", headers=api_key)
        assert shown.status_code == 200, "an API key of before is valid"
        assert shown.json()["public_key"] != old["public_key"]
        new = after.post("/v1/webhooks", json=HOOK, headers=api_key).json()
        renewed = after.app.state.service  # type: ignore[attr-defined]
        with renewed.database.read() as session:
            endpoints = {row.id: row for row in session.scalars(select(WebhookEndpoint))}
        for endpoint_id, secret in ((old["id"], old["secret"]), (new["id"], new["secret"])):
            signed = webhook_signature(renewed.session_key, endpoints[endpoint_id], "msg_1", 1_700_000_000, "{}")
            assert (signed.split()[0] == _v1(secret)) is (endpoint_id == new["id"])


def _v1(secret: str) -> str:
    raw = base64.b64decode(secret.removeprefix("whsec_"))
    return "v1," + base64.b64encode(hmac.new(raw, b"msg_1.1700000000.{}", hashlib.sha256).digest()).decode()
