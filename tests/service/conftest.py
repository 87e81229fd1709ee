"""A migrated database of each kind, and an API on top of it, fresh for every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from expunge_service.access.api_keys import Scope, create_key
from expunge_service.api.dependencies import Service
from expunge_service.app import create_app
from expunge_service.infra.db import Database
from expunge_service.infra.limits import Limits
from expunge_service.infra.settings import Settings
from tests.harness import databases
from tests.harness.built_routes import share_built_routes
from tests.harness.servers import Postgres

share_built_routes()
SMALL = Limits(body_bytes=100_000, sample_ids=50)
EXAMPLES = Path(__file__).parents[2] / "examples"
Login = Callable[..., TestClient]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return databases.sqlite_template(tmp_path_factory.mktemp("template"))


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: Postgres) -> Iterator[databases.MakeDatabase]:
    with databases.postgres_databases(postgres_server) as make:
        yield make


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of a fresh, migrated database of each kind; see ``both_engines``."""
    if request.param == "sqlite":
        yield databases.sqlite_databases(request.getfixturevalue("sqlite_template"))(tmp_path)
        return
    url = request.getfixturevalue("postgres_databases")(tmp_path)
    yield url
    request.getfixturevalue("postgres_server").execute(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")


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
    )


@pytest.fixture
def api(settings: Settings) -> Iterator[TestClient]:
    """The API without a key."""
    with TestClient(create_app(settings, SMALL), raise_server_exceptions=False) as client:
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
