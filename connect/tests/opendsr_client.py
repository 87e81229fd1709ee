"""A controller's side of OpenDSR 2.0, written from the specification alone: it imports nothing of Expunge.

What it knows of the specification, and where that differs, stands in docs/connectors.md.
"""

from __future__ import annotations

import base64
import json
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.x509 import DNSName, SubjectAlternativeName, load_pem_x509_certificate


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def said(self) -> Any:
        return json.loads(self.body)


@dataclass
class Controller:
    """Asks a processor, and checks whose signature each answer and each callback carries."""

    base: str
    key: str
    trusted: bytes = b""
    domain: str = ""
    callbacks: list[dict[str, Any]] = field(default_factory=list)
    rejected: list[bytes] = field(default_factory=list)
    arrived: threading.Event = field(default_factory=threading.Event)

    def discover(self) -> dict[str, Any]:
        """GET /discovery, and the certificate that it names."""
        first = self.call("GET", "/discovery", verified=False)
        found: dict[str, Any] = first.said
        with urllib.request.urlopen(self.base + "/" + found["processor_certificate"].rpartition("/")[2]) as answer:
            self.trusted = answer.read()
        self.domain = first.headers["x-opendsr-processor-domain"]
        names = load_pem_x509_certificate(self.trusted).extensions.get_extension_for_class(SubjectAlternativeName)
        assert self.domain in names.value.get_values_for_type(DNSName), "the certificate is another domain's"
        self.verify(first.headers, first.body)
        return found

    def erase(self, request: dict[str, Any]) -> Answer:
        return self.call("POST", "/requests", json.dumps(request).encode())

    def status(self, subject_request_id: str) -> Answer:
        return self.call("GET", f"/requests/{subject_request_id}")

    def cancel(self, subject_request_id: str) -> Answer:
        return self.call("DELETE", f"/requests/{subject_request_id}")

    def call(self, method: str, path: str, body: bytes | None = None, *, verified: bool = True) -> Answer:
        headers = {"Authorization": f"Bearer {self.key}", "Accept": "application/json"}
        headers |= {} if body is None else {"Content-Type": "application/json"}
        asked = urllib.request.Request(self.base + path, body, headers, method=method)
        try:
            with urllib.request.urlopen(asked, timeout=20) as answer:
                made = Answer(answer.status, {k.lower(): v for k, v in answer.headers.items()}, answer.read())
        except urllib.error.HTTPError as error:
            made = Answer(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read())
        if verified:
            self.verify(made.headers, made.body)
        return made

    def verify(self, headers: dict[str, str], body: bytes) -> None:
        """RSA-SHA-256 over the body, under the certificate's key, from the domain that was discovered."""
        assert headers["x-opendsr-processor-domain"] == self.domain
        key: Any = load_pem_x509_certificate(self.trusted).public_key()
        key.verify(base64.b64decode(headers["x-opendsr-signature"], validate=True), body, PKCS1v15(), SHA256())

    def listen(self) -> ThreadingHTTPServer:
        """Receive status callbacks: 202 for one that verifies, 401 for any other."""
        controller = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                try:
                    controller.verify({k.lower(): v for k, v in self.headers.items()}, body)
                except Exception:
                    controller.rejected.append(body)
                    self.send_response(401)
                else:
                    controller.callbacks.append(json.loads(body))
                    self.send_response(202)
                self.end_headers()
                controller.arrived.set()

            def log_message(self, *_: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return server
