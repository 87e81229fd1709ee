"""``/runbooks``: what to do about each alert. The alerts lead there, and no key is needed."""

from __future__ import annotations

from fastapi import APIRouter, Response

from expunge_service.console.render import page

router = APIRouter(include_in_schema=False)


@router.get("/runbooks")
def runbooks() -> Response:
    return page("runbooks.html")
