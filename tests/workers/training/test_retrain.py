"""Preparation as a release: one plan for everyone who waits, the old generation releases on, and nobody slips
through.
"""

from __future__ import annotations

import json

import pytest
from sqlalchemy import select

from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.tables import (
    AuditEntry,
    Certificate,
    Erasure,
    Generation,
    Lease,
    Membership,
    Model,
    Removal,
    StoredVector,
    Task,
    TrainedPart,
    WorkUnit,
)
from expunge_service.models import plan_new_data
from expunge_service.models.retrain_plan import retrain_lease
from expunge_service.queue import Deletions, Preparation, Stale
from expunge_workers.runtime.heartbeat import Stopwatch
from expunge_workers.runtime.process import Process
from expunge_workers.scheduler import run
from expunge_workers.training import prepare
from expunge_workers.training.keyed_parts import KeyedParts
from tests.workers.worlds import TENANT, World
from unlearning.accounting.certificate import Claim, Guarantee
from unlearning.types import Progress

pytestmark = pytest.mark.usefixtures("reading")
ONE_UPDATE = {"epsilon": 1.0, "noise_std": 0.01, "max_distance": 0.0018}
"""a policy whose budget allows two updates"""


def exhausted(world: World, **policy: object) -> str:
    """A model whose budget allows no further update."""
    model_id = world.live(guarantee="proved", **({"fallback": "retrain"} | ONE_UPDATE | policy))
    index = 0
    while world.model(model_id).status == "live":
        world.delete(f"p{index}")
        world.work(model_id)
        index += 1
    assert index < 4
    return model_id


def generations(world: World, model_id: str) -> list[Generation]:
    with world.database.read() as session:
        return list(session.scalars(select(Generation).where(Generation.model_id == model_id).order_by(Generation.id)))


def rows_in(world: World, record: type, generation_id: int) -> int:
    with world.database.read() as session:
        return len(session.execute(select(record.generation_id).where(record.generation_id == generation_id)).all())


def entries(world: World, kind: str) -> list[dict[str, object]]:
    with world.database.read() as session:
        bodies = session.scalars(select(AuditEntry.body).where(AuditEntry.kind == kind).order_by(AuditEntry.id))
        return [json.loads(body) for body in bodies]


def test_an_exhausted_budget_is_told_once_and_leads_to_one_retrain_for_everyone_who_waits(world: World) -> None:
    model_id = exhausted(world)
    before = world.head(model_id)
    assert world.model(model_id).status == "exhausted"
    requests = [world.delete(person) for person in ("p5", "p6", "p7", "p7", "p8")]
    assert all(world.request(request).status == "queued" for request in requests)
    world.work(model_id)
    model, head = world.model(model_id), world.head(model_id)
    assert {world.request(request).status for request in requests} == {"completed"}
    assert [world.task(request).samples for request in requests] == [3, 3, 3, 3, 3]
    assert (head.number, head.parent_id, head.samples, head.people) == (before.number + 1, before.id, 12, 4)
    assert (model.status, model.generation_id) == ("live", head.generation_id)
    old, fresh = generations(world, model_id)
    assert (old.status, fresh.status) == ("ended", "live")
    assert len(entries(world, "budget.exhausted")) == len(entries(world, "retrain.planned")) == 1
    assert entries(world, "retrain.planned")[0]["reason"] == "budget_exhausted"
    assert isinstance(entries(world, "retrain.planned")[0]["eta_seconds"], float)


def test_a_cold_retrain_is_exact_and_leaves_the_fresh_budget_whole(world: World) -> None:
    model_id = exhausted(world)
    request = world.delete("p5")
    world.work(model_id)
    generation, head = world.generation(model_id), world.head(model_id)
    claim = Claim.from_json(head.claim)
    assert (claim.guarantee, claim.method, claim.samples, claim.people) == (Guarantee.EXACT, "retrain", 3, 1)
    assert (head.method, world.task(request).method) == ("retrain", "retrain")
    assert (generation.spent, generation.guarantee, generation.method) == (0, "proved", "recollection")
    assert world.model(model_id).status == "live"
    world.delete("p6")
    world.work(model_id)
    after = Claim.from_json(world.head(model_id).claim)
    assert (after.guarantee, after.method, after.updates) == (Guarantee.PROVED, "recollection", 1)
    assert world.generation(model_id).spent == generation.budget_cost
    assert world.claims_logged(model_id) == world.head(model_id).number


def test_a_retrain_reads_nothing_of_the_old_generations_secret_state(world: World) -> None:
    """Version 1 of a generation is free only when it is cold: it is built with the old weights destroyed."""
    model_id = exhausted(world)
    world.storage.private.delete(world.head(model_id).state)
    world.delete("p5")
    world.work(model_id)
    claim = Claim.from_json(world.head(model_id).claim)
    assert (claim.guarantee, claim.spent, claim.mu_limit) == (Guarantee.EXACT, 0, 0.0)


def test_the_retrain_starts_when_the_forecast_is_zero_without_waiting_for_a_request(world: World) -> None:
    model_id = exhausted(world)
    world.work(model_id)
    assert (world.model(model_id).status, world.head(model_id).samples) == ("live", 0)
    assert world.generation(model_id).spent == 0


def test_what_the_old_generation_knew_about_people_is_gone_and_its_keys_are_destroyed(world: World) -> None:
    model_id = exhausted(world)
    old = world.generation(model_id).id
    with world.database.read() as session:
        keys = list(session.scalars(select(StoredVector.key_id).where(StoredVector.generation_id == old)))
    world.delete("p5")
    world.work(model_id)
    assert rows_in(world, StoredVector, old) == 0
    assert rows_in(world, Membership, old) == 36, "certificates still to be issued commit to its samples"
    assert run.open_scheduler(world.settings).tick()
    assert all(each.envelope for each in world.rows_of(Certificate))
    assert rows_in(world, Membership, old) == 0
    assert keys and world.storage.keys.fetch(keys) == {}
    assert all(erasure.destroyed_at is not None for erasure in world.rows_of(Erasure))
    fresh = world.generation(model_id).id
    assert rows_in(world, StoredVector, fresh) == rows_in(world, Membership, fresh) / 3 > 0


def test_people_forgotten_before_are_not_in_the_new_generation(world: World) -> None:
    model_id = exhausted(world)
    gone = world.count(Removal)
    world.work(model_id)
    assert rows_in(world, Membership, world.generation(model_id).id) == 36 - gone


def start_retrain(world: World, model_id: str) -> tuple[Preparation, prepare.Prepared, Stopwatch]:
    """A candidate that is trained and not yet in service."""
    job = world.claim(model_id)
    assert isinstance(job, Preparation) and job.retrains
    watch = Stopwatch(world.pulse())
    return job, prepare.make_ready(world.process, job, watch), watch


def finish_retrain(world: World, job: Preparation, ready: prepare.Prepared, watch: Stopwatch) -> None:
    assert prepare.bring_into_service(world.process, job, ready, watch)


def test_people_who_ask_during_the_retrain_are_forgotten_in_it_before_the_switch(world: World) -> None:
    model_id = exhausted(world)
    job, ready, watch = start_retrain(world, model_id)
    request = world.delete("p9")
    finish_retrain(world, job, ready, watch)
    assert (world.request(request).status, world.task(request).samples) == ("completed", 3)
    head, generation = world.head(model_id), world.generation(model_id)
    assert (head.samples, head.people, head.generation_id) == (3, 1, generation.id)
    with world.database.read() as session:
        forgotten = session.scalars(select(Removal.position).where(Removal.generation_id == generation.id)).all()
    assert len(forgotten) == 3
    assert generation.spent == generation.budget_cost
    world.delete("p10")
    world.work(model_id)
    assert world.head(model_id).claim["updates"] == 2, "the switch forgot somebody too"


def test_the_old_generation_updates_on_while_the_candidate_is_built(world: World) -> None:
    """A fallback retrain leaves the old generation its budget: others need not wait."""
    model_id = world.live(guarantee="proved", fallback="retrain")
    part = world.delete(samples=["s0"])
    world.work(model_id)
    assert (world.request(part).status, world.task(part).reason) == ("queued", "awaiting_retrain")
    job, ready, watch = start_retrain(world, model_id)
    other = world.delete("p7")
    deletions = world.claim(model_id, owner="second")
    assert isinstance(deletions, Deletions)
    world.update(deletions)
    assert (world.request(other).status, world.head(model_id).number) == ("completed", 2)
    finish_retrain(world, job, ready, watch)
    head = world.head(model_id)
    assert (head.number, head.samples, head.people) == (3, 1, 1)
    assert (world.request(part).status, world.task(part).samples) == ("completed", 1)
    fresh = world.generation(model_id).id
    with world.database.read() as session:
        forgotten = session.scalars(select(Removal.position).where(Removal.generation_id == fresh)).all()
    assert len(forgotten) == 3, "p7 was in the candidate's training"


@pytest.mark.both_engines
def test_a_release_that_the_switch_overtook_writes_nothing(world: World) -> None:
    model_id = world.live(guarantee="proved", fallback="retrain")
    world.delete(samples=["s0"])
    world.work(model_id)
    job, ready, watch = start_retrain(world, model_id)
    request = world.delete("p7")
    slow = world.claim(model_id, owner="slow")
    assert isinstance(slow, Deletions)
    finish_retrain(world, job, ready, watch)
    assert world.request(request).status == "completed"
    before = world.footprint()
    with pytest.raises(Stale):
        world.update(slow)
    assert world.footprint() == before


def test_part_of_a_person_is_forgotten_by_the_fallback(world: World) -> None:
    model_id = world.live(fallback="retrain")
    request = world.delete(samples=["s0"])
    world.work(model_id)
    world.work(model_id)
    assert (world.request(request).status, world.task(request).samples) == ("completed", 1)
    assert rows_in(world, Membership, world.generation(model_id).id) == 35
    assert len(entries(world, "retrain.planned")) == 1


def test_only_one_worker_builds_the_candidate_and_a_dead_one_is_replaced(world: World) -> None:
    model_id = exhausted(world)
    first = world.claim(model_id)
    assert isinstance(first, Preparation) and first.retrains
    assert world.claim(model_id, owner="second") is None
    world.change(Lease, retrain_lease(model_id), expires_at=1)
    second = world.claim(model_id, owner="second")
    assert isinstance(second, Preparation) and second.retrains
    assert (second.generation_id, second.attempt) == (first.generation_id, 2)
    with pytest.raises(Stale):
        prepare.prepare(world.process, first, Stopwatch(world.pulse()))
    prepare.prepare(world.process, second, Stopwatch(world.pulse()))
    assert world.model(model_id).status == "live"
    with pytest.raises(Stale):
        prepare.prepare(world.process, second, Stopwatch(world.pulse()))


def test_a_retrain_that_is_refused_holds_who_waits_and_keeps_the_old_head(world: World) -> None:
    model_id = exhausted(world, threshold=0.9)
    head = world.head(model_id).id
    requests = [world.delete("p5"), world.delete("p6")]
    rows = world.rows()
    world.scale_rows(float("nan"), "s22")
    world.work(model_id)
    model = world.model(model_id)
    assert (model.status, model.current_id) == ("exhausted", head)
    assert "NaN" in (model.reason or "")
    assert {(world.request(each).status, world.request(each).reason) for each in requests} == {
        ("blocked", "retrain_refused")
    }
    candidate = generations(world, model_id)[-1]
    assert (candidate.status, rows_in(world, Membership, candidate.id)) == ("refused", 0)
    world.work(model_id)
    assert len(generations(world, model_id)) == 2, "it is not tried again by itself"
    world.write_rows(rows)
    late = world.delete("p7")
    world.work(model_id)
    assert {world.request(each).status for each in (*requests, late)} == {"completed"}


def test_a_legal_hold_keeps_its_person_in_the_retrained_model(world: World) -> None:
    model_id = exhausted(world)
    world.hold("p5")
    held, free = world.delete("p5"), world.delete("p6")
    world.work(model_id)
    assert world.request(free).status == "completed"
    world.work(model_id)
    assert (world.request(held).status, world.request(held).reason) == ("blocked", "legal_hold")
    assert world.head(model_id).people == 1


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The generation of each training that was begun, in order."""
    generations: list[int] = []
    make_ready = prepare.make_ready

    def noted(process: Process, job: Preparation, watch: Stopwatch) -> prepare.Prepared | prepare.Ended:
        generations.append(job.generation_id)
        return make_ready(process, job, watch)

    monkeypatch.setattr(prepare, "make_ready", noted)
    return generations


def test_a_retrain_whose_data_lack_a_held_person_ends_after_five_trainings(world: World, trainings: list[int]) -> None:
    model_id = world.live("means", "retrain")
    head = world.head(model_id).id
    trainings.clear()
    world.hold("p5")
    world.drop_rows("s15", "s16", "s17")
    with world.database.write() as session:
        plan_new_data(session, session.get_one(Model, model_id), dry_run=False)
    world.work(model_id)
    candidate = generations(world, model_id)[-1]
    assert trainings == [candidate.id] * 5
    assert (candidate.status, world.model(model_id).status, world.head(model_id).id) == ("refused", "live", head)
    assert world.model(model_id).reason == (
        "The retrain was refused. It was trained 5 times and could not be used: a legal hold was placed on a person "
        "that the candidate lacks. "
        "Put people under a legal hold back into the data, or lift the hold; then ask for it again."
    )
    assert rows_in(world, Membership, candidate.id) == rows_in(world, TrainedPart, candidate.id) == 0
    world.work(model_id)
    assert len(trainings) == 5, "it is not tried again by itself"


def test_a_training_whose_work_units_vanish_ends_after_five_and_blames_no_hold(
    world: World, trainings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = KeyedParts.attempt

    def attempted(self: KeyedParts, number: int, progress: Progress) -> None:
        attempt(self, number, progress)
        KeyedParts.forget(self.process, self.generation_id)

    monkeypatch.setattr(KeyedParts, "attempt", attempted)
    model_id = world.register("means", "shards", options={"shards": 2})
    world.work(model_id)
    assert (len(trainings), world.model(model_id).status) == (5, "refused")
    assert world.model(model_id).reason == (
        "It was trained 5 times and could not be used: the work units are gone. "
        "Ask for it again. Where it ends so once more, report it with this line."
    )
    assert world.rows_of(Membership) == world.rows_of(TrainedPart) == world.rows_of(WorkUnit) == []


def test_a_legal_hold_brings_nobody_back_whom_the_model_has_forgotten(world: World) -> None:
    """It was placed for the sake of another model, which still has them."""
    other = world.live(name="other", guarantee="proved")
    model_id = exhausted(world)
    world.hold("p0")
    world.delete("p7", models=("m",))
    world.work(model_id)
    assert len(generations(world, model_id)) == 2
    assert not knows(world, model_id, "p0") and knows(world, model_id, "p5")
    assert knows(world, other, "p0")


def knows(world: World, model_id: str, person: str) -> bool:
    """Whether the model's generation was trained on the person."""
    with world.database.read() as session:
        digest = subject_digest(world.storage.pepper, TENANT, person)
        there = select(Membership.position).where(Membership.generation_id == world.generation(model_id).id)
        return session.scalar(there.where(Membership.subject_digest == digest).limit(1)) is not None


def test_the_scheduler_rings_for_a_retrain_and_not_while_it_runs(world: World) -> None:
    model_id = exhausted(world)
    notifier = world.process.notifier
    world.change(Model, model_id, notified_at=1)
    assert run.sweep(world.database, notifier) == 1
    job = world.claim(model_id)
    assert isinstance(job, Preparation) and job.retrains
    world.delete("p5")
    assert run.sweep(world.database, notifier) == 0
    world.change(Lease, retrain_lease(model_id), expires_at=1)
    assert run.sweep(world.database, notifier) == 1


def test_many_requests_at_an_exhausted_budget_lead_to_one_plan(world: World) -> None:
    model_id = exhausted(world)
    requests = [world.delete(f"p{index % 8 + 3}") for index in range(200)]
    world.work(model_id)
    with world.database.read() as session:
        statuses = set(session.scalars(select(Task.status).where(Task.request_id.in_(requests))))
    assert statuses == {"completed"}
    assert len(entries(world, "retrain.planned")) == len(entries(world, "budget.exhausted")) == 1
