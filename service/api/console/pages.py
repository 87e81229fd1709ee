"""The pages' addresses. Each asks for a session; what its key may not read is not on the page."""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import FileResponse, RedirectResponse
from pydantic import ValidationError
from sqlalchemy.orm import Session

from service.access.api_keys import Caller, Scope
from service.access.session_cookie import COOKIE, begin, end, form_token, renew, set_cookie
from service.api.console import views
from service.api.console.render import HEADERS, PageRoute, login_page, page
from service.api.dependencies import Running, Service, known, require_writable, session_of
from service.api.problems import ApiProblem, not_found
from service.api.request_views import Justification, ModelPart
from service.api.request_views import views as request_views
from service.api.routes.models import models
from service.api.routes.requests import deletion_requests
from service.api.types import ModelName, RequestId
from service.audit.key_rotation import verifiers
from service.audit.signed_note import NotAuthentic, Signer
from service.certificates.envelope import verify
from service.infra.db import now
from service.infra.settings import SettingsError
from service.models.consumers import standing
from service.requests import identity_check as verification
from service.requests.cancel import cancel
from service.requests.legal_holds import retry
from service.requests.reasons import reason_of
from service.requests.states import Status, awaits_decision

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_STATIC = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}
_FOLDER = Path(__file__).parent / "static"


@dataclass(frozen=True)
class Visit:
    """One look at the console: who looks, at what service, and the token that its forms carry."""

    service: Service
    caller: Caller
    token: str

    def may(self, scope: str) -> bool:
        return scope in self.caller.scopes

    def need(self, scope: Scope) -> None:
        """Check that the key has the scope. Raises ApiProblem (403)."""
        if not self.may(scope):
            raise ApiProblem(403, "scope_missing", f"Your key lacks the scope {scope}, which this needs.")


def visiting(request: Request, service: Running) -> Visit:
    """Return the visit. Raises ApiProblem (401) where there is no session, or it is over."""
    caller = session_of(service, request)
    if caller is None:
        raise ApiProblem(401, "login_needed", "Log in first.")
    return Visit(service, caller, form_token(service.session_key, request.cookies[COOKIE]))


async def sent(request: Request) -> dict[str, str]:
    """Return the fields of a form, the first value of each."""
    text = (await request.body()).decode("utf-8", "replace")
    return {name: values[0] for name, values in parse_qs(text, max_num_fields=10).items()}


Visitor = Annotated[Visit, Depends(visiting)]
Fields = Annotated[dict[str, str], Depends(sent)]


@router.get("/")
def overview(request: Request, visit: Visitor, after: Annotated[str, Query(max_length=63)] = "") -> Response:
    service, tenant = visit.service, visit.caller.tenant_id
    with service.database.read() as session:
        rows = views.model_rows(session, tenant, after) if visit.may(Scope.MODELS_READ) else []
        reads = visit.may(Scope.DELETIONS_READ)
        figures = views.figures(session, tenant) if reads else None
        facts = _common(session, visit) | {
            "rows": rows[: views.ROWS],
            "more": rows[views.ROWS - 1].model.name if len(rows) > views.ROWS else None,
            "figures": figures,
            "queue": views.queue(session, tenant) if reads else [],
            "recent": views.recent(session, tenant) if reads else [],
            "processes": views.processes(session, service.settings.lease_seconds),
            "audit": views.log_state(session) if visit.may(Scope.AUDIT_READ) else None,
            "busy": views.is_busy(visit.caller, figures, rows),
        }
    return _renewed(request, visit, page("overview.html", **facts))


@router.get("/console/models/{name}")
def model(name: ModelName, request: Request, visit: Visitor) -> Response:
    visit.need(Scope.MODELS_READ)
    with visit.service.database.read() as session:
        found = models.find(session, visit.caller.tenant_id, name)
        row = views.model_row(session, found)
        shown = views.versions(session, found)
        facts = _common(session, visit) | {
            "row": row,
            "versions": shown,
            "consumers": standing(session, found, row.head) if row.head else [],
            "budget": views.budget_plot(session, row.generation) if row.generation else None,
            "accuracy": views.accuracy_plot(shown),
            "busy": found.status == "preparing" or row.waiting > 0,
        }
    return _renewed(request, visit, page("model.html", **facts))


@router.get("/console/requests")
def look_up(visit: Visitor, id: Annotated[str, Query(max_length=200)] = "") -> Response:
    """Redirect the form that asks for a request by its id to the request's page."""
    visit.need(Scope.DELETIONS_READ)
    wanted = id.strip().lower()
    if len(wanted) != 32 or not set(wanted) <= set("0123456789abcdef"):
        raise ApiProblem(404, "deletion_request_not_found", "A request's id has 32 hexadecimal digits.")
    return RedirectResponse(f"/console/requests/{wanted}", 303, HEADERS)


@router.get("/console/requests/{request_id}")
def show(request_id: RequestId, request: Request, visit: Visitor) -> Response:
    visit.need(Scope.DELETIONS_READ)
    with visit.service.database.read() as session:
        row = deletion_requests.find(session, visit.caller.tenant_id, request_id)
        view = request_views(session, [row])[0]
        issued = views.has_certificate(session, row)
        expected = view.status == Status.COMPLETED and any(part.version for part in view.models)
        unverified = awaits_decision(view.status, view.reason)
        facts = _common(session, visit) | {
            "request": view,
            "timeline": views.timeline(session, row),
            "certificate": issued,
            "awaited": expected and not issued,
            "cancellable": views.window_ends(session, row) if visit.may(Scope.DELETIONS_WRITE) else None,
            "decidable": unverified and visit.may(Scope.DELETIONS_WRITE),
            "retriable": visit.may(Scope.MODELS_ADMIN) and any(map(_retry_may_help, view.models)),
            "busy": view.status in (Status.QUEUED, Status.RUNNING) or (expected and not issued),
        }
    return _renewed(request, visit, page("request.html", **facts))


@router.get("/console/requests/{request_id}/certificate")
def certificate(request_id: RequestId, request: Request, visit: Visitor) -> Response:
    envelope = _envelope(visit, request_id)
    try:
        with visit.service.database.read() as session:
            keys = verifiers(session, Signer.of(visit.service.settings).verifier)
        statement = verify(json.loads(envelope), *keys)
        fault = ""
    except (NotAuthentic, SettingsError) as error:
        statement, fault = None, str(error)
    with visit.service.database.read() as session:
        facts = _common(session, visit)
    facts |= {"statement": statement, "fault": fault, "id": request_id, "busy": False}
    return _renewed(request, visit, page("certificate.html", **facts))


@router.get("/console/requests/{request_id}/certificate.json")
def certificate_file(request_id: RequestId, visit: Visitor) -> Response:
    headers = HEADERS | {"Content-Disposition": f'attachment; filename="certificate-{request_id}.json"'}
    return Response(_envelope(visit, request_id), headers=headers, media_type="application/json")


@router.post("/console/requests/{request_id}/cancel")
def cancel_request(request_id: RequestId, visit: Visitor, fields: Fields) -> Response:
    _check_form(visit, fields, Scope.DELETIONS_WRITE, Scope.DELETIONS_READ)
    with visit.service.database.write() as session:
        row = deletion_requests.find(session, visit.caller.tenant_id, request_id)
        cancel(session, row)
    return _back(request_id)


@router.post("/console/requests/{request_id}/retry")
def retry_request(request_id: RequestId, visit: Visitor, fields: Fields) -> Response:
    _check_form(visit, fields, Scope.MODELS_ADMIN)
    with visit.service.database.write() as session:
        row = deletion_requests.find(session, visit.caller.tenant_id, request_id)
        if row.status != Status.BLOCKED or awaits_decision(Status(row.status), row.reason):
            raise ApiProblem(409, "not_blocked", "Only a blocked request that is verified can be retried.")
        to_notify = retry(session, row)
    visit.service.notify(to_notify)
    return _back(request_id)


@router.post("/console/requests/{request_id}/verify")
def verify_request(request_id: RequestId, visit: Visitor, fields: Fields) -> Response:
    _check_form(visit, fields, Scope.DELETIONS_WRITE, Scope.DELETIONS_READ)
    with visit.service.database.write() as session:
        row = deletion_requests.find(session, visit.caller.tenant_id, request_id)
        to_notify = verification.verify(session, row, deletion_requests.windows_of(visit.service))
    visit.service.notify(to_notify)
    return _back(request_id)


@router.post("/console/requests/{request_id}/reject")
def reject_request(request_id: RequestId, visit: Visitor, fields: Fields) -> Response:
    _check_form(visit, fields, Scope.DELETIONS_WRITE, Scope.DELETIONS_READ)
    why = _rejection(fields)
    with visit.service.database.write() as session:
        row = deletion_requests.find(session, visit.caller.tenant_id, request_id)
        verification.reject(session, row, why)
    return _back(request_id)


@router.post("/console/login")
def login(request: Request, service: Running, fields: Fields) -> Response:
    if not _from_here(request, service.settings.url):
        return login_page(403, "Log in from this page itself.")
    caller = known(service, request, fields.get("key", "").strip())
    with service.database.read() as session:
        value = begin(session, service.session_key, caller.key_id) if caller else ""
    if not value:
        return login_page(401, "This key is unknown, expired or revoked.")
    response = RedirectResponse("/", 303, HEADERS)
    set_cookie(request, response, value, service.settings.mode == "production")
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
    return urlsplit(origin).netloc in (request.headers.get("host"), urlsplit(url).netloc)


@router.post("/console/logout")
def logout(request: Request, visit: Visitor, fields: Fields) -> Response:
    _check_token(visit, fields)
    with visit.service.database.write() as session:
        end(session, request.cookies[COOKIE])
    response = RedirectResponse("/", 303, HEADERS)
    response.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return response


@router.get("/console/static/{name}")
def static(name: str) -> Response:
    """Send the stylesheet, the script or the icon. There are no other files."""
    if name not in _STATIC:
        raise not_found("page")
    headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    return FileResponse(_FOLDER / name, headers=headers, media_type=_STATIC[name])


def _common(session: Session, visit: Visit) -> dict[str, Any]:
    """Return the facts that every page needs. ``at`` is the database's clock, which all spans are measured by."""
    follows = visit.may(Scope.DELETIONS_READ) or visit.may(Scope.MODELS_READ)
    return {"at": now(session), "may": visit.may, "token": visit.token, "follows": follows}


def _envelope(visit: Visit, request_id: str) -> str:
    visit.need(Scope.DELETIONS_READ)
    with visit.service.database.read() as session:
        row = deletion_requests.find(session, visit.caller.tenant_id, request_id)
        envelope = views.certificate(session, row)
    if envelope is None:
        raise ApiProblem(404, "no_certificate", "There is no certificate for this request, or not yet.")
    return envelope


def _check_form(visit: Visit, fields: dict[str, str], *scopes: Scope) -> None:
    for scope in scopes:
        visit.need(scope)
    _check_token(visit, fields)
    require_writable(visit.service)


def _check_token(visit: Visit, fields: dict[str, str]) -> None:
    if not hmac.compare_digest(fields.get("token", "").encode(), visit.token.encode()):
        raise ApiProblem(
            403, "form_refused", "This form is from an older session. Go back, reload the page, try again."
        )


def _retry_may_help(part: ModelPart) -> bool:
    """Return whether to offer a retry. The reason of a newer worker is unknown here: a retry may help there."""
    reason = reason_of(part.reason or "")
    return part.status == Status.BLOCKED and (reason is None or reason.retry_helps)


def _rejection(fields: dict[str, str]) -> str:
    try:
        return Justification(reason=fields.get("reason", "").strip()).reason
    except ValidationError:
        detail = "Say why, in 1 to 1,000 characters without control characters. Nothing was changed."
        raise ApiProblem(422, "reason_refused", detail) from None


def _back(request_id: str) -> Response:
    return RedirectResponse(f"/console/requests/{request_id}", 303, HEADERS)


def _renewed(request: Request, visit: Visit, response: Response) -> Response:
    """Keep a person who opens a page logged in. The script that refreshes a page does not count."""
    if "x-refresh" not in request.headers:
        with visit.service.database.read() as session:
            value = renew(session, visit.service.session_key, request.cookies[COOKIE])
        set_cookie(request, response, value, visit.service.settings.mode == "production")
    return response
