"""A KServe model that follows the version that Expunge publishes. **Not run**: written from memory of kserve 0.15.

    python examples/serving/kserve_model.py      # EXPUNGE_URL, EXPUNGE_API_KEY, MODEL, RECIPE, and POD_NAME of each pod

KServe starts several pods: each is a consumer, so that a deletion counts as served when the last one moved on.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import kserve
from server import opener_of

from expunge_client import Expunge, Follower


class Following(kserve.Model):
    """Answers with the version that a call began with."""

    def load(self) -> bool:
        expunge = Expunge(os.environ["EXPUNGE_URL"], os.environ["EXPUNGE_API_KEY"])
        opened = opener_of(Path(os.environ["RECIPE"]))
        self.follower = Follower(expunge, self.name, os.environ["POD_NAME"], opened, Path(tempfile.mkdtemp()))
        self.follower.start()
        self.ready = True
        return self.ready

    def predict(self, payload: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, Any]:  # noqa: ARG002
        with self.follower.serving() as served:
            answers = served.model.answers(payload["instances"])
            return {"predictions": answers["outputs"], "model_version": str(served.version["number"])}


if __name__ == "__main__":
    kserve.ModelServer().start([Following(os.environ["MODEL"])])
