"""The identifiers of a deletion list: one spelling for each, and the hash of it.

Source: CalPrivacy, DROP technical specifications 1.2.0 of July 2026, "Working with the data". A hash is SHA-256 over
UTF-8. Lists of several fields hash each field, join the Base64 texts, and hash again.
"""

from __future__ import annotations

import re
import unicodedata
from base64 import b64encode
from collections.abc import Callable, Mapping
from datetime import datetime
from functools import cache
from hashlib import sha256

Row = Mapping[str, str]
"""what is known of a person, by the names in ``COLUMNS``"""
PERSON = "person"
"""the column with the id by which recipes and deletion requests name the person"""
COLUMNS = ("email", "phone", "maid", "ctvid", "first_name", "last_name", "birth_date", "zip", "vin")
_DATES = ("%Y-%m-%d", "%Y%m%d", "%m/%d/%Y", "%B %d, %Y")
_SPACE, _NO_DIGIT, _PLUS_FOUR = re.compile(r"\s+"), re.compile(r"[^0-9]"), re.compile(r"-[0-9]{4}\s*$")
_FOLDED = ("LATIN", "GREEK", "CYRILLIC")
"""scripts whose letters become plain ASCII; letters of all others stay"""


def email(text: str) -> str | None:
    """Return the address without white space, in lower case. Dots and plus signs stay."""
    return _SPACE.sub("", text).lower() or None


def phone(text: str) -> str | None:
    """Return the last ten digits, or all where there are fewer."""
    return _NO_DIGIT.sub("", text)[-10:] or None


def zip_code(text: str) -> str | None:
    """Return the first five letters and digits in lower case, without leading zeros and without ZIP+4's last four."""
    return _alphanumeric(_PLUS_FOUR.sub("", text)).lstrip("0")[:5] or None


def birth_date(text: str) -> str | None:
    """Return the date as YYYYMMDD; None where it is no date. A time of day after an ISO date is left out."""
    text = text.strip().partition("T")[0]
    for form in _DATES:
        try:
            return datetime.strptime(text, form).strftime("%Y%m%d").zfill(8)
        except ValueError:
            continue
    return None


def name(text: str) -> str | None:
    """Return the letters and digits in lower case; Latin, Greek and Cyrillic letters become ASCII.

    Raises ImportError where such a letter is met and ``anyascii`` is not installed.
    """
    if not text.isascii():
        text = "".join(each if each.isascii() else _folded(each) for each in unicodedata.normalize("NFKC", text))
    return "".join(each for each in text.lower() if each.isalnum()) or None


def maid(text: str) -> str | None:
    """Return the 32 hexadecimal digits in lower case; None where there are not so many."""
    found = "".join(each for each in text.lower() if each in "0123456789abcdef")
    return found if len(found) == 32 else None


def ctvid(text: str) -> str | None:
    """Return the 8 to 32 letters and digits in lower case; None where there are not so many."""
    found = _alphanumeric(text)
    return found if 8 <= len(found) <= 32 else None


def vin(text: str) -> str | None:
    """Return the 17 letters and digits in lower case; None where there are not so many."""
    found = _alphanumeric(text)
    return found if len(found) == 17 else None


def _alphanumeric(text: str) -> str:
    return "".join(each for each in text.lower() if each.isascii() and each.isalnum())


@cache
def _folded(letter: str) -> str:
    if not unicodedata.name(letter, "").startswith(_FOLDED):
        return letter
    from anyascii import anyascii  # noqa: PLC0415 (an extra, for names alone)

    return str(anyascii(letter))


Field = tuple[str, Callable[[str], str | None]]
_NAMES: tuple[Field, ...] = (("first_name", name), ("last_name", name))
LISTS: dict[str, tuple[Field, ...]] = {
    "Email": (("email", email),),
    "Phone": (("phone", phone),),
    "MAID": (("maid", maid),),
    "CTVID": (("ctvid", ctvid),),
    "NDZ": (*_NAMES, ("birth_date", birth_date), ("zip", zip_code)),
    "NameVIN": (*_NAMES, ("vin", vin)),
}
"""by the list's name: its fields in order, each with its spelling"""


def hash_of(list_name: str, row: Row) -> bytes | None:
    """Return the 32 bytes by which the list names this person; None where a field is missing or malformed."""
    spelled = []
    for column, spelling in LISTS[list_name]:
        text = row.get(column)
        each = spelling(text) if text else None
        if each is None:
            return None
        spelled.append(sha256(each.encode()).digest())
    return spelled[0] if len(spelled) == 1 else sha256(b"".join(map(b64encode, spelled))).digest()
