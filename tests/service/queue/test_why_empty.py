"""Why requests name nothing in a model is asked once for all of them; it equals what is asked for each alone."""

from __future__ import annotations

import random

import pytest
from sqlalchemy import event, select
from sqlalchemy.orm import Session

from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.tables import DeletionRequest, Generation, HoldoutPerson, Membership, SuppressionEntry, Task
from expunge_service.models import model_lease
from expunge_service.queue.jobs import ClaimedTask, Job
from expunge_service.queue.leases import TakenLease
from expunge_service.queue.results import Completed
from expunge_service.queue.selection import why_empty
from expunge_service.requests import Cause, Reason
from expunge_service.requests.suppression import WITH_ROWS, carried_out, why_unknown
from tests.workers.worlds import TENANT, World
from unlearning.accounting.policy import Policy


def slow(session: Session, job: Job, task: ClaimedTask) -> Completed:
    columns = select(SuppressionEntry.subject_digest, SuppressionEntry.sample_digest)
    entries = session.execute(columns.where(SuppressionEntry.request_id == task.request_id)).all()
    subjects = [subject for subject, _ in entries if subject is not None]
    samples = [sample for _, sample in entries if sample is not None]
    named = [(subject, []) for subject in subjects] if subjects else [(None, samples)]
    done = [each for subject, those in named for each in carried_out(session, job.tenant_id, subject, those)]
    earlier = sorted((each.version, each.request) for each in done if each.model == job.model_name)
    mine = Membership.generation_id == job.generation_id
    trained = [
        row
        for row in session.scalars(select(Membership).where(mine))
        if row.subject_digest in subjects or row.sample_digest in samples
    ]
    if earlier or trained:
        return Completed(0, Reason.ALREADY_DELETED, {"earlier": earlier[0][1]} if earlier else {})
    reason, facts = why_unknown(session, job.tenant_id, subjects, [job.generation_id])
    return Completed(0, reason, {"cause": Cause.THIS_MODEL} if reason is Reason.NO_MATCH else facts)


@pytest.mark.both_engines
@pytest.mark.parametrize("overwritten", [True, False])
def test_all_at_once_equals_one_by_one(world: World, overwritten: bool) -> None:
    dice = random.Random(overwritten)
    model_id, other_id = world.live(), world.live(name="other")
    for person in ("p1", "p2"):
        world.delete(person)
        world.work(model_id)
    generation, version = world.generation(model_id), world.head(model_id)
    job = Job(TakenLease(model_lease(model_id), 1), TENANT, "m", "shared", Policy("recollection"), generation.id)
    with world.database.write() as session:
        row = session.get_one(Generation, generation.id)
        row.manifest = (row.manifest or {}) | ({WITH_ROWS: True} if overwritten else {})
        known = session.execute(
            select(Membership.subject_digest, Membership.sample_digest).where(Membership.generation_id == generation.id)
        ).all()
        gone = session.execute(
            select(SuppressionEntry.subject_digest, SuppressionEntry.tenant_id).where(
                SuppressionEntry.subject_digest.is_not(None)
            )
        ).all()
        held_out = [f"{number:064x}" for number in range(3)]
        session.add_all(HoldoutPerson(generation_id=generation.id, subject_digest=each) for each in held_out)
        strangers = [f"{number:064x}" for number in range(10, 14)]
        people = [*(each for each, _ in known), *(each for each, _ in gone), *held_out, *strangers]
        samples = [*(each for _, each in known), *strangers]
        requests = []
        for number in range(60):
            names = dice.sample(strangers if number < 8 else held_out + strangers if number < 16 else people, 2)
            if number % 4 == 0:
                names = dice.sample(samples, 3)
            asked = asked_of(session, names, by_sample=number % 4 == 0)
            requests.append(asked)
            if number % 5 == 0:  # carried out earlier, here or in another model, by a request in force or lifted
                whose = model_id if number % 10 else other_id
                session.add(done(asked, whose, version.id if whose == model_id else world.head(other_id).id))
    tasks = [ClaimedTask(new_id(), each) for each in requests]
    sent: list[str] = []
    with world.database.read() as session:
        event.listen(world.database.engine, "before_cursor_execute", lambda _c, _k, text, *_: sent.append(text))
        fast = why_empty(session, job, tasks)
        assert len([text for text in sent if text.startswith("SELECT")]) == 3
        assert fast == {task: slow(session, job, task) for task in tasks}
    assert {each.reason for each in fast.values()} == {Reason.ALREADY_DELETED, Reason.NO_MATCH, Reason.IN_HOLDOUT}


def asked_of(session: Session, names: list[str], *, by_sample: bool) -> str:
    """Write a request that names these digests, as of somebody else's order."""
    request_id = new_id()
    session.add(
        DeletionRequest(
            id=request_id, tenant_id=TENANT, status="queued", salt=b"s" * 32, received_at=1, created_at=1, models=None
        )
    )
    session.flush()
    for name in names:
        entry = SuppressionEntry(id=new_id(), tenant_id=TENANT, request_id=request_id, created_at=1)
        entry.subject_digest, entry.sample_digest = (None, name) if by_sample else (name, None)
        entry.lifted_at = 2 if int(name[:8], 16) % 7 == 0 else None
        session.add(entry)
    session.flush()
    return request_id


def done(request_id: str, model_id: str, version_id: str) -> Task:
    return Task(
        id=new_id(),
        tenant_id=TENANT,
        request_id=request_id,
        model_id=model_id,
        status="completed",
        samples=2,
        version_id=version_id,
        not_before=1,
        created_at=1,
        completed_at=2,
    )
