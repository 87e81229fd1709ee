"""An inference server that follows a model's current version and swaps it without dropping a request.

    pip install ./client
    EXPUNGE_API_KEY=exp_... python examples/serving/server.py --model digits --recipe examples/digits/recipe.py

``POST /predict`` ``{"inputs": [[...], ...]}`` answers the outputs and the version that made them; ``GET /healthz``
says which version is served. The key needs the scopes ``models:read`` and ``checkpoints:read``.

The follower is the client's (``expunge_client.Follower``): a call keeps the version that it began with, and what is
reported is the oldest one in use. While Expunge is away, the version in memory is served; to start, it must be there.

Where the version's guarantee is ``proved``, ``independent`` says of each answer whether its label is what retraining
without the forgotten gives under the same noise (docs/certificates.md); it is null for any other version.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import runpy
import socket
import tempfile
from collections.abc import Callable
from contextlib import chdir
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file

import unlearning as ul
from expunge_client import Expunge, Follower, Version
from unlearning.quality.unaffected import Answering
from unlearning.types import Refused


@dataclass(frozen=True)
class Opened:
    """A version's module, and what tells which of its answers are independent of the forgotten."""

    model: torch.nn.Module
    answering: Answering | None

    def answers(self, inputs: list[Any]) -> dict[str, Any]:
        x = torch.tensor(inputs, dtype=torch.float32)
        with torch.inference_mode():
            outputs = self.model(x).tolist()
        found = self.answering(x).independent.tolist() if self.answering else None
        return {"outputs": outputs, "independent": found}


class Handler(BaseHTTPRequestHandler):
    """One call. It takes the version that is served when it begins, and keeps it to its end."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    follower: ClassVar[Follower[Opened]]

    def do_GET(self) -> None:
        with self.follower.serving() as served:
            self._answer(200 if self.path == "/healthz" else 404, {"version": served.version["number"]})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/predict":
            self._answer(404, {"error": "POST /predict"})
            return
        with self.follower.serving() as served:
            try:
                answers = served.model.answers(json.loads(body)["inputs"])
            except (ValueError, KeyError, TypeError, RuntimeError):
                self._answer(400, {"error": "send {'inputs': [[...], ...]} in the shape that the model takes"})
                return
            self._answer(200, {"version": served.version["number"]} | answers)

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


def opener_of(recipe: Path) -> Callable[[Path, Version], Opened]:
    """Return what opens a published file, by the recipe that trained it."""
    with chdir(recipe.parent):  # where its tables lie
        published = partial(ul.published, runpy.run_path(str(recipe.resolve()))["recipe"]())

    def opened(path: Path, version: Version) -> Opened:
        model = published(load_file(path))
        return Opened(model, _answering(model, version["claim"]))

    return opened


def serve(follower: Follower[Opened], port: int) -> Server:
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
    with (
        tempfile.TemporaryDirectory() as folder,
        Expunge(chosen.url, os.environ["EXPUNGE_API_KEY"]) as expunge,
        Follower(expunge, chosen.model, chosen.consumer, opener_of(chosen.recipe), Path(folder)) as follower,
        serve(follower, chosen.port) as server,
    ):
        print(f"serving {chosen.model} on http://127.0.0.1:{server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    main()
