"""Server-sent events: request and version changes, from the database."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from sqlalchemy.orm import Session

from service.access.api_keys import Caller, Scope
from service.api.dependencies import Running, Service, in_force, problems, watching
from service.audit import feed as events
from service.infra.db import Busy

router = APIRouter(tags=["events"])
_ROOMS = {Scope.DELETIONS_READ: "request", Scope.MODELS_READ: "version"}
Follower = Annotated[Caller, Depends(watching(*_ROOMS))]
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
    """Without Last-Event-ID the stream begins with this request. Of what a key may not read nothing is sent.

    The stream ends within seconds after its key was revoked or expired, or its session logged out.
    """
    rooms = {room for scope, room in _ROOMS.items() if scope in caller.scopes}
    last = _newest(service) if last_event_id is None else int(last_event_id)
    watch = _Watch(service, caller.tenant_id, rooms, in_force(service, request, caller))
    stream = _stream(watch, last, seconds)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"Cache-Control": "no-store"})


@dataclass(frozen=True)
class _Watch:
    """What a client follows, and whether it still may."""

    service: Service
    tenant_id: str
    rooms: set[str]
    in_force: Callable[[Session], bool]


async def _stream(watch: _Watch, last: int, seconds: float) -> AsyncIterator[str]:
    """Poll the database until the time is over; no transaction is open while the client reads."""
    ends = time.monotonic() + seconds
    spoken = time.monotonic()
    yield f"retry: {int(_POLL_SECONDS * 1000)}\n\n"
    while True:
        found: list[events.Event] = []
        with suppress(Busy):  # the next poll asks again from where this one stood
            polled = await run_in_threadpool(_poll, watch, last)
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
        return events.newest(session)


def _poll(watch: _Watch, last: int) -> tuple[int, list[events.Event]] | None:
    """The last event's id and the new events; None where the client may follow no longer."""
    with watch.service.database.read() as session:
        if not watch.in_force(session):
            return None
        found = events.after(session, watch.tenant_id, last, watch.rooms)
    return (found[-1].id if found else last), found
