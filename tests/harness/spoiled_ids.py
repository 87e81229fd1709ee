"""Ids of people as they arrive after spreadsheets, forms and mail programs: 20 kinds of spoilings over five shapes."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import quote

SHAPES = ("number", "padded", "uuid", "address", "mixed")
_NAMES = ("anna", "otto", "maria", "jose", "li", "olga", "noel", "ines", "paulo", "kim")


def people(shape: str, count: int, seed: int) -> list[str]:
    """Return ids of so many people in one shape, each once."""
    draw = random.Random(f"{seed} {shape}")
    match shape:
        case "number":
            return [str(number) for number in draw.sample(range(1_000, 9_000_000), count)]
        case "padded":
            return [f"{number:09d}" for number in draw.sample(range(1, 9_000_000), count)]
        case "uuid":
            return [str(uuid.UUID(int=draw.getrandbits(128), version=4)) for _ in range(count)]
        case "address":
            numbers = draw.sample(range(10, 10 * count + 100), count)
            return [f"{draw.choice(_NAMES)}.{draw.choice(_NAMES)}{number}@mail{number % 7}.org" for number in numbers]
        case _:
            return [f"CUST-{2000 + number % 25}-{number:07d}" for number in draw.sample(range(1, 9_000_000), count)]


class Spoiled(NamedTuple):
    """An id as it arrived, the right one, and how it was spoiled."""

    text: str
    right: str
    kind: str


def _digits(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _exponent(text: str, places: int | None) -> str | None:
    """Return a whole number as a spreadsheet shows it; ``places`` None: with all its digits."""
    if not _digits(text) or len(text.lstrip("0")) < 3:
        return None
    number = int(text)
    if places is None:
        places = len(str(number).rstrip("0")) - 1
    return f"{number:.{places}E}"


def _grouped(text: str, mark: str) -> str | None:
    return f"{int(text):,}".replace(",", mark) if _digits(text) and int(text) >= 1000 else None


def _without_zeros(text: str) -> str | None:
    if _digits(text):
        return text.lstrip("0")
    head, mark, tail = text.rpartition("-")
    return f"{head}{mark}{tail.lstrip('0')}" if mark and _digits(tail) and head.startswith("CUST") else None


def _hyphens(text: str, mark: str) -> str | None:
    return text.replace("-", mark) if "-" in text else None


def _mailbox(text: str, change: Callable[[str], str]) -> str | None:
    name, at, domain = text.partition("@")
    return f"{change(name)}@{domain}" if at else None


KINDS: dict[str, Callable[[str], str | None]] = {
    "zeros lost": _without_zeros,
    "decimals": lambda text: f"{int(text)}.0" if _digits(text) else None,
    "exponent": lambda text: _exponent(text, None),
    "digits lost": lambda text: _exponent(text, 1) if len(text.lstrip("0")) > 4 else None,
    "thousands by commas": lambda text: _grouped(text, ","),
    "thousands by blanks": lambda text: _grouped(text, " "),
    "upper case": lambda text: text.upper(),
    "lower case": lambda text: text.lower(),
    "blank behind": lambda text: text + " ",
    "no-break space": lambda text: text[:3] + "\u00a0" + text[3:],
    "double quotes": lambda text: f'"{text}"',
    "apostrophe before": lambda text: "'" + text,
    "prefix": lambda text: f"user:{text}",
    "full-width": lambda text: "".join(chr(ord(sign) + 0xFEE0) if sign.isdigit() else sign for sign in text),
    "percent-encoded": lambda text: quote(text.replace("-", "%2D"), safe="%"),
    "hyphens lost": lambda text: _hyphens(text, ""),
    "long hyphens": lambda text: _hyphens(text, "\u2013"),
    "mail tag": lambda text: _mailbox(text, lambda name: f"{name}+shop"),
    "mail dots lost": lambda text: _mailbox(text, lambda name: name.replace(".", "")),
    "look-alike letters": lambda text: text.replace("a", "\u0430").replace("C", "\u0421"),
}


def spoiled(ids: list[str], seed: int, count: int) -> Iterator[Spoiled]:
    """Yield ``count`` spoiled ids, the kinds in turn. None is the id of another person."""
    draw, known = random.Random(seed), set(ids)
    made = 0
    while made < count:
        for kind, spoil in KINDS.items():
            right = draw.choice(ids)
            text = spoil(right)
            if text is None or text in known or made == count:
                continue
            made += 1
            yield Spoiled(text, right, kind)


def strangers(shape: str, ids: list[str], count: int, seed: int) -> list[str]:
    """Return ids in the same shape that nobody has."""
    known = set(ids)
    return [each for each in people(shape, count + len(ids), seed) if each not in known][:count]
