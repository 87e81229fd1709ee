"""A TCP proxy before a database that breaks off at COMMIT, so that the client never learns what became of it."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

Cut = Literal["before", "after", "answered", "silent"]
"""COMMIT is swallowed; forwarded, and its answer not awaited; carried out, and its answer swallowed; swallowed, and the
database never learns that the client is gone, as when a cable is pulled"""
COMMIT = b"COMMIT"
BLOCK = 1 << 16


@dataclass
class Proxy:
    """Forwards every connection to ``target``; ``arm`` makes it break off at one of the next COMMITs."""

    target: tuple[str, int]
    port: int = 0
    cuts: int = 0
    _armed: list[Cut | None] = field(default_factory=list)
    _guard: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)

    def arm(self, *cuts: Cut | None) -> None:
        """Set what is done to each of the next COMMITs, in this order. None: nothing."""
        with self._guard:
            self._armed[:] = cuts

    def close(self) -> None:
        self._over.set()

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # closed: the proxy is over
                return
            threading.Thread(target=self._forward, args=(client,), daemon=True).start()

    def _forward(self, client: socket.socket) -> None:
        with suppress(OSError), client, socket.create_connection(self.target) as server:
            back = threading.Thread(target=_pump, args=(server, client), daemon=True)
            back.start()
            while data := client.recv(BLOCK):
                cut = self._cut() if COMMIT in data else None
                if cut == "answered":
                    _swallow(server, client, data)
                    break
                if cut == "silent":
                    _shut(client)
                    self._over.wait()
                if cut in (None, "after"):
                    server.sendall(data)
                if cut is not None:
                    break
            _shut(client)
            _shut(server)

    def _cut(self) -> Cut | None:
        with self._guard:
            if not self._armed:
                return None
            cut = self._armed.pop(0)
            self.cuts += cut is not None
            return cut


@contextmanager
def proxy(host: str, port: int) -> Iterator[Proxy]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Proxy((host, port), listener.getsockname()[1])
        threading.Thread(target=made.serve, args=(listener,), daemon=True).start()
        yield made
        made.close()
        _shut(listener)


def _swallow(server: socket.socket, client: socket.socket, data: bytes) -> None:
    """Cut the client off first, so that nobody reads the answer to its COMMIT; then pass the COMMIT to the server."""
    _shut(client)
    server.sendall(data)
    server.settimeout(5)
    with suppress(OSError):
        server.recv(BLOCK)


def _pump(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(BLOCK):
            sink.sendall(data)
    _shut(sink)


def _shut(end: socket.socket) -> None:
    with suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
