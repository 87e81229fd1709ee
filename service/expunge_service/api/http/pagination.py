"""Pages of a list: a cursor, to be handed back as it came, says after which row the next page begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import urlencode

from fastapi import Query, Request, Response
from pydantic import BaseModel, Field

from expunge_service.api.types import MODEL_NAME

LONGEST_PAGE = 200
_WHAT = "next_cursor of the page before"
Item = TypeVar("Item")
Row = TypeVar("Row")
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


def after_page(
    request: Request, response: Response, found: Sequence[Row], limit: int, cursor: Callable[[Row], str]
) -> dict[str, Any]:
    """Return what a Page says of the next one, and set the Link header (RFC 8288) to it, relative to this one.

    ``found``: the page's rows, and one more where there is a next page.
    """
    if len(found) <= limit:
        return {"next_cursor": None, "has_more": False}
    following = cursor(found[limit - 1])
    query = [(name, value) for name, value in request.query_params.multi_items() if name != "cursor"]
    response.headers["Link"] = f'<{request.url.path}?{urlencode([*query, ("cursor", following)])}>; rel="next"'
    return {"next_cursor": following, "has_more": True}


def place_of(row: Any) -> str:
    """Return the MomentCursor that leads to what comes after this row."""
    return f"{row.created_at}.{row.id}"
