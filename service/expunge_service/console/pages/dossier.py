"""``/console/dossier``: what was asked and done in a period, for a regulator: requests, times, guarantees."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query, Response

from expunge_service.access import Scope
from expunge_service.api.problems import ApiProblem
from expunge_service.api.views.dossier import counts, published
from expunge_service.api.views.log import log_state
from expunge_service.api.views.selection import ListFilter, all_of
from expunge_service.audit import Signer, compare_log
from expunge_service.console.render import PageRoute
from expunge_service.console.visit import Visitor
from expunge_service.infra.db import now
from expunge_service.infra.time import instant

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_LISTED = 1000
"""requests that are listed one by one; all are counted"""


@router.get("/console/dossier")
def dossier(
    visit: Visitor,
    first: Annotated[str, Query(max_length=10)] = "",
    last: Annotated[str, Query(max_length=10)] = "",
) -> Response:
    """Show the requests that were received from ``first`` to ``last``, dates in UTC; the last 90 days without them.

    The whole audit log is checked for the page, and not stored.
    """
    visit.need(Scope.DELETIONS_READ)
    tenant, service = visit.caller.tenant_id, visit.service
    reads = visit.may(Scope.AUDIT_READ)
    check = compare_log(service.database, Signer.of(service.settings).verifier) if reads else None
    with service.database.snapshot() as session:
        at = now(session)
        today = instant(at).date()
        chosen = ListFilter(
            received_from=first or (today - timedelta(days=90)).isoformat(),
            received_to=last or today.isoformat(),
            sort="oldest",
        )
        if chosen.received_from > chosen.received_to:
            raise ApiProblem(422, "unknown_filter", "The period ends before it begins.")
        rows = [row for some in all_of(session, chosen, tenant, at) for row in some]
        facts = counts(session, rows, at) | published(session, tenant, chosen)
        state = log_state(session, check) if reads else None
    return visit.page("dossier.html", chosen=chosen, rows=rows[:_LISTED], state=state, listed=_LISTED, **facts)
