"""Pages of a list: an opaque cursor says after which row the next page begins."""

from __future__ import annotations

import base64
import json
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import urlencode

from fastapi import Query, Request, Response
from pydantic import BaseModel

from service.problems import Problem

Item = TypeVar("Item")
Limit = Annotated[int, Query(ge=1, le=200, description="rows on a page")]
Cursor = Annotated[str | None, Query(max_length=200, description="next_cursor of the page before")]


class Page(BaseModel, Generic[Item]):
    data: list[Item]
    next_cursor: str | None
    has_more: bool


def encode(*place: int | str) -> str:
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def decode(cursor: str, *kinds: type) -> list[Any]:
    """The place in a cursor. Raises Problem (400) for one that we did not make."""
    try:
        place = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError:
        place = None
    if not isinstance(place, list) or [type(part) for part in place] != list(kinds):
        raise Problem(400, "invalid_cursor", "Take the cursor from next_cursor of the page before.")
    if any(isinstance(part, int) and not 0 <= part < 2**63 for part in place):
        raise Problem(400, "invalid_cursor", "Take the cursor from next_cursor of the page before.")
    return place


def link(request: Request, response: Response, next_cursor: str | None) -> None:
    """The Link header (RFC 8288) to the next page, relative to this one."""
    if next_cursor is None:
        return
    query = [(name, value) for name, value in request.query_params.multi_items() if name != "cursor"]
    response.headers["Link"] = f'<{request.url.path}?{urlencode([*query, ("cursor", next_cursor)])}>; rel="next"'
