"""``/console/requests/{id}/certificate``: the certificate for people, then its formal text; and a letter."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Response

from expunge_service.access import Scope
from expunge_service.api.problems import ApiProblem
from expunge_service.api.types import RequestId
from expunge_service.api.views.history import certificate_of, is_erasing, letter_facts
from expunge_service.api.views.requests import find_request
from expunge_service.audit import NotAuthentic, Signer, Verifier, keys_of
from expunge_service.certificates import day, in_words, letter, verify
from expunge_service.console.render import HEADERS, PageRoute
from expunge_service.console.visit import PageContext, Visitor
from expunge_service.infra.db import now
from expunge_service.infra.settings import SettingsError
from expunge_service.infra.time import instant

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/console/requests/{request_id}/certificate")
def certificate(request_id: RequestId, visit: Visitor) -> Response:
    envelope, case = _envelope(visit, request_id)
    statement, fault = _verified(visit, envelope)
    words = None if statement is None else in_words(statement)
    return visit.page("certificate.html", statement=statement, words=words, fault=fault, id=request_id, case=case)


@router.get("/console/requests/{request_id}/letter")
def show_letter(request_id: RequestId, visit: Visitor) -> Response:
    """Show a letter to the person, to be printed. Names are written in by hand: the service knows none."""
    visit.need(Scope.DELETIONS_READ)
    with visit.service.database.read() as session:
        row = find_request(session, visit.caller.tenant_id, request_id)
        issued = certificate_of(session, row)
        if is_erasing(session, row):
            what = "The keys are being destroyed. There is no letter yet. Ask again in a moment."
            raise ApiProblem(409, "certificate_pending", what, headers={"Retry-After": "1"})
        facts = letter_facts(session, row)
        today = instant(now(session))
    statement, fault = _verified(visit, issued.envelope) if issued and issued.envelope else (None, "")
    if fault:
        raise ApiProblem(409, "certificate_refused", f"The certificate does not verify. {fault} There is no letter.")
    said = letter(replace(facts, statement=statement))
    if said is None:
        what = "The request has neither ended nor been extended. There is no letter yet."
        raise ApiProblem(409, "not_ended", what)
    shown = {"letter": said, "today": day(today), "send_by": said.send_by and day(said.send_by)}
    checked = _how_to_check(visit, statement)
    return visit.page("letter.html", **shown, **checked, id=request_id, case=row.case_id)


@router.get("/console/requests/{request_id}/certificate.json")
def certificate_file(request_id: RequestId, visit: Visitor) -> Response:
    headers = HEADERS | {"Content-Disposition": f'attachment; filename="certificate-{request_id}.json"'}
    return Response(_envelope(visit, request_id)[0], headers=headers, media_type="application/json")


def _how_to_check(visit: PageContext, statement: dict[str, Any] | None) -> dict[str, str]:
    """Return fingerprint of the log's key, address of the page that checks, and its QR code; empty where there is none.

    The code carries the fingerprint behind a ``#``: browsers do not send that part.
    """
    if statement is None:
        return {"fingerprint": "", "verify_url": "", "qr": ""}
    import segno  # noqa: PLC0415 (it would be a tenth of the API's start)

    fingerprint, url = (
        Verifier.parse(statement["predicate"]["audit"]["key"]).fingerprint,
        visit.service.settings.verify_url,
    )
    qr = (
        segno.make(f"{url}#{fingerprint}", micro=False).svg_inline(border=2, light="#fff", omitsize=True) if url else ""
    )
    grouped = " ".join(fingerprint[at : at + 4] for at in range(0, len(fingerprint), 4))
    return {"fingerprint": grouped, "verify_url": url, "qr": qr}


def _verified(visit: PageContext, envelope: str) -> tuple[dict[str, Any] | None, str]:
    """Return the certificate's statement, or None and why it does not verify."""
    try:
        with visit.service.database.read() as session:
            keys = keys_of(session, Signer.of(visit.service.settings).verifier)
        return verify(json.loads(envelope), *(each.key for each in keys)), ""
    except (NotAuthentic, SettingsError) as error:
        return None, str(error)


def _envelope(visit: PageContext, request_id: str) -> tuple[str, str | None]:
    """Return the request's certificate, and its case, which only readers of the request see: it is not signed."""
    visit.need(Scope.DELETIONS_READ)
    with visit.service.database.read() as session:
        row = find_request(session, visit.caller.tenant_id, request_id)
        issued = certificate_of(session, row)
    if issued is None or issued.envelope is None:
        raise ApiProblem(404, "no_certificate", "There is no certificate for this request, or not yet.")
    return issued.envelope, row.case_id
