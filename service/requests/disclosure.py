"""What an answer may tell its caller about people."""

from __future__ import annotations

from typing import Any

from service.access.api_keys import Caller, Scope
from service.requests.reasons import Reason


def told(caller: Caller, answer: dict[str, Any]) -> dict[str, Any]:
    """Show a stored answer as this caller may see it.

    What became of the request takes ``deletions:read``; where else the person is known takes ``people:search``.
    """
    if Scope.DELETIONS_READ not in caller.scopes:
        return _receipt(answer)
    return answer if Scope.PEOPLE_SEARCH in caller.scopes else answer | {"remains_in": None}


def _receipt(answer: dict[str, Any]) -> dict[str, Any]:
    """Keep what follows from the request alone, whoever is in the data."""
    status = "blocked" if answer["reason"] == Reason.UNVERIFIED else "queued"
    return {"status": status} | {name: answer[name] for name in ("id", "received_at", "due_at")}
