"""``/verify``: one file that checks a certificate in the browser. It needs no key, no server and no network."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from fastapi import APIRouter, Response
from fastapi.responses import HTMLResponse

from expunge_service.console.render import HEADERS

router = APIRouter(include_in_schema=False)
_POLICY = re.compile('http-equiv="Content-Security-Policy" content="(.*?)"')


@router.get("/verify")
def verify_page() -> Response:
    text, policy = _page()
    return HTMLResponse(text, headers=HEADERS | {"Content-Security-Policy": policy})


@cache
def _page() -> tuple[str, str]:
    """Return the page, and its own policy: a saved copy brings it along. Only a server can forbid frames, too."""
    text = (Path(__file__).parent / "static" / "verify.html").read_text(encoding="utf-8")
    found = _POLICY.search(text)
    assert found is not None  # noqa: S101 (for mypy: the file is ours)
    return text, f"{found[1]}; frame-ancestors 'none'"
