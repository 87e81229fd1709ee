"""Conditional and range requests (RFC 9110) for one immutable file: pure rules."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)


@dataclass(frozen=True)
class ByteRange:
    """Which bytes to send, and with which status: 200 all, 206 some, 304 and 416 none. ``end`` is exclusive."""

    status: int
    start: int
    end: int


def choose(headers: Mapping[str, str], etag: str, size: int) -> ByteRange:
    """Choose the answer to a GET or HEAD of a file with this strong ``etag`` (in quotes) and ``size`` in bytes.

    Several ranges in one request get the whole file, as RFC 9110 allows.
    """
    if _matches(headers.get("if-none-match"), etag):
        return ByteRange(304, 0, 0)
    if headers.get("if-range", etag) != etag:
        return ByteRange(200, 0, size)
    asked = _RANGE.fullmatch(headers.get("range", "").replace(" ", ""))
    if asked is None or asked[0] == "bytes=-":
        return ByteRange(200, 0, size)
    start, end = _bounds(asked[1], asked[2], size)
    if asked[1] and asked[2] and int(asked[2]) < int(asked[1]):
        return ByteRange(200, 0, size)  # not a valid range: it is to be ignored
    return ByteRange(206, start, end) if start < end else ByteRange(416, 0, 0)


def _bounds(first: str, last: str, size: int) -> tuple[int, int]:
    if not first:
        return max(0, size - int(last)), size
    return int(first), min(size, int(last) + 1) if last else size


def _matches(condition: str | None, etag: str) -> bool:
    """Compare If-None-Match weakly: W/ is ignored."""
    if condition is None:
        return False
    return condition.strip() == "*" or etag in {each.strip().removeprefix("W/") for each in condition.split(",")}
