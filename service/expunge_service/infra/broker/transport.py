"""Celery's transports, changed so that foreign bytes in the broker do no harm: ``messages`` reads every message.

kombu's filesystem transport also writes a message under its final name while readers may already take it: of 3,002
messages 64 were read half-written (measured). Here a message appears by rename, and is taken by rename inside the same
folder. kombu moves it to /tmp, which may be another disk.
"""

from __future__ import annotations

import json
import time
import uuid
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.transport import filesystem, pyamqp
from kombu.transport import redis as kombu_redis

from expunge_service.infra.broker.messages import LARGEST_BYTES, about_no_model, read


class Channel(filesystem.Channel):
    """Messages are files named ``<milliseconds>_<uuid>.<queue>.msg``; the oldest is taken first."""

    def _put(self, queue: str, payload: dict[str, Any], **kwargs: Any) -> None:  # type: ignore[override]  # noqa: ARG002
        folder = Path(self.data_folder_out)
        name = f"{round(time.time() * 1000):015d}_{uuid.uuid4()}.{queue}.msg"
        part = folder / f".{name}.part"
        part.write_text(json.dumps(payload))
        part.replace(folder / name)

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:  # noqa: ARG002 (kombu's signature)
        for message in self._messages(queue):
            taken = message.with_name(f".{message.name}.taken")
            try:
                message.replace(taken)
            except FileNotFoundError:  # another worker was faster
                continue
            with taken.open("rb") as file:
                found = read(file.read(LARGEST_BYTES + 1))
            taken.unlink()
            if found is not None:
                return found
        raise Empty

    def _size(self, queue: str) -> int:
        return sum(1 for _ in self._messages(queue))

    def _purge(self, queue: str) -> int:
        messages = list(self._messages(queue))
        for message in messages:
            message.unlink(missing_ok=True)
        return len(messages)

    def _messages(self, queue: str) -> Iterator[Path]:
        waiting = Path(self.data_folder_in).glob(f"[!.]*.{queue}.msg")
        return iter(sorted(waiting, key=lambda path: path.name))


class Transport(filesystem.Transport):
    Channel = Channel


class RedisChannel(kombu_redis.Channel):
    """A channel that reads each item before kombu decodes it; a dropped item looks like an empty list."""

    def _create_client(self, asynchronous: bool = False) -> Any:
        client = super()._create_client(asynchronous)  # type: ignore[no-untyped-call]
        client.set_response_callback("BRPOP", _of_pair)
        client.set_response_callback("RPOP", _of_item)
        return client


class RedisTransport(kombu_redis.Transport):
    Channel = RedisChannel


class AmqpChannel(pyamqp.Channel):
    """A channel that reads each message before Celery does.

    Of a foreign message it makes one about no model, because the broker waits for its acknowledgement: a worker finds
    nothing to do and acknowledges it.
    """

    def message_to_python(self, raw_message: Any) -> Any:
        found = read(_as_kombu_writes_it(raw_message)) or about_no_model()
        raw_message.body = b64decode(found["body"])
        raw_message.properties = {
            "content_type": found["content-type"],
            "content_encoding": found["content-encoding"],
            "application_headers": found["headers"],
            "correlation_id": found["properties"]["correlation_id"],
        }
        return super().message_to_python(raw_message)  # type: ignore[no-untyped-call]


class AmqpConnection(pyamqp.Connection):
    Channel = AmqpChannel


class AmqpTransport(pyamqp.Transport):
    Connection = AmqpConnection


def _as_kombu_writes_it(message: Any) -> bytes:
    """Return the message of an AMQP broker in the form of kombu's other transports."""
    body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
    headers = message.properties.get("application_headers") or {}
    told = {
        "body": b64encode(body).decode(),
        "content-type": message.properties.get("content_type"),
        "headers": {name: str(headers.get(name)) for name in ("task", "id")},
        "properties": {"delivery_tag": str(message.delivery_tag), "body_encoding": "base64"},
    }
    return json.dumps(told).encode()


def _of_pair(answer: list[bytes] | None, **_: Any) -> tuple[bytes, bytes] | None:
    """Read BRPOP's answer: the list's name and the item; None where there was none in time."""
    taken = _of_item(answer[1]) if answer else None
    return (answer[0], taken) if answer and taken is not None else None


def _of_item(item: bytes | None, **_: Any) -> bytes | None:
    found = None if item is None else read(item)
    return None if found is None else json.dumps(found).encode()
