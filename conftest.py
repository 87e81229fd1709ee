"""Fixtures that every room of the tests may use: real servers, started once per pytest process when first asked for."""

from __future__ import annotations

import gc
import logging
import secrets
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from hypothesis import settings

from tests.harness import plans, rabbit, s3, servers
from tests.harness.groups import Groups, group_of
from tests.harness.statements import share_compiled_statements

settings.register_profile("suite", deadline=None)  # two processes on two cores: a call may wait for its turn
settings.load_profile("suite")
share_compiled_statements()
plans.watch()
LONG_ROOMS = ("stories", "test_pretend_device.py", "workers", "contract", "faults")
"""rooms and files that take long; a process that begins one of them last leaves the other idle"""


def pytest_configure(config: pytest.Config) -> None:
    """Let xdist give out groups in the order below, and not by how many tests a group has.

    The garbage collector rests until all tests are collected: it went 5,500 times through what none of them drops.
    """
    gc.disable()
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_finish() -> None:
    """Let the garbage collector look at what the tests make, and not at the tests."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def closed_logs_are_left() -> Iterator[None]:
    """Remove log handlers on a captured standard error that ended with its test: they would print to the next one's."""
    yield
    for handler in logging.root.handlers[:]:
        if isinstance(handler, logging.StreamHandler) and getattr(handler.stream, "closed", False):
            logging.root.removeHandler(handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups | None:
    return Groups(config, log) if config.getoption("dist") == "loadgroup" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("expunge").addoption(
        "--engines",
        choices=["sqlite", "all"],
        default="sqlite",
        help="sqlite: tests that do not depend on the database's dialect, locks or isolation run on SQLite alone; "
        "all: every test runs on PostgreSQL too (make test-all, which runs the drills as well)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave PostgreSQL out where it makes no difference, and begin with what takes long."""
    if config.getoption("--engines") == "sqlite":
        again = {(item.path, _name(item)) for item in items if _engine(item) == "sqlite"}
        left_out = [
            item
            for item in items
            if _engine(item) in {"postgresql", "postgres"}
            and (item.path, _name(item)) in again
            and item.get_closest_marker("both_engines") is None
        ]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]
    if hasattr(config, "workerinput"):  # in a process of xdist
        _long_groups_first(items)


def _long_groups_first(items: list[pytest.Item]) -> None:
    """Order the tests by room, then by the size of their group; within a group the order stays."""
    names = {item: group_of(item.nodeid) for item in items}
    sizes = Counter(names.values())
    rooms: dict[str, int] = {}
    for item in items:
        rooms.setdefault(names[item], _rank(item.path))
    items.sort(key=lambda item: (rooms[names[item]], -sizes[names[item]], names[item]))


def _rank(path: Path) -> int:
    rooms = [LONG_ROOMS.index(room) for room in path.parts if room in LONG_ROOMS]
    return min(rooms, default=len(LONG_ROOMS))


def _engine(item: pytest.Item) -> str | None:
    """Return the database that the test's parameters name, if they name one."""
    params: dict[str, str] = (
        item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    )
    return params.get("database_url") or params.get("stack")


def _name(item: pytest.Item) -> str:
    """Return the name of the test's function."""
    return item.originalname if isinstance(item, pytest.Function) else item.name


@pytest.fixture(autouse=True)
def no_query_reads_a_whole_table() -> Iterator[None]:
    """Fail a test whose queries read a whole table that grows with people or with history (tests/harness/plans.py)."""
    yield
    found = [*plans.FOUND]
    plans.FOUND.clear()
    assert not found, f"Give the query an index, or say in tests/harness/plans.py when it may: {found[0]}"


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


@pytest.fixture(scope="session")
def s3_server() -> Iterator[s3.S3]:
    """A running S3 server that all tests of this pytest process share, and that this process can reach."""
    pytest.importorskip("obstore", reason="unverified here: obstore is not installed (pip install 'expunge[s3]')")
    try:
        with s3.s3_server() as server, s3.reachable(server.environment):
            yield server
    except servers.ServerMissing as error:
        pytest.skip(f"unverified here: {error}")


@pytest.fixture
def bucket(s3_server: s3.S3) -> str:
    """URL of an empty place in a bucket."""
    return f"s3://{s3.BUCKET}/{secrets.token_hex(6)}"


@pytest.fixture(scope="session")
def rabbit_url() -> Iterator[str]:
    """URL of a running RabbitMQ that all tests of this pytest process share."""
    try:
        with rabbit.rabbit_server() as url:
            yield url
    except servers.ServerMissing as error:
        pytest.skip(f"unverified here: {error}")
