"""A person that a proxy names in a header becomes the actor of the call. It grants no scope: the key does.

``expunge_service.api.http.peers`` takes the header away before, unless it comes from a peer that the settings name.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from expunge_service.access.api_keys import Caller
from expunge_service.infra.db import Database, now
from expunge_service.infra.pseudonyms import Pepper, digest, new_id
from expunge_service.infra.tables import ActorName

LONGEST_NAME = 120


def named_by_proxy(database: Database, pepper: Pepper, caller: Caller, name: str | None) -> Caller:
    """Return the caller as the actor that the proxy names; the caller unchanged where it names none."""
    if not name or len(name) > LONGEST_NAME or not name.isprintable():
        return caller
    secret = digest(pepper, "proxy", f"{caller.tenant_id}/{name}")
    with database.read() as session:
        found = _known(session, caller.tenant_id, secret)
    if found is None:
        with suppress(IntegrityError), database.write() as session:  # another call may have been first
            row = ActorName(id=new_id(), tenant_id=caller.tenant_id, name=name, proxy_digest=secret)
            row.created_at = now(session)
            session.add(row)
        with database.read() as session:
            found = _known(session, caller.tenant_id, secret)
    return caller if found is None else replace(caller, actor_id=found, origin=found, vouched=True)


def _known(session: Session, tenant_id: str, secret: str) -> str | None:
    query = select(ActorName.id).where(ActorName.tenant_id == tenant_id, ActorName.proxy_digest == secret)
    return session.scalar(query)
