"""What requests name is read in one statement, with holds, holders and vectors; it equals what is asked for each."""

from __future__ import annotations

import random

import pytest
from sqlalchemy import delete, func, select

from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.settings import Settings
from expunge_service.infra.tables import Hold, Membership, Removal, StoredVector
from expunge_service.models import model_lease
from expunge_service.queue.jobs import Job
from expunge_service.queue.leases import TakenLease
from expunge_service.queue.selection import held_positions, members, named_by, target_of, without_vector
from expunge_service.requests import names_of, positions
from tests.service.queue.test_why_empty import asked_of
from tests.workers.worlds import TENANT, World
from unlearning.accounting.policy import Policy


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Fix the key that orders the people: of some orders nobody who is asked for is held."""
    settings.pepper_file.write_text("5a" * 32)
    return settings


@pytest.mark.both_engines
def test_one_reading_equals_one_for_each_question(world: World) -> None:
    dice = random.Random(5)
    model_id = world.live()
    generation_id = world.generation(model_id).id
    job = Job(TakenLease(model_lease(model_id), 1), TENANT, "m", "convex", Policy("recollection"), generation_id)
    here = Membership.generation_id == generation_id
    with world.database.write() as session:
        rows = session.scalars(select(Membership).where(here).order_by(Membership.position)).all()
        people, samples = sorted({row.subject_digest for row in rows}), [row.sample_digest for row in rows]
        for row in dice.sample(rows, 12):  # a sample of two people
            other = dice.choice([each for each in people if each != row.subject_digest])
            facts = {name: getattr(row, name) for name in ("position", "sample_digest", "content_digest", "holder")}
            session.add(Membership(generation_id=generation_id, subject_digest=other, **facts))
        lost, whose = dice.sample(people, 3), {"subject_digest": dice.sample(people, 2)}
        whose["sample_digest"] = dice.sample(samples, 3)
        for row in dice.sample([row for row in rows if row.subject_digest not in (*lost, *whose["subject_digest"])], 5):
            session.add(Removal(generation_id=generation_id, position=row.position, version_id="v"))
        for column, names in whose.items():
            for place, name in enumerate(names):
                hold = Hold(id=new_id(), tenant_id=TENANT, reason="r", created_at=1, lifted_at=None if place else 1)
                setattr(hold, column, name)
                session.add(hold)
        without = StoredVector.holder.in_(lost)
        session.execute(delete(StoredVector).where(StoredVector.generation_id == generation_id, without))
        strangers = [f"{number:064x}" for number in range(3)]
        requests = [asked_of(session, dice.sample([*people, *strangers], 2), by_sample=False) for _ in range(8)]
        requests += [asked_of(session, dice.sample([*samples, *strangers], 3), by_sample=True) for _ in range(8)]
        requests.append(asked_of(session, [*lost, *whose["subject_digest"]], by_sample=False))
    held_somewhere = lacking_somewhere = False
    with world.database.read() as session:
        every = session.scalar(select(func.count()).select_from(Membership).where(here)) or 0
        for count in (1, 3, len(requests)):
            asked = dice.sample(requests, count)
            names = names_of(session, TENANT, ("m", generation_id), asked)
            found = members(session, job, names)
            slow = positions(session, TENANT, "m", generation_id, asked)
            assert named_by(names, found) == slow and len(found) <= every
            going = frozenset[int]().union(*slow.values())
            target = target_of(session, generation_id, going)
            assert {row.position for row in found} == going
            assert ({row.holder for row in found}, len({row.subject for row in found})) == (
                set(target.holders),
                target.people,
            )
            held = held_positions(session, TENANT, generation_id) & going
            lacking = without_vector(session, generation_id, target.holders)
            assert {row.position for row in found if row.held} == held
            assert {row.holder for row in found if not row.kept} == lacking
            held_somewhere, lacking_somewhere = held_somewhere or bool(held), lacking_somewhere or bool(lacking)
    assert held_somewhere and lacking_somewhere, "else the comparison shows nothing"
