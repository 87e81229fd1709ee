"""The notification: it never raises, gives up soon, and no message is read half-written."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path

import pytest
from amqp.exceptions import PreconditionFailed
from celery import Celery

from expunge_service.infra.broker.notify import FAILED_NOTIFICATIONS, QUEUE, consumer, notify_one, publisher

MODEL = "0123456789abcdef" * 2


def received(app: Celery, count: int, seconds: float = 60) -> list[list[str]]:
    """The arguments of the next ``count`` messages."""
    found: list[list[str]] = []
    deadline = time.monotonic() + seconds
    with app.connection_for_read() as connection:
        waiting = connection.SimpleQueue(QUEUE)
        while len(found) < count and time.monotonic() < deadline:
            try:
                message = waiting.get(block=False)
            except waiting.Empty:
                time.sleep(0.001)
                continue
            found.append(message.payload[0])
            message.ack()
    return found


def test_no_message_is_read_half_written(tmp_path: Path) -> None:
    url, each = f"filesystem://{tmp_path}", 100

    def publish() -> None:
        app = publisher(url)
        assert all(notify_one(app, MODEL) for _ in range(each))

    publishers = [threading.Thread(target=publish) for _ in range(2)]
    for thread in publishers:
        thread.start()
    messages = received(consumer(url), 2 * each)
    for thread in publishers:
        thread.join()
    assert messages == [[MODEL]] * (2 * each)
    assert list((tmp_path / "messages").iterdir()) == []


def test_messages_come_in_the_order_they_were_sent(tmp_path: Path) -> None:
    app = publisher(f"filesystem://{tmp_path}")
    for index in range(5):
        notify_one(app, f"{index:032x}")
        time.sleep(0.002)
    assert received(consumer(f"filesystem://{tmp_path}"), 5) == [[f"{index:032x}"] for index in range(5)]


def test_a_notification_over_redis_arrives(redis_url: str) -> None:
    assert notify_one(publisher(redis_url), MODEL)
    assert received(consumer(redis_url), 1) == [[MODEL]]


@pytest.mark.drill  # the server takes ten seconds to start
def test_a_notification_over_rabbitmq_arrives_in_a_quorum_queue(rabbit_url: str) -> None:
    app = publisher(rabbit_url)
    assert any(notify_one(app, MODEL) for _ in range(10)), "a busy broker answers late; the scheduler repeats too"
    with app.connection_for_write() as connection, connection.channel() as channel:
        channel.queue_declare(QUEUE, passive=True)
        with pytest.raises(PreconditionFailed, match="x-queue-type"):
            channel.queue_declare(QUEUE, durable=True, auto_delete=False)
    listening = consumer(rabbit_url)
    with listening.connection_for_read() as connection:
        found = list[list[str]]()
        with connection.Consumer(
            [listening.amqp.queues[QUEUE]], callbacks=[lambda body, message: (found.append(body[0]), message.ack())]
        ):
            connection.drain_events(timeout=20)
    assert found == [[MODEL]]


def test_a_broker_that_refuses_is_given_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    app = publisher("redis://127.0.0.1:1/0")
    failed, tried = FAILED_NOTIFICATIONS._value.get(), list[object]()
    connect = socket.socket.connect
    monkeypatch.setattr(socket.socket, "connect", lambda self, address: (tried.append(address), connect(self, address)))
    assert not notify_one(app, "model")
    assert tried == [("127.0.0.1", 1)], "it was not tried again"
    assert FAILED_NOTIFICATIONS._value.get() == failed + 1


def test_a_broker_that_does_not_answer_is_given_up_after_a_second() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(1)
        start = time.monotonic()
        assert not notify_one(publisher(f"redis://127.0.0.1:{silent.getsockname()[1]}/0"), "model")
        assert time.monotonic() - start < 30


def test_a_message_carries_an_opaque_id_and_nothing_else_of_ours(tmp_path: Path) -> None:
    notify_one(publisher(f"filesystem://{tmp_path}"), "0123abcd")
    (message,) = (tmp_path / "messages").iterdir()
    text = message.read_text()
    assert "0123abcd" in text and '"content-type": "application/json"' in text


def test_another_scheme_is_refused_in_words() -> None:
    with pytest.raises(ValueError, match="use filesystem:///folder, redis://host or amqp://host"):
        publisher("sqs://localhost")


def test_workers_keep_nothing_and_take_one_message_at_a_time() -> None:
    conf = consumer("redis://127.0.0.1:1/0").conf
    assert (conf.accept_content, conf.task_ignore_result, conf.worker_prefetch_multiplier) == (["json"], True, 1)
    assert (conf.result_backend, conf.task_acks_late, conf.worker_enable_remote_control) == (None, True, False)
