"""A Ray Serve deployment that follows the version that Expunge publishes. **Not run**: written from memory of ray 2.

    cd examples/serving && serve run ray_app:app      # EXPUNGE_URL, EXPUNGE_API_KEY, MODEL and RECIPE for the replicas

Each replica is a consumer, and reports under a name that no other has.
"""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path
from typing import Any

from ray import serve
from server import opener_of
from starlette.requests import Request

from expunge_client import Expunge, Follower


@serve.deployment(num_replicas=2)
class Following:
    """Answers with the version that a call began with."""

    def __init__(self, model: str, recipe: str) -> None:
        expunge = Expunge(os.environ["EXPUNGE_URL"], os.environ["EXPUNGE_API_KEY"])
        consumer = f"{socket.gethostname().lower()}-{os.getpid()}"
        self.follower = Follower(expunge, model, consumer, opener_of(Path(recipe)), Path(tempfile.mkdtemp()))
        self.follower.start()

    async def __call__(self, request: Request) -> dict[str, Any]:
        inputs = (await request.json())["inputs"]
        with self.follower.serving() as served:
            return {"version": served.version["number"]} | served.model.answers(inputs)


app = Following.bind(os.environ["MODEL"], os.environ["RECIPE"])
