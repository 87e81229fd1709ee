"""``/console/requests``: the list of requests, with filters, pages, CSV, and decisions about many at once."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from math import ceil
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import StreamingResponse

from expunge_service.access import Scope
from expunge_service.api.problems import ApiProblem, not_found
from expunge_service.api.views.models import model_names
from expunge_service.api.views.requests import DeletionRequestView, request_views
from expunge_service.api.views.selection import (
    DUE,
    MOST_COUNTED,
    ROWS,
    SORTS,
    STATUSES,
    ListFilter,
    all_of,
    count,
    page_of,
)
from expunge_service.console.acts import ACTS
from expunge_service.console.forms import Form, field
from expunge_service.console.render import HEADERS, PageRoute
from expunge_service.console.visit import PageContext, Visitor
from expunge_service.infra.db import now
from expunge_service.infra.time import rfc_3339
from expunge_service.requests import Reason, Regulation, RequestRefused, Status

router = APIRouter(route_class=PageRoute, include_in_schema=False)
Chosen = Annotated[ListFilter, Depends()]
_IN_BULK = {"verify": Reason.UNVERIFIED, "approve": Reason.LARGE}
"""acts on many requests at once, and the reason that a request must have for it"""
_COLUMNS = ("id", "status", "reason", "regulation", "received_at", "due_at", "completed_at", "samples", "models")


@router.get("/console/requests")
def index(visit: Visitor, chosen: Chosen, select: Annotated[Literal["", "all"], Query()] = "") -> Response:
    visit.need(Scope.DELETIONS_READ)
    tenant = visit.caller.tenant_id
    with visit.service.database.read() as session:
        at = now(session)
        rows = request_views(session, page_of(session, chosen, tenant, at), visit.caller.scopes)
        total = count(session, chosen, tenant, at, MOST_COUNTED + 1)
        models = model_names(session, tenant)
    choices = {"status": STATUSES, "reason": list(Reason), "model": models, "regulation": list(Regulation)}
    blocked = {row.id: row.reason for row in rows if row.status == Status.BLOCKED}
    bulk = [name for name, each in _IN_BULK.items() if each in blocked.values() and visit.allows(ACTS[name].route)]
    selectable = [id for id, reason in blocked.items() if reason in [_IN_BULK[name] for name in bulk]]
    marks = {"bulk": bulk, "selectable": selectable, "selected": select == "all"}
    pages = max(1, ceil(min(total, MOST_COUNTED) / ROWS))
    more = chosen.page < pages or (total > MOST_COUNTED and len(rows) == ROWS)
    counts = {"total": total, "most": MOST_COUNTED, "pages": pages, "more": more}
    filters = {"chosen": chosen, "choices": choices, "due": DUE, "sorts": SORTS}
    return visit.page("requests.html", rows=rows, **filters, **counts, **marks)


@router.get("/console/requests.csv")
def as_csv(visit: Visitor, chosen: Chosen) -> Response:
    """Send all pages of the list as one table. It has no free text: a cell cannot begin a formula."""
    visit.need(Scope.DELETIONS_READ)
    headers = HEADERS | {"Content-Disposition": 'attachment; filename="deletion-requests.csv"'}
    return StreamingResponse(_lines(visit, chosen), headers=headers, media_type="text/csv; charset=utf-8")


@router.post("/console/requests/bulk")
def decide(visit: Visitor, fields: Form) -> Response:
    """Verify or approve many requests, each by the API's own route, and say of each what became of it."""
    visit.check_form(fields)
    name, ids = field(fields, "action"), fields.get("id", [])
    if name not in _IN_BULK:
        raise not_found("page")
    if not ids:
        raise ApiProblem(422, "nothing_chosen", "Select at least one request of the list, then press the button.")
    action = ACTS[name]
    if field(fields, "sure") != "yes":
        label = f"{action.label}: {len(ids)} {'request' if len(ids) == 1 else 'requests'}"
        return visit.ask(label, str(action.warning), fields, "/console/requests", names=ids)
    return visit.page("bulk.html", label=action.label, outcomes=[(each, _decided(visit, name, each)) for each in ids])


def _decided(visit: PageContext, name: str, request_id: str) -> str:
    """Carry out the action for one request; return why it was not done, or an empty text."""
    try:
        visit.call(ACTS[name].route, request_id=request_id)
    except ApiProblem as problem:
        return problem.detail
    except RequestRefused as refused:
        return str(refused)
    return ""


def _lines(visit: PageContext, chosen: ListFilter) -> Iterator[str]:
    yield _line(_COLUMNS)
    with visit.service.database.read() as session:
        for some in all_of(session, chosen, visit.caller.tenant_id, now(session)):
            for each in request_views(session, some):
                yield _line(_cells(each))


def _cells(request: DeletionRequestView) -> tuple[object, ...]:
    times = ("" if at is None else rfc_3339(at) for at in (request.received_at, request.due_at, request.completed_at))
    models = " ".join(part.model for part in request.models)
    return (request.id, request.status, request.reason, request.regulation, *times, request.samples, models)


def _line(cells: tuple[object, ...]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerow(cells)
    return text.getvalue()
