"""Decisions about near misses: a person says whether the request's id is another spelling of somebody's.

The request is put to a person where it is accepted or verified, where a model's people become known, and where a
registration brings people back. It waits in ``DeletionRequest.near``; the answer is kept in ``others``, so that no
person is asked twice about the same people.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.orm import Session

from expunge_service.audit import canonical, record, recorded_at
from expunge_service.infra.pseudonyms import Pepper, new_id, person_number, subject_digest
from expunge_service.infra.tables import DeletionRequest, Model, SuppressionEntry, Task
from expunge_service.infra.time import SECOND
from expunge_service.requests.identity_check import concerned, covered_by, go_on
from expunge_service.requests.intake import NO_WINDOWS, Forgetter, Windows, ask_about, forgetters, opening
from expunge_service.requests.legal_holds import queue_again
from expunge_service.requests.near_misses import (
    Asked,
    NamedPerson,
    Question,
    Searched,
    Written,
    known_exactly,
    near_rows,
    near_to_delete,
    questions_of,
    written_of,
)
from expunge_service.requests.reasons import Cause, Reason, stored
from expunge_service.requests.states import RequestRefused
from expunge_service.requests.status import complete_open_tasks, locked_tasks, record_status, settle
from expunge_service.requests.suppression import entries_digest, entries_since, named_by, positions
from unlearning.accounting.ids import nfc

_NO_QUESTION = "The request does not wait for a decision about its id."
_ABOUT_A_HOLD = (
    "The question is about a legal hold. If it is this person's, place it again under the right id; then say "
    "other-person: the new hold keeps the data."
)
_NO_CANDIDATE = (
    "That id is not written nearly as the request's, or no model knows it. Copy it from your own books; if it is "
    "another person's, use other-person, and send a request with the right id."
)


def same_person(
    session: Session, pepper: Pepper, request: DeletionRequest, right_id: str, windows: Windows
) -> tuple[str, ...]:
    """Delete the person with this id too: the request's own is another spelling of it. Return the models with work.

    Raises RequestRefused where the request waits for no such decision, or the id is not one that it is asked about.
    """
    models = _asked(session, request)
    known = written_of(session, request)
    right, spelling = _candidate(pepper, request, known, right_id)
    near = request.near or []
    at, before = recorded_at(session), named_by(session, request)
    new: list[tuple[str | None, str | None]] = [] if right in known else [(right, None)]
    if new:
        session.add(
            SuppressionEntry(
                id=new_id(),
                tenant_id=request.tenant_id,
                request_id=request.id,
                subject_digest=right,
                sample_digest=None,
                created_at=at,
                lifted_at=at,  # until nothing is left to ask
                lifted_reason=Reason.NEAR_MISS,
                spelling=spelling.to_json(),
            )
        )
    request.subject_digest = None
    said = canonical({"same_person": nfc(right_id)}).encode()
    kept = hmac.new(opening(pepper, request.salt), said, "sha256").hexdigest()
    record(
        session,
        request.tenant_id,
        "request.spelling_confirmed",
        request_id=request.id,
        commitment=kept,
        suppressions=entries_digest(pepper, request.id, [*before, *new]),
    )
    apart = [person for person in near if person != person_number(right)]
    return _decided(session, request, models, windows, apart)


def rehearse_same(session: Session, pepper: Pepper, request: DeletionRequest, right_id: str) -> bool:
    """Return whether this id's person is the only one whom the request is asked about; False: one of several.

    Nothing is decided. Raises RequestRefused where ``same_person`` would.
    """
    _require_question(request)
    _candidate(pepper, request, written_of(session, request), right_id)
    return len(request.near or ()) == 1


def other_person(session: Session, request: DeletionRequest, windows: Windows) -> tuple[str, ...]:
    """Go on with the id as it is written; return the models with work. Raises RequestRefused."""
    models = _asked(session, request)
    record(session, request.tenant_id, "request.spelling_denied", request_id=request.id)
    return _decided(session, request, models, windows, request.near or [])


def repeat_denied(session: Session, request: DeletionRequest) -> None:
    """Do what ``other_person`` does, as the audit log says it was done; write no entry."""
    models = _asked(session, request)
    request.others, request.near = sorted({*(request.others or ()), *(request.near or ())}), None
    session.flush()
    if _was_held_back(session, request):
        compared = _ask(session, request, models).compared
        go_on(session, request, models, NO_WINDOWS, compared=compared, others=bool(request.others))


def question_about(session: Session, pepper: Pepper, tenant_id: str, subject_id: str) -> Question | None:
    """Return the question that a request of this person would be asked; None: it would be asked none."""
    written = {subject_digest(pepper, tenant_id, subject_id): Written.of(pepper, tenant_id, subject_id)}
    return ask_about(session, tenant_id, written, forgetters(session, tenant_id)).question


def question_about_hold(session: Session, pepper: Pepper, tenant_id: str, subject_id: str) -> Question | None:
    """Return why a hold on this id may miss its person; None: nothing says so.

    The people of a model in preparation are not known, but who of them is to be deleted may be: a hold nearly on one of
    those would be compared with nobody else in time.
    """
    question = question_about(session, pepper, tenant_id, subject_id)
    if question is not None and question.cause not in (Cause.TWINS, Cause.HOLD):
        return question
    subject = subject_digest(pepper, tenant_id, subject_id)
    models = forgetters(session, tenant_id)
    searched = [Searched(each.id, each.generation_id or 0, twins=False) for each in models]
    if known_exactly(session, tenant_id, [subject], searched):
        return None
    return near_to_delete(session, tenant_id, subject, Written.of(pepper, tenant_id, subject_id))


def put_question(request: DeletionRequest, question: Question) -> None:
    """Let the request wait for a decision; settle it afterwards. What its models have begun continues."""
    request.near = sorted({*(request.near or ()), *question.near})
    request.facts = (request.facts or {}) | (stored(Reason.NEAR_MISS, question.facts) or {})


def ask_again(session: Session, request_ids: Iterable[str]) -> list[str]:
    """Put the question to those of these requests that have to be asked, now that more people are known; return them.

    The models' rows are not locked: the caller holds that of the model whose people became known. Settle the requests
    afterwards.
    """
    waiting = []
    for request_id in request_ids:
        request = session.get_one(DeletionRequest, request_id)
        asked = _ask(session, request, forgetters(session, request.tenant_id, *covered_by(request)))
        if asked.question is not None:
            put_question(request, asked.question)
            waiting.append(request_id)
    session.flush()
    return waiting


def end_unpublished(session: Session, model: Model) -> None:
    """End the open tasks of a model that gets no first version, and ask about the ids that it might have known."""
    ended = complete_open_tasks(session, model.id, Reason.NOT_PUBLISHED)
    session.flush()
    known = positions(session, model.tenant_id, model.name, model.generation_id or 0, ended)
    ask_again(session, (request_id for request_id in ended if request_id not in known))
    settle(session, ended)


def ask_those(session: Session, questions: Mapping[str, Question]) -> None:
    """Put these questions, by request, and let the requests wait."""
    for request_id, question in questions.items():
        put_question(session.get_one(DeletionRequest, request_id), question)
    settle(session, questions)


def ask_those_since(session: Session, tenant_id: str, place: tuple[str, int], model_id: str, since: int) -> None:
    """Ask about the people of a generation that is published now, in place of those whom requests were compared with.

    Args:
        place: the model's name, and the generation.
        since: in microseconds since 1970. The requests of before were compared with it, or with the one it replaces.
    """
    entries = [
        NamedPerson(request_id, subject, Written.from_json(spelling))
        for request_id, subject, spelling in entries_since(session, tenant_id, place, since)
    ]
    sought = {form for each in entries for form in each.written.forms.values()}
    holders: dict[int, list[int]] = {}
    for form, _, person in near_rows(session, sought, [place[1]]):
        holders.setdefault(form, []).append(person)
    if not holders:
        return
    subjects = {each.subject_digest for each in entries if not holders.keys().isdisjoint(each.written.forms.values())}
    exact = known_exactly(session, tenant_id, subjects, [Searched(model_id, place[1], twins=False)])
    ask_those(session, questions_of(session, (each for each in entries if each.subject_digest not in exact), holders))


def _asked(session: Session, request: DeletionRequest) -> Sequence[Forgetter]:
    """Return the models that the request covers, locked before it, as everywhere. Raises RequestRefused."""
    models = concerned(session, request)
    session.refresh(request, with_for_update=True)
    _require_question(request)
    return models


def _require_question(request: DeletionRequest) -> None:
    """Raise RequestRefused where the request waits for no decision about its id."""
    if request.near is None:
        raise RequestRefused(409, "not_near_miss", _NO_QUESTION)


def _candidate(
    pepper: Pepper, request: DeletionRequest, known: Mapping[str, Written | None], right_id: str
) -> tuple[str, Written]:
    """Return the digest of an id that the request is asked about, and how it is written. Raises RequestRefused.

    ``known``: how the request's own ids are written, by digest.
    """
    if _cause(request) == Cause.HOLD:
        raise RequestRefused(409, "not_near", _ABOUT_A_HOLD)
    right = subject_digest(pepper, request.tenant_id, right_id)
    spelling = Written.of(pepper, request.tenant_id, right_id)
    forms = {number for each in known.values() if each is not None for number in each.forms.values()}
    if person_number(right) not in (request.near or ()) or forms.isdisjoint(spelling.forms.values()):
        errors = [{"pointer": "/subject_id", "detail": "It is not one of the ids that are written nearly so."}]
        raise RequestRefused(409, "not_near", _NO_CANDIDATE, errors)
    return right, spelling


def _decided(
    session: Session, request: DeletionRequest, models: Sequence[Forgetter], windows: Windows, apart: Iterable[int]
) -> tuple[str, ...]:
    """Go on after the decision; ``apart``: people who were said to be others. Return the models with work."""
    request.near, request.others = None, sorted({*(request.others or ()), *apart})
    session.flush()
    asked = _ask(session, request, models)
    if asked.question is not None and asked.question.cause is Cause.HOLD:
        put_question(request, asked.question)
        record_status(session, request)  # its entries wait on: the log has just said that the id is decided
        session.flush()
        return ()
    tasks = locked_tasks(session, Task.request_id == request.id)
    if tasks:
        session.execute(update(SuppressionEntry).where(*_held_back(request)).values(lifted_at=None, lifted_reason=None))
    if tasks or not _was_held_back(session, request):
        return _reopened(session, request, models, tasks, windows, compared=asked.compared)
    found = go_on(session, request, models, windows, compared=asked.compared, others=bool(request.others))
    record_status(session, request)
    session.flush()
    return found.to_notify


def _ask(session: Session, request: DeletionRequest, models: Sequence[Forgetter]) -> Asked:
    """Ask about the request's ids once more, after what was decided."""
    return ask_about(session, request.tenant_id, written_of(session, request), models, request.others)


def _cause(request: DeletionRequest) -> str | None:
    """Return why the request waits for a decision about its id."""
    cause: str | None = (request.facts or {}).get(Reason.NEAR_MISS, {}).get("cause")
    return cause


def _was_held_back(session: Session, request: DeletionRequest) -> bool:
    """Return whether a suppression entry of the request waits for the decision."""
    return session.scalar(select(SuppressionEntry.id).where(*_held_back(request)).limit(1)) is not None


def _held_back(request: DeletionRequest) -> tuple[ColumnElement[bool], ...]:
    """Return the condition on the request's suppression entries that wait for the decision."""
    return SuppressionEntry.request_id == request.id, SuppressionEntry.lifted_reason == Reason.NEAR_MISS


def _reopened(
    session: Session,
    request: DeletionRequest,
    models: Sequence[Forgetter],
    tasks: Sequence[Task],
    windows: Windows,
    *,
    compared: bool,
) -> tuple[str, ...]:
    """Go on with a request that had been carried out: what its entries name now is still to be deleted."""
    at = recorded_at(session)
    by_model: Mapping[str, Task] = {task.model_id: task for task in tasks}
    again: list[Task] = []
    for model in models:
        generation = model.generation_id or 0
        left = positions(session, request.tenant_id, model.name, generation, [request.id])
        task = by_model.get(model.id)
        if not left.get(request.id) or (task is not None and task.status != "completed"):
            continue
        if task is None:
            task = Task(
                id=new_id(),
                tenant_id=request.tenant_id,
                request_id=request.id,
                model_id=model.id,
                status="queued",
                not_before=at + int(windows.cancel_seconds * SECOND),
                created_at=at,
            )
            session.add(task)
        again.append(task)
    for task in again:
        task.samples = task.method = task.version_id = task.completed_at = None
    if not tasks and not again:
        cause = Cause.OTHER_PEOPLE if compared else Cause.EXACTLY
        request.facts = stored(Reason.NO_MATCH, {"cause": cause})
    changed = queue_again(session, again)
    settle(session, [request.id])
    return tuple(changed)
