"""Time: moments are whole microseconds since 1970 UTC, and durations are published as powers of two of seconds.

How long an update takes shows how many iterations it ran, and that depends on the deleted data. A sum or a pair of
exact moments would show it too, so only the bucket of a duration is published, and an update waits until its bucket
is over.
"""

from __future__ import annotations

import math
import re
import zoneinfo
from datetime import UTC, datetime, timedelta, timezone, tzinfo

SECOND = 1_000_000
"""in microseconds"""
HOUR_SECONDS = 3600
DAY_SECONDS = 86_400
ALIVE_SECONDS = 60
"""how long after its last beat a process counts as alive; it beats every five seconds at most"""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SHORTEST = 2.0**-10
LONGEST = 2.0**20
BUCKETS = tuple(2.0**power for power in range(-10, 21))
"""upper edges in seconds, from a thousandth of a second to twelve days"""


RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


_OFFSET = re.compile(r"([+-])([01]\d|2[0-3]):([0-5]\d)", re.ASCII)


def within_reach(when: datetime) -> datetime:
    """Return the moment. Raises ValueError where it cannot be stored, or no deadline after it could."""
    if not 1970 < when.year < 9999:
        raise ValueError("must lie between the years 1971 and 9998")
    return when


def moment(when: datetime) -> int:
    """Return microseconds since 1970 UTC, exactly. ``when`` has a timezone."""
    return (when - _EPOCH) // timedelta(microseconds=1)


def instant(at: int) -> datetime:
    """Return the inverse of ``moment``."""
    return _EPOCH + timedelta(microseconds=at)


def time_zone(name: str) -> tzinfo:
    """Return the zone of an IANA name, such as Europe/Berlin, of UTC, or of an offset, such as -01:00.

    Raises ValueError, which says what to write or to install.
    """
    offset = _OFFSET.fullmatch(name)
    if name == "UTC" or offset is not None:  # these need no table of zones
        minutes = 0 if offset is None else int(offset[2]) * 60 + int(offset[3])
        return timezone(timedelta(minutes=-minutes if offset is not None and offset[1] == "-" else minutes))
    try:
        return zoneinfo.ZoneInfo(name)
    except (
        zoneinfo.ZoneInfoNotFoundError,
        ValueError,
        OSError,
    ):  # a name that is no path in the table, or leads to a folder of it
        known = zoneinfo.available_timezones()
    if not known:
        raise ValueError(
            f"{name!r} cannot be looked up: this machine has no table of time zones. Install the package tzdata "
            "(apt-get install tzdata, or pip install tzdata), or write UTC or an offset such as +01:00"
        )
    raise ValueError(f"{name!r} is no time zone. Write an IANA name such as Europe/Berlin, UTC, or an offset as +01:00")


def offset_of(when: datetime) -> str:
    """Return the offset of a moment from UTC, as -01:00; UTC where it has none."""
    return when.isoformat(timespec="seconds")[19:25] if when.utcoffset() else "UTC"


def earliest(wall: datetime, zone: tzinfo) -> datetime:
    """Return the first moment, in UTC, at which clocks of the zone may show ``wall``, which has no timezone.

    Where clocks are set back they show it twice; where they are set forward never, and both offsets are tried.
    """
    return min(wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))


def rfc_3339(at: int) -> str:
    """Write a moment as 2026-01-31T12:00:00.000000Z."""
    return instant(at).isoformat(timespec="microseconds").replace("+00:00", "Z")


def day_and_time(at: int) -> str:
    """Write a moment as 24 November 2026 at 14:20 UTC."""
    return f"{instant(at).day} {instant(at):%B %Y at %H:%M} UTC"


def day_after(at: int) -> str:
    """Write the first day that begins after a moment, in UTC, as 25 November 2026."""
    day = instant(at) + timedelta(days=1)
    return f"{day.day} {day:%B %Y}"


def time_bucket(seconds: float) -> float:
    """Return the upper edge of the bucket that holds ``seconds`` >= 0; the last edge beyond it."""
    mantissa, power = math.frexp(min(max(seconds, SHORTEST), LONGEST))
    return math.ldexp(1.0, power - 1 if mantissa == 0.5 else power)


def duration(seconds: float) -> str:
    """Write a duration with two digits in the unit that suits it."""
    sizes = (("d", 86_400.0), ("h", 3_600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3))
    unit, size = next((each for each in sizes if seconds >= 2 * each[1]), sizes[-1])
    value = seconds / size
    return f"{value:.0f} {unit}" if value >= 10 else f"{value:.2g} {unit}"
