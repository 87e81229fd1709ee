"""What the answer to a request shows to a caller, by the scopes of the key."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from service.access.api_keys import Caller, Scope
from service.api.types import Moment
from service.requests.reasons import Reason

OPENING = Field(description="opens the commitment in the audit log and the certificate; kept nowhere here")


class ReceiptView(BaseModel):
    """What a key without ``deletions:read`` is told: it follows from what was sent, whoever is in the data."""

    id: str
    status: Literal["queued", "blocked"] = Field(description="held where the request was sent unverified, else queued")
    received_at: Moment
    due_at: Moment | None
    opening: str = OPENING


def answer_for(caller: Caller, answer: dict[str, Any]) -> dict[str, Any]:
    """Return what of a stored answer this caller may see.

    What became of the request takes ``deletions:read``. Where else the person is known takes ``people:search``. A key
    with neither gets a receipt, which does not depend on who is in the data.
    """
    if Scope.DELETIONS_READ not in caller.scopes:
        status = "blocked" if answer["reason"] == Reason.UNVERIFIED else "queued"
        return {"status": status} | {name: answer[name] for name in ("id", "received_at", "due_at")}
    return answer if Scope.PEOPLE_SEARCH in caller.scopes else answer | {"remains_in": None}
