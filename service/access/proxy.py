"""A person whom a proxy names in a header: they become the actor of the call. It grants no scope: the key does.

The header counts from the peers that the settings name. From anybody else it is taken away before anything reads it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from ipaddress import IPv4Network, IPv6Network, ip_address

from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session
from starlette.types import ASGIApp, Receive, Scope, Send

from expunge.service.access.api_keys import Caller
from expunge.service.infra.db import Database, now
from expunge.service.infra.pseudonyms import Pepper, digest, new_id
from expunge.service.infra.tables import ActorName

LONGEST_NAME = 120
Networks = Sequence[IPv4Network | IPv6Network]


class NamedPeople:
    """ASGI middleware that removes the header unless it comes from one of ``peers``, once.

    ``peer`` is the host at the other end of the connection. It must be read before anything replaces it by what
    ``X-Forwarded-For`` says (``expunge.service.api.http.serve``).
    """

    def __init__(self, app: ASGIApp, header: str, peers: Networks) -> None:
        self._app = app
        self._header = header.lower().encode()
        self._peers = peers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._header:
            sent = [value for name, value in scope["headers"] if self._means(name)]
            if len(sent) != 1 or not self._trusts(scope):
                scope["headers"] = [each for each in scope["headers"] if not self._means(each[0])]
        await self._app(scope, receive, send)

    def _means(self, name: bytes) -> bool:
        """Return whether a name is the header's. Proxies differ in whether ``_`` is ``-``, so both are meant."""
        return name.lower().replace(b"_", b"-") == self._header.replace(b"_", b"-")

    def _trusts(self, scope: Scope) -> bool:
        host = scope.get("expunge.peer") or (scope.get("client") or ("", 0))[0]
        with suppress(ValueError):
            address = ip_address(str(host).partition("%")[0])
            address = getattr(address, "ipv4_mapped", None) or address
            return any(address in network for network in self._peers)
        return False


class Peer:
    """ASGI middleware that notes who is at the other end of the connection."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["expunge.peer"] = (scope.get("client") or ("", 0))[0]
        await self._app(scope, receive, send)


def named_by_proxy(database: Database, pepper: Pepper, caller: Caller, name: str | None) -> Caller:
    """Return the caller as the actor whom the proxy names; the caller themselves where it names nobody."""
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
