"""A POST beside a registration: how long the slowest one in a hundred waits, over the same on an idle service.

``python -m benchmarks beside_registration``. The service runs on PostgreSQL as a process of its own; a worker, another
process, registers 200,000 samples of 40,000 people meanwhile. One client posts without a rest, first to the idle
service, then until the registration ends. Wall-clock time, because somebody waits.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

from benchmarks.crowd import CONVERGED, write_crowd
from benchmarks.posting import Endpoint, post, serving
from benchmarks.release import TENANT, live, worker
from expunge_service.access import Scope, create_key
from expunge_service.infra.settings import Settings
from expunge_service.infra.tables import Model
from expunge_service.models import register
from expunge_workers.runtime.process import Process
from tests.harness import servers
from tests.harness.process import ANY_DISTANCE
from unlearning.accounting.policy import Policy

SAMPLES, EACH, FEATURES, IDLE_SECONDS = 200_000, 5, 20, 20
PEOPLE = [f"p{number}" for number in range(2000)]
"""of the model that is live: whom the client posts, again and again"""
MOST_RATIO, LONGEST = 2.0, 0.5
POLICY = {"method": "newton", "guarantee": "proved", "max_distance": 1 / SAMPLES, "noise_std": 1000 / SAMPLES}


def rows() -> Iterator[dict[str, Any]]:
    with (
        tempfile.TemporaryDirectory() as folder,
        servers.postgres(fsync="on") as server,
        server.database() as url,
    ):
        size = {"people": SAMPLES // EACH, "each": EACH, "features": FEATURES, "classes": 2}
        model = f"torch.nn.Linear({FEATURES}, 1, bias=False)"
        write_crowd(
            Path(folder), "large", model=model, loss="binary_logistic", training=CONVERGED, named="q{}".format, **size
        )
        with api(Path(folder), url) as endpoint:
            end = time.perf_counter() + IDLE_SECONDS
            idle = posts(endpoint, lambda: time.perf_counter() < end)
            with subprocess.Popen([sys.executable, "-m", "benchmarks.beside_registration", folder, url]) as child:
                beside = posts(endpoint, lambda: child.poll() is None)
            if child.returncode:
                raise RuntimeError("the registration failed")
    sides = {"idle": told(idle), "beside": told(beside)}
    ratio, longest = sides["beside"]["p99_s"] / sides["idle"]["p99_s"], sides["beside"]["longest_s"]
    name = f"POST beside a registration of {SAMPLES:,} samples, PostgreSQL"
    met = {"target": f"<= {MOST_RATIO:g}", "met": ratio <= MOST_RATIO}
    yield {"name": f"{name}: p99 / idle p99", "value": ratio, "unit": "ratio", "sides": sides, **met}
    met = {"target": f"<= {LONGEST:g}", "met": longest <= LONGEST}
    yield {"name": f"{name}: longest", "value": longest, "unit": "s", "sides": sides, **met}


@contextmanager
def api(folder: Path, url: str) -> Iterator[Endpoint]:
    """Serve the API of an installation with a live model, whose updates nobody carries out."""
    process, _ = live(folder, database_url=url, people=len(PEOPLE), features=4, classes=2)
    with process.storage.database.write() as session:
        key = create_key(session, process.storage.pepper, label="bench", scopes=[Scope.DELETIONS_WRITE]).secret
    process.storage.close()
    environment = {"EXPUNGE_HOME": str(folder / "home"), "EXPUNGE_DATABASE_URL": url, "EXPUNGE_RATE": "1000000"}
    command, port = [sys.executable, "-m", "expunge_service.serve"], servers.free_port()
    with serving(command, port, environment, folder / "api.log"):
        yield Endpoint(port, "/v1/deletion-requests", key)


def posts(endpoint: Endpoint, goes_on: Callable[[], bool]) -> list[float]:
    """Return the seconds of each call."""
    seconds: list[float] = []
    people = cycle(PEOPLE)
    while goes_on():
        seconds += post(endpoint, people, until=time.perf_counter() + 0.5).seconds
    return seconds


def told(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    median, slow = (ordered[round(share * (len(ordered) - 1))] for share in (0.5, 0.99))
    return {"calls": len(ordered), "median_s": median, "p99_s": slow, "longest_s": ordered[-1]}


def registered(home: Path, url: str) -> None:
    """Register the large model and prepare it, as a worker does."""
    settings = Settings(home=home / "home", recipes=home, device="cpu", database_url=url)
    process = Process.of(settings, ANY_DISTANCE)
    with process.storage.database.write() as session:
        model_id = register(session, TENANT, "large", "large", Policy.from_json(POLICY)).id
    worker(process).work(model_id)
    with process.storage.database.read() as session:
        model = session.get_one(Model, model_id)
    if model.status != "live":
        raise RuntimeError(f"the benchmark's model is {model.status}: {model.reason}")


if __name__ == "__main__":
    registered(Path(sys.argv[1]), sys.argv[2])
