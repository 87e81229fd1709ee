"""Notifying workers: Celery carries the id of a model that has work, and nothing else.

The rows in the database are the queue. A message may be lost, doubled or late at any time: the scheduler's sweep
notifies again, and a worker that finds nothing to claim waits for the next message. So results are ignored, publishing
is never retried, and its errors are counted and not raised.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from celery import Celery, group
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from sqlalchemy import select, update

from expunge.service.infra.broker.messages import FAILED_NOTIFICATIONS, QUEUE, TASK
from expunge.service.infra.db import Busy, Database, now
from expunge.service.infra.tables import Model

POLLING_SECONDS = 0.05
SOCKET_SECONDS = 1.0
_REDIS = {
    "socket_timeout": SOCKET_SECONDS,
    "socket_connect_timeout": SOCKET_SECONDS,
    "max_retries": 0,
    "retry_on_timeout": False,
}
_AMQP = {
    "connect_timeout": SOCKET_SECONDS,
    "read_timeout": SOCKET_SECONDS,
    "write_timeout": SOCKET_SECONDS,
    "max_retries": 0,
    "confirm_publish": True,
}
PATIENCE: dict[str, dict[str, Any]] = {
    "filesystem": {},
    "redis": _REDIS,
    "rediss": _REDIS,
    "amqp": _AMQP,
    "amqps": _AMQP,
}
"""how long a publisher waits, by the broker's scheme, in the words of the broker's library"""
QUORUM = [
    Queue(QUEUE, Exchange(QUEUE), QUEUE, queue_arguments={"x-queue-type": "quorum"})  # type: ignore[no-untyped-call]
]
"""replicated by RabbitMQ among its nodes"""

log = logging.getLogger(__name__)


def publisher(broker_url: str) -> Celery:
    """Return the app that notifies. It gives up after one second, because a caller is waiting for its answer."""
    app = _app(broker_url)
    app.conf.broker_transport_options |= PATIENCE[urlsplit(broker_url).scheme]
    return app


def consumer(broker_url: str) -> Celery:
    """Return the app that a worker runs. It acknowledges late, so a message outlives a worker that crashes."""
    return _app(broker_url)


def notify(database: Database, app: Celery, model_ids: Iterable[str]) -> None:
    """Notify the workers of each model that has no notification outstanding. Never raise: the sweep finds the rest.

    A worker's claim clears the model's mark, so ten thousand requests for one model send one message.
    """
    try:
        marked = _mark(database, list(model_ids))
    except Busy:
        FAILED_NOTIFICATIONS.inc()
        return
    for model_id in marked:
        notify_one(app, model_id)


def _mark(database: Database, model_ids: list[str]) -> list[str]:
    silent = (Model.id.in_(model_ids), Model.notified_at == 0)
    with database.read() as session:
        if session.scalar(select(Model.id).where(*silent).limit(1)) is None:
            return []
    with database.write() as session:
        mark = update(Model).where(*silent).values(notified_at=now(session)).returning(Model.id)
        return list(session.scalars(mark.execution_options(synchronize_session=False)))


def notify_one(app: Celery, model_id: str) -> bool:
    """Send one message for ``model_id``. Return False when the broker could not be reached; never raise."""
    try:
        app.send_task(TASK, args=[model_id], queue=QUEUE, retry=False, ignore_result=True)
    except Exception as error:  # any broker's failure: the sweep repairs it
        FAILED_NOTIFICATIONS.inc()
        log.warning("notification not sent: %s", type(error).__name__)
        return False
    return True


def notify_many(app: Celery, model_id: str, count: int) -> None:
    """Call ``count`` more workers to ``model_id`` by a group of messages. Never raise."""
    if count < 1:
        return
    call = app.signature(TASK, args=[model_id], options={"queue": QUEUE, "ignore_result": True})
    try:
        group([call] * count, app=app).apply_async(retry=False)
    except Exception as error:  # any broker's failure: the present worker continues alone
        FAILED_NOTIFICATIONS.inc(count)
        log.warning("notifications not sent: %s", type(error).__name__)


def _app(broker_url: str) -> Celery:
    app = Celery("expunge", set_as_current=False)
    app.conf.update(
        **_transport(broker_url),
        broker_connection_retry_on_startup=True,
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_store_errors_even_if_ignored=False,
        task_acks_late=True,
        task_default_queue=QUEUE,
        task_publish_retry=False,
        worker_prefetch_multiplier=1,
        worker_enable_remote_control=False,
        worker_send_task_events=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        event_queue_expires=60,
    )
    return app


def _transport(broker_url: str) -> dict[str, Any]:
    """Return Celery's broker settings. ``filesystem:///folder`` names the folder in its path."""
    parts = urlsplit(broker_url)
    if parts.scheme in ("redis", "rediss"):
        return {
            "broker_url": broker_url,
            "broker_transport": "expunge.service.infra.broker.transport:RedisTransport",
            "broker_transport_options": {},
            # kombu reads it from the address for its own transports alone
            "broker_use_ssl": Connection(broker_url).ssl,  # type: ignore[no-untyped-call]
        }
    if parts.scheme in ("amqp", "amqps"):
        return {
            "broker_url": broker_url,
            "broker_transport": "expunge.service.infra.broker.transport:AmqpTransport",
            "broker_transport_options": {},
            "broker_use_ssl": Connection(broker_url).ssl,  # type: ignore[no-untyped-call]
            "task_queues": QUORUM,
        }
    if parts.scheme != "filesystem":
        raise ValueError(
            f"The broker's scheme {parts.scheme!r} is not supported: use filesystem:///folder, redis://host or amqp://host"
        )
    folder = Path(unquote(parts.path))
    for name in ("messages", "control"):
        (folder / name).mkdir(mode=0o700, parents=True, exist_ok=True)
    options = {
        "data_folder_in": str(folder / "messages"),
        "data_folder_out": str(folder / "messages"),
        "control_folder": str(folder / "control"),
        "polling_interval": POLLING_SECONDS,
    }
    return {
        "broker_url": "filesystem://localhost//",
        "broker_transport": "expunge.service.infra.broker.transport:Transport",
        "broker_transport_options": options,
    }
