"""Versions of a model, and the bytes of the one that is served."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field
from sqlalchemy import func, select
from sqlalchemy.orm import Session, aliased

from expunge.service.access.api_keys import Caller, Scope
from expunge.service.api.dependencies import Running, holding, problems, reading, require_agreed
from expunge.service.api.http.etag import IfNoneMatch, shown
from expunge.service.api.http.pagination import Limit, NumberCursor, Page, link
from expunge.service.api.http.ranges import ByteRange, choose
from expunge.service.api.openapi import answer, problem
from expunge.service.api.problems import ApiProblem, asking_store, not_found
from expunge.service.api.routes.models.models import find as find_model
from expunge.service.api.types import ModelName, Moment
from expunge.service.infra.files import Damaged, Store
from expunge.service.infra.tables import Model, Task, Version

router = APIRouter(tags=["versions"])
Reader = Annotated[Caller, Depends(holding(Scope.MODELS_READ))]
Admin = Annotated[Caller, Depends(holding(Scope.MODELS_ADMIN))]
Downloader = Annotated[Caller, Depends(holding(Scope.CHECKPOINTS_READ))]
Number = Annotated[str, Path(pattern=r"^(current|[1-9][0-9]{0,17})$", description="a version's number, or current")]
_PATH = "/v1/models/{name}/versions"
_BLOCK = 1 << 18
_GONE = "The model is retired, and no version of it is served. Stop serving it, and delete the copies that you have."
_NAMED = 5
"""requests that a refusal names"""
_FILE = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_ABOUT = ("ETag", "Accept-Ranges", "Cache-Control", "Repr-Digest")
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {"description": "The safetensors file", "content": _FILE} | answer(200, *_ABOUT)[200],
    206: {"description": "A range of it", "content": _FILE} | answer(206, *_ABOUT, "Content-Range")[206],
    304: {"description": "Not modified"} | answer(304, *_ABOUT)[304],
    **problems(404, 410),
    416: problem() | answer(416, "Content-Range")[416],
}


class VersionView(BaseModel):
    model: str
    number: int
    status: str = Field(description="current, retired or purged")
    parent: int | None
    generation: int
    method: str
    claim: dict[str, Any]
    samples: int = Field(description="forgotten in this release")
    people: int = Field(description="forgotten in this release")
    checkpoint_sha256: str
    checkpoint_bytes: int
    holdout_accuracy: float | None
    requests: list[str] = Field(description="ids of the deletion requests that this release carried out")
    published_at: Moment
    retired_at: Moment | None
    purged_at: Moment | None


@router.get(_PATH, response_model=Page[VersionView], responses=problems(404), summary="List versions, newest first")
def index(
    *,
    name: ModelName,
    request: Request,
    response: Response,
    service: Running,
    caller: Reader,
    cursor: NumberCursor = None,
    limit: Limit = 50,
) -> Page[VersionView]:
    with service.database.read() as session:
        model = find_model(session, caller.tenant_id, name)
        rows = _rows(model)
        if cursor is not None:
            rows = rows.where(Version.number < int(cursor))
        found = session.execute(rows.order_by(Version.number.desc()).limit(limit + 1)).all()
        data = _views(session, model, found[:limit])
    next_cursor = str(data[-1].number) if len(found) > limit else None
    link(request, response, next_cursor)
    return Page(data=data, next_cursor=next_cursor, has_more=next_cursor is not None)


@router.get(
    _PATH + "/{number}",
    response_model=VersionView,
    responses=reading(404, 410),
    summary="Show a version, or the current one",
)
def show(
    *,
    name: ModelName,
    number: Number,
    service: Running,
    caller: Reader,
    response: Response,
    if_none_match: IfNoneMatch = None,
) -> VersionView:
    with service.database.read() as session:
        model = find_model(session, caller.tenant_id, name)
        row = session.execute(_one(model, number)).one_or_none()
        if row is None:
            raise not_found("version")
        if number == "current" and model.status == "retired":
            raise ApiProblem(410, "model_retired", _GONE)
        return shown(_views(session, model, [row])[0], response, if_none_match)


@router.post(
    _PATH + "/{number}/restore",
    response_model=VersionView,
    responses=problems(404, 409),
    summary="Ask for an earlier version to be served again: refused, with the reason",
)
def restore(name: ModelName, number: Number, service: Running, caller: Admin) -> VersionView:
    """Refuse to serve an earlier version again. Only the current version, which is served already, is answered with
    200.
    """
    with service.database.read() as session:
        model = find_model(session, caller.tenant_id, name)
        row = session.execute(_one(model, number)).one_or_none()
        if row is None:
            raise not_found("version")
        if model.status == "retired":
            raise ApiProblem(409, "model_retired", _GONE)
        if row[0].status != "current":
            raise ApiProblem(409, "rollback_refused", _why_never(session, row[0]))
        return _views(session, model, [row])[0]


@router.head(
    _PATH + "/{number}/checkpoint",
    name="checkpoint_head",
    response_class=Response,
    responses=_ANSWERS,
    summary="What a download would be",
)
@router.get(
    _PATH + "/{number}/checkpoint",
    response_class=StreamingResponse,
    responses=_ANSWERS,
    summary="Download the checkpoint that is served",
)
def checkpoint(*, name: ModelName, number: Number, request: Request, service: Running, caller: Downloader) -> Response:
    verdict = require_agreed(service)
    with service.database.read() as session:
        model = find_model(session, caller.tenant_id, name)
        row = session.execute(_one(model, number)).one_or_none()
        if row is None:
            raise not_found("version")
        version: Version = row[0]
        if model.status == "retired":
            raise ApiProblem(410, "model_retired", _GONE)
        if version.status != "current":
            why = f"{_why_never(session, version)} Download the current version instead."
            raise ApiProblem(410, "version_superseded", why)
    with asking_store():
        if verdict.silent:
            raise OSError
        service.watch.require_released(model.id, version.number, version.id)
    part = choose(request.headers, f'"{version.checkpoint}"', version.size)
    headers = _headers(version, part)
    if part.status == 416:
        raise ApiProblem(416, "range_not_satisfiable", "The range lies outside the file.", headers=headers)
    if request.method == "HEAD" or part.status == 304:
        return Response(status_code=part.status, headers=headers, media_type="application/octet-stream")
    file = _open(service.store, version.checkpoint)
    return StreamingResponse(_blocks(file, part), part.status, headers, "application/octet-stream")


def _why_never(session: Session, version: Version) -> str:
    """Return why an earlier version is never served again: which requests it has not forgotten."""
    later = (
        select(Task.request_id, Version.number)
        .join(Version, Version.id == Task.version_id)
        .where(Version.model_id == version.model_id, Version.number > version.number, Task.samples > 0)
    )
    count = session.scalar(select(func.count()).select_from(later.subquery())) or 0
    if not count:
        return f"Version {version.number} was replaced by a later one, and the current version only moves forward."
    shown = session.execute(later.order_by(Version.number, Task.request_id).limit(_NAMED)).all()
    told = ", ".join(f"request {request} (forgotten in version {number})" for request, number in shown)
    more = f" and {count - len(shown)} more" if count > len(shown) else ""
    return f"Version {version.number} still holds whom these requests had forgotten: {told}{more}."


def _open(store: Store, digest: str) -> BinaryIO:
    """Open the verified file. Raises ApiProblem: 500 where it is missing or damaged, 503 where the store is away."""
    try:
        with asking_store():
            return store.open(digest)
    except Damaged:
        detail = "The checkpoint's file is missing or damaged in the store; the operator must restore it."
        raise ApiProblem(500, "checkpoint_damaged", detail) from None


def _blocks(file: BinaryIO, part: ByteRange) -> Iterator[bytes]:
    with file:
        file.seek(part.start)
        left = part.end - part.start
        while left > 0 and (block := file.read(min(_BLOCK, left))):
            left -= len(block)
            yield block


def _headers(version: Version, part: ByteRange) -> dict[str, str]:
    headers = {
        "ETag": f'"{version.checkpoint}"',
        "Accept-Ranges": "bytes",
        # private and revalidated: a cache must not go on serving what has been superseded
        "Cache-Control": "private, no-cache",
        "Repr-Digest": f"sha-256=:{b64encode(bytes.fromhex(version.checkpoint)).decode()}:",
        "Content-Disposition": f'attachment; filename="{version.checkpoint}.safetensors"',
    }
    if part.status in (200, 206):
        headers["Content-Length"] = str(part.end - part.start)
    if part.status == 206:
        headers["Content-Range"] = f"bytes {part.start}-{part.end - 1}/{version.size}"
    if part.status == 416:
        headers = {"Content-Range": f"bytes */{version.size}"}
    return headers


def _rows(model: Model) -> Any:
    parent = aliased(Version)
    return (
        select(Version, parent.number)
        .outerjoin(parent, parent.id == Version.parent_id)
        .where(Version.model_id == model.id)
    )


def _one(model: Model, number: str) -> Any:
    return _rows(model).where(Version.id == model.current_id if number == "current" else Version.number == int(number))


def _views(session: Session, model: Model, rows: Any) -> list[VersionView]:
    requests: dict[str, list[str]] = {version.id: [] for version, _ in rows}
    done = select(Task.version_id, Task.request_id).where(Task.version_id.in_(requests)).order_by(Task.request_id)
    for version_id, request_id in session.execute(done):
        requests[str(version_id)].append(request_id)
    return [_view(model, version, parent, requests[version.id]) for version, parent in rows]


def _view(model: Model, version: Version, parent: int | None, requests: list[str]) -> VersionView:
    return VersionView(
        model=model.name,
        number=version.number,
        status=version.status,
        parent=parent,
        generation=version.generation_id,
        method=version.method,
        claim=version.claim,
        samples=version.samples,
        people=version.people,
        checkpoint_sha256=version.checkpoint,
        checkpoint_bytes=version.size,
        holdout_accuracy=version.holdout_accuracy,
        requests=requests,
        published_at=version.published_at,
        retired_at=version.retired_at,
        purged_at=version.purged_at,
    )
