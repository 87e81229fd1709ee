"""Whatever lies in the broker: only the id of a model is ever taken out of it."""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import redis as client
from kombu import Connection

from expunge_service.infra.broker.messages import Dropped, read
from expunge_service.infra.broker.notify import QUEUE, consumer, notify_one, publisher

MODEL = "0123456789abcdef" * 2
CANARY = "canary-7531"


def ours(tmp_path: Path) -> dict[str, Any]:
    """A message as the API sends it."""
    assert notify_one(publisher(f"filesystem://{tmp_path}"), MODEL)
    (file,) = (tmp_path / "messages").iterdir()
    found: dict[str, Any] = json.loads(file.read_text())
    file.unlink()
    return found


def body(args: object) -> str:
    return b64encode(json.dumps(args).encode()).decode()


REST: list[Any] = [{}, {}]
CHANGES: dict[str, dict[str, Any]] = {
    "unknown task": {"headers": {"task": CANARY, "id": "1"}},
    "no task": {"headers": {"id": "1"}},
    "headers are a list": {"headers": ["task"]},
    "wrong content type": {"content-type": "application/x-python-serialize"},
    "no properties": {"properties": None},
    "body is no base64": {"body": CANARY + "!"},
    "body is no JSON": {"body": b64encode(b"\x80\x04pickle").decode()},
    "body is a number": {"body": body(7)},
    "no arguments": {"body": body([[], *REST])},
    "two arguments": {"body": body([[MODEL, MODEL], *REST])},
    "an argument that names no model": {"body": body([[CANARY], *REST])},
    "an argument that is a number": {"body": body([[7], *REST])},
    "a tag that is an object": {"properties": {"body_encoding": "base64", "delivery_tag": {"a": 1}}},
}
BYTES = {
    "no JSON": b"\x00\xff" + CANARY.encode(),
    "empty": b"",
    "JSON of another shape": b"[1, 2]",
    "a number": b"7",
    "null": b"null",
    "half a message": b'{"body": "W1',
    "brackets": b"[" * 10_000,
    "digits": b"9" * 10_000,
    "huge": b'{"body": "' + b"a" * 100_000 + b'"}',
}


@pytest.mark.parametrize("name", [*BYTES, *CHANGES])
def test_what_is_none_of_ours_is_dropped_counted_and_never_logged(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data = BYTES[name] if name in BYTES else json.dumps(ours(tmp_path) | CHANGES[name]).encode()
    before = Dropped.count
    with caplog.at_level(logging.DEBUG):
        assert read(data) is None
    assert Dropped.count == before + 1
    assert "dropped" in caplog.text and CANARY not in caplog.text


def test_of_a_message_only_the_model_is_taken(tmp_path: Path) -> None:
    """An order to run later, an expiry, a callback: none of it reaches Celery."""
    sent = ours(tmp_path)
    made = read(json.dumps(sent).encode())
    sent["headers"] |= {"eta": "9999-01-01T00:00:00", "expires": "1970-01-01T00:00:00", "compression": "zlib"}
    sent["headers"] |= {"retries": 10**9, "timelimit": [0.1, 0.1], "origin": CANARY}
    sent["properties"] |= {"reply_to": CANARY, "priority": 9, "delivery_info": {"exchange": CANARY, "routing_key": "x"}}
    sent["body"] = body([[MODEL], {"more": CANARY}, {"callbacks": [{"task": CANARY}]}])
    assert made is not None and read(json.dumps(sent).encode()) == made
    assert CANARY not in json.dumps(made) and made["headers"]["eta"] is None


def test_both_brokers_go_on_to_the_next_message(tmp_path: Path, redis_url: str) -> None:
    folder = f"filesystem://{tmp_path}"
    connection = client.Redis.from_url(redis_url)
    for number, data in enumerate(BYTES.values()):
        publisher(folder)
        (tmp_path / "messages" / f"{number:015d}_x.{QUEUE}.msg").write_bytes(data)
        connection.lpush(QUEUE, data)
    for url in (folder, redis_url):
        before = Dropped.count
        assert notify_one(publisher(url), MODEL)
        with consumer(url).connection_for_read() as reading:
            message = reading.SimpleQueue(QUEUE).get(timeout=30)
            assert message.payload[0] == [MODEL]
            message.ack()
        assert Dropped.count - before == len(BYTES)


@pytest.mark.parametrize("url", ["redis://h:6380/2", "rediss://u:p@h:6380/2", "rediss://h/1?ssl_cert_reqs=required"])
def test_an_address_means_what_it_means_to_kombu(url: str) -> None:
    """TLS, user and database are read from the address as without a transport of our own."""
    ours, theirs = consumer(url).connection_for_read(), Connection(url)
    for name in ("hostname", "port", "virtual_host", "userid", "password"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert (ours.ssl or False) == (theirs.ssl or False)
