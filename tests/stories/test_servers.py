"""The servers that the other tests stand on: found on PATH or taken from wheels, really running either way."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest
import redis
from sqlalchemy import create_engine, text

from tests.harness import servers


@pytest.mark.parametrize(
    "path", [pytest.param(None, id="as-installed"), pytest.param("", id="nothing-on-path", marks=pytest.mark.drill)]
)
def test_postgres_runs_and_keeps_databases_apart(path: str | None) -> None:
    with servers.postgres(path) as server:
        assert server.version >= 140000
        with server.database() as first, server.database() as second:
            with create_engine(first).begin() as connection:
                connection.execute(text("CREATE TABLE only_in_first (n integer)"))
            with create_engine(second).connect() as connection:
                assert connection.scalar(text("SELECT to_regclass('only_in_first')")) is None
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(first.replace("+psycopg", ""), connect_timeout=2)


@pytest.mark.parametrize(
    "path", [pytest.param(None, id="as-installed"), pytest.param("", id="nothing-on-path", marks=pytest.mark.drill)]
)
def test_redis_runs_and_is_gone_afterwards(path: str | None) -> None:
    with servers.redis_server(path) as server:
        client = redis.Redis.from_url(server.url)
        client.set("key", "value" * 100)
        assert client.get("key") == b"value" * 100
        assert b"value" * 100 in server.dump().read_bytes()
    with pytest.raises(redis.ConnectionError):
        client.ping()


def test_binaries_on_path_come_before_wheels(tmp_path: Path) -> None:
    (tmp_path / "postgres").touch()
    assert servers.on_path(("postgres", "initdb"), str(tmp_path)) is None
    (tmp_path / "initdb").touch()
    assert servers.on_path(("postgres", "initdb"), str(tmp_path)) == tmp_path


def test_postgres_fixture_gives_an_empty_database(postgres_url: str) -> None:
    with create_engine(postgres_url).connect() as connection:
        assert connection.scalar(text("SELECT count(*) FROM pg_stat_user_tables")) == 0


def test_redis_fixture_is_empty(redis_url: str) -> None:
    assert redis.Redis.from_url(redis_url).dbsize() == 0
