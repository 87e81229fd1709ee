"""Conditional requests (RFC 9110, section 13) on resources that are shown as JSON.

``ETag`` names the state of a resource as it is shown. ``If-None-Match`` spares a polling client an answer that it has;
``If-Match`` refuses a change that was decided on a state that is no longer.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, TypeVar

from fastapi import Depends, Header, HTTPException, Response
from pydantic import BaseModel

from expunge_service.api.problems import ApiProblem

View = TypeVar("View", bound=BaseModel)
IfNoneMatch = Annotated[
    str | None,
    Header(alias="If-None-Match", max_length=1200, description="ETags; a match is answered with 304"),
]


def tag(view: BaseModel) -> str:
    """Return the strong ETag of a resource in this state, apart from what its class leaves ``UNTAGGED``."""
    state = view.model_dump_json(exclude=getattr(view, "UNTAGGED", None))
    return f'"{hashlib.sha256(state.encode()).hexdigest()[:32]}"'


def shown(view: View, response: Response, condition: str | None) -> View:
    """Return the view, and set its ETag. Raises HTTPException (304) where the client has this state already."""
    name = tag(view)
    if condition is not None and _named(condition, name, weak=True):
        raise HTTPException(304, headers={"ETag": name})
    return tagged(view, response)


class ResourceState:
    """The state of a resource that a caller decided on, and the answer's name of the state after the change."""

    def __init__(
        self,
        response: Response,
        if_match: Annotated[
            str | None,
            Header(alias="If-Match", max_length=1200, description="ETags; without a match the call has no effect: 412"),
        ] = None,
    ) -> None:
        self._response, self._condition = response, if_match

    def require(self, view: BaseModel) -> None:
        """Check that the resource is still in that state. Raises ApiProblem (412)."""
        if self._condition is not None and not _named(self._condition, tag(view), weak=False):
            detail = "The resource has changed since this ETag. Read it again, then decide."
            raise ApiProblem(412, "changed_meanwhile", detail, [{"header": "If-Match", "detail": "no ETag matches"}])

    def changed(self, view: View) -> View:
        """Return the view after the change, and set its ETag."""
        return tagged(view, self._response)


Decided = Annotated[ResourceState, Depends()]


def tagged(view: View, response: Response) -> View:
    """Return the view, and set its ETag."""
    response.headers["ETag"] = tag(view)
    return view


def _named(condition: str, name: str, *, weak: bool) -> bool:
    if condition.strip() == "*":
        return True
    tags = {each.strip() for each in condition.split(",")}
    return name in ({each.removeprefix("W/") for each in tags} if weak else tags)
