"""Structured logs: one JSON object a line, or a readable line on a terminal; a fixed list of fields.

No field holds personal data.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import traceback
from datetime import UTC, datetime

from expunge_service.infra.tracing import carried

OURS = ("expunge_service", "expunge_workers")
"""the packages that log; libraries may only warn"""
FIELDS = (
    "request_id",
    "model",
    "model_id",
    "version",
    "method",
    "phase",
    "status",
    "reason",
    "why",
    "seconds",
    "count",
    "traceparent",
)


class JsonLines(logging.Formatter):
    """A formatter that writes the message, the allowed fields, and an exception's type and place, never its text."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({name: _plain(value) for name, value in _line(record).items()})


class ReadableLines(logging.Formatter):
    """A formatter for people at a terminal: the same facts, ``name=value`` after the message."""

    def format(self, record: logging.LogRecord) -> str:
        line = {name: _plain(value) for name, value in _line(record).items()}
        moment, level, logger, message = (str(line.pop(name)) for name in ("time", "level", "logger", "message"))
        facts = " ".join(f"{name}={value}" for name, value in line.items() if value is not None)
        text = f"{moment[11:23]} {level:7} {message} {facts}".rstrip() + f"  ({logger})"
        return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def _line(record: logging.LogRecord) -> dict[str, object]:
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
    return line


def _plain(value: object) -> str | int | float | bool | None:
    """Return what JSON can hold: NaN, infinities, lone surrogates and other types become text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, bool | int | float):
        return value
    return str(value).encode("utf-8", "backslashreplace").decode()


def describe(error: BaseException) -> str:
    """Return an exception's type and where it was raised, never its message: messages quote values."""
    frames = traceback.extract_tb(error.__traceback__)[-3:]
    places = " < ".join(f"{frame.filename}:{frame.lineno} {frame.name}" for frame in reversed(frames))
    return f"{type(error).__module__}.{type(error).__qualname__} at {places}"


def configure(level: str) -> None:
    """Write logs to standard error, readable on a terminal and as JSON elsewhere.

    What libraries log at INFO may be personal. Python's warnings, as Celery's to root, are lines
    too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ReadableLines() if sys.stderr.isatty() else JsonLines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.captureWarnings(True)
    for package in OURS:
        logging.getLogger(package).setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
