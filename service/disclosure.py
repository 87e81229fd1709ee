"""What an answer may tell its caller about people."""

from __future__ import annotations

from typing import Any

from service.auth import Caller

PEOPLE_SEARCH = "people:search"


def told(caller: Caller, answer: dict[str, Any]) -> dict[str, Any]:
    """Show a stored answer as this caller may see it: where else the person is known takes ``people:search``."""
    return answer if PEOPLE_SEARCH in caller.scopes else answer | {"remains_in": None}
