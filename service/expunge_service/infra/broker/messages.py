"""Reading messages of the broker: a message may carry the id of a model alone.

All that reach the broker can write into it. A worker that decodes such bytes ends at the first that are no JSON,
and Celery logs the body of a message that it does not know. So only the model's id and the tags are read, and the
message that Celery sees is built here from them.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from base64 import b64decode, b64encode
from typing import Any

from prometheus_client import Counter

from unlearning.accounting.policy import ANYWHERE

TASK = "expunge.work"
QUEUE = "expunge"
"""what every worker hears; the queue of a place adds the place's name"""
_QUEUES = re.compile(r"expunge(\.[a-z0-9_-]{1,31})?")
MODEL_ID = re.compile(r"[0-9a-f]{32}")
LARGEST_BYTES = 16_384
"""our messages have about a thousand"""
FAILED_NOTIFICATIONS = Counter(
    "expunge_notifications_failed",
    "Notifications that could not be sent; the scheduler's sweep repairs them",
    registry=None,  # expunge_service.api.views.metrics registers it: it is shown before celery is loaded
)
_TAG = re.compile(r"[0-9a-zA-Z-]{1,64}")

log = logging.getLogger(__name__)


class Dropped:
    """The number of foreign messages that this process has dropped since its start."""

    count = 0


def read(data: bytes) -> dict[str, Any] | None:
    """Build Celery's message from the model's id and the tags in ``data``; return None where it was dropped.

    A dropped message is counted, and logged without any of its bytes.
    """
    try:
        message = _made_of(data)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        message = None
    if message is None:
        Dropped.count += 1
        log.warning(
            "A message of %d bytes that Expunge did not write was dropped. Check who can write to the broker.",
            len(data),
        )
    return message


def about_no_model() -> dict[str, Any]:
    """Build a message about a model that does not exist, in place of a foreign one that must be acknowledged."""
    number = secrets.token_hex(16)
    return _message("0" * 32, number, number)


def _made_of(data: bytes) -> dict[str, Any] | None:
    if len(data) > LARGEST_BYTES:
        return None
    found = json.loads(data)
    ours = (found["headers"]["task"], found["content-type"], found["properties"]["body_encoding"])
    if ours != (TASK, "application/json", "base64"):
        return None
    (model_id,), _, _ = json.loads(b64decode(found["body"], validate=True))
    number, tag = found["headers"]["id"], found["properties"]["delivery_tag"]
    queue = str(found["properties"].get("delivery_info", {}).get("routing_key"))
    if not (MODEL_ID.fullmatch(model_id) and _TAG.fullmatch(number) and _TAG.fullmatch(tag)):
        return None
    return _message(model_id, number, tag, queue if _QUEUES.fullmatch(queue) else QUEUE)


def queue_of(place: str) -> str:
    """Return the queue of the workers of a place."""
    return QUEUE if place == ANYWHERE else f"{QUEUE}.{place}"


def _message(model_id: str, number: str, tag: str, queue: str = QUEUE) -> dict[str, Any]:
    """Build a message of Celery's protocol 2.

    ``number`` is the task's id, ``tag`` what it is acknowledged by; what is not goes back into ``queue``.
    """
    body = [[model_id], {}, dict.fromkeys(("callbacks", "errbacks", "chain", "chord"))]
    headers = {"lang": "py", "task": TASK, "id": number, "root_id": number, "retries": 0, "ignore_result": True}
    return {
        "body": b64encode(json.dumps(body).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers | {"timelimit": [None, None]} | dict.fromkeys(("eta", "expires", "group", "parent_id")),
        "properties": {
            "correlation_id": number,
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": tag,
        },
    }
