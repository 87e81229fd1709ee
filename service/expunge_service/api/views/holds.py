"""Legal holds, for the API and the page."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import BaseModel, Field
from sqlalchemy import select, tuple_
from sqlalchemy.orm import Session

from expunge_service.api.problems import not_found
from expunge_service.api.types import Moment
from expunge_service.infra.tables import Hold


class HoldView(BaseModel):
    id: str
    subject_digest: str | None
    sample_digest: str | None
    reason: str
    created_at: Moment
    lifted_at: Moment | None
    note: str | None = Field(
        default=None,
        description="shown once, when it is placed: that it keeps nothing now, or, to a key without the scope "
        "people:search, that this was not looked up",
    )


def holds_before(session: Session, tenant_id: str, place: tuple[int, str] | None, limit: int) -> Sequence[Hold]:
    """Return the tenant's holds, newest first, from those placed before ``place`` (moment, id)."""
    rows = select(Hold).where(Hold.tenant_id == tenant_id)
    if place is not None:
        rows = rows.where(tuple_(Hold.created_at, Hold.id) < place)
    return session.scalars(rows.order_by(Hold.created_at.desc(), Hold.id.desc()).limit(limit)).all()


def find_hold(session: Session, tenant_id: str, hold_id: str, *, lock: bool = False) -> Hold:
    hold = session.get(Hold, hold_id, with_for_update=lock)
    if hold is None or hold.tenant_id != tenant_id:
        raise not_found("hold")
    return hold


def hold_view(hold: Hold) -> HoldView:
    return HoldView(
        id=hold.id,
        subject_digest=hold.subject_digest,
        sample_digest=hold.sample_digest,
        reason=hold.reason,
        created_at=hold.created_at,
        lifted_at=hold.lifted_at,
    )
