"""Send a POST to an address that a caller chose, guarded against server-side request forgery (SSRF).

The name is resolved once, every address it has must be public, and the connection is made to the address that was
checked. So no attacker gains by pointing the name elsewhere in between. No redirect is followed, no proxy of the
environment is used, the answer's body is not read, and the whole exchange has a deadline.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

import httpx

DEADLINE_SECONDS = 10.0
_TRANSLATED = IPv6Network("64:ff9b::/32")  # NAT64 (RFC 6052, RFC 8215): an IPv4 address in disguise
_NOT_PUBLIC = (
    IPv4Network("192.0.0.0/24"),  # protocol assignments, NAT64 discovery among them (RFC 6890)
    IPv4Network("192.31.196.0/24"),  # AS112 (RFC 7535), a service that each network may run itself
    IPv4Network("192.52.193.0/24"),  # multicast relays (RFC 7450), likewise
    IPv4Network("192.88.99.0/24"),  # 6to4 relays (RFC 7526)
    IPv4Network("192.175.48.0/24"),  # AS112 (RFC 7534)
    IPv6Network("2001::/23"),  # protocol assignments (RFC 2928)
    IPv6Network("2620:4f:8000::/48"),  # AS112 (RFC 7534)
    IPv6Network("3fff::/20"),  # documentation (RFC 9637)
    IPv6Network("5f00::/16"),  # segment routing (RFC 9602)
    IPv6Network("fec0::/10"),  # site-local (RFC 3879)
)
"""ranges that some of the supported Python versions count as global, and where no receiver is"""
_ISATAP = (0x00005EFE, 0x02005EFE)
"""bits 32 to 63 of an address that tunnels to an IPv4 address, which may be private (RFC 5214)"""
Address = IPv4Address | IPv6Address
Resolver = Callable[[str, int], Awaitable[list[str]]]


async def resolve(host: str, port: int) -> list[str]:
    """Return every address of a name, by the system's resolver. Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


@dataclass(frozen=True)
class Outbound:
    """A guarded client. ``loopback`` also allows this machine's addresses over plain http, for tests."""

    loopback: bool = False
    resolver: Resolver = resolve
    trust: ssl.SSLContext = field(default_factory=lambda: httpx.create_ssl_context(trust_env=False))
    deadline_seconds: float = DEADLINE_SECONDS

    async def post(self, url: str, body: bytes, headers: Mapping[str, str]) -> int | None:
        """Send the body and return the status of the answer; None: the URL leads to no public address over https.

        Raises:
            TimeoutError: the deadline passed.
            OSError, httpx.HTTPError, httpx.InvalidURL: there is no such name, or no answer.
        """
        async with asyncio.timeout(self.deadline_seconds):
            target = httpx.URL(url)
            address = await self._address(target)
            if address is None:
                return None
            extensions = {"sni_hostname": target.raw_host.decode()}  # the certificate is the name's, not the address's
            async with (
                httpx.AsyncClient(verify=self.trust, trust_env=False, timeout=self.deadline_seconds) as client,
                client.stream(
                    "POST",
                    target.copy_with(host=str(address)),
                    content=body,
                    headers={**headers, "Host": target.netloc.decode()},
                    extensions=extensions,
                    follow_redirects=False,
                ) as answer,
            ):
                return answer.status_code

    async def _address(self, target: httpx.URL) -> Address | None:
        """Return the address to send to; None where any address of the name is not admitted."""
        port = target.port or (443 if target.scheme == "https" else 80)
        found = [ip_address(text.partition("%")[0]) for text in await self.resolver(target.raw_host.decode(), port)]
        return found[0] if found and all(self._admitted(target.scheme, address) for address in found) else None

    def _admitted(self, scheme: str, address: Address) -> bool:
        if self.loopback and address.is_loopback:
            return scheme in {"http", "https"}
        return scheme == "https" and public(address)


def public(address: Address) -> bool:
    """Return whether an address is public: not private, local, shared, reserved or multicast."""
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is not None:
            return public(address.ipv4_mapped)
        if address.sixtofour is not None or address.teredo is not None or address in _TRANSLATED:
            return False
        if int(address) >> 32 & 0xFFFFFFFF in _ISATAP:
            return False
    if any(address in network for network in _NOT_PUBLIC):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)
