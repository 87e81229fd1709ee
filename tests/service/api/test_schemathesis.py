"""The API against its own OpenAPI document, by schemathesis: all checks, the stateful phase too, on both databases.

python -m pytest -m drill tests/service/api/test_schemathesis.py        five minutes for each database
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import uvicorn
from fastapi.testclient import TestClient

from expunge_service.api.dependencies import Service
from expunge_service.audit.log import integrate
from expunge_service.audit.signed_note import Signer
from expunge_service.infra.db import Busy, Database, now
from expunge_service.infra.tables import ApiKey, Heartbeat
from expunge_service.requests.webhooks import WebhookEvent, add_endpoint, announce
from tests.service.worlds import live_model

if not any((Path(folder) / "schemathesis").is_dir() for folder in sys.path):
    pytest.skip("schemathesis is not installed: unverified here", allow_module_level=True)

FOLDER = Path(__file__).parents[1] / "conformity"
SECONDS = int(os.environ.get("EXPUNGE_CONFORMITY_SECONDS", "300"))


@pytest.fixture
def address(client: TestClient, service: Service) -> Iterator[str]:
    """A server with a live model, a delivery, a worker's heartbeat and a log that goes on being signed."""
    service.limiter.burst, service.limiter.per_second = 10**9, 10**9
    live_model(service)
    with service.database.write() as session:
        at = now(session)
        beat = {"software": "0", "device": None, "started_at": at, "beat_at": 2 * at}
        session.add(Heartbeat(process="conformity", kind="worker", **beat))
        add_endpoint(session, service.session_key, "default", "https://hooks.example/", list(WebhookEvent))
        session.flush()
        announce(session, "default", WebhookEvent.VERSION_PUBLISHED, {"model": "digits"})
    server = uvicorn.Server(uvicorn.Config(client.app, port=0, log_level="error", lifespan="off"))  # type: ignore[arg-type]
    threads = [threading.Thread(target=server.run), threading.Thread(target=_integrate, args=(service, server))]
    for thread in threads:
        thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    for thread in threads:
        thread.join(30)


def _integrate(service: Service, server: uvicorn.Server) -> None:
    database = Database(service.settings.database_url)
    while not server.should_exit:
        with suppress(Busy), database.write() as session:
            integrate(session, Signer.of(service.settings))
        time.sleep(1)
    database.close()


def conform(address: str, client: TestClient, service: Service, operations: int, *options: str) -> None:
    key = client.headers["Authorization"]
    with service.database.read() as session:
        key_id = session.query(ApiKey.id).filter(ApiKey.prefix == key.split("_")[1]).scalar()
    command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(FOLDER / "schemathesis.toml"), "run"]
    # without --checks: all of them, and what the configuration says of single operations stands
    arguments = [f"{address}/openapi.json", "-H", f"Authorization: {key}", "--continue-on-failure"]
    paths = {"PYTHONPATH": os.pathsep.join([str(FOLDER), *filter(None, sys.path)])}
    hooks = {"SCHEMATHESIS_HOOKS": "conformity_hooks", "CONFORMITY_KEY_ID": str(key_id)}
    done = subprocess.run(
        [*command, *arguments, *options], env=os.environ | paths | hooks, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    assert re.search(rf"Tested: {operations}$", done.stdout, re.M), done.stdout
    assert client.get("/v1/models").status_code == 200  # the key still works: the answers were not all 401


def count(client: TestClient, *methods: str, under: str = "") -> int:
    """The operations of the document under a path with one of these methods; with any, where none is named."""
    paths = client.app.openapi()["paths"].items()  # type: ignore[attr-defined]
    found = [method for path, each in paths if path.startswith(under) for method in each]
    return sum(not methods or method in methods for method in found)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("under", ["/v1/deletion-requests", pytest.param("/v1", marks=pytest.mark.drill)])
def test_boundary_values_of_what_is_sent_conform(
    address: str, client: TestClient, service: Service, under: str
) -> None:
    # two choices of what to include would add up
    left_out = [word for method in ("GET", "HEAD", "PATCH", "DELETE") for word in ("--exclude-method", method)]
    chosen = ("--include-path-regex", f"^{under}", *left_out)
    operations = count(client, "post", "put", under=under)
    conform(address, client, service, operations, *chosen, "--phases", "coverage", "--seed", "1")


@pytest.mark.drill
@pytest.mark.timeout(1200)
def test_no_request_finds_a_difference_between_the_document_and_the_service(
    address: str, client: TestClient, service: Service
) -> None:
    conform(address, client, service, count(client), "--max-time", str(SECONDS))
