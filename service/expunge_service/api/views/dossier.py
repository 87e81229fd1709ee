"""What was asked and done in a period, in counts."""

from __future__ import annotations

import json
from base64 import b64decode
from collections import Counter
from datetime import UTC, date, datetime, time
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge_service.api.views.overview import percentiles
from expunge_service.api.views.selection import OPEN, ListFilter
from expunge_service.certificates import weakest
from expunge_service.infra.db import batches
from expunge_service.infra.tables import Certificate, DeletionRequest, Model, Version
from expunge_service.infra.time import DAY_SECONDS, SECOND, moment
from expunge_service.requests import Status


def counts(session: Session, rows: list[DeletionRequest], at: int) -> dict[str, Any]:
    """Return the counts, the times in seconds, and each completed request's weakest guarantee."""
    done = [row for row in rows if row.completed_at is not None]
    seconds = [(row.completed_at - row.received_at) / SECOND for row in done if row.completed_at is not None]
    guarantees = _guarantees(session, [row.id for row in done])
    due = [row for row in rows if row.due_at is not None]
    late = [row for row in due if (row.completed_at or at) > (row.due_at or 0) and _counts(row)]
    return {
        "total": len(rows),
        "statuses": Counter(row.status for row in rows),
        "laws": Counter(row.regulation.upper() if row.regulation else "none named" for row in rows),
        "due": len(due),
        "late": len(late),
        "extended": sum(row.extended_at is not None for row in rows),
        "times": (*percentiles(seconds), max(seconds)) if seconds else None,
        "guarantees": guarantees,
        "kinds": Counter(guarantees.values()),
        "uncertified": len(done) - len(guarantees),
    }


def _counts(row: DeletionRequest) -> bool:
    """Return whether a deadline of the request counts: a cancelled or rejected one was ended by a decision."""
    return row.status in OPEN or row.status == Status.COMPLETED


def _guarantees(session: Session, ids: list[str]) -> dict[str, str]:
    """Return the weakest guarantee in each request's present certificate, by the request's id."""
    found = {}
    for some in batches(ids):
        rows = (
            select(Certificate.request_id, Certificate.envelope)
            .join(DeletionRequest, DeletionRequest.id == Certificate.request_id)
            .where(Certificate.request_id.in_(some), Certificate.completed_at == DeletionRequest.completed_at)
        )
        for request_id, envelope in session.execute(rows):
            if envelope is not None:
                statement = json.loads(b64decode(json.loads(envelope)["payload"]))
                found[str(request_id)] = weakest(statement["predicate"]).value
    return found


def published(session: Session, tenant_id: str, chosen: ListFilter) -> dict[str, Any]:
    """Return how many versions were published in the period, and of which recipes."""
    begin, end = (
        moment(datetime.combine(date.fromisoformat(day), time(), UTC))
        for day in (chosen.received_from, chosen.received_to)
    )
    published = Version.published_at.between(begin, end + DAY_SECONDS * SECOND)
    rows = (
        select(Model.recipe, func.count())
        .join(Version, Version.model_id == Model.id)
        .where(Version.tenant_id == tenant_id, published)
        .group_by(Model.recipe)
        .order_by(Model.recipe)
    )
    versions = {recipe: count for recipe, count in session.execute(rows)}
    return {"versions": sum(versions.values()), "recipes": list(versions)}
