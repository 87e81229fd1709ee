"""What the audit log keeps of a legal hold: the person's id, and how it is written, sealed under the pepper.

A restored backup may be older than a hold, and losing it could delete data that a court wants
kept. So the entry carries the digests. They are encrypted: auditors get exports, and must not see that two
holds name the same person. With the pepper the table shows that as well.
"""

from __future__ import annotations

import json
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from expunge_service.audit.signed_note import NotAuthentic
from expunge_service.infra.pseudonyms import Pepper, digest
from expunge_service.infra.tables import Hold

_NONCE_BYTES = 12
REASON = "placed again from the audit log"
"""of a hold that was placed again: the reason was never in the log"""


def seal_hold(pepper: Pepper, hold: Hold) -> str:
    """Encrypt the hold's subject: AES-256-GCM, a random nonce of 12 bytes, as hex."""
    names = [hold.subject_digest, hold.sample_digest, hold.spelling]
    nonce = secrets.token_bytes(_NONCE_BYTES)
    text = AESGCM(_key(pepper)).encrypt(nonce, json.dumps(names).encode(), _belongs_to(hold.tenant_id, hold.id))
    return (nonce + text).hex()


def unseal_hold(pepper: Pepper, tenant_id: str, hold_id: str, sealed: str, at: int) -> Hold:
    """Return the hold as it was placed at this moment. Raises NotAuthentic under another pepper."""
    data = bytes.fromhex(sealed)
    try:
        text = AESGCM(_key(pepper)).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], _belongs_to(tenant_id, hold_id))
    except InvalidTag:
        raise NotAuthentic(f"The names of hold {hold_id} cannot be read under this pepper.") from None
    subject, sample, *spelling = json.loads(text)  # release 0.2 kept none
    return Hold(
        id=hold_id,
        tenant_id=tenant_id,
        subject_digest=subject,
        sample_digest=sample,
        spelling=spelling[0] if spelling else None,
        reason=REASON,
        created_at=at,
    )


def _key(pepper: Pepper) -> bytes:
    return bytes.fromhex(digest(pepper, "hold", b"sealing key"))


def _belongs_to(tenant_id: str, hold_id: str) -> bytes:
    return f"expunge/hold {tenant_id} {hold_id}".encode()
