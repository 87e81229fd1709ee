"""Four eyes: an act is carried out when a second person asks for what a first one asked for.

A person is an actor: two keys of one actor count as one approver. So do two keys of one origin: the maker of a key over
HTTP sees it, and may use it. The first one's consent is a row that counts for a week, and an entry of the audit
log.
"""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from expunge_service.access.api_keys import Caller
from expunge_service.audit import record
from expunge_service.infra.db import now
from expunge_service.infra.tables import Consent
from expunge_service.infra.time import DAY_SECONDS, SECOND

CONSENT_SECONDS = 7 * DAY_SECONDS


class TwoPersonAct(StrEnum):
    """What can be put under four eyes: verifying a request, deciding about the spelling of its id, lifting a hold or a
    suppression, retiring a model.
    """

    VERIFY = "verify"
    DECIDE = "decide"
    LIFT = "lift"
    RETIRE = "retire"


def second_approval(session: Session, caller: Caller, act: TwoPersonAct, subject: str) -> bool:
    """Return whether another person has consented to this act on ``subject`` (an id), and use that consent up.

    Otherwise note the caller's own consent. The transaction must commit in both cases.
    """
    standing = session.get(Consent, (caller.tenant_id, act, subject), with_for_update=True)
    if standing is not None and standing.created_at > now(session) - CONSENT_SECONDS * SECOND:
        if standing.actor_id == caller.actor_id or standing.origin == caller.origin:
            return False
        session.delete(standing)
        return True
    if standing is not None:
        session.delete(standing)
        session.flush()
    _consent(session, caller, act, subject)
    return False


def consented(session: Session, tenant_id: str, act: TwoPersonAct, subject: str) -> str | None:
    """Return the id of the actor that consented; None: there is none."""
    standing = session.get(Consent, (tenant_id, act, subject))
    if standing is None or standing.created_at <= now(session) - CONSENT_SECONDS * SECOND:
        return None
    return standing.actor_id


def _consent(session: Session, caller: Caller, act: TwoPersonAct, subject: str) -> None:
    """Write the consent and its audit entry. Where another came first, write neither."""
    at = now(session)
    who = {"actor_id": caller.actor_id, "origin": caller.origin}
    session.add(Consent(tenant_id=caller.tenant_id, act=act, subject=subject, **who, created_at=at))
    record(session, caller.tenant_id, "consent.given", act=act, subject=subject)
    try:
        session.flush()
    except IntegrityError:
        session.rollback()
