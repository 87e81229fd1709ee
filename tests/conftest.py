"""Fixtures that every room of the tests may use: real servers, started once per pytest process when first asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from tests.harness import servers


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one file share a pytest process, and with it their module's fixtures, unless they name a group."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.name))


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[servers.Postgres]:
    """A running PostgreSQL; ``with postgres_server.database() as url`` gives a fresh database."""
    with servers.postgres() as server:
        yield server


@pytest.fixture
def postgres_url(postgres_server: servers.Postgres) -> Iterator[str]:
    """SQLAlchemy URL of a fresh, empty PostgreSQL database that is dropped after the test."""
    with postgres_server.database() as url:
        yield url


@pytest.fixture(scope="session")
def redis_server() -> Iterator[servers.Redis]:
    """A running Redis that all tests of this pytest process share."""
    with servers.redis_server() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: servers.Redis) -> str:
    """URL of an empty database of a Redis, apart from the one whose messages a running stack takes."""
    url = f"{redis_server.url.removesuffix('/0')}/1"
    with redis.Redis.from_url(url) as client:
        client.flushdb()
    return url
