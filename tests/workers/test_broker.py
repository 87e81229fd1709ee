"""A worker process whose broker holds messages that are none of ours: it drops them, and carries a deletion out."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import redis

from expunge_service.infra.broker.notify import QUEUE, notify_one, publisher
from expunge_service.infra.limits import Limits
from expunge_service.infra.tables import Heartbeat
from expunge_service.queue import BROKER_REFUSES
from tests.harness.process import PATH_OF_TESTS, command
from tests.workers.worlds import RECIPES, World

CANARY = "canary-7531"
SECONDS = 120.0
MALFORMED = (
    b"\x00\xff no JSON " + CANARY.encode(),
    b'{"other": "shape"}',
    json.dumps({"body": CANARY, "content-type": "application/x-python-serialize", "headers": {}}).encode(),
    b'{"body": "' + b"a" * 5_000_000 + b'"}',
    json.dumps({"headers": {"task": CANARY, "id": "1"}, "content-type": "application/json", "body": "e30="}).encode(),
    b"",
)


@pytest.mark.parametrize("broker", ["filesystem", "redis", pytest.param("rabbitmq", marks=pytest.mark.drill)])
def test_a_worker_outlives_messages_that_are_none_of_ours(
    world: World, broker: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    fixtures = {"redis": "redis_url", "rabbitmq": "rabbit_url"}
    url = request.getfixturevalue(fixtures[broker]) if broker in fixtures else f"filesystem://{tmp_path / 'broker'}"
    model_id = world.live(guarantee="proved")
    deletion = world.delete("p1")
    app = publisher(url)
    for number, data in enumerate(MALFORMED):
        if broker == "redis":
            redis.Redis.from_url(url).lpush(QUEUE, data)
        elif broker == "rabbitmq":
            with app.connection_for_write() as connection:
                kind = {"content_type": "application/json", "content_encoding": "utf-8"}
                connection.Producer().publish(data, routing_key=QUEUE, declare=[app.amqp.queues[QUEUE]], **kind)
        else:
            (tmp_path / "broker" / "messages" / f"{number:015d}_x.{QUEUE}.msg").write_bytes(data)
    with (tmp_path / "log").open("wb") as log:
        worker = subprocess.Popen(
            command("worker", 0, Limits(lease_seconds=6.0)),
            env=environment(world, url),
            stdout=log,
            stderr=log,
        )
    try:
        # a busy broker may not answer within the second that a notification waits; the scheduler would send it again
        eventually(lambda: notify_one(app, model_id), tmp_path / "log")
        eventually(lambda: world.request(deletion).status == "completed", tmp_path / "log")
        eventually(lambda: [row.dropped for row in world.rows_of(Heartbeat)] == [len(MALFORMED)], tmp_path / "log")
        assert worker.poll() is None, "the same process is alive"
    finally:
        worker.terminate()
        worker.wait(30)
    told = (tmp_path / "log").read_text()
    assert told.count("that Expunge did not write was dropped") == len(MALFORMED)
    assert CANARY not in told
    assert "aaaa" not in told


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_worker_says_that_the_broker_refuses_it_until_it_does_not(
    world: World, redis_url: str, tmp_path: Path
) -> None:
    def refused() -> list[bool]:
        return [bool((row.serves or {}).get(BROKER_REFUSES)) for row in world.rows_of(Heartbeat)]

    user, password = "latecomer", "right"
    url = redis_url.replace("//", f"//{user}:{password}@")
    with redis.Redis.from_url(redis_url) as admin, (tmp_path / "log").open("wb") as log:
        admin.execute_command("ACL", "SETUSER", user, "on", ">wrong", "~*", "&*", "+@all")
        worker = subprocess.Popen(
            command("worker", 0, Limits(lease_seconds=6.0)), env=environment(world, url), stdout=log, stderr=log
        )
        try:
            eventually(lambda: refused() == [True], tmp_path / "log")
            admin.execute_command("ACL", "SETUSER", user, f">{password}")
            eventually(lambda: refused() == [False], tmp_path / "log")
            assert worker.poll() is None
        finally:
            worker.terminate()
            worker.wait(30)
            admin.execute_command("ACL", "DELUSER", user)


def environment(world: World, broker: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EXPUNGE_")}
    chosen = {
        "HOME": str(world.settings.home),
        "DATABASE_URL": world.settings.database_url,
        "KEY_STORE_URL": world.settings.key_store_url,
        "BROKER_URL": broker,
        "RECIPES": str(RECIPES),
        "DEVICE": "cpu",
    }
    return kept | PATH_OF_TESTS | {f"EXPUNGE_{name}": value for name, value in chosen.items()}


def eventually(true: Callable[[], bool], log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    while not true():
        assert time.monotonic() < deadline, log.read_text()[-4000:]
        time.sleep(0.2)
