"""Intake asks about all models at once; what it writes equals what a plain loop over the models would write."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from sqlalchemy import event, func, select
from sqlalchemy.orm import Session

from expunge_service.api.dependencies import Service
from expunge_service.audit import record, recorded_at
from expunge_service.infra.db import Database
from expunge_service.infra.pseudonyms import new_id, sample_digest, subject_digest
from expunge_service.infra.tables import (
    AuditEntry,
    DeletionRequest,
    Generation,
    HoldoutPerson,
    Membership,
    Model,
    SuppressionEntry,
    Task,
)
from expunge_service.infra.time import SECOND
from expunge_service.requests.deadlines import Regulation
from expunge_service.requests.intake import Accepted, Order, Windows, accept
from expunge_service.requests.near_misses import SPELLINGS, Written
from expunge_service.requests.reasons import Cause, Reason, stored
from expunge_service.requests.states import Suppress
from expunge_service.requests.suppression import MEMBERS_FROZEN, latest_registration
from tests.service.worlds import live_model

TENANT = "default"
WINDOWS = Windows(cancel_seconds=60, large_samples=3, large_seconds=120)
PEOPLE = [f"p{number}" for number in range(8)]
NAMED = ("m0", "m2", "m6", "m7")
ORDERS = [
    *(Order(subject_id=person) for person in PEOPLE),
    Order(subject_id="nobody"),
    Order(subject_id="held-out"),
    Order(subject_ids=("p1", "p2", "nobody"), regulation=Regulation.GDPR),
    Order(sample_ids=("s1", "s4", "no-such-sample"), case_id="case-7"),
    Order(sample_ids=("no-such-sample",)),
    Order(subject_id="p3", models=NAMED),
    Order(subject_id="p4", models=NAMED, suppress=Suppress.NAMED_MODELS),
    Order(subject_id="nobody", models=("m1",)),
]
OWN = {"entry", "at", "request", "commitment", "suppressions", "received_at", "due_at", "completed_at", "outcome"}
"""facts of an audit entry that differ between any two requests"""


def furnished(service: Service, seed: int) -> None:
    """Eight models of every kind, and one of another tenant; who is in which is drawn."""
    dice = random.Random(seed)
    for number in range(8):
        people: dict[str, list[str]] = {}
        for sample in range(12):
            people.setdefault(dice.choice(PEOPLE[:7]), []).append(f"s{sample}")
        live_model(service, f"m{number}", people)
    live_model(service, "theirs", {"nobody": ["s1"], "p7": ["s2"]}, tenant_id="other")
    with service.database.write() as session:
        by_name = {model.name: model for model in session.scalars(select(Model))}
        by_name["m3"].status = "exhausted"
        by_name["m4"].status = "retired"
        by_name["m5"].notified_at = 7
        for name, notes in (("m6", {"samples": 12}), ("m7", {MEMBERS_FROZEN: True})):
            by_name[name].status = "preparing"
            session.get_one(Generation, by_name[name].generation_id).manifest = notes
        held_out = subject_digest(service.pepper, TENANT, "held-out")
        session.add(HoldoutPerson(generation_id=by_name["m1"].generation_id, subject_digest=held_out))


def slow(session: Session, service: Service, order: Order, accepted: Accepted) -> None:
    """Write the same order again: one model after the other, one row after the other."""
    at = recorded_at(session)
    subjects = [subject_digest(service.pepper, TENANT, each) for each in order.subjects]
    samples = [sample_digest(service.pepper, TENANT, each) for each in order.sample_ids or ()]
    limited = order.models is not None
    after = latest_registration(session) if limited and order.suppress is Suppress.EVERYWHERE else None
    request = DeletionRequest(
        id=new_id(),
        tenant_id=TENANT,
        subject_digest=subjects[0] if len(subjects) == 1 else None,
        case_id=order.case_id,
        status="queued",
        reason=None,
        facts=None,
        models=sorted(order.models) if order.models is not None else None,
        suppress_after=after,
        traceparent=None,
        regulation=order.regulation,
        salt=accepted.request.salt,
        received_at=accepted.request.received_at,
        time_zone="UTC",
        due_at=accepted.request.due_at,
        created_at=at,
        caller=None,
        outcome="matched",
    )
    session.add(request)
    spelled = {subject_digest(service.pepper, TENANT, each): each for each in order.subjects}
    names = [(each, None) for each in subjects] + [(None, each) for each in samples]
    for subject, sample in names:
        entry = SuppressionEntry(id=new_id(), tenant_id=TENANT, request_id=request.id, created_at=at)
        entry.subject_digest, entry.sample_digest = subject, sample
        if subject is not None:
            entry.spelling = Written.of(service.pepper, TENANT, spelled[subject]).to_json()
        session.add(entry)
    session.flush()
    searched, with_work, is_large, compared = 0, list[str](), False, bool(subjects)
    for model in session.scalars(select(Model).where(Model.tenant_id == TENANT).order_by(Model.id)):
        if model.status not in ("live", "preparing", "exhausted") or (order.models and model.name not in order.models):
            continue
        searched += 1
        generation = session.get_one(Generation, model.generation_id)
        mine = Membership.generation_id == generation.id
        of_person = session.scalars(select(Membership).where(mine, Membership.subject_digest.in_(subjects))).all()
        of_sample = session.scalars(select(Membership).where(mine, Membership.sample_digest.in_(samples))).all()
        open_still = model.status == "preparing" and MEMBERS_FROZEN not in (generation.manifest or {})
        compared &= open_still or SPELLINGS in (generation.manifest or {})
        if not (of_person or of_sample or open_still):
            continue
        large = model.status != "preparing" and len(of_person) > WINDOWS.large_samples
        is_large |= large
        with_work.append(model.name)
        task = Task(id=new_id(), tenant_id=TENANT, request_id=request.id, model_id=model.id, created_at=at)
        task.status, task.reason = ("blocked", Reason.LARGE) if large else ("queued", None)
        task.facts = stored(Reason.LARGE, {"limit": WINDOWS.large_samples}) if large else None
        task.not_before = at + (120 if large else 60) * SECOND
        session.add(task)
    if is_large:
        request.status, request.reason = "blocked", Reason.LARGE
    if not with_work:
        person = (
            session.scalar(select(HoldoutPerson).where(HoldoutPerson.subject_digest.in_(subjects)))
            if not limited
            else None
        )
        unknown = Reason.NOT_IN_NAMED_MODELS if limited else Reason.NO_MATCH
        request.status, request.completed_at = "completed", at
        request.reason = Reason.IN_HOLDOUT if person else unknown
        exactly = {"cause": Cause.COMPARED if compared else Cause.EXACTLY}
        request.facts = stored(request.reason, {} if person else {"searched": searched} | exactly)
        request.outcome = "in_holdout" if person else "no_match"
    facts: dict[str, Any] = {
        "samples_named": len(samples) or None,
        "models": sorted(with_work),
        "suppress": order.suppress.value if limited else None,
        "regulation": order.regulation,
        "time_zone": "UTC",
        "verified": True,
    }
    facts |= dict.fromkeys(("commitment", "suppressions", "received_at", "due_at"))
    record(session, TENANT, "request.accepted", request_id=request.id, **facts)
    if request.status != "queued":
        facts = {"reason": request.reason, "received_at": None, "due_at": None}
        record(session, TENANT, f"request.{request.status}", request_id=request.id, **facts)


def written(database: Database, ids: set[str]) -> list[Any]:
    """Return every column of what these requests wrote, but for ids and moments that differ between any two calls."""

    def plain(row: Any, *own: str) -> dict[str, Any]:
        return {column.name: getattr(row, column.name) for column in row.__table__.columns if column.name not in own}

    with database.read() as session:

        def of(kind: Any, *own: str) -> list[dict[str, Any]]:
            rows = session.scalars(select(kind).where(kind.request_id.in_(ids)))
            return sorted((plain(row, *own) for row in rows), key=repr)

        (request,) = session.scalars(select(DeletionRequest).where(DeletionRequest.id.in_(ids))).all()
        at = request.created_at
        tasks, entries = of(Task, "id", "request_id"), of(SuppressionEntry, "id", "request_id", "created_at")
        for task in tasks:
            task["created_at"], task["not_before"] = task["created_at"] - at, task["not_before"] - at
        log = of(AuditEntry, "id", "request_id", "created_at", "log_index", "leaf_hash")
        for each in log:
            each["body"] = {name: fact for name, fact in json.loads(each["body"]).items() if name not in OWN}
        done = request.completed_at is not None and request.completed_at - at
        return [plain(request, "id", "created_at", "completed_at"), done, tasks, entries, log]


@pytest.mark.both_engines
@pytest.mark.parametrize("seed", range(2))
def test_what_is_written_equals_what_a_loop_over_the_models_writes(service: Service, seed: int) -> None:
    furnished(service, seed)
    database, statuses = service.database, set()
    for order in ORDERS:
        with database.write() as session:
            accepted = accept(session, service.pepper, TENANT, order, WINDOWS)
        with database.read() as session:
            before = set(session.scalars(select(DeletionRequest.id)))
        with database.write() as session:
            slow(session, service, order, accepted)
        with database.read() as session:
            again = set(session.scalars(select(DeletionRequest.id))) - before
        fast, plain = written(database, {accepted.request.id}), written(database, again)
        assert fast == plain, order
        statuses.add(fast[0]["status"])
    assert statuses == {"queued", "blocked", "completed"}


@pytest.mark.both_engines
@pytest.mark.parametrize("models", [1, 20])
def test_an_order_takes_as_many_statements_for_any_number_of_models(service: Service, models: int) -> None:
    for number in range(models):
        live_model(service, f"m{number}")
    sent: list[str] = []
    event.listen(service.database.engine, "before_cursor_execute", lambda _c, _k, text, *_: sent.append(text))
    with service.database.write() as session:
        sent.clear()  # BEGIN
        accept(session, service.pepper, TENANT, Order(subject_id="ada"), Windows(60, 1000, 60))
    assert len([text for text in sent if not text.startswith("BEGIN")]) == 10, sent
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(Task)) == models
