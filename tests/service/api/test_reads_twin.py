"""Requests are read with a few statements for all their models; the answer equals what asking each model gives."""

from __future__ import annotations

import random
import statistics
from typing import Any

import pytest
from sqlalchemy import event, select, update
from sqlalchemy.orm import Session

from expunge_service.access import Scope
from expunge_service.api.dependencies import Service
from expunge_service.api.views.requests import ModelPart, request_view, request_views
from expunge_service.certificates import erasing, note
from expunge_service.certificates.plain_words import DIFFERED, differed
from expunge_service.infra.db import now
from expunge_service.infra.pseudonyms import new_id, sample_digest, subject_digest
from expunge_service.infra.tables import (
    Consumer,
    DeletionRequest,
    Erasure,
    Generation,
    Hold,
    Model,
    PhaseSeconds,
    Removal,
    Task,
    Version,
)
from expunge_service.infra.time import SECOND, day_after, day_and_time
from expunge_service.models import standing
from expunge_service.models.generations import open_generation
from expunge_service.requests import NO_WINDOWS, Order, Reason, Suppress, accept, explain, held_by, positions, reason_of
from expunge_service.requests.suppression import MEMBERS_FROZEN
from tests.service.worlds import live_model, publish

TENANT, HOUR = "default", 3600 * SECOND
MODELS = 14
PEOPLE = [f"p{number}" for number in range(5)]
REASONS = (
    *(Reason.LARGE, Reason.AWAITING_BATCH, Reason.AWAITING_RETRAIN, Reason.ACCURACY_DROP, Reason.AWAITING_CONSUMERS),
    *(Reason.LEGAL_HOLD, Reason.RECIPE_FAILED, "utility_gate", "of_a_later_release", None, None),
)
CLAIMS: tuple[dict[str, Any], ...] = (
    {"guarantee": "proved"},
    {"guarantee": "exact", "operators_word": True, "tried": [f"Not tried: {DIFFERED}"]},
    {"guarantee": "exact", "operators_word": False, "tried": None},
    {"guarantee": "exact", "tried": ["Not tried: it."]},
)
ALL = frozenset(Scope)


def furnished(service: Service, dice: random.Random) -> list[str]:
    """Requests with tasks in every state, in models of every kind, all of it drawn; returns the requests' ids."""
    for number in range(MODELS):
        people: dict[str, list[str]] = {}
        for sample in range(20):
            people.setdefault(dice.choice(PEOPLE), []).append(f"s{sample}")
        model = live_model(service, f"m{number:02}", people)
        for content in range(dice.randrange(5)):
            took(service, publish(service, model, b"%d" % content, claim=dice.choice(CLAIMS)), dice)
    orders = [Order(subject_id=person) for person in PEOPLE]
    some = tuple(f"m{number:02}" for number in range(0, MODELS, 2))
    orders += [Order(subject_id="p1", models=some), Order(subject_ids=("p2", "p3"), models=some)]
    orders += [Order(subject_id="p4", models=some, suppress=Suppress.NAMED_MODELS), Order(sample_ids=("s1", "s7"))]
    with service.database.write() as session:
        requests = [accept(session, service.pepper, TENANT, order, NO_WINDOWS).request.id for order in orders]
        at = now(session)
        # ids are random: in their order, the same seed would draw another world each time
        for model in session.scalars(select(Model).order_by(Model.name)):
            drawn_model(session, model, at, dice)
        limited = DeletionRequest.models.is_not(None) & DeletionRequest.suppress_after.is_not(None)
        session.execute(update(DeletionRequest).where(limited).values(suppress_after=MODELS // 2))
        digests = [{"subject_digest": subject_digest(service.pepper, TENANT, person)} for person in PEOPLE[:3]]
        digests += [{"sample_digest": sample_digest(service.pepper, TENANT, f"s{number}")} for number in (1, 2, 3)]
        for place, digest in enumerate(digests * 2):
            lifted = at if place == 0 else None
            session.add(Hold(id=new_id(), tenant_id=TENANT, reason="r", created_at=at, lifted_at=lifted, **digest))
        tasks = session.execute(select(Task, Model.name).join(Model, Model.id == Task.model_id))
        for task, _ in sorted(tasks, key=lambda row: (requests.index(row[0].request_id), row[1])):
            if task.request_id in requests[:2]:  # no worker has begun with these
                task.reason, task.not_before = (
                    dice.choice((None, Reason.AWAITING_BATCH)),
                    at + dice.choice((1, 9)) * HOUR,
                )
            else:
                drawn_task(session, task, at, dice)
    return requests


def took(service: Service, version: Version, dice: random.Random) -> None:
    """Note how long the phases of the version's update took, or not."""
    with service.database.write() as session:
        for phase in range(dice.randrange(3)):
            facts = {"model_id": version.model_id, "version_id": version.id, "method": "x", "created_at": 1}
            session.add(PhaseSeconds(phase=f"p{phase}", seconds=float(dice.randrange(1, 99)), **facts))


def drawn_model(session: Session, model: Model, at: int, dice: random.Random) -> None:
    model.status = dice.choice(("live", "live", "exhausted", "retired"))
    model.due_at = dice.choice((None, at + HOUR, at - HOUR))
    served = session.get_one(Generation, model.generation_id)
    repeats = dice.choice(([], [{"requests": 1, "share": 0.25}, {"requests": 9, "share": 1.0}]))
    served.report = dice.choice((None, {}, {"seconds": 800.0}, {"seconds": 900, "expected_repeats": repeats}))
    for position in dice.sample(range(20), 4):
        session.add(Removal(generation_id=served.id, position=position, version_id="v"))
    numbered = select(Version).where(Version.model_id == model.id).order_by(Version.number)
    versions = session.scalars(numbered).all()
    for name in dice.sample(("a", "b", "c"), dice.randrange(4)):
        reported = dice.choice(versions).id
        session.add(Consumer(model_id=model.id, name=name, tenant_id=TENANT, version_id=reported, seen_at=at))
    if dice.random() < 0.5:
        report = dice.choice((None, {"eta_seconds": 7200.0}, {"eta_seconds": None}, {"dry_run": True}))
        manifest = dice.choice((None, {MEMBERS_FROZEN: True}))
        facts = {"method": "m", "guarantee": "proved", "report": report, "manifest": manifest, "created_at": at}
        candidate = Generation(
            tenant_id=TENANT, model_id=model.id, status="candidate", attempts=dice.randrange(2), **facts
        )
        open_generation(session, candidate)


def drawn_task(session: Session, task: Task, at: int, dice: random.Random) -> None:
    reason = dice.choice(REASONS)
    task.reason = None if reason is None else str(reason)
    task.status = dice.choice(("queued", "queued", "running", "blocked", "completed"))
    task.facts = dice.choice((None, {str(reason): {"limit": 7, "points": "0.5", "error": "ValueError", "line": 3}}))
    task.attempts, task.not_before = dice.choice((0, 0, 0, 1)), at + dice.choice((-HOUR, HOUR))
    if task.reason == Reason.AWAITING_CONSUMERS or dice.random() < 0.6:
        numbered = select(Version).where(Version.model_id == task.model_id).order_by(Version.number)
        versions = session.scalars(numbered).all()
        version = versions[-1] if task.reason == Reason.AWAITING_CONSUMERS else dice.choice(versions)
        task.version_id, task.samples, task.method = version.id, dice.randrange(3), version.method
        destroyed = dice.choice((None, at))
        key = {"generation_id": version.generation_id, "key_id": new_id(), "destroyed_at": destroyed, "created_at": at}
        session.add(Erasure(tenant_id=TENANT, version_id=version.id, **key))


def slow_part(session: Session, task: Task) -> ModelPart:
    """One model's part in a request, from the rows of this model alone."""
    model, holds = session.get_one(Model, task.model_id), []
    version = session.get(Version, task.version_id) if task.version_id is not None else None
    if task.reason == Reason.LEGAL_HOLD:
        here = outstanding_of(session, task, model)
        held = held_by(session, TENANT, model.generation_id or 0)
        holds = sorted(hold for hold, kept in held.items() if not kept.isdisjoint(here))
    moment = slow_moment(session, task, model)
    reason = None if task.reason is None else reason_of(task.reason)
    facts = dict(task.facts or {})
    if reason is not None:
        facts[reason] = facts.get(reason, {}) | slow_circumstances(session, task, model, version, moment)
    batched = task.status == "queued" and task.reason == Reason.AWAITING_BATCH
    return ModelPart(
        model=model.name,
        status=task.status,
        samples=task.samples,
        version=None if version is None else version.number,
        method=task.method,
        guarantee_note=None if version is None else note(version.claim),
        scheduled_at=model.due_at if batched else None,
        expected_at=moment,
        **explain(task.reason, task.request_id, [model.name], holds, facts=facts, scopes=ALL),
    )


def outstanding_of(session: Session, task: Task, model: Model) -> set[int]:
    here = positions(session, TENANT, model.name, model.generation_id or 0, [task.request_id])
    return here.get(task.request_id, set())


def slow_moment(session: Session, task: Task, model: Model) -> int | None:
    at, open_ones = now(session), ("queued", "running")
    if model.status == "retired" or task.status not in open_ones or task.reason == Reason.AWAITING_CONSUMERS:
        return None
    if task.reason == Reason.AWAITING_RETRAIN:
        planned = select(Generation).where(Generation.model_id == model.id, Generation.status == "candidate")
        candidate = session.scalars(planned).one_or_none()
        eta = None if candidate is None else (candidate.report or {}).get("eta_seconds")
        moment = None if candidate is None or eta is None else candidate.created_at + int(eta * SECOND)
    else:
        seconds = slow_seconds(session, model)
        begins = max(task.not_before, model.due_at or 0) if task.reason == Reason.AWAITING_BATCH else task.not_before
        moment = None if seconds is None else begins + int(seconds * SECOND)
    return moment if moment is not None and moment > at else None


def slow_seconds(session: Session, model: Model) -> float | None:
    current = session.get_one(Version, model.current_id)
    took = []
    for version in session.scalars(select(Version).where(Version.model_id == model.id, Version.parent_id.is_not(None))):
        phases = session.scalars(select(PhaseSeconds.seconds).where(PhaseSeconds.version_id == version.id)).all()
        if version.number > current.number - 5 and phases:
            took.append(sum(phases))
    if took:
        return statistics.median(took)
    report = session.get_one(Generation, model.generation_id).report or {}
    repeats = report.get("expected_repeats")
    return repeats[0]["share"] * report["seconds"] if repeats else None


def slow_circumstances(
    session: Session, task: Task, model: Model, version: Version | None, moment: int | None
) -> dict[str, Any]:
    match reason_of(task.reason or ""):
        case Reason.LARGE:
            return {"samples": len(outstanding_of(session, task, model)), "time": day_and_time(task.not_before)}
        case Reason.AWAITING_BATCH if model.due_at is not None and task.status == "queued":
            report = session.get_one(Generation, model.generation_id).report or {}
            done = model.due_at + int(2 * report.get("seconds", 0) * SECOND)
            return {"time": day_and_time(model.due_at), "done_by": day_after(done)}
        case Reason.AWAITING_RETRAIN if moment is not None:
            return {"time": day_and_time(moment)}
        case Reason.ACCURACY_DROP if differed(session.get_one(Version, model.current_id).claim):
            return {"runs": "two runs of this training differ"}
        case Reason.AWAITING_CONSUMERS if version is not None:
            for consumer in standing(session, model, version):
                if consumer["version"] < version.number:
                    return {"version": version.number, "consumer": consumer["name"], "served": consumer["version"]}
    return {}


def slow_cancellable(session: Session, tasks: list[Task]) -> tuple[bool, int | None]:
    """Return whether no worker has begun with any task, and when the first may, if that is later than now."""
    at, begins = now(session), []
    for task in tasks:
        unclaimed = task.status == "queued" or (task.status == "blocked" and task.reason in (Reason.LARGE, "no_worker"))
        built = select(Generation).where(Generation.model_id == task.model_id)
        training = any(
            (each.attempts or MEMBERS_FROZEN in (each.manifest or {})) and not (each.report or {}).get("dry_run")
            for each in session.scalars(built.where(Generation.status == "candidate"))
        )
        decided = task.not_before <= at and task.reason != Reason.LARGE
        if task.attempts or not unclaimed or (decided and training):
            return False, None
        due = session.get_one(Model, task.model_id).due_at or 0
        begins.append(max(task.not_before, due) if task.reason == Reason.AWAITING_BATCH else task.not_before)
    first = min(begins)
    return True, first if first > at else None


@pytest.mark.both_engines
@pytest.mark.parametrize("seed", range(3))
def test_an_answer_equals_one_that_is_asked_for_each_model(service: Service, seed: int) -> None:
    requests = furnished(service, random.Random(seed))
    seen: set[str | None] = set()
    named = {
        "note": False,
        "scheduled": False,
        "expected": False,
        "hold": False,
        "runs": False,
        "served": False,
        "cancellable": False,
    }
    with service.database.read() as session:
        rows = [session.get_one(DeletionRequest, request) for request in requests]
        together = request_views(session, rows, ALL)
        for request, view in zip(rows, together, strict=True):
            mine = select(Task).join(Model, Model.id == Task.model_id).where(Task.request_id == request.id)
            tasks = list(session.scalars(mine.order_by(Model.name)))
            slow = [slow_part(session, task) for task in tasks]
            assert [part.model_dump_json() for part in view.models] == [part.model_dump_json() for part in slow]
            carried_out = {task.version_id for task in tasks if task.version_id is not None}
            assert view.erasing == bool(erasing(session, carried_out))
            assert (view.cancellable, view.cancellable_until) == slow_cancellable(session, tasks)
            alone = request_view(session, request, ALL)
            assert alone.model_dump(exclude={"related"}) == view.model_dump(exclude={"related"})
            seen |= {part.reason for part in slow}
            text = view.model_dump_json()
            named["note"] |= any(part.guarantee_note for part in slow)
            named["scheduled"] |= any(part.scheduled_at for part in slow)
            named["expected"] |= any(part.expected_at for part in slow)
            named["cancellable"] |= view.cancellable_until is not None
            named["hold"] |= "expunge holds lift " in text and "lift HOLD" not in text
            named["runs"] |= "two runs of this training differ" in text
            named["served"] |= "still serves version" in text
    assert seen == {str(reason) if reason else None for reason in REASONS} - {"utility_gate"}
    assert all(named.values()), "else the comparison shows nothing"


@pytest.mark.both_engines
@pytest.mark.parametrize("reason", REASONS)
def test_an_answer_takes_as_many_statements_for_any_number_of_models(
    service: Service, reason: Reason | str | None
) -> None:
    counts = {}
    for models in (1, 9):
        people = {f"of {models}": ["s1"], "other": ["o"]}
        names = tuple(f"m{models}-{number}" for number in range(models))
        for name in names:
            publish(service, live_model(service, name, people), b"two")
        with service.database.write() as session:
            order = Order(subject_id=f"of {models}", models=names)
            request = accept(session, service.pepper, TENANT, order, NO_WINDOWS).request.id
            session.execute(update(Task).where(Task.request_id == request).values(reason=reason))
        statements: list[str] = []
        event.listen(service.database.engine, "before_cursor_execute", lambda *seen, to=statements: to.append(seen[2]))
        with service.database.read() as session:
            view = request_view(session, session.get_one(DeletionRequest, request), ALL)
        counts[models] = len(statements)
        assert len(view.models) == models
    assert counts[1] == counts[9], counts
