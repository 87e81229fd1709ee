"""A linter of the ids of people: what a file's column of ids shows to have gone wrong before it reached us.

``expunge check``, a registration and ``expunge drop import`` ask the same function. It names lines and never an id.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any

from expunge_client.spelling import damage, look, plain_form

LINES = 3
"""lines that a finding names"""
SHARE_OF_LONGER = 0.85
"""share of the whole numbers that are longer than one which is suspiciously short"""
SHARE_OF_RARE = 0.1
"""share of the ids below which a kind of id is rare"""
MANY = 20
"""ids from which shares of them say anything"""
_FLOAT = re.compile(r"[+-]?[0-9]+[.,]0*")
_EXPONENT = re.compile(r"[+-]?[0-9](?:[.,][0-9]*)?e[+-]?[0-9]+", re.IGNORECASE)


class Kind(StrEnum):
    """What is wrong with some of the ids, as a sentence says it behind their lines."""

    NUMBER = "numbers and no texts; leading zeros are gone, and one missing value makes floats of all"
    BOOLEAN = "True or False"
    TIMESTAMP = "moments and no texts; a program read the ids as dates"
    MISSING = "missing, or a text such as nan, NULL or #N/A"
    DECIMAL = "whole numbers with decimals (17.0); a program read the column as floats"
    EXPONENT = "numbers with an exponent (1.7E+01); a spreadsheet read the column as numbers"
    DAMAGED = "dates, or objects written as text"
    TWINS = "the same as an earlier id but for case, blanks or zeros; maybe one person under two ids"
    SHORT = "numbers with fewer digits than nearly all others; leading zeros may have been cut off"
    RARE = "of another kind than nearly all others, such as an e-mail address among numbers"


REFUSED = frozenset(
    {Kind.NUMBER, Kind.BOOLEAN, Kind.TIMESTAMP, Kind.MISSING, Kind.DECIMAL, Kind.EXPONENT, Kind.DAMAGED}
)
"""what no column of ids may hold; the other kinds are warnings, since such ids may be right"""


@dataclass(frozen=True)
class Finding:
    """Ids of one column that are wrong in one way.

    ``lines``: the first of them, at most three, counted from the first id's line.
    """

    kind: Kind
    count: int
    lines: tuple[int, ...]

    @property
    def refused(self) -> bool:
        return self.kind in REFUSED

    def describe(self, row: str = "line", counted: str = "") -> str:
        """A clause that names the first rows, as ``row`` calls them, and what is wrong with their ids.

        ``counted``: words behind their numbers, where these are no lines of a file.
        """
        more = f" and {self.count - len(self.lines)} more" if self.count > len(self.lines) else ""
        return f"{row}{'s' if self.count > 1 else ''} {', '.join(map(str, self.lines))}{more}{counted}: {self.kind}"


def lint(ids: Iterable[object], first_line: int = 1) -> list[Finding]:
    """Return findings about a column of ids, refused ones first.

    Args:
        ids: as the column gives them, texts or what a program made of them; a repeated id counts once, on its first
            line.
        first_line: the line of the first id.
    """
    lines: dict[object, int] = {}
    for line, value in enumerate(ids, first_line):
        lines.setdefault(_hashable(value), line)
    return lint_lines(lines)


def lint_lines(lines: Mapping[Any, int]) -> list[Finding]:
    """``lint`` of distinct ids, each with the line on which it first stands."""
    texts = {value: line for value, line in lines.items() if isinstance(value, str)}
    wrong: dict[Kind, list[int]] = defaultdict(list)
    for value, line in lines.items():
        kind = _kind_of_text(value) if isinstance(value, str) else _kind_of_object(value)
        if kind is not None:
            wrong[kind].append(line)
    for kind, suspicious in ((Kind.TWINS, _twins(texts)), (Kind.SHORT, _short(texts)), (Kind.RARE, _rare(texts))):
        wrong[kind] += suspicious
    return [Finding(kind, len(wrong[kind]), tuple(sorted(wrong[kind])[:LINES])) for kind in Kind if wrong[kind]]


def _hashable(value: object) -> object:
    """Return the value, or one text for all floats that are NaN, which equal nothing, not even themselves."""
    return "nan" if value is None or value != value else value  # noqa: PLR0124 (NaN)


def _kind_of_object(value: object) -> Kind:
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        return Kind.BOOLEAN
    if isinstance(value, date) or type(value).__name__ in ("datetime64", "Timestamp", "NaTType"):
        return Kind.TIMESTAMP
    return Kind.NUMBER


def _kind_of_text(text: str) -> Kind | None:
    if text.isalpha() and text.isascii() and len(text) > len("undefined"):
        return None
    if _FLOAT.fullmatch(text):
        return Kind.DECIMAL
    if _EXPONENT.fullmatch(text):
        return Kind.EXPONENT
    match damage(text):
        case "missing value" | "program error":
            return Kind.MISSING
        case None:
            return None
        case _:
            return Kind.DAMAGED


def _twins(texts: dict[str, int]) -> list[int]:
    """Return the lines of ids that an earlier id equals but for its writing."""
    seen: set[str] = set()
    repeated: list[int] = []
    for text, line in texts.items():
        plain = plain_form(text)
        if plain in seen:
            repeated.append(line)
        seen.add(plain)
    return repeated


def _short(texts: dict[str, int]) -> list[int]:
    """Return the lines of whole numbers that are shorter than most of the others, where those are padded."""
    numbers = {text: line for text, line in texts.items() if text.isascii() and text.isdigit()}
    lengths = Counter(map(len, numbers))
    if len(numbers) < MANY or not any(text.startswith("0") and text != "0" for text in numbers):
        return []
    longer = {length: sum(count for other, count in lengths.items() if other > length) for length in lengths}
    return [line for text, line in numbers.items() if longer[len(text)] > SHARE_OF_LONGER * len(numbers)]


def _rare(texts: dict[str, int]) -> list[int]:
    """Return the lines of ids of a rare kind: number, address, UUID or other text that fewer than a tenth have."""
    kinds = {text: _sort(text) for text in texts}
    counts = Counter(kinds.values())
    rare = {kind for kind, count in counts.items() if count < SHARE_OF_RARE * len(texts)}
    return [line for text, line in texts.items() if kinds[text] in rare] if len(texts) >= MANY else []


def _sort(text: str) -> str:
    if text.isascii() and text.isdigit():
        return "number"
    if "@" in text:
        return "address"
    return shape if len(text) >= len("uuid") and (shape := look(text)) in ("uuid", "hex32") else "text"
