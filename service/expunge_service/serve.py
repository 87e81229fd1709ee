"""Serve the API: ``python -m expunge_service.serve --host HOST --port PORT``. A client that stalls is cut off.

Bodies have another time limit (``bodies``). This one is for the head, which no application sees before it is complete.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from functools import partial

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from expunge_service.api.http.peers import Peer
from expunge_service.app import create_app
from expunge_service.infra.limits import LIMITS, Limits
from expunge_service.infra.settings import SettingsError

HEAD_SECONDS = 10.0
"""from the connection, or from the first byte of a later request, to the end of the request's head"""
_LATE = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class Patient(H11Protocol):
    """HTTP/1.1 on one connection. Heads must come within ``HEAD_SECONDS``."""

    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._expect_head()
        else:
            self._forget()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _expect_head(self) -> None:
        """Start the clock, unless it runs already: bytes that trickle in do not set it back."""
        if self._late is None:
            self._late = self.loop.call_later(HEAD_SECONDS, self._end)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _end(self) -> None:
        self._late = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.write(_LATE)
            self.transport.close()


def serving(limits: Limits = LIMITS) -> ASGIApp:
    """Make the application as it is served: it knows its true peer, and then the client that a trusted proxy names.

    Trusted are the addresses in FORWARDED_ALLOW_IPS, as uvicorn has it; this machine without it.
    """
    trusted = os.environ.get("FORWARDED_ALLOW_IPS", "127.0.0.1")
    return Peer(ProxyHeadersMiddleware(create_app(limits=limits), trusted_hosts=trusted))  # type: ignore[arg-type]


def config(
    host: str, port: int, keyfile: str | None = None, certfile: str | None = None, limits: Limits = LIMITS
) -> uvicorn.Config:
    """Return uvicorn's configuration: over TLS where ``keyfile`` and ``certfile`` (PEM) are given."""
    return uvicorn.Config(
        partial(serving, limits),
        factory=True,
        proxy_headers=False,
        host=host,
        port=port,
        http=Patient,
        access_log=False,
        ssl_keyfile=keyfile,
        ssl_certfile=certfile,
    )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m expunge_service.serve", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8750)
    parser.add_argument("--ssl-keyfile", help="PEM; with --ssl-certfile: serve TLS without a proxy in front")
    parser.add_argument("--ssl-certfile", help="PEM")
    given = parser.parse_args(arguments)
    try:
        uvicorn.Server(config(given.host, given.port, given.ssl_keyfile, given.ssl_certfile)).run()
    except SettingsError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main(sys.argv[1:])
