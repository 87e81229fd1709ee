"""What the audit log keeps of a legal hold: whom it names, sealed under the pepper.

A restored backup may be older than a hold, and a hold that is lost lets somebody be forgotten whom a court wants
kept. So the entry carries the digests. They are sealed, because an export goes to auditors, who must not see that
two holds name the same person; with the pepper the table shows that as well.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from contextlib import suppress

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from service.infra.pseudonyms import Pepper, digest, new_id
from service.infra.tables import Hold

_NONCE_BYTES = 12
REASON = "placed again from the audit log"
"""of a hold that was placed again: the reason was never in the log"""


class Unreadable(ValueError):
    """The sealed text was made under a pepper that is not configured, or for another hold."""


def seal(pepper: Pepper, hold: Hold, twins: Sequence[Hold] = ()) -> str:
    """Whom the hold names, under each pepper that it has a row for: AES-256-GCM, a random nonce of 12 bytes, as hex."""
    names = [[row.pepper_id, row.subject_digest, row.sample_digest] for row in (hold, *twins)]
    nonce = secrets.token_bytes(_NONCE_BYTES)
    text = AESGCM(_key(pepper)).encrypt(nonce, json.dumps(names).encode(), _belongs_to(hold.tenant_id, hold.id))
    return (nonce + text).hex()


def unseal(pepper: Pepper, tenant_id: str, hold_id: str, sealed: str, at: int) -> list[Hold]:
    """The rows of the hold, its own first, as they were placed at this moment. Raises Unreadable."""
    names = json.loads(_open(pepper, bytes.fromhex(sealed), _belongs_to(tenant_id, hold_id)))
    return [
        Hold(
            id=new_id() if number else hold_id,
            tenant_id=tenant_id,
            subject_digest=subject,
            sample_digest=sample,
            pepper_id=pepper_id,
            reason=REASON,
            created_at=at,
            twin_of=hold_id if number else None,
        )
        for number, (pepper_id, subject, sample) in enumerate(names)
    ]


def _open(pepper: Pepper, sealed: bytes, belongs_to: bytes) -> bytes:
    for each in pepper.every:
        with suppress(InvalidTag):
            return AESGCM(_key(each)).decrypt(sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], belongs_to)
    raise Unreadable("The hold's names cannot be read under any configured pepper.")


def _key(pepper: Pepper) -> bytes:
    return bytes.fromhex(digest(pepper, "hold", b"sealing key"))


def _belongs_to(tenant_id: str, hold_id: str) -> bytes:
    return f"expunge/hold {tenant_id} {hold_id}".encode()
