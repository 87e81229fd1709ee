"""How ids are misspelled on their way through spreadsheets, and how to notice it.

An id of a person passes through CSV files, spreadsheets and forms before it reaches a deletion request. On the way
``000017`` becomes ``17`` or ``1.7E+01``, an e-mail address changes its case, a UUID loses its hyphens. Three questions
about an id that nobody has, all answered from text alone:

* ``forms``: the reduced forms of an id. Two ids with a form in common may be one id in two spellings.
* ``damage``: why a text is no id under any model.
* ``look``: the shape of an id, by which an id of another kind is noticed among the ids that are known.

None of them decides anything: a near miss is shown to a person (docs/privacy-officer.md).
"""

from __future__ import annotations

import re
import string
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import lru_cache
from html import unescape
from typing import Literal, cast
from urllib.parse import unquote

Damage = Literal["missing value", "program error", "lost digits", "date", "object"]
Kind = Literal["number", "plain", "start", "uuid", "mailbox", "segments", "bare"]
"""kinds of reduced forms; every id has one of the first two, its plain form"""
PLAIN: tuple[Kind, ...] = ("number", "plain")

FLOAT_DIGITS = 14
"""leading digits that survive every spreadsheet and every float64; Excel keeps 15 and rounds the last"""
UUID_DIGITS = 32
LONG_NUMBER = 16
"""digits from which a spreadsheet cuts a whole number"""
COMMON_LOOK = 20
"""people who share a look before it is kept: a rarer one would say something about single people"""
MOST_LOOKS = 200
"""looks of one model; ids with more have no shape to speak of"""
COVERED = 0.95
"""share of the people who must have a common look; below it such looks tell nothing about an id that nobody has"""
ADDRESS = "@"
"""the look of every e-mail address, where the addresses of a model look in too many ways"""

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\x00-\x08\x0e-\x1f\x7f-\x9f]"
)
_QUOTES = re.compile("[\"'`\u00b4\u2018-\u201f\u00ab\u00bb\u2039\u203a\u2032\u2033]")
_CLEAN = re.compile(r"[a-z][a-z0-9@.:/#-]*")
"""what the plain form leaves as it is: most ids that are no numbers"""
_DASHES = re.compile("[\u2010-\u2015\u2212\u00ac\ufe58\ufe63\uff0d_]")
_BLANKS = re.compile(r"\s+")
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_LOOK_ALIKES = str.maketrans("авекмнорстухіјѕԁԛԝһѵαβεζηικμνορτυχ", "abekmhopctyxijsdqwhvabezhikmnoptyx")
"""Cyrillic and Greek letters whose capitals look like Latin ones (Unicode Technical Standard 39, confusables)"""
_MISREAD = str.maketrans("oil", "011")
"""letters that are read and typed as digits"""
_DIGITS = re.compile(r"[0-9]+")
_WHOLE = re.compile(r"\+?([0-9]+)(?:[.,]0*)?")
_GROUPED = re.compile(r"\+?([1-9][0-9]{0,2}(?:([.,'\u2019 ])[0-9]{3})(?:\2[0-9]{3})*)(?:[.,]0*)?")
_EXPONENT = re.compile(r"\+?([0-9])(?:[.,]([0-9]*))?e\+?([0-9]{1,3})")
_UUID = re.compile(
    r"(?<![0-9a-f])([0-9a-f]{8})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{4})-?([0-9a-f]{12})(?![0-9a-f])"
)
_ADDRESS = re.compile(r"([^\s@<>:;,\"]+)@([^\s@<>:;,\"]+\.[^\s@<>:;,\"]+)")
_LENGTH = re.compile(r"d([0-9]+)")
"""a run of digits in a look"""
_ADDRESS_LOOK = re.compile(r"[adw0-9._+-]+@[adw0-9-]+(?:\.[adw0-9-]+)+")
_FRACTION = re.compile(r"[+-]?[0-9]+[.,][0-9]*[1-9][0-9]*")
"""a number with decimals that are not zero; ``1.234`` is taken for 1234 before"""
_PUNCTUATION = re.compile(r"[\W_]+")
_PREFIX = re.compile(r"[^\W\d_]+[\W_]+(?=.*[0-9])|[^\W\d_]{1,5}(?=[0-9]+(?:[\W_]|$))")
_RUN = re.compile(r"[^\W_]+|[\W_]")
_CLASSES = str.maketrans(dict.fromkeys(string.digits, "0") | dict.fromkeys(string.ascii_letters, "a"))
"""of each ASCII digit one digit, of each letter one letter: ids of one look become few texts"""
_DATE = re.compile(
    r"[0-9]{1,4}[-/. ]?(jan|feb|mar|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez)[a-z]*\.?([-/. ][0-9]{2,4})?"
    r"|(jan|feb|mar|apr|may|mai|jun|jul|aug|sep|oct|okt|nov|dec|dez)[a-z]*[-/. ][0-9]{1,4}"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}[t ][0-9]{2}:[0-9]{2}(:[0-9.]+)?z?([+-][0-9:]+)?"
)
_MISSING = frozenset(
    {"nan", "nat", "none", "null", "nil", "na", "n/a", "<na>", "-", "--", "?", "missing", "undefined", "unknown", "inf"}
    | {"-inf", "infinity", "(null)", "(blank)", "true", "false", "-nan", "1.#qnan", "1.#ind", "\\n", "empty"}
)
_PROGRAM_ERROR = re.compile(
    r"#(n/a|ref!|value!|name\?|div/0!|null!|num!|getting_data|spill!|calc!|nv|wert!|bezug!)|#+|err:[0-9]+|=.*"
)
_OBJECT = re.compile(r"\[object [a-z]+\]|<.* object at 0x[0-9a-f]+>|\{.*\}|\[.*\]|\(.*,.*\)")


def forms(text: str) -> dict[Kind, str]:
    """Return the reduced forms of an id by kind, one to three, the plain one first; no two are equal.

    * ``number`` or ``plain``: without case, blanks, quotes, invisible marks and escapes; look-alike letters as Latin
      ones; a whole number in any spelling (``.0``, exponent, thousands) as its digits without leading zeros.
    * ``start``: the first digits of a number of 16 digits and more.
    * ``uuid``: its digits, without what is around it, in the order of bytes that sorts first: .NET writes the first
      three groups the other way round.
    * ``mailbox``: an e-mail address without ``+tag``, dots and hyphens before the @.
    * ``segments``: without accents and a prefix such as ``user:``, segments without leading zeros.
    * ``bare``: letters and digits alone, and letters that are misread for digits as these.

    A number with decimals that are not zero is no spelling of a whole number: it has no ``bare`` form.
    """
    if text.isascii() and text.isdigit():  # most ids of large tables
        return _forms_of_number(text.lstrip("0") or "0")
    plain = plain_form(text)
    if _DIGITS.fullmatch(plain):
        return _forms_of_number(plain)
    if _FRACTION.fullmatch(plain):  # without its point it would be another number
        return _distinct(plain, segments=_segments(plain))
    uuid = _UUID.search(plain) if len(plain) >= UUID_DIGITS else None
    if uuid:
        return _distinct(plain, uuid=min("".join(uuid.groups()), _swapped(*uuid.groups())))
    address = _ADDRESS.search(plain) if "@" in plain else None
    if address:
        return _distinct(plain, mailbox=_mailbox(*address.groups()))
    return _distinct(plain, segments=_segments(plain), bare=_bare(plain))


def plain_form(text: str) -> str:
    """Return the first of ``forms``: the id without what no reader sees or means by it."""
    if not text.isascii():
        text = _INVISIBLE.sub("", unicodedata.normalize("NFKC", _decoded(text)))
        text = "".join(map(_ascii_digit, text))
    if "&" in text:
        text = unescape(text)
    if "%" in text and _ENCODED.search(text):
        text = unquote(text)
    text = text.casefold().replace("_", "-")
    if _CLEAN.fullmatch(text):
        return text
    text = _QUOTES.sub("", text.removeprefix("="))
    if not text.isascii():
        text = unicodedata.normalize("NFC", _DASHES.sub("-", text)).translate(_LOOK_ALIKES)
    text = text.strip()
    return whole_number(text) or _BLANKS.sub("", text)


def whole_number(text: str) -> str | None:
    """Return the digits of a whole number without leading zeros, from any of its spellings; None: it is not one.

    An exponent counts where it has all digits (``1.7e+01`` is 17), or as many as a float64 keeps of a long number.
    """
    match = _WHOLE.fullmatch(text)
    if match:
        return match[1].lstrip("0") or "0"
    match = _GROUPED.fullmatch(text)
    if match:
        return "".join(_DIGITS.findall(match[1])).lstrip("0") or "0"
    match = _EXPONENT.fullmatch(text)
    if match is None:
        return None
    digits, length = match[1] + (match[2] or ""), int(match[3]) + 1
    if len(digits) < length and not (length >= LONG_NUMBER and len(digits) >= FLOAT_DIGITS):
        return None
    if digits[length:].strip("0"):
        return None
    return digits[:length].ljust(length, "0").lstrip("0") or "0"


def damage(text: str) -> Damage | None:
    """Return why the text is no id under any model; None where it may be one."""
    text = text.strip().casefold()
    if text in _MISSING:
        return "missing value"
    if _PROGRAM_ERROR.fullmatch(text):
        return "program error"
    if _OBJECT.fullmatch(text):
        return "object"
    match = _EXPONENT.fullmatch(text)
    if match and len(match[2] or "") < int(match[3]) and whole_number(text) is None:
        return "lost digits"
    return "date" if _DATE.fullmatch(text) else None


def look(text: str) -> str:
    """Return the shape of an id: ``d6`` for six digits in a row, ``a`` for letters, ``w`` for both; other signs stay.

    A UUID is ``uuid``. Letters of another script than Latin have their script's name behind the ``a``.
    """
    if text.isascii() and text.isdigit():
        return f"d{len(text)}"
    text = unicodedata.normalize("NFC", text)
    if _UUID.fullmatch(text.casefold()):
        return "uuid" if "-" in text else "hex32"
    return _look_of_classes(text.translate(_CLASSES)) if text.isascii() else _look_of_runs(text)


def looks(ids: Iterable[str]) -> tuple[str, ...] | None:
    """Return the sorted looks of many people's ids, those of at least ``COMMON_LOOK`` people; None: they tell nothing.

    They tell nothing where there are more than ``MOST_LOOKS``, or where fewer than ``COVERED`` of the people have one
    of them, but for the lengths of runs of digits: of those who are not in the data as many would be called unusual.
    E-mail addresses look in many ways. Where their own looks tell nothing, they have the one look ``ADDRESS``.
    """
    counts = Counter(map(look, ids))
    addresses = {shape: count for shape, count in counts.items() if _ADDRESS_LOOK.fullmatch(shape)}
    if len(addresses) > 1 and (len(counts) > MOST_LOOKS or _covered(addresses) < COVERED):
        counts = Counter({shape: count for shape, count in counts.items() if shape not in addresses})
        counts[ADDRESS] = sum(addresses.values())
    if len(counts) > MOST_LOOKS or _covered(counts) < COVERED:
        return None
    return tuple(sorted(_common(counts)))


def _common(counts: Mapping[str, int]) -> frozenset[str]:
    return frozenset(shape for shape, count in counts.items() if count >= COMMON_LOOK)


def _covered(counts: Mapping[str, int]) -> float:
    """Return the share of the people, 0 to 1, who have a common look but for the lengths of digits; of nobody 0."""
    common = {_LENGTH.sub("d", shape) for shape in _common(counts)}
    alike = sum(count for shape, count in counts.items() if _LENGTH.sub("d", shape) in common)
    return alike / max(1, sum(counts.values()))


def usual_looks(text: str) -> tuple[str, ...]:
    """Return the look of an id, then those with one run of digits a digit shorter: any of them makes it usual.

    An e-mail address has ``ADDRESS`` at the end.
    """
    return _usual(look(text))


def _usual(shape: str) -> tuple[str, ...]:
    shorter = (f"{shape[: run.start()]}d{int(run[1]) - 1}{shape[run.end() :]}" for run in _LENGTH.finditer(shape))
    return (shape, *shorter, *([ADDRESS] if _ADDRESS_LOOK.fullmatch(shape) else []))


def _look_of_runs(text: str) -> str:
    return "".join(map(_look_of_run, _RUN.findall(text)))


_look_of_classes = lru_cache(maxsize=4096)(_look_of_runs)
"""the same, remembered: a registration asks for the looks of a million ids, and no text here is one of them"""


def _look_of_run(run: str) -> str:
    if run.isascii() and run.isdigit():
        return f"d{len(run)}"
    if run.isalpha():
        return "a" if run.isascii() else "a" + "".join(sorted({unicodedata.name(sign, "?").split()[0] for sign in run}))
    return "w" if run.isalnum() else run


def _forms_of_number(digits: str) -> dict[Kind, str]:
    if len(digits) < LONG_NUMBER:
        return {"number": digits}
    return {"number": digits, "start": f"{digits[:FLOAT_DIGITS]}~{len(digits)}"}


def _swapped(first: str, second: str, third: str, *rest: str) -> str:
    """Return the digits of a UUID with the bytes of its first three groups the other way round."""
    first, second, third = (
        first[6:] + first[4:6] + first[2:4] + first[:2],
        second[2:] + second[:2],
        third[2:] + third[:2],
    )
    return "".join((first, second, third, *rest))


def _mailbox(name: str, domain: str) -> str:
    return f"{name.partition('+')[0].replace('.', '').replace('-', '')}@{domain.rstrip('.')}"


def _segments(plain: str) -> str:
    """Return the segments between punctuation, without accents, their leading zeros and a prefix of letters."""
    rest = _PREFIX.sub("", _unaccented(plain), count=1)
    return "-".join([part.lstrip("0") or "0" for part in _PUNCTUATION.split(rest) if part]) or plain


def _bare(plain: str) -> str:
    signs = _PUNCTUATION.sub("", _unaccented(plain))
    if not _DIGITS.search(signs):
        return signs or plain
    signs = signs.translate(_MISREAD)
    return signs.lstrip("0") or "0" if signs.isdigit() else signs


def _unaccented(text: str) -> str:
    if text.isascii():
        return text
    return "".join(sign for sign in unicodedata.normalize("NFKD", text) if not unicodedata.combining(sign))


def _decoded(text: str) -> str:
    """Return the text as it was before UTF-8 was read as Windows' code page 1252; the text itself where it was not."""
    try:
        return text.encode("cp1252").decode()
    except UnicodeError:
        return text


def _ascii_digit(sign: str) -> str:
    value = unicodedata.decimal(sign, None)
    return sign if value is None else str(value)


def _distinct(plain: str, **others: str) -> dict[Kind, str]:
    """Return the forms, each value under its first kind alone."""
    kinds: dict[str, str] = {}
    for kind, value in {"plain": plain, **others}.items():
        kinds.setdefault(value, kind)
    return {cast("Kind", kind): value for value, kind in kinds.items()}
