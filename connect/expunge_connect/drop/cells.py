"""Reading the cells of a file of people strictly, before the state's rule is applied to them.

The rule cuts: of a phone number it takes the digits and then the last ten, so ``5305551234.0``, which programs write
where a column has an empty cell, becomes a stranger's number. The rule cannot be changed, since the state hashes what a
consumer typed by it. So a cell is first read as what its column should hold; what is no such thing is refused, and what
is one is handed to the rule as it stands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from expunge_client.spelling import damage
from expunge_connect.drop.identifiers import birth_date, ctvid, maid, phone, vin, zip_code

_DIRECTION_MARKS = re.compile("[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]")
"""what contacts copied from a phone begin and end with"""
_PHONE = re.compile(r"(?:tel:)?[+0-9()\s./\u00a0\u2010-\u2015-]+")
_DECIMALS = re.compile(r"[0-9]{7,}[.,][0-9]{1,2}")
_AMERICAN = re.compile(r"(?:\+?1[ .-]?)?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[ .-]?)[0-9]{3}[ .-]?[0-9]{4}")
"""a number of ten digits, with or without the 1 before them, as nearly every cell of an American file has it"""
AMERICAN = "US"
_ADDRESS = re.compile(r"[^\s@,;:<>\"()\[\]]+@[^\s@,;:<>\"()\[\]]+\.[^\s@,;:<>\"()\[\].]+")
_HIDDEN = re.compile("[\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff\x00-\x1f\x7f-\x9f]")
_ZIP = re.compile(r"[0-9]{3,5}(?:-[0-9]{4})?|[1-9][0-9]{8}|[A-Za-z][0-9][A-Za-z][ -]?[0-9][A-Za-z][0-9]")
"""five digits, fewer where leading zeros are gone, ZIP+4, or a Canadian code, which the state's examples have"""
_COMPACT_DATE = re.compile(r"[0-9]+")
COMPACT_DATE_DIGITS = 8


class Malformed(ValueError):
    """A cell that does not hold what its column should. The text says what was expected, and never the value."""


def read(column: str, text: str, region: str = AMERICAN) -> str:
    """The cell as the state's rule may have it; empty where the cell is.

    Args:
        column: one of ``identifiers.COLUMNS``.
        text: the cell.
        region: the country whose phone numbers are written without their country's code, as in ISO 3166 (US).

    Raises:
        Malformed: the cell holds something else.
    """
    if not text.strip():
        return ""
    if column == "phone":
        return _phone(text, region)
    strict = _STRICT.get(column)
    return text if strict is None else strict(text)


def _phone(text: str, region: str) -> str:
    text = _DIRECTION_MARKS.sub("", text).strip()
    if region == AMERICAN and _AMERICAN.fullmatch(text):
        return text
    return parsed_phone(text, region)


def parsed_phone(text: str, region: str) -> str:
    """The slow and general way to read a phone number. Raises Malformed."""
    from phonenumbers import (  # noqa: PLC0415 (an extra, which takes 50 ms to load)
        NumberParseException,
        PhoneNumberFormat,
        ValidationResult,
        format_number,
        is_possible_number_with_reason,
        parse,
    )

    if not _PHONE.fullmatch(text) or _DECIMALS.fullmatch(text):
        raise Malformed("one phone number without decimals, exponent or extension")
    try:
        number = parse(text, region)
    except NumberParseException:
        raise Malformed("a phone number") from None
    if is_possible_number_with_reason(number) != ValidationResult.IS_POSSIBLE:
        raise Malformed("a phone number with as many digits as its country's numbers have")
    if phone(text) != phone(format_number(number, PhoneNumberFormat.E164)):
        # The state cuts what the consumer typed, which may have had the country's code where this cell has none.
        raise Malformed("a phone number whose last ten digits are the same with and without its country's code")
    return text


def _email(text: str) -> str:
    text = text.strip()
    if _HIDDEN.search(text) or not _ADDRESS.fullmatch(text):
        raise Malformed("one e-mail address without a name, blanks or invisible characters")
    return text


def _zip(text: str) -> str:
    text = text.strip()
    if not _ZIP.fullmatch(text) or zip_code(text) is None:
        raise Malformed("a ZIP code of five digits, or ZIP+4, or a Canadian code")
    return text


def _birth_date(text: str) -> str:
    digits = _COMPACT_DATE.fullmatch(text.strip())
    if birth_date(text) is None or (digits and len(digits[0]) != COMPACT_DATE_DIGITS):
        raise Malformed("a date such as 1985-07-04, 19850704, 07/04/1985 or July 4, 1985")
    return text


def _as_the_rule(rule: Callable[[str], str | None], expected: str) -> Callable[[str], str]:
    def strict(text: str) -> str:
        if rule(text) is None:
            raise Malformed(expected)
        return text

    return strict


def _name(text: str) -> str:
    if damage(text) == "program error":
        raise Malformed("a name")
    return text


_STRICT: Mapping[str, Callable[[str], str]] = {
    "email": _email,
    "zip": _zip,
    "birth_date": _birth_date,
    "maid": _as_the_rule(maid, "an advertising id of 32 hexadecimal digits"),
    "ctvid": _as_the_rule(ctvid, "a TV's id of 8 to 32 letters and digits"),
    "vin": _as_the_rule(vin, "a VIN of 17 letters and digits"),
    "first_name": _name,
    "last_name": _name,
}
