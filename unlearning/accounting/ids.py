"""How ids of people and samples are compared: by their NFC form, character by character.

Invisible characters are refused, because a request would silently miss an id that looks the same.
The refused characters are written out, so that no two releases of Python's tables disagree about them.
"""

from __future__ import annotations

import re
import unicodedata

_SPACES = r"\s\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000"
_HIDDEN = (
    r"\u0000-\u001f\u007f-\u009f\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5"
    r"\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u2800\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb"
)
"""control and format characters, line separators, fillers and selectors that are invisible"""
_HIDDEN_FURTHER = (
    r"\ud800-\udfff\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    r"\U000e0000-\U000e0fff"
)
"""the same beyond what a JSON schema's pattern can name, and halves of surrogate pairs"""
PATTERN = f"^[^{_SPACES}{_HIDDEN}]([^{_HIDDEN}]*[^{_SPACES}{_HIDDEN}])?$"
"""what a JSON schema says of an id"""
_REFUSED = re.compile(f"[{_HIDDEN}{_HIDDEN_FURTHER}]")
_AT_AN_END = re.compile(f"^[{_SPACES}]|[{_SPACES}]$")


def spelled(text: str) -> str:
    """Return the id in the form that is compared. Raises ValueError, which does not repeat it."""
    if text.isascii() and text.isprintable() and text == text.strip(" "):
        return text  # most ids; the two searches take several times as long
    if _REFUSED.search(text):
        raise ValueError("An id must hold no invisible or control characters.")
    if _AT_AN_END.search(text):
        raise ValueError("An id must not begin or end with white space.")
    return nfc(text)


def nfc(text: str) -> str:
    """Return the text in Unicode's normal form C; ASCII is that already."""
    return text if text.isascii() else unicodedata.normalize("NFC", text)
