"""What a key that may hand in requests and not read them is told of one: nothing that depends on who is in the data."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from service.api.types import Moment

OPENING = Field(description="opens the commitment in the audit log and the certificate; kept nowhere here")


class ReceiptView(BaseModel):
    """What a key without ``deletions:read`` is told: it follows from what was sent, whoever is in the data."""

    id: str
    status: Literal["queued", "blocked"] = Field(description="held where the request was sent unverified, else queued")
    received_at: Moment
    due_at: Moment | None
    opening: str = OPENING
