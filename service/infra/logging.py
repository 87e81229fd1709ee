"""Structured logs: one JSON object a line, with a fixed list of fields. No field holds personal data."""

from __future__ import annotations

import json
import logging
import sys
import traceback
from datetime import UTC, datetime

from service.infra.trace import carried

FIELDS = ("request_id", "model", "model_id", "version", "method", "phase", "status", "seconds", "count", "traceparent")


class JsonLines(logging.Formatter):
    """A formatter that writes the message, the allowed fields, and an exception's type and place, never its text."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace := carried():
            line["traceparent"] = trace
        line |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = describe(record.exc_info[1])
        return json.dumps(line, default=str)


def describe(error: BaseException) -> str:
    """Return an exception's type and where it was raised, never its message: messages quote values."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in reversed(frames))
    return f"{type(error).__module__}.{type(error).__qualname__} at {places}"


def configure(level: str) -> None:
    """Write logs to standard error in this form. Libraries may only warn: what they log at INFO may be personal."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    for name in ("service", "workers"):
        logging.getLogger(name).setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
