"""Versions of a model, and the bytes of the one that is served."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO

from fastapi import APIRouter, Depends, Path, Request, Response
from fastapi.responses import StreamingResponse

from expunge_service.access import Caller, Scope
from expunge_service.api.dependencies import Running, problems, reading, require_agreed, require_scope
from expunge_service.api.http.etag import IfNoneMatch, shown
from expunge_service.api.http.pagination import Limit, NumberCursor, Page, after_page
from expunge_service.api.http.ranges import ByteRange, choose
from expunge_service.api.openapi import answer, problem
from expunge_service.api.problems import ApiProblem, asking_store
from expunge_service.api.types import ModelName
from expunge_service.api.views.models import find_model
from expunge_service.api.views.versions import (
    VersionView,
    find_version,
    suffixes_of,
    version_views,
    versions_of,
    why_never_again,
)
from expunge_service.infra.stores import Damaged, Store

router = APIRouter(tags=["versions"])
Reader = Annotated[Caller, Depends(require_scope(Scope.MODELS_READ))]
Downloader = Annotated[Caller, Depends(require_scope(Scope.CHECKPOINTS_READ))]
Number = Annotated[str, Path(pattern=r"^(current|[1-9][0-9]{0,17})$", description="a version's number, or current")]
_PATH = "/v1/models/{name}/versions"
_BLOCK = 1 << 18
_MEDIA_TYPES = {"txt": "text/plain; charset=utf-8", "json": "application/json", "zip": "application/zip"}
"""of what is not just bytes"""
_GONE = "The model is retired, and no version of it is served. Stop serving it, and delete the copies that you have."
_BYTES = {"schema": {"type": "string", "format": "binary"}}
_FILE = {"application/octet-stream": _BYTES, "application/zip": _BYTES}
_ABOUT = ("ETag", "Accept-Ranges", "Cache-Control", "Repr-Digest")
_ANSWERS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Safetensors, or a library's own format; application/zip: several files, without compression",
        "content": _FILE,
    }
    | answer(200, *_ABOUT)[200],
    206: {"description": "A range of it", "content": _FILE} | answer(206, *_ABOUT, "Content-Range")[206],
    304: {"description": "Not modified"} | answer(304, *_ABOUT)[304],
    **problems(404, 410),
    416: problem() | answer(416, "Content-Range")[416],
}


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
        found = versions_of(session, model, None if cursor is None else int(cursor), limit + 1)
        data = version_views(session, model, found[:limit])
    return Page(data=data, **after_page(request, response, found, limit, lambda each: str(each.number)))


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
        version = find_version(session, model, number)
        if number == "current" and model.status == "retired":
            raise ApiProblem(410, "model_retired", _GONE)
        return shown(version_views(session, model, [version])[0], response, if_none_match)


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
        version = find_version(session, model, number)
        suffix = suffixes_of(session, [version.generation_id])[version.generation_id]
        if model.status == "retired":
            raise ApiProblem(410, "model_retired", _GONE)
        if version.status != "current":
            why = f"{why_never_again(session, version)} Download the current version instead."
            raise ApiProblem(410, "version_superseded", why)
    with asking_store():
        if verdict.silent:
            raise OSError
        service.watch.require_released(model.id, version.number, version.id)
    kind = _MEDIA_TYPES.get(suffix.rpartition(".")[2], "application/octet-stream")
    part = choose(request.headers, f'"{version.checkpoint}"', version.size)
    headers = _headers(version.checkpoint, suffix, version.size, part)
    if part.status == 416:
        raise ApiProblem(416, "range_not_satisfiable", "The range lies outside the file.", headers=headers)
    if request.method == "HEAD" or part.status == 304:
        return Response(status_code=part.status, headers=headers, media_type=kind)
    file = _open(service.store, version.checkpoint)
    return StreamingResponse(_blocks(file, part), part.status, headers, kind)


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


def _headers(checkpoint: str, suffix: str, size: int, part: ByteRange) -> dict[str, str]:
    headers = {
        "ETag": f'"{checkpoint}"',
        "Accept-Ranges": "bytes",
        # private and revalidated: a cache must not go on serving what has been superseded
        "Cache-Control": "private, no-cache",
        "Repr-Digest": f"sha-256=:{b64encode(bytes.fromhex(checkpoint)).decode()}:",
        "Content-Disposition": f'attachment; filename="{checkpoint}.{suffix}"',
    }
    if part.status in (200, 206):
        headers["Content-Length"] = str(part.end - part.start)
    if part.status == 206:
        headers["Content-Range"] = f"bytes {part.start}-{part.end - 1}/{size}"
    if part.status == 416:
        headers = {"Content-Range": f"bytes */{size}"}
    return headers
