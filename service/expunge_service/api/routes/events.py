"""Server-sent events: request and version changes, from the database."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse

from expunge_service.access import Caller, Scope
from expunge_service.api.dependencies import Running, Service, in_force, problems, require_stream
from expunge_service.audit import Event, events_after, newest_event
from expunge_service.infra.db import Busy

router = APIRouter(tags=["events"])
_ROOMS = {Scope.DELETIONS_READ: "request", Scope.MODELS_READ: "version"}
Follower = Annotated[Caller, Depends(require_stream(*_ROOMS))]
_POLL_SECONDS = 1.0
_SILENCE_SECONDS = 15.0
_STREAM: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "server-sent events",
        "content": {
            "text/event-stream": {
                "schema": {
                    "type": "object",
                    "properties": {
                        "id": {"type": "string", "pattern": "^[0-9]+$", "description": "for Last-Event-ID"},
                        "event": {"type": "string", "pattern": "^(request|version)[.][a-z_]+$"},
                        "data": {"type": "string", "contentMediaType": "application/json"},
                        "retry": {"type": "integer"},
                    },
                }
            }
        },
    }
}


@router.get(
    "/v1/events", response_class=StreamingResponse, responses=_STREAM | problems(), summary="Follow what changes"
)
def follow(
    request: Request,
    service: Running,
    caller: Follower,
    last_event_id: Annotated[
        str | None, Header(pattern=r"^(-1|0|[1-9][0-9]{0,15})$", description="the last id seen; -1: from the beginning")
    ] = None,
    seconds: Annotated[float, Query(ge=0, le=3600, description="then the stream ends and the client comes back")] = 300,
) -> StreamingResponse:
    """Follow requests and versions. Without Last-Event-ID the stream begins now. It contains what the key may read.

    The stream ends within seconds after its key was revoked or expired, or its session logged out.
    """
    rooms = {room for scope, room in _ROOMS.items() if scope in caller.scopes}
    last = _newest(service) if last_event_id is None else int(last_event_id)
    permitted = in_force(service, request, caller)

    def poll(last: int) -> tuple[int, list[Event]] | None:
        with service.database.read() as session:
            if not permitted(session):
                return None
            found = events_after(session, caller.tenant_id, last, rooms)
        return (found[-1].id if found else last), found

    stream = _stream(poll, last, seconds)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _stream(
    poll: Callable[[int], tuple[int, list[Event]] | None], last: int, seconds: float
) -> AsyncIterator[str]:
    """Poll the database until the time is over; no transaction is open while the client reads.

    ``poll`` takes the last event's id, and returns the new last id and the new events. It returns None where the client
    may follow no longer.
    """
    ends = time.monotonic() + seconds
    spoken = time.monotonic()
    yield f"retry: {int(_POLL_SECONDS * 1000)}\n\n"
    while True:
        found: list[Event] = []
        with suppress(Busy):  # the next poll asks again from the same place
            polled = await run_in_threadpool(poll, last)
            if polled is None:
                return
            last, found = polled
        for event in found:
            yield event.text()
        if found or time.monotonic() - spoken > _SILENCE_SECONDS:
            spoken = time.monotonic()
            yield ":\n\n"  # a comment: shows proxies that the stream is alive
        if time.monotonic() >= ends:
            return
        await anyio.sleep(min(_POLL_SECONDS, max(0.0, ends - time.monotonic())))


def _newest(service: Service) -> int:
    with service.database.read() as session:
        return newest_event(session)
