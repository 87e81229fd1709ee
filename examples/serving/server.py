"""An inference server that follows a model's current version and swaps it without dropping a request.

    EXPUNGE_API_KEY=exp_... python examples/serving/server.py --model digits --recipe examples/digits/recipe.py

``POST /predict`` ``{"inputs": [[...], ...]}`` answers the outputs and the version that made them; ``GET /healthz``
says which version is served. The key needs the scopes ``models:read`` and ``checkpoints:read``.

Where the version's guarantee is ``proved``, ``independent`` says of each answer whether its label is what retraining
without the forgotten gives under the same noise (docs/certificates.md); it is null for any other version.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import runpy
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import httpx
import torch
from safetensors.torch import load

import unlearning as ul
from unlearning.quality.independent import Answering
from unlearning.types import Refused

Opener = Callable[[dict[str, torch.Tensor]], torch.nn.Module]
POLL_SECONDS = 1.0
REPORT_SECONDS = 60.0
log = logging.getLogger("serving")


@dataclass(frozen=True)
class Served:
    """A version in memory. It is never changed: a newer one takes its place, and calls under way keep theirs."""

    number: int
    digest: str
    model: torch.nn.Module
    answering: Answering | None

    def answers(self, inputs: list[Any]) -> dict[str, Any]:
        x = torch.tensor(inputs, dtype=torch.float32)
        with torch.inference_mode():
            outputs = self.model(x).tolist()
        found = self.answering(x).independent.tolist() if self.answering else None
        return {"version": self.number, "outputs": outputs, "independent": found}


class Follower(threading.Thread):
    """Asks for the current version's checkpoint by its ETag and swaps when there is another; reports what is served.

    The newest version that was loaded goes on being served while Expunge cannot be reached, and Expunge, which
    hears nothing then, counts this consumer as silent: never as current.
    """

    def __init__(self, http: httpx.Client, model: str, consumer: str, opened: Opener) -> None:
        super().__init__(name="follower", daemon=True)
        self._http, self._path, self._consumer, self._open = http, f"/v1/models/{model}", consumer, opened
        self._ended = threading.Event()
        self._reported = -REPORT_SECONDS
        self.served: Served | None = None
        self.swaps = 0

    def run(self) -> None:
        while not self._ended.is_set():
            try:
                self.look()
            except (httpx.HTTPError, ValueError) as error:
                log.warning("still serving version %s: %s", self.served and self.served.number, error)
            self._ended.wait(POLL_SECONDS)

    def stop(self) -> None:
        self._ended.set()
        self.join()

    def look(self) -> None:
        """Swap if the current version has changed. Raises httpx.HTTPError, or ValueError for bytes that cannot be
        served.
        """
        known = {"If-None-Match": f'"{self.served.digest}"'} if self.served else {}
        answer = self._http.get(f"{self._path}/versions/current/checkpoint", headers=known)
        if answer.status_code != httpx.codes.NOT_MODIFIED:
            answer.raise_for_status()
            self.served = self._load(answer)
            self.swaps += 1
            self._reported = -REPORT_SECONDS
        if time.monotonic() - self._reported >= REPORT_SECONDS:
            self._report()

    def _load(self, answer: httpx.Response) -> Served:
        digest = answer.headers["ETag"].strip('"')
        if hashlib.sha256(answer.content).hexdigest() != digest:
            raise ValueError("the checkpoint's bytes do not have the digest that they were sent under")
        model = self._open(load(answer.content))
        version = self._version(digest)
        return Served(int(version["number"]), digest, model, _answering(model, version["claim"]))

    def _version(self, digest: str) -> dict[str, Any]:
        """Which version has these bytes: the current version may have moved on since they were sent."""
        answer = self._http.get(f"{self._path}/versions", params={"limit": 50}).raise_for_status()
        found: list[dict[str, Any]] = [each for each in answer.json()["data"] if each["checkpoint_sha256"] == digest]
        if not found:
            raise ValueError("the checkpoint belongs to none of the newest versions")
        return found[0]

    def _report(self) -> None:
        if self.served is None:
            return
        body = {"version": self.served.number}
        self._http.put(f"{self._path}/consumers/{self._consumer}", json=body).raise_for_status()
        self._reported = time.monotonic()


class Handler(BaseHTTPRequestHandler):
    """One call. It takes the version that is served when it begins, and keeps it to its end."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    follower: ClassVar[Follower]

    def do_GET(self) -> None:
        served = self.follower.served
        known = self.path == "/healthz"
        self._answer(200 if known and served else 503 if known else 404, {"version": served.number if served else None})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        served = self.follower.served
        if self.path != "/predict" or served is None:
            self._answer(404 if served else 503, {"error": "POST /predict, once a version is loaded"})
            return
        try:
            answers = served.answers(json.loads(body)["inputs"])
        except (ValueError, KeyError, TypeError, RuntimeError):
            self._answer(400, {"error": "send {'inputs': [[...], ...]} in the shape that the model takes"})
            return
        self._answer(200, answers)

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        """Inputs may be personal: nothing of a call is logged."""


class Server(ThreadingHTTPServer):
    request_queue_size = 128
    daemon_threads = True


def _answering(model: torch.nn.Module, claim: dict[str, Any]) -> Answering | None:
    """Return what tells which answers are independent of the forgotten; None where nothing is proved about labels."""
    if claim["guarantee"] != "proved":
        return None
    try:
        return Answering(model, claim["max_distance"])
    except Refused:
        return None


def opener_of(recipe: Path) -> Opener:
    """Return what makes a published file's tensors a module, by the recipe that trained it."""
    return partial(ul.published, runpy.run_path(str(recipe))["recipe"]())


def serve(follower: Follower, port: int) -> Server:
    """A server on this port, of loopback alone; 0: any free one. ``serve_forever`` runs it."""
    handler = type("Bound", (Handler,), {"follower": follower})
    return Server(("127.0.0.1", port), handler)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", required=True, help="the model's name in Expunge")
    options.add_argument("--recipe", type=Path, required=True, help="the recipe file that builds it")
    options.add_argument("--consumer", default=socket.gethostname().lower(), help="the name that reports carry")
    options.add_argument("--url", default=os.environ.get("EXPUNGE_URL", "http://127.0.0.1:8750"))
    options.add_argument("--port", type=int, default=8760)
    chosen = options.parse_args()
    headers = {"Authorization": f"Bearer {os.environ['EXPUNGE_API_KEY']}"}
    with httpx.Client(base_url=chosen.url, headers=headers, timeout=30) as http:
        follower = Follower(http, chosen.model, chosen.consumer, opener_of(chosen.recipe))
        follower.start()
        with serve(follower, chosen.port) as server:
            print(f"serving {chosen.model} on http://127.0.0.1:{server.server_address[1]}", flush=True)
            server.serve_forever()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main()
