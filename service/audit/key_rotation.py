"""A new signing key for the log and the certificates. The old one is retired in the log itself.

The entry that retires a key names its successor, and carries the old key's signature over it. So anyone who trusts the
old key can move to the new one. Anyone who trusts the new key finds the earlier keys in the log, and what they signed
until then still verifies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.audit.log import ROTATED, integrate, record
from service.audit.signed_note import Handover, NotAuthentic, Signer, Verifier
from service.infra.tables import AuditEntry
from service.infra.tenants import DEFAULT_TENANT


@dataclass(frozen=True)
class Succession:
    """One rotation, as the log tells it. No head over more than ``index`` + 1 entries may bear the retired key."""

    index: int
    retired: Verifier
    key: Verifier
    endorsement: str

    @classmethod
    def parse(cls, index: int, body: str) -> Succession:
        """Read the entry's text. Raises NotAuthentic."""
        facts = json.loads(body)
        return cls(index, Verifier.parse(facts["retired"]), Verifier.parse(facts["key"]), str(facts["endorsement"]))

    @property
    def endorsed(self) -> bool:
        """Return whether the retired key itself signed for its successor."""
        try:
            return self.retired.open(self.endorsement) == _endorsement(self.key)
        except NotAuthentic:
            return False


def rotate(session: Session, old: Signer, new: Signer) -> None:
    """Retire ``old`` in the log, under a head that both keys sign. Call it once; it takes effect with the commit."""
    while integrate(session, old):
        pass
    record(
        session,
        DEFAULT_TENANT,
        ROTATED,
        retired=str(old.verifier),
        key=str(new.verifier),
        endorsement=old.sign(_endorsement(new.verifier)),
    )
    session.flush()
    integrate(session, Handover(old, new))


def successions(entries: Iterable[dict[str, Any]]) -> list[Succession]:
    """Return the rotations in exported entries, oldest first. They are as authentic as the entries. Raises
    NotAuthentic.
    """
    return [
        Succession.parse(int(entry["index"]), entry["body"])
        for entry in entries
        if entry.get("body") and f'"kind":"{ROTATED}"' in entry["body"]
    ]


def verifiers(session: Session, current: Verifier) -> list[Verifier]:
    """Return the key in use and all that were retired. Certificates of any age verify with one of them."""
    rows = select(AuditEntry.log_index, AuditEntry.body).where(AuditEntry.kind == ROTATED).order_by(AuditEntry.id)
    return [current, *(Succession.parse(index or 0, body).retired for index, body in session.execute(rows))]


def succeed(trusted: Verifier, history: Iterable[Succession]) -> Verifier:
    """Follow the rotations from a trusted key to the key in use: from each key to the one that it signed for."""
    for each in history:
        if each.retired == trusted and each.endorsed:
            trusted = each.key
    return trusted


def _endorsement(successor: Verifier) -> str:
    return f"expunge: this key's successor\n{successor}\n"
