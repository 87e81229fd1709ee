"""The connectors against the real service: its API on a port of this machine, and a worker in this process."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from typer.testing import CliRunner

from expunge_client import Expunge
from expunge_client.cli.main import app
from expunge_service.access.api_keys import Scope, create_key
from expunge_service.app import create_app
from tests.harness import databases
from tests.workers.conftest import no_wait_for_the_bucket, settings, sqlite_template, world
from tests.workers.worlds import TENANT, World

__all__ = ["no_wait_for_the_bucket", "settings", "sqlite_template", "world"]

Command = Callable[..., dict[str, Any]]


@pytest.fixture
def database_url(sqlite_template: Path, tmp_path: Path) -> str:
    """The service's database: SQLite, because no connector sees which it is."""
    return databases.sqlite_databases(sqlite_template)(tmp_path)


def serving(api: FastAPI) -> Iterator[str]:
    """The application on a port of this machine; yields its address."""
    server = uvicorn.Server(uvicorn.Config(api, port=0, log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join(10)


def key_for(world: World, *scopes: str, tenant: str = TENANT) -> str:
    with world.database.write() as session:
        chosen = scopes or [Scope.DELETIONS_WRITE, Scope.DELETIONS_READ, Scope.MODELS_READ]
        pepper = world.storage.pepper
        return create_key(session, pepper, label="test", scopes=chosen, tenant_id=tenant, expires_at=None).secret


@pytest.fixture
def api(world: World) -> FastAPI:
    return create_app(world.settings)


@pytest.fixture
def url(api: FastAPI) -> Iterator[str]:
    yield from serving(api)


@pytest.fixture
def service(world: World, url: str) -> Iterator[Expunge]:
    with Expunge(url, key_for(world)) as client:
        yield client


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tenant's folder of the connectors."""
    monkeypatch.setenv("EXPUNGE_CONNECT_HOME", str(tmp_path / "connect"))
    place = tmp_path / "connect" / TENANT
    place.mkdir(parents=True)
    return place


@pytest.fixture
def command(world: World, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Runs a command of the connectors, and returns its JSON."""
    del folder
    monkeypatch.setenv("EXPUNGE_URL", url)
    monkeypatch.setenv("EXPUNGE_API_KEY", key_for(world))

    def run(*words: str) -> dict[str, Any]:
        done = CliRunner().invoke(app, [*words, "--json"])
        assert done.exit_code == 0, (done.output, done.exception)
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return run


@pytest.fixture
def drop(command: Command) -> Command:
    """Run a command of ``expunge drop`` and return its facts."""
    return lambda *words: command("drop", *words)
