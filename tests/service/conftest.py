"""A migrated database of each kind, and an API on top of it, fresh for every test."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.access.api_keys import Scope, create_key
from service.api.app import create_app
from service.api.dependencies import Service
from service.infra.db import Database
from service.infra.migrate import migrate
from service.infra.settings import Settings

EXAMPLES = Path(__file__).parents[2] / "examples"
Login = Callable[..., TestClient]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "expunge.db"
    database = Database(f"sqlite:///{path}")
    migrate(database)
    assert database.truncate_log()
    database.close()
    return path


@pytest.fixture(scope="session")
def postgres_template(postgres_server: Any) -> Iterator[tuple[Any, str]]:
    """Name of a migrated database; copying it is far faster than migrating again."""
    name = f"template_{secrets.token_hex(4)}"
    postgres_server.execute(f"CREATE DATABASE {name}")
    database = Database(postgres_server.url(name))
    migrate(database)
    database.close()
    yield name
    postgres_server.execute(f"DROP DATABASE {name}")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a fresh, migrated database; every test that asks for it runs on both kinds."""
    if request.param == "sqlite":
        path = tmp_path / "expunge.db"
        shutil.copy(request.getfixturevalue("sqlite_template"), path)
        yield f"sqlite:///{path}"
        return
    template = request.getfixturevalue("postgres_template")
    server = request.getfixturevalue("postgres_server")
    name = f"test_{secrets.token_hex(6)}"
    server.execute(f"CREATE DATABASE {name} TEMPLATE {template}")
    yield server.url(name)
    server.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(
        home=tmp_path / "home",
        database_url=database_url,
        recipes=EXAMPLES,
        max_body_bytes=100_000,
        max_sample_ids=50,
    )


@pytest.fixture
def api(settings: Settings) -> Iterator[TestClient]:
    """The API without a key."""
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def service(api: TestClient) -> Service:
    return api.app.state.service  # type: ignore[attr-defined]


@pytest.fixture
def key_of(service: Service) -> Callable[..., dict[str, str]]:
    """Makes a key and returns its header."""

    def make(*scopes: str, tenant_id: str = "default", expires_at: int | None = None) -> dict[str, str]:
        with service.database.write() as session:
            key = create_key(
                session,
                service.pepper,
                label="test",
                scopes=scopes or list(Scope),
                tenant_id=tenant_id,
                expires_at=expires_at,
            )
        return {"Authorization": f"Bearer {key.secret}"}

    return make


@pytest.fixture
def client(api: TestClient, key_of: Callable[..., dict[str, str]]) -> TestClient:
    """The API with a key that holds every scope."""
    api.headers.update(key_of())
    return api


@pytest.fixture
def login(api: TestClient, service: Service) -> Login:
    """Logs the client in with a new key of these scopes, as the form does."""

    def enter(*scopes: str, tenant_id: str = "default") -> TestClient:
        with service.database.write() as session:
            key = create_key(session, service.pepper, label="t", scopes=scopes or list(Scope), tenant_id=tenant_id)
        answer = api.post("/console/login", data={"key": key.secret}, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert key.secret not in str(answer.headers)
        return api

    return enter
