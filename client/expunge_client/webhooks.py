"""Verify webhooks by Standard Webhooks 1.0 (https://www.standardwebhooks.com)."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from base64 import b64decode
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from expunge_client.errors import NotAuthentic

TOLERANCE_SECONDS = 300.0


def verify_webhook(
    key: str, headers: Mapping[str, str], body: bytes | str, *, tolerance_seconds: float = TOLERANCE_SECONDS
) -> dict[str, Any]:
    """Check who sent a webhook and when, and return its payload.

    Args:
        key: the endpoint's ``whsec_...`` (shared secret) or ``whpk_...`` (public key).
        headers: of the call; the case of their names does not matter.
        body: the exact bytes that arrived, not JSON that was read and written again.
        tolerance_seconds: how far the timestamp may be from now, so that an old call cannot be repeated.

    Deliveries repeat: keep the ``webhook-id`` header of what you have handled.

    Raises:
        NotAuthentic: a header is missing, the signature is not valid, or the timestamp is too far from now.
        ValueError: ``key`` is neither form.
    """
    scheme, check = _check_of(key)
    lower = {name.lower(): value for name, value in headers.items()}
    try:
        message_id, sent_at, signatures = (lower[f"webhook-{name}"] for name in ("id", "timestamp", "signature"))
        seconds = int(sent_at)
    except (KeyError, ValueError):
        raise NotAuthentic("webhook-id, webhook-timestamp or webhook-signature is missing or malformed.") from None
    if abs(time.time() - seconds) > tolerance_seconds:
        raise NotAuthentic("The timestamp is too far from now: an old call that is repeated, or a wrong clock.")
    content = body.encode() if isinstance(body, str) else body
    signed = f"{message_id}.{seconds}.".encode() + content
    offered = [each.partition(",")[2] for each in signatures.split() if each.partition(",")[0] == scheme]
    if not any(check(signed, each) for each in offered):
        raise NotAuthentic("The webhook is not signed with this key.")
    payload: dict[str, Any] = json.loads(content)
    return payload


def _check_of(key: str) -> tuple[str, Any]:
    """Return the scheme of a key, and what checks a signature (base64) over bytes."""
    prefix, _, encoded = key.partition("_")
    if prefix not in ("whsec", "whpk"):
        raise ValueError("A webhook's key begins with whsec_ or whpk_.")
    raw = b64decode(encoded, validate=True)
    if prefix == "whsec":
        return "v1", lambda signed, offered: hmac.compare_digest(
            hmac.new(raw, signed, hashlib.sha256).digest(), _decoded(offered)
        )
    public = Ed25519PublicKey.from_public_bytes(raw)

    def check(signed: bytes, offered: str) -> bool:
        try:
            public.verify(_decoded(offered), signed)
        except InvalidSignature:
            return False
        return True

    return "v1a", check


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return b""
