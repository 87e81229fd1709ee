"""Moments: whole microseconds since 1970 UTC in the tables, RFC 3339 in what leaves."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

SECOND = 1_000_000
ALIVE_SECONDS = 60
"""how long after its last beat a process counts as alive; it beats every five seconds at most"""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def moment(when: datetime) -> int:
    """Microseconds since 1970 UTC, exactly. ``when`` has a timezone."""
    return (when - _EPOCH) // timedelta(microseconds=1)


def instant(at: int) -> datetime:
    """The inverse of ``moment``."""
    return _EPOCH + timedelta(microseconds=at)


def rfc_3339(at: int) -> str:
    """As 2026-01-31T12:00:00.000000Z."""
    return instant(at).isoformat(timespec="microseconds").replace("+00:00", "Z")
