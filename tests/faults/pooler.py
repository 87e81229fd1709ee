"""A pooler before PostgreSQL: a client's connection outlives the server, as behind pgbouncer or a cloud's proxy.

An idle client learns nothing of a failover: the server that answers then gets its next statement. One inside a
transaction is cut off.
"""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

REFUSED_ENCRYPTION = (80877103, 80877104)
PATIENCE_SECONDS = 30.0


class Gone(OSError):
    """The other end closed its connection."""


@dataclass
class Pooler:
    """Speaks the protocol of PostgreSQL 3.0 without encryption and password, to ``target``."""

    target: tuple[str, int]
    port: int = 0
    carried_over: int = 0
    """connections of clients that went on with another connection to the server"""
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def serve(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:  # closed: the pooler is over
                return
            threading.Thread(target=self._follow, args=(client,), daemon=True).start()

    def _follow(self, client: socket.socket) -> None:
        """Forward what either end says. The client waits for nothing while ``owed`` is 0 and the state is idle."""
        with suppress(OSError), client:
            started = _startup(client)
            server: socket.socket | None
            server, greeting = self._connect(started)
            client.sendall(greeting)
            statements: dict[bytes, bytes] = {}
            owed, idle = 0, True
            while True:
                ends = [client] if server is None else [client, server]
                readable, _, _ = select.select(ends, [], [])
                if server in readable and server is not None:
                    try:
                        message = _message(server)
                    except OSError:
                        if not idle:
                            raise
                        server.close()
                        server = None
                        continue
                    if idle:
                        continue  # that it ends, for instance: the client learns nothing of it
                    client.sendall(message)
                    if message[:1] == b"Z":
                        owed -= 1
                        idle = owed == 0 and message[5:6] == b"I"
                if client in readable:
                    message = _message(client)
                    if server is None or (idle and _has_closed(server)):
                        server, _ = self._connect(started)
                        _prepare_again(server, statements.values())
                        with self._guard:
                            self.carried_over += 1
                    _note(message, statements)
                    idle = False
                    owed += message[:1] in b"QS"
                    server.sendall(message)
                    if message[:1] == b"X":
                        return

    def _connect(self, started: bytes) -> tuple[socket.socket, bytes]:
        """Return a connection to the server, and all that it said until it was ready."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            server = None
            try:
                server = socket.create_connection(self.target)
                server.sendall(started)
                said: list[bytes] = []
                while not said or said[-1][:1] != b"Z":
                    said.append(_message(server))
                    if said[-1][:1] == b"E":
                        raise Gone(said[-1].decode(errors="replace"))
                return server, b"".join(said)
            except OSError:
                if server is not None:
                    server.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)


@contextmanager
def pooler(host: str, port: int) -> Iterator[Pooler]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Pooler((host, port), listener.getsockname()[1])
        threading.Thread(target=made.serve, args=(listener,), daemon=True).start()
        yield made


def _startup(client: socket.socket) -> bytes:
    while True:
        head = _exactly(client, 8)
        length, code = struct.unpack("!II", head)
        rest = _exactly(client, length - 8)
        if code not in REFUSED_ENCRYPTION:
            return head + rest
        client.sendall(b"N")


def _note(message: bytes, statements: dict[bytes, bytes]) -> None:
    """Remember named statements: another connection must know them too."""
    if message[:1] == b"P" and message[5:6] != b"\0":
        statements[message[5 : message.index(b"\0", 5)]] = message
    if message[:1] == b"C" and message[5:6] == b"S":
        statements.pop(message[6:-1], None)


def _prepare_again(server: socket.socket, statements: Iterable[bytes]) -> None:
    known = list(statements)
    if known:
        server.sendall(b"".join(known) + b"S\x00\x00\x00\x04")
        while _message(server)[:1] != b"Z":
            pass


def _has_closed(server: socket.socket) -> bool:
    """Return whether a server that has nothing to say has closed, or said that it ends."""
    readable, _, _ = select.select([server], [], [], 0)
    return bool(readable)


def _message(end: socket.socket) -> bytes:
    head = _exactly(end, 5)
    return head + _exactly(end, struct.unpack("!I", head[1:])[0] - 4)


def _exactly(end: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = end.recv(count - len(data))
        if not part:
            raise Gone
        data += part
    return data
