"""The other end of a connection, and whether it may name a person in a header."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

Networks = Sequence[IPv4Network | IPv6Network]


class NamedPeople:
    """ASGI middleware that removes the header unless it comes from one of ``peers``, once.

    ``peer`` is the host at the other end of the connection. It must be read before anything replaces it by what
    ``X-Forwarded-For`` says (``expunge_service.serve``).
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
    """ASGI middleware that notes the other end of the connection."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope["expunge.peer"] = (scope.get("client") or ("", 0))[0]
        await self._app(scope, receive, send)
