"""Notifying workers: Celery carries the id of a model that has work, and no more.

The rows in the database are the queue. A message may be lost, doubled or late at any time: the scheduler's sweep
notifies again, and a worker that finds no work waits for the next message. So results are ignored, publishing
is never retried, and its errors are counted and not raised.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from celery import Celery
from kombu.connection import Connection
from sqlalchemy import select, update

from expunge_service.infra.broker.messages import FAILED_NOTIFICATIONS, QUEUE, TASK, queue_of
from expunge_service.infra.db import Busy, Database, now
from expunge_service.infra.tables import Model
from unlearning.accounting.policy import ANYWHERE

QUORUM = "quorum"
"""the type of RabbitMQ's queues that it replicates among its nodes"""
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
    for model_id, place in marked.items():
        notify_one(app, model_id, place)


def _mark(database: Database, model_ids: list[str]) -> dict[str, str]:
    """Mark those of the models that are not marked, and return their places."""
    silent = (Model.id.in_(model_ids), Model.notified_at == 0)
    with database.read() as session:
        if session.scalar(select(Model.id).where(*silent).limit(1)) is None:
            return {}
    with database.write() as session:
        mark = update(Model).where(*silent).values(notified_at=now(session)).returning(Model.id, Model.place)
        marked = session.execute(mark.execution_options(synchronize_session=False))
        return {model_id: place for model_id, place in marked}


def notify_one(app: Celery, model_id: str, place: str = ANYWHERE) -> bool:
    """Send one message for ``model_id`` to the workers of a place. Never raise.

    Return False when the broker could not be reached.
    """
    try:
        app.send_task(TASK, args=[model_id], queue=queue_of(place), retry=False, ignore_result=True)
    except Exception as error:  # any broker's failure: the sweep repairs it
        FAILED_NOTIFICATIONS.inc()
        log.warning("notification not sent: %s", type(error).__name__)
        return False
    return True


def notify_many(database: Database, app: Celery, model_id: str, count: int) -> None:
    """Send ``count`` messages for ``model_id``, though one may be outstanding. Raises Busy alone."""
    with database.read() as session:
        place = session.scalar(select(Model.place).where(Model.id == model_id))
    for _ in range(count):
        if place is None or not notify_one(app, model_id, place):
            return


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
            "broker_transport": "expunge_service.infra.broker.transport:RedisTransport",
            "broker_transport_options": {},
            # kombu reads it from the address for its own transports alone
            "broker_use_ssl": Connection(broker_url).ssl,  # type: ignore[no-untyped-call]
        }
    if parts.scheme in ("amqp", "amqps"):
        return {
            "broker_url": broker_url,
            "broker_transport": "expunge_service.infra.broker.transport:AmqpTransport",
            "broker_transport_options": {},
            "broker_use_ssl": Connection(broker_url).ssl,  # type: ignore[no-untyped-call]
            "task_default_queue_type": QUORUM,
            "task_create_missing_queue_type": QUORUM,
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
        "broker_transport": "expunge_service.infra.broker.transport:Transport",
        "broker_transport_options": options,
    }
