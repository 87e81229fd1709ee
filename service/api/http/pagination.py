"""Pages of a list: a cursor, to be handed back as it came, says after which row the next page begins."""

from __future__ import annotations

from typing import Annotated, Generic, TypeVar
from urllib.parse import urlencode

from fastapi import Query, Request, Response
from pydantic import BaseModel, Field

from expunge.service.api.types import MODEL_NAME

LONGEST_PAGE = 200
_WHAT = "next_cursor of the page before"
Item = TypeVar("Item")
Limit = Annotated[int, Query(ge=1, le=LONGEST_PAGE, description="rows on a page")]
NumberCursor = Annotated[str | None, Query(pattern=r"^(0|[1-9][0-9]{0,17})$", max_length=18, description=_WHAT)]
NameCursor = Annotated[str | None, Query(pattern=MODEL_NAME, max_length=63, description=_WHAT)]
MomentCursor = Annotated[
    str | None, Query(pattern=r"^[0-9]{1,18}\.(msg_)?[0-9a-f]{32}$", max_length=55, description=_WHAT)
]


class Listed(BaseModel, Generic[Item]):
    """A list that is short enough to come whole."""

    data: list[Item]


class Page(BaseModel, Generic[Item]):
    data: list[Item] = Field(max_length=LONGEST_PAGE)
    next_cursor: str | None
    has_more: bool


def after(cursor: str) -> tuple[int, str]:
    """Split a MomentCursor into the moment and the id of its row."""
    moment, _, name = cursor.partition(".")
    return int(moment), name


def link(request: Request, response: Response, next_cursor: str | None) -> None:
    """Set the Link header (RFC 8288) to the next page, relative to this one."""
    if next_cursor is None:
        return
    query = [(name, value) for name, value in request.query_params.multi_items() if name != "cursor"]
    response.headers["Link"] = f'<{request.url.path}?{urlencode([*query, ("cursor", next_cursor)])}>; rel="next"'
