"""Durations as they are typed: 7d, 12h, 30m, 90s, or seconds."""

from __future__ import annotations

import re

import typer

MOST = 100 * 365 * 86_400


def seconds(text: str) -> int:
    """Read a duration of at most a hundred years. Raises typer.BadParameter for any other text."""
    found = re.fullmatch(r"(\d{1,18})([smhd]?)", text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is no duration; 7d, 12h, 30m and 90s are.")
    length = int(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]
    if length > MOST:
        raise typer.BadParameter(f"{text!r} is more than a hundred years.")
    return length
