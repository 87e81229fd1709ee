"""Logging in and out, and the files of the page."""

from __future__ import annotations

from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse, RedirectResponse

from expunge_service.access import begin_session, end_session, use_link
from expunge_service.api.cookies import drop_cookie, set_cookie
from expunge_service.api.dependencies import Running, known
from expunge_service.api.problems import not_found
from expunge_service.console.forms import Form, field
from expunge_service.console.render import HEADERS, PageRoute, login_page
from expunge_service.console.visit import Visitor

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_STATIC = {
    "console.css": "text/css",
    "console.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_FOLDER = Path(__file__).parents[1] / "static"


@router.post("/console/login")
def login(request: Request, service: Running, fields: Form) -> Response:
    if not _from_here(request, service.settings.url):
        return login_page(403, "Log in from this page itself.")
    with service.database.read() as session:
        caller = known(service, session, request, field(fields, "key"))
    with service.database.read() as session:
        value = begin_session(session, service.session_key, caller.key_id) if caller else ""
    if not value:
        return login_page(401, "This key is unknown, expired or revoked.")
    response = RedirectResponse("/", 303, HEADERS)
    set_cookie(response, service.over_tls(request), value)
    return response


def _from_here(request: Request, url: str) -> bool:
    """Return whether the form was sent from a page of this service. The browser says so in either of two headers.

    ``url``: EXPUNGE_URL, for a proxy that does not pass the Host header on.
    """
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    if site is not None and site not in ("same-origin", "none"):
        return False
    if origin is None:
        return True
    if origin == "null":
        return site is not None
    return origin.partition("://")[2] in (request.headers.get("host"), urlsplit(url).netloc)


@router.post("/console/link")
def follow_link(request: Request, service: Running, fields: Form) -> Response:
    """Open a session by the link that ``expunge up`` printed. It works on this machine alone, without a proxy."""
    if not (_from_here(request, service.settings.url) and _is_local(request)):
        return login_page(403, "A log-in link works on the machine of the service alone. Log in with a key.")
    with service.database.write() as session:
        value = use_link(session, service.session_key, field(fields, "link"))
    if not value:
        return login_page(401, "This link was used before or is older than five minutes. Log in with a key.")
    response = RedirectResponse("/", 303, HEADERS)
    set_cookie(response, service.over_tls(request), value)
    return response


def _is_local(request: Request) -> bool:
    """Return whether the caller is on this machine. Behind a proxy every caller would be, so its headers refuse."""
    if {"forwarded", "x-forwarded-for", "x-real-ip", "via"}.intersection(request.headers):
        return False
    try:
        return request.client is not None and ip_address(request.client.host).is_loopback
    except ValueError:
        return False


@router.post("/console/logout")
def logout(visit: Visitor, fields: Form) -> Response:
    visit.check_token(fields)
    with visit.service.database.write() as session:
        end_session(session, visit.cookie)
    response = RedirectResponse("/", 303, HEADERS)
    drop_cookie(response, visit.service.over_tls(visit.request))
    return response


@router.get("/console/made")
def made(visit: Visitor) -> Response:
    """Show the key or the secret that the form before has made."""
    return visit.show_secret()


@router.get("/console/static/{name}")
def static(name: str) -> Response:
    """Send the stylesheet, a script or the icon. There are no other files."""
    if name not in _STATIC:
        raise not_found("page")
    headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    return FileResponse(_FOLDER / name, headers=headers, media_type=_STATIC[name])
