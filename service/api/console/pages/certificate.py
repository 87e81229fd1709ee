"""``/console/requests/{id}/certificate``: the certificate for people, then its formal text; and a letter."""

from __future__ import annotations

import json
from typing import Any

from fastapi import APIRouter, Response

from service.access.api_keys import Scope
from service.api.console import views
from service.api.console.render import HEADERS, PageRoute
from service.api.console.visit import Visit, Visitor
from service.api.problems import ApiProblem
from service.api.routes.requests import deletion_requests
from service.api.types import RequestId
from service.audit.key_rotation import keys_of
from service.audit.signed_note import NotAuthentic, Signer
from service.certificates.envelope import verify
from service.certificates.plain_words import day, in_words
from service.infra.settings import SettingsError

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/console/requests/{request_id}/certificate")
def certificate(request_id: RequestId, visit: Visitor) -> Response:
    envelope, case = _envelope(visit, request_id)
    statement, fault = _verified(visit, envelope)
    words = None if statement is None else in_words(statement)
    return visit.page("certificate.html", statement=statement, words=words, fault=fault, id=request_id, case=case)


@router.get("/console/requests/{request_id}/letter")
def letter(request_id: RequestId, visit: Visitor) -> Response:
    """Show a letter to the person, to be printed. Names are written in by hand: the service knows none."""
    envelope, case = _envelope(visit, request_id)
    statement, fault = _verified(visit, envelope)
    if statement is None:
        raise ApiProblem(409, "certificate_refused", f"The certificate does not verify. {fault} There is no letter.")
    facts = statement["predicate"]
    received = day(facts["received_at"])
    return visit.page("letter.html", words=in_words(statement), facts=facts, received=received, case=case)


@router.get("/console/requests/{request_id}/certificate.json")
def certificate_file(request_id: RequestId, visit: Visitor) -> Response:
    headers = HEADERS | {"Content-Disposition": f'attachment; filename="certificate-{request_id}.json"'}
    return Response(_envelope(visit, request_id)[0], headers=headers, media_type="application/json")


def _verified(visit: Visit, envelope: str) -> tuple[dict[str, Any] | None, str]:
    """Return the certificate's statement, or None and why it does not verify."""
    try:
        with visit.service.database.read() as session:
            keys = keys_of(session, Signer.of(visit.service.settings).verifier)
        return verify(json.loads(envelope), *(each.key for each in keys)), ""
    except (NotAuthentic, SettingsError) as error:
        return None, str(error)


def _envelope(visit: Visit, request_id: str) -> tuple[str, str | None]:
    """Return the request's certificate, and its case, which only readers of the request see: it is not signed."""
    visit.need(Scope.DELETIONS_READ)
    with visit.service.database.read() as session:
        row = deletion_requests.find(session, visit.caller.tenant_id, request_id)
        envelope = views.certificate(session, row)
    if envelope is None:
        raise ApiProblem(404, "no_certificate", "There is no certificate for this request, or not yet.")
    return envelope, row.case_id
