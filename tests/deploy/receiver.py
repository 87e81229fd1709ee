"""A receiver of Alertmanager's webhooks, on the address of this machine that containers reach."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Received:
    """What was told, in its order: when (seconds since the epoch), firing or resolved, and the alert's labels."""

    address: str
    told: list[tuple[float, str, dict[str, str]]] = field(default_factory=list)

    def names(self, status: str, since: float = 0.0) -> set[str]:
        """Return the names of the alerts that were told with that status from ``since`` on."""
        return {labels["alertname"] for at, said, labels in [*self.told] if said == status and at >= since}

    def ringing(self) -> set[str]:
        """Return the names of the alerts that were told as firing and not yet as ended."""
        last = {tuple(sorted(labels.items())): (said, labels["alertname"]) for _, said, labels in [*self.told]}
        return {name for said, name in last.values() if said == "firing"}

    def take(self, body: dict[str, Any]) -> None:
        now = time.time()
        self.told += [(now, each["status"], each["labels"]) for each in body["alerts"]]


@contextmanager
def receiver(host: str) -> Iterator[Received]:
    """Listen on a free port of ``host`` while the block runs."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            received.take(json.loads(body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Write nothing: the table at the end says what was told."""

    server = ThreadingHTTPServer((host, 0), Handler)
    received = Received(f"http://{host}:{server.server_port}/")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield received
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
