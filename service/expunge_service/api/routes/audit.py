"""The audit log: its entries, its signed head, and proofs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse

from expunge_service.access import Caller, Scope
from expunge_service.api.dependencies import Running, problems, require_scope
from expunge_service.api.http.pagination import Limit, MomentCursor, NumberCursor, Page, after, after_page, place_of
from expunge_service.api.problems import ApiProblem
from expunge_service.api.types import LARGEST_NUMBER, ModelName
from expunge_service.api.views.commitments import (
    CommitmentsView,
    SuppressionsView,
    commitments_view,
    suppression_views,
)
from expunge_service.api.views.log import (
    ConsistencyView,
    EntryView,
    InclusionView,
    entry_views,
    inclusion,
    signed_head,
    texts,
)
from expunge_service.api.views.models import find_model
from expunge_service.audit import consistency_proof, nodes

router = APIRouter(tags=["audit log"])
Reader = Annotated[Caller, Depends(require_scope(Scope.AUDIT_READ))]
LeafHash = Annotated[str, Query(pattern=r"^([0-9a-f]{64}|0|[1-9][0-9]{0,17})$", description="an index or a leaf hash")]


@router.get("/v1/audit-log", response_model=Page[EntryView], responses=problems(), summary="Entries in log order")
def index(
    *,
    request: Request,
    response: Response,
    service: Running,
    caller: Reader,
    cursor: NumberCursor = None,
    limit: Limit = 50,
) -> Page[EntryView]:
    behind = -1 if cursor is None else int(cursor)
    with service.database.read() as session:
        found = entry_views(session, caller.tenant_id, behind, limit + 1)
    return Page(data=found[:limit], **after_page(request, response, found, limit, lambda each: str(each.index)))


@router.get(
    "/v1/audit-log/checkpoint",
    response_class=PlainTextResponse,
    responses=problems(404),
    summary="The signed head: a C2SP checkpoint",
)
def checkpoint(service: Running, caller: Reader) -> PlainTextResponse:  # noqa: ARG001 (the caller is checked)
    with service.database.read() as session:
        return PlainTextResponse(signed_head(session).note)


@router.get(
    "/v1/audit-log/suppressions",
    response_model=Page[SuppressionsView],
    responses=problems(),
    summary="What the table of suppressions says of each request",
)
def suppressions(
    *,
    request: Request,
    response: Response,
    service: Running,
    caller: Reader,
    cursor: MomentCursor = None,
    limit: Limit = 50,
) -> Page[SuppressionsView]:
    behind = None if cursor is None else after(cursor)
    with service.database.read() as session:
        found, views = suppression_views(session, service.pepper, caller.tenant_id, behind, limit + 1)
    return Page(data=views[:limit], **after_page(request, response, found, limit, place_of))


@router.get(
    "/v1/models/{name}/commitments",
    response_model=CommitmentsView,
    responses=problems(404),
    summary="What the tables say of the current version, of every row",
)
def commitments(name: ModelName, service: Running, caller: Reader) -> CommitmentsView:
    with service.database.snapshot() as session:
        return commitments_view(session, service.pepper, find_model(session, caller.tenant_id, name))


@router.get(
    "/v1/audit-log/proof",
    response_model=InclusionView,
    responses=problems(404),
    summary="Proof that an entry is in the log",
)
def proof(leaf: LeafHash, service: Running, caller: Reader) -> InclusionView:  # noqa: ARG001
    with service.database.read() as session:
        return inclusion(session, leaf)


@router.get(
    "/v1/audit-log/consistency",
    response_model=ConsistencyView,
    responses=problems(404),
    summary="Proof that the log only grew since an earlier head",
)
def consistency(
    service: Running,
    caller: Reader,  # noqa: ARG001
    old_size: Annotated[int, Query(ge=1, le=LARGEST_NUMBER)],
) -> ConsistencyView:
    with service.database.read() as session:
        head = signed_head(session)
        if old_size > head.size:
            raise ApiProblem(404, "head_not_found", "The log is not that long.")
        hashes = consistency_proof(nodes(session), head.size, old_size)
    return ConsistencyView(old_size=old_size, size=head.size, hashes=texts(hashes), checkpoint=head.note)
