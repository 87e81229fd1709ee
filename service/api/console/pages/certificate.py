"""``/console/requests/{id}/certificate``: the certificate for people, then its formal text; and a letter."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge.service.access.api_keys import Scope
from expunge.service.api.console import views
from expunge.service.api.console.render import HEADERS, PageRoute
from expunge.service.api.console.visit import Visit, Visitor
from expunge.service.api.problems import ApiProblem
from expunge.service.api.routes.requests import deletion_requests
from expunge.service.api.types import RequestId
from expunge.service.audit.key_rotation import keys_of
from expunge.service.audit.signed_note import NotAuthentic, Signer
from expunge.service.certificates.envelope import verify
from expunge.service.certificates.letters import Facts, ModelOutcome, day, letter
from expunge.service.certificates.plain_words import in_words
from expunge.service.infra.db import now
from expunge.service.infra.settings import SettingsError
from expunge.service.infra.tables import (
    DeletionRequest,
    Generation,
    HoldoutPerson,
    Model,
    SuppressionEntry,
    Task,
    Version,
)
from expunge.service.infra.time import instant
from expunge.service.requests.reasons import Cause, Reason, reason_of
from expunge.service.requests.states import Status

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
        row = deletion_requests.find(session, visit.caller.tenant_id, request_id)
        envelope = views.certificate(session, row)
        facts = _letter_facts(session, row)
        today = instant(now(session))
    statement, fault = (None, "") if envelope is None else _verified(visit, envelope)
    if fault:
        raise ApiProblem(409, "certificate_refused", f"The certificate does not verify. {fault} There is no letter.")
    said = letter(replace(facts, statement=statement))
    if said is None:
        what = "The request has neither ended nor been extended. There is no letter yet."
        raise ApiProblem(409, "not_ended", what)
    key = None if statement is None else statement["predicate"]["audit"]["key"]
    shown = {"letter": said, "today": day(today), "send_by": said.send_by and day(said.send_by), "key": key}
    return visit.page("letter.html", **shown, id=request_id, case=row.case_id)


def _letter_facts(session: Session, row: DeletionRequest) -> Facts:
    """Return what the tables say about a request that a letter may tell."""
    columns = select(Model.name, Task.reason, Version.number, Task.samples).join(Model, Model.id == Task.model_id)
    tasks = columns.outerjoin(Version, Version.id == Task.version_id).where(Task.request_id == row.id)
    building = Generation.status.in_(("preparing", "candidate"))
    held_out = select(Model.name).join(HoldoutPerson, HoldoutPerson.generation_id == Model.generation_id)
    theirs = select(SuppressionEntry.subject_digest).where(SuppressionEntry.request_id == row.id)
    reason, known = reason_of(row.reason or ""), row.facts or {}
    causes = [(each or {}).get(Reason.IN_HOLDOUT, {}).get("cause") for each in _facts_of_parts(session, row) or [known]]
    due, first, done = (None if at is None else instant(at) for at in (row.due_at, row.first_due_at, row.completed_at))
    return Facts(
        status=Status(row.status),
        reason=reason,
        regulation=row.regulation,
        received=instant(row.received_at),
        due=due,
        first_due=first,
        completed=done,
        extended=row.extended_at is not None,
        rejection=row.rejection,
        limited_to=row.models,
        parts=[
            ModelOutcome(name, reason_of(code or ""), number, samples or 0)
            for name, code, number, samples in session.execute(tasks.order_by(Model.name))
        ],
        searched=known.get(Reason.NO_MATCH, {}).get("searched"),
        preparing=session.scalar(select(Generation.id).where(Generation.tenant_id == row.tenant_id, building).limit(1))
        is not None,
        holdouts=session.scalars(
            held_out.where(Model.tenant_id == row.tenant_id, HoldoutPerson.subject_digest.in_(theirs)).order_by(
                Model.name
            )
        ).all(),
        overwritten=all(cause == Cause.OVERWRITTEN for cause in causes),
        statement=None,
    )


def _facts_of_parts(session: Session, row: DeletionRequest) -> Sequence[dict[str, Any] | None]:
    mine = select(Task.facts).where(Task.request_id == row.id, Task.reason == Reason.IN_HOLDOUT)
    return session.scalars(mine).all()


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
