"""fides and Expunge: an erasure in fides waits until the person has left the models, then goes on.

    pip install ./client
    EXPUNGE_API_KEY=exp_... EXPUNGE_WEBHOOK=whsec_... FIDES_SECRET=... python examples/integrations/fides.py \
        --fides https://fides.example.com --folder /var/lib/expunge-fides

In fides: a connection of the type ``https`` whose ``url`` is ``https://this.example.com/fides`` and whose
``authorization`` is FIDES_SECRET, and a two-way pre-execution webhook of the erasure policy on it. In Expunge: a
webhook of the kind ``deletion_request.completed`` to ``https://this.example.com/expunge``. Put a proxy with TLS before
both.

fides posts the person's identities; the answer ``{"halt": true}`` pauses its request. When Expunge says that the
deletion is completed, fides is called back under the token that it sent. The token is kept in a file until then, the
identity never. Read from the source of ethyca-fides 2.78.2 (PyPI): ``SecondPartyRequestFormat`` and
``trigger_policy_webhook`` in ``fides/api/models/privacy_request/``, ``resume_privacy_request`` in
``fides/api/api/v1/endpoints/``. Tested against a fake of these, never against fides itself.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import re
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

from expunge_client import Expunge, ExpungeError, NotAuthentic, verify_webhook

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
IDENTITIES = ("external_id", "email")
"""fides' identities that are ids of people in your recipes, the first one that is there"""


@dataclass(frozen=True)
class Bridge:
    """Takes what fides and Expunge send, and answers with a status and a body."""

    expunge: Expunge
    fides: httpx.Client
    secret: str
    webhook: str
    folder: Path

    def from_fides(self, headers: Any, body: bytes) -> tuple[int, dict[str, Any]]:
        """Ask for the deletion and pause fides' request. Repeated, it is the same deletion."""
        if not hmac.compare_digest(headers.get("Authorization", ""), self.secret):
            return 401, {}
        sent = json.loads(body)
        if sent["policy_action"] != "erasure":
            return 200, {"halt": False}
        person = next((sent["identity"][name] for name in IDENTITIES if sent["identity"].get(name)), None)
        place = sent["privacy_request_id"]
        if person is None or not ID.fullmatch(place) or "reply-to" not in headers:
            return 400, {}
        self._keep(place, {"path": headers["reply-to"], "token": headers["reply-to-token"]})
        self.expunge.delete(subject_id=person, case_id=place, idempotency_key=f"fides-{place}")
        return 200, {"halt": True}

    def from_expunge(self, headers: Any, body: bytes) -> tuple[int, dict[str, Any]]:
        """Let fides' request go on. Where fides does not take it yet, Expunge sends the webhook again later."""
        news = verify_webhook(self.webhook, headers, body)
        case = news["data"].get("case_id") or ""
        note = self.folder / f"{case}.json"
        if news["type"] != "deletion_request.completed" or not ID.fullmatch(case) or not note.exists():
            return 204, {}
        kept = json.loads(note.read_text())
        resumed = self.fides.post(f"/api/v1{kept['path']}", json={}, headers=_bearer(kept["token"]))
        if resumed.is_error:
            return 503, {}
        note.unlink()
        return 204, {}

    def _keep(self, place: str, reply: dict[str, str]) -> None:
        part = self.folder / f".{place}.part"
        part.touch(mode=0o600)
        part.write_text(json.dumps(reply))
        part.replace(self.folder / f"{place}.json")


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def serve(bridge: Bridge, port: int) -> ThreadingHTTPServer:
    """Return a server on this port of loopback; 0 takes a free one."""
    routes = {"/fides": bridge.from_fides, "/expunge": bridge.from_expunge}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path not in routes:
                self._answer(404, {})
                return
            try:
                self._answer(*routes[self.path](self.headers, body))
            except (ValueError, KeyError, TypeError, NotAuthentic):
                self._answer(400, {})
            except (ExpungeError, httpx.HTTPError):
                self._answer(503, {})

        def _answer(self, status: int, said: dict[str, Any]) -> None:
            data = b"" if status == 204 else json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            """A call names a person: nothing of it is logged."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--fides", required=True, help="address of fides")
    options.add_argument("--folder", type=Path, required=True, help="keeps fides' tokens until they are used")
    options.add_argument("--url", default=os.environ.get("EXPUNGE_URL", "http://127.0.0.1:8750"))
    options.add_argument("--port", type=int, default=8770)
    given = options.parse_args()
    given.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (
        Expunge(given.url, os.environ["EXPUNGE_API_KEY"]) as expunge,
        httpx.Client(base_url=given.fides, timeout=20, trust_env=False) as fides,
    ):
        secrets = os.environ["FIDES_SECRET"], os.environ["EXPUNGE_WEBHOOK"]
        with serve(Bridge(expunge, fides, *secrets, given.folder), given.port) as server:
            server.serve_forever()


if __name__ == "__main__":
    main()
