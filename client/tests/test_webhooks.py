"""Webhooks as Standard Webhooks' own library signs them, and what was changed on the way."""

from __future__ import annotations

import base64
import json
import time
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from standardwebhooks import Webhook

from expunge_client import NotAuthentic, verify_webhook

SECRET = "whsec_" + base64.b64encode(b"s" * 32).decode()
OURS = Ed25519PrivateKey.from_private_bytes(b"k" * 32)
PUBLIC = "whpk_" + base64.b64encode(OURS.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)).decode()
BODY = json.dumps({"type": "deletion_request.completed", "data": {"id": "r"}})


def headers(body: str = BODY, at: float | None = None, message_id: str = "msg_1") -> dict[str, str]:
    seconds = int(at or time.time())
    v1 = Webhook(SECRET).sign(message_id, datetime.fromtimestamp(seconds, UTC), body)
    v1a = base64.b64encode(OURS.sign(f"{message_id}.{seconds}.{body}".encode())).decode()
    other = base64.b64encode(b"x" * 32).decode()
    signatures = f"v1,{other} {v1} v1a,{v1a} v9,what"
    return {"Webhook-Id": message_id, "webhook-timestamp": str(seconds), "WEBHOOK-SIGNATURE": signatures}


@pytest.mark.parametrize("key", [SECRET, PUBLIC])
@pytest.mark.parametrize("body", [BODY, BODY.encode()])
def test_what_the_standards_library_signs_is_authentic(key: str, body: Any) -> None:
    assert verify_webhook(key, headers(), body) == json.loads(BODY)


CHANGES: dict[str, Any] = {
    "body": lambda told: (told, BODY.replace('"r"', '"s"')),
    "space": lambda told: (told, BODY + " "),
    "id": lambda told: (told | {"Webhook-Id": "msg_2"}, BODY),
    "timestamp": lambda told: (told | {"webhook-timestamp": str(int(time.time()) + 1)}, BODY),
    "no timestamp": lambda told: (told | {"webhook-timestamp": "soon"}, BODY),
    "no id": lambda told: ({name: value for name, value in told.items() if name != "Webhook-Id"}, BODY),
    "no signature": lambda told: (told | {"WEBHOOK-SIGNATURE": ""}, BODY),
    "other scheme": lambda told: (told | {"WEBHOOK-SIGNATURE": told["WEBHOOK-SIGNATURE"].replace("v1", "v2")}, BODY),
    "not base64": lambda told: (told | {"WEBHOOK-SIGNATURE": "v1,! v1a,!"}, BODY),
}


@pytest.mark.parametrize("key", [SECRET, PUBLIC])
@pytest.mark.parametrize("change", CHANGES)
def test_what_was_changed_is_not(key: str, change: str) -> None:
    told, body = CHANGES[change](headers())
    with pytest.raises(NotAuthentic):
        verify_webhook(key, told, body)


@pytest.mark.parametrize("late", [-301, 302])
def test_an_old_call_cannot_be_repeated(late: int) -> None:
    told = headers(at=time.time() + late)
    with pytest.raises(NotAuthentic, match="timestamp"):
        verify_webhook(SECRET, told, BODY)
    assert verify_webhook(SECRET, told, BODY, tolerance_seconds=400)


def test_a_key_of_another_kind_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="whsec_"):
        verify_webhook("secret", headers(), BODY)
