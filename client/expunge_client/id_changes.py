"""One change for a whole column of spoiled ids: a person states it, and each id is changed alike.

The service knows no id's text, so it can propose no change. The caller has the ids as they were sent, and knows how
the books write them. Nothing here says that a changed id is right: the service compares each with those that are near.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from expunge_client.spelling import whole_number

LONGEST = 512
"""digits to which an id may be padded: that of the longest id"""
CHANGES = (
    "number (17.0 or 1.7E+01 becomes 17), pad=DIGITS (zeros in front), prefix=TEXT, suffix=TEXT, drop-prefix=TEXT, "
    "drop-suffix=TEXT, upper, lower"
)


_PLAIN: dict[str, Callable[[str], str]] = {
    "number": lambda subject: whole_number(subject.casefold()) or subject,
    "upper": str.upper,
    "lower": str.lower,
}
_WITH_TEXT: dict[str, Callable[[str, str], str]] = {
    "pad": lambda subject, digits: subject.rjust(int(digits), "0"),
    "prefix": lambda subject, text: text + subject,
    "suffix": lambda subject, text: subject + text,
    "drop-prefix": str.removeprefix,
    "drop-suffix": str.removesuffix,
}


def changed(text: str, changes: Sequence[str]) -> str:
    """Return the id after these changes, one after the other. One that does not apply to it leaves it as it is.

    Raises ValueError for a change that is none of ``CHANGES``; its text names the change, and no id.
    """
    for change in changes:
        name, _, value = change.partition("=")
        padded = name != "pad" or (value.isascii() and value.isdigit() and int(value) <= LONGEST)
        if change in _PLAIN:
            text = _PLAIN[change](text)
        elif name in _WITH_TEXT and value and padded:
            text = _WITH_TEXT[name](text, value)
        else:
            raise ValueError(f"{change!r} is no change of an id. There are: {CHANGES}.")
    return text
