"""The switch to a retrained generation: what arrives meanwhile is neither lost, forgotten twice, nor in the way."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy import update as change

from expunge_service.infra.db import now
from expunge_service.infra.pseudonyms import sample_digest
from expunge_service.infra.tables import (
    AuditEntry,
    BudgetEntry,
    Certificate,
    DeletionRequest,
    Generation,
    Hold,
    Lease,
    Membership,
    Model,
    Task,
    Version,
)
from expunge_service.models.registration import model_lease
from expunge_service.models.retrain_plan import PlannedRetrain, plan_of, retrain_lease
from expunge_service.queue import Deletions, Preparation, Stale
from expunge_service.requests import cancellation, intake, legal_holds
from expunge_workers.runtime.heartbeat import Stopwatch
from expunge_workers.scheduler import run
from expunge_workers.storage import checkpoint_format, manifest
from expunge_workers.storage.private_state import place_of
from expunge_workers.training import prepare
from tests.harness.files import names_in, root_of
from tests.workers import meanwhile
from tests.workers.rows.test_calibrate import ASKED as CALIBRATED
from tests.workers.training.test_retrain import entries, exhausted, finish_retrain, generations, rows_in, start_retrain
from tests.workers.worlds import TENANT, World, seconds
from unlearning.accounting.budget import mu_of
from unlearning.accounting.certificate import Claim, Guarantee

pytestmark = pytest.mark.usefixtures("reading")


def while_drafting(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Do this once, after the draft's weights are made and before it is published."""
    original, waiting = prepare._draft, [act]

    def draft(*given: Any) -> Any:
        made = original(*given)
        if waiting:
            waiting.pop()()
        return made

    monkeypatch.setattr(prepare, "_draft", draft)


def before(phase: str, world: World, act: Callable[[], object]) -> Stopwatch:
    """A stopwatch that does this once, when the phase begins."""
    waiting = [act]

    class Watch(Stopwatch):
        @contextmanager
        def phase(self, name: str) -> Iterator[None]:
            if name == phase and waiting:
                waiting.pop()()
            with super().phase(name):
                yield

    return Watch(world.pulse())


def fallback_model(world: World, **policy: object) -> str:
    """A model whose retrain is planned while its generation can still update."""
    model_id = world.live(guarantee="proved", fallback="retrain", **policy)
    world.delete(samples=["s0"])
    world.work(model_id)
    return model_id


def in_generation(world: World, generation_id: int, sample: str) -> bool:
    with world.database.read() as session:
        found = select(Membership.position).where(
            Membership.generation_id == generation_id,
            Membership.sample_digest == sample_digest(world.storage.pepper, TENANT, sample),
        )
        return session.scalar(found) is not None


def test_a_request_that_comes_after_the_draft_waits_for_the_new_generation(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requiring it in the switch would draft again as long as requests stream in."""
    model_id = exhausted(world)
    job, ready, watch = start_retrain(world, model_id)
    late: list[str] = []
    while_drafting(monkeypatch, lambda: late.append(world.delete("p9")))
    finish_retrain(world, job, ready, watch)
    head = world.head(model_id)
    assert (head.samples, head.generation_id, world.generation(model_id).spent) == (0, job.generation_id, 0)
    assert (world.request(late[0]).status, world.task(late[0]).reason) == ("queued", None)
    world.work(model_id)
    assert (world.request(late[0]).status, world.task(late[0]).samples) == ("completed", 3)
    assert world.head(model_id).number == head.number + 1


def test_whoever_the_old_generation_forgets_during_the_draft_is_not_in_the_switch(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_id = fallback_model(world)
    job, ready, watch = start_retrain(world, model_id)
    done: list[str] = []

    def release_another() -> None:
        done.append(world.delete("p7"))
        deletions = world.claim(model_id, owner="second")
        assert isinstance(deletions, Deletions)
        world.update(deletions)
        assert world.request(done[0]).status == "completed"

    while_drafting(monkeypatch, release_another)
    finish_retrain(world, job, ready, watch)
    assert [version.number for version in world.versions(model_id)] == [1, 2, 3]
    generation = world.generation(model_id)
    assert (generation.id, generation.spent) == (job.generation_id, generation.budget_cost)
    claim = Claim.from_json(world.head(model_id).claim)
    assert (claim.guarantee, claim.method, claim.samples) == (Guarantee.PROVED, "recollection", 1)
    assert rows_in(world, Membership, generation.id) == 35
    again = world.delete("p7")
    world.work(model_id)
    assert (world.task(again).samples, world.task(again).reason) == (0, "already_deleted")


@pytest.mark.parametrize("kept_by", ["hold", "window"])
def test_a_retrain_that_the_person_was_kept_in_counts_in_the_certificate(
    world: World, kept_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was planned after she had asked, and its budget is spent on her all the same: the wait ended meanwhile."""
    model_id = world.live(guarantee="proved", fallback="retrain")
    if kept_by == "hold":
        world.hold("p7")
    request = world.delete("p7")
    if kept_by == "window":
        world.change(Task, world.task(request).id, not_before=world.task(request).created_at + seconds(3600))
    world.work(model_id)
    assert world.request(request).reason == ("legal_hold" if kept_by == "hold" else None)
    world.delete(samples=["s0"])
    world.work(model_id)
    job, ready, watch = start_retrain(world, model_id)
    assert in_generation(world, job.generation_id, "s21")

    def wait_ends() -> None:
        with world.database.write() as session:
            if kept_by == "hold":
                legal_holds.lift_hold(session, session.scalars(select(Hold)).one())
            else:
                session.get_one(Task, world.task(request).id).not_before = now(session)
        deletions = world.claim(model_id, owner="second")
        assert isinstance(deletions, Deletions)
        world.update(deletions)

    while_drafting(monkeypatch, wait_ends)
    finish_retrain(world, job, ready, watch)
    assert run.open_scheduler(world.settings).tick()
    with world.database.read() as session:
        envelope = json.loads(
            session.get_one(Certificate, (request, world.request(request).completed_at)).envelope or ""
        )
    (part,) = json.loads(b64decode(envelope["payload"]))["predicate"]["models"]
    limits = [Claim.from_json(version.claim).limit or 0 for version in world.versions(model_id)[1:]]
    assert part["generations"] == [part["generation"], job.generation_id]
    assert part["from_this_version_on"]["mu"] == mu_of(sum(limits))


def test_a_hold_that_comes_between_training_and_switch_keeps_its_person(world: World) -> None:
    model_id = exhausted(world)
    held = world.delete("p5")
    job = world.claim(model_id)
    assert isinstance(job, Preparation) and job.retrains
    prepare.prepare(world.process, job, before("unlearn", world, lambda: world.hold("p5")))
    assert (world.request(held).status, world.request(held).reason) == ("blocked", "legal_hold")
    assert in_generation(world, world.generation(model_id).id, "s15")
    assert world.head(model_id).samples == 0
    with world.database.write() as session:
        hold = session.scalars(select(legal_holds.Hold)).one()
        legal_holds.lift_hold(session, hold)
    world.work(model_id)
    assert (world.request(held).status, world.task(held).samples) == ("completed", 3)


def test_a_request_inside_its_cancel_window_is_not_forgotten_by_the_switch(world: World) -> None:
    model_id = exhausted(world)
    job, ready, watch = start_retrain(world, model_id)
    with world.database.write() as session:
        order = intake.Order(subject_id="p9")
        request = intake.accept(session, world.storage.pepper, TENANT, order, intake.Windows(3600)).request.id
    finish_retrain(world, job, ready, watch)
    assert world.request(request).status == "queued"
    with world.database.write() as session:
        cancellation.cancel(session, session.get_one(DeletionRequest, request))
    assert world.request(request).status == "cancelled"
    assert in_generation(world, world.generation(model_id).id, "s27")


@pytest.mark.parametrize("asked", ["before the training", "after the training"])
@pytest.mark.parametrize("cancelled", [True, False])
def test_a_request_that_arrives_while_a_model_is_prepared_can_be_cancelled_in_its_whole_window(
    world: World, asked: str, cancelled: bool
) -> None:
    """Version 1 holds the person. When it is over, an update forgets them. One of the requests matches nobody: it waits
    only where it came before the members were known.
    """
    model_id, requests = world.register(), list[str]()

    def ask() -> None:
        with world.database.write() as session:
            orders = [intake.Order(subject_id=subject) for subject in ("p9", "nobody")]
            accepted = intake.accept_all(session, world.storage.pepper, TENANT, orders, intake.Windows(3600))
            requests.extend(each.request.id for each in accepted)

    if asked == "before the training":
        ask()
    job, watch = world.claim(model_id), Stopwatch(world.pulse())
    assert isinstance(job, Preparation)
    ready = prepare.make_ready(world.process, job, watch)
    if asked == "after the training":
        ask()
    assert prepare.bring_into_service(world.process, job, ready, watch)
    waiting = requests if asked == "before the training" else requests[:1]
    at_once = [world.request(each) for each in requests if each not in waiting]
    assert [world.request(each).status for each in waiting] == ["queued"] * len(waiting)
    assert {(each.status, each.reason) for each in at_once} <= {("completed", "no_match")}
    assert in_generation(world, world.generation(model_id).id, "s27")
    with world.database.write() as session:
        if cancelled:
            for each in waiting:
                cancellation.cancel(session, session.get_one(DeletionRequest, each))
        else:
            session.execute(change(Task).values(not_before=1))
            session.get_one(Model, model_id).due_at = None
    world.work(model_id)
    assert {world.request(each).status for each in waiting} == {"cancelled" if cancelled else "completed"}
    assert world.head(model_id).samples == (0 if cancelled else 3)
    reasons = [None, None if cancelled else "no_match"]
    assert [world.task(each).reason for each in waiting] == reasons[: len(waiting)]


def test_a_preparation_that_begins_again_knows_nobody_until_its_members_are_written_again(world: World) -> None:
    model_id = world.register()
    job, watch = world.claim(model_id), Stopwatch(world.pulse())
    assert isinstance(job, Preparation)
    prepare.make_ready(world.process, job, watch)
    assert world.request(world.delete("nobody")).reason == "no_match"
    prepare.clean(world.process, job)
    assert world.request(world.delete("nobody")).status == "queued"


def test_a_worker_that_lost_its_lease_writes_no_members(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block is written before the fence, so that requests wait for the model's row no longer than they must."""
    model_id = world.register()
    job, rows = world.claim(model_id), manifest.rows
    assert isinstance(job, Preparation)

    def late(*place: Any) -> Any:
        world.change(Lease, model_lease(model_id), token=1)
        return rows(*place)

    monkeypatch.setattr(manifest, "rows", late)
    with pytest.raises(Stale):
        prepare.make_ready(world.process, job, Stopwatch(world.pulse()))
    assert world.rows_of(Membership) == []


def test_what_is_approved_is_carried_out_while_another_request_can_still_be_cancelled(world: World) -> None:
    """Version 1 leaves the model's next work due when the first window is over. An approval is work now."""
    model_id = world.register()
    with world.database.write() as session:
        orders = [intake.Order(subject_id="p9")]
        intake.accept_all(session, world.storage.pepper, TENANT, orders, intake.Windows(3600))
    world.work(model_id)
    with world.database.write() as session:
        large = intake.Windows(large_samples=1, large_seconds=3600)
        request = intake.accept(session, world.storage.pepper, TENANT, intake.Order(subject_id="p5"), large).request.id
    assert world.request(request).reason == "large"
    with world.database.write() as session:
        assert legal_holds.approve(session, session.get_one(DeletionRequest, request)) == [model_id]
    world.work(model_id)
    assert (world.request(request).status, world.head(model_id).samples) == ("completed", 3)


def test_part_of_a_person_asked_during_the_retrain_does_not_take_the_whole_vector(world: World) -> None:
    model_id = exhausted(world, fallback="retrain")
    job, ready, watch = start_retrain(world, model_id)
    part = world.delete(samples=["s15"])
    finish_retrain(world, job, ready, watch)
    assert world.request(part).status == "queued"
    assert world.head(model_id).samples == 0
    for _ in range(3):
        world.work(model_id)
    assert (world.request(part).status, world.task(part).samples) == ("completed", 1)
    whole = world.delete("p5")
    world.work(model_id)
    assert (world.request(whole).status, world.task(whole).samples) == ("completed", 2)


def test_part_of_a_person_asked_during_the_first_preparation_is_held(world: World) -> None:

    model_id = world.register()
    job, watch = world.claim(model_id), Stopwatch(world.pulse())
    assert isinstance(job, Preparation)
    ready = prepare.make_ready(world.process, job, watch)
    part = world.delete(samples=["s15"])
    assert prepare.bring_into_service(world.process, job, ready, watch)
    assert (world.request(part).status, world.request(part).reason) == ("blocked", "partial_subject")
    assert (world.model(model_id).status, world.head(model_id).samples) == ("live", 0)


def test_the_plan_tells_how_many_wait_how_far_it_is_and_when_it_should_end(world: World) -> None:
    model_id = exhausted(world)
    for person in ("p5", "p6"):
        world.delete(person)

    def plan() -> PlannedRetrain | None:
        with world.database.read() as session:
            return plan_of(session, session.get_one(Model, model_id))

    planned = plan()
    assert planned is not None, "it is planned when the last charge is paid"
    assert (planned.reason, planned.waiting, planned.attempt) == ("budget_exhausted", 2, 0)
    assert planned.eta is not None and planned.eta > planned.planned_at
    start_retrain(world, model_id)
    running = plan()
    assert running is not None
    assert (running.attempt, running.generation) == (1, generations(world, model_id)[-1].id)
    world.change(Lease, retrain_lease(model_id), expires_at=1)
    world.work(model_id)
    assert plan() is None


def test_why_the_fallback_was_taken_is_sealed_and_nowhere_else(world: World) -> None:
    model_id = world.live(guarantee="proved", fallback="retrain")
    request = world.delete("p3")
    world.change(Generation, world.model(model_id).generation_id, max_distance=1e-17)
    world.commit_anew(model_id)
    world.work(model_id)
    assert (world.request(request).status, world.task(request).reason) == ("queued", "awaiting_retrain")
    world.work(model_id)
    assert world.request(request).status == "completed"
    head = world.head(model_id)
    with world.database.read() as session:
        log = "\n".join(session.scalars(select(AuditEntry.body)))
    assert "cap_not_reached" not in log
    assert "cap_not_reached" not in json.dumps(head.claim)
    sealed = world.storage.private.read(head.state)
    _, metadata = checkpoint_format.decode(world.storage.sealer.open(place_of(head), sealed))
    assert json.loads(metadata["evidence"])["fallback"] == {"method": "retrain", "why": "cap_not_reached"}
    assert entries(world, "retrain.planned")[0]["reason"] == "fallback"


def test_a_retrained_model_below_the_utility_gate_is_held_and_not_drawn_again(world: World) -> None:
    model_id = exhausted(world, max_accuracy_drop=0.1)
    world.change(Version, world.head(model_id).id, holdout_accuracy=2.0)
    requests = [world.delete("p5"), world.delete("p6")]
    before = world.head(model_id).id
    world.work(model_id)
    world.work(model_id)
    assert {world.request(each).reason for each in requests} == {"accuracy_drop"}
    assert world.head(model_id).id == before
    candidates = generations(world, model_id)[1:]
    assert [each.status for each in candidates] == ["refused"]
    assert rows_in(world, Membership, candidates[0].id) == 0
    assert names_in(world.storage.private) == {world.head(model_id).state}


def test_a_draw_below_the_gate_in_which_somebody_was_forgotten_is_charged(world: World) -> None:
    model_id = exhausted(world, max_accuracy_drop=0.1)
    world.change(Version, world.head(model_id).id, holdout_accuracy=2.0)
    job = world.claim(model_id)
    assert isinstance(job, Preparation) and job.retrains

    prepare.prepare(world.process, job, before("method", world, lambda: world.delete("p5")))
    with world.database.read() as session:
        candidate = session.get_one(Generation, job.generation_id)
        paid = [
            row.budget_cost
            for row in session.scalars(select(BudgetEntry).where(BudgetEntry.generation_id == candidate.id))
        ]
    assert candidate.status == "refused"
    assert paid == [candidate.budget_cost] and candidate.budget_cost > 0


def test_after_three_dead_workers_whoever_waits_is_held_and_can_be_driven_on(world: World) -> None:
    model_id = exhausted(world)
    requests = [world.delete("p5"), world.delete("p6")]
    for _ in range(3):
        job = world.claim(model_id)
        assert isinstance(job, Preparation) and job.retrains
        world.change(Lease, retrain_lease(model_id), expires_at=1)
    assert world.claim(model_id) is None
    assert {(world.request(each).status, world.request(each).reason) for each in requests} == {("blocked", "failed")}
    assert world.model(model_id).status == "exhausted"
    with world.database.write() as session:
        legal_holds.retry(session, session.get_one(DeletionRequest, requests[0]))
    world.work(model_id)
    assert {world.request(each).status for each in requests} == {"completed"}


def test_a_failed_attempt_is_counted_and_made_again_after_a_pause(world: World) -> None:
    model_id = exhausted(world)
    request = world.delete("p5")
    store = root_of(world.storage.store)
    hidden = store.with_name("away")

    def goes_away() -> None:
        store.rename(hidden)
        store.write_text("not a folder")

    meanwhile.HAPPENINGS.append(goes_away)  # while it was away before, nothing would be claimed
    world.work(model_id)
    assert world.request(request).status == "queued"
    assert world.claim(model_id) is None, "there is a pause first"
    store.unlink()
    hidden.rename(store)
    world.change(Lease, retrain_lease(model_id), expires_at=1)
    world.work(model_id)
    assert world.request(request).status == "completed"
    assert world.kinds().count("retrain.claimed") == 2


def test_another_recipe_is_never_switched_to(world: World) -> None:
    model_id = exhausted(world)
    request = world.delete("p5")
    recipe = world.settings.recipes / "convex.py"
    recipe.write_text(recipe.read_text() + "\nEDITED = 1\n")
    world.work(model_id)
    assert (world.request(request).status, world.request(request).reason) == ("blocked", "retrain_refused")
    assert "not the one" in (world.model(model_id).reason or "")


def test_a_held_request_whose_people_the_retrain_left_out_is_completed_by_it(world: World) -> None:
    """Blocked as failed on the old generation; the new one never knew the person."""
    model_id = exhausted(world)
    request = world.delete("p5")
    world.change(Task, world.task(request).id, status="blocked", reason="failed")
    world.work(model_id)
    assert (world.task(request).status, world.task(request).samples) == ("completed", 3)


def test_a_candidate_is_rung_for_whatever_the_models_own_lease_and_cadence_say(world: World) -> None:
    model_id = fallback_model(world)
    with world.database.read() as session:
        later = now(session) + seconds(3600)
    world.change(Model, model_id, due_at=later, notified_at=1)
    world.change(Lease, model_lease(model_id), expires_at=later)
    assert run.sweep(world.database, world.process.notifier) == 1
    job = world.claim(model_id)
    assert isinstance(job, Preparation) and job.retrains
    world.change(Model, model_id, notified_at=1)
    assert run.sweep(world.database, world.process.notifier) == 0


def test_a_deadline_opens_the_batch_three_days_and_two_measured_retrains_ahead(world: World) -> None:
    model_id = world.live(batch=36_000)
    for person in ("p1", "p2"):
        request = world.delete(person)
        world.work(model_id)
    assert world.request(request).status == "queued"
    with world.database.read() as session:
        soon = now(session) + seconds(3 * 86_400 + 3600)
    world.change(DeletionRequest, request, due_at=soon)
    for measured, status in ((600.0, "queued"), (1900.0, "completed")):
        world.change(Generation, world.model(model_id).generation_id, report={"seconds": measured})
        world.change(Model, model_id, due_at=None)
        world.work(model_id)
        assert world.request(request).status == status


def test_a_model_of_the_method_retrain_is_exact_and_never_charged(world: World) -> None:
    model_id = world.live(method="retrain")
    generation = world.generation(model_id).id
    for index in range(3):
        world.delete(f"p{index}")
        world.work(model_id)
        claim = Claim.from_json(world.head(model_id).claim)
        assert (claim.guarantee, claim.method, claim.spent, claim.updates) == (Guarantee.EXACT, "retrain", 0, index + 1)
    assert world.count(BudgetEntry) == 0
    assert (world.generation(model_id).id, world.model(model_id).status) == (generation, "live")


def test_a_calibrated_candidate_that_lacks_a_held_person_is_trained_again_and_not_taken_up(world: World) -> None:
    """What it had prepared would lack them again, each time it is taken up."""
    model_id = world.live(
        "convex",
        "newton",
        fallback="retrain",
        **{**CALIBRATED, "calibration": {**CALIBRATED["calibration"], "sizes": [1]}},
    )
    held, _ = world.delete("p5"), world.delete("p6")
    world.work(model_id)
    assert world.task(held).reason == "awaiting_retrain"
    job = world.claim(model_id)
    assert isinstance(job, Preparation) and job.retrains
    drafts: list[int] = []

    def place_a_hold() -> None:
        drafts.append(1)
        assert len(drafts) < 4, "it drafts without end"
        if len(drafts) == 1:
            world.hold("p5")

    class Watch(Stopwatch):
        @contextmanager
        def phase(self, name: str) -> Iterator[None]:
            if name == "unlearn":
                place_a_hold()
            with super().phase(name):
                yield

    prepare.prepare(world.process, job, Watch(world.pulse()))
    assert (world.request(held).status, world.request(held).reason) == ("blocked", "legal_hold")
    assert in_generation(world, world.generation(model_id).id, "s15")


def test_whoever_is_forgotten_while_the_candidate_is_trained_and_held_since_does_not_come_back(world: World) -> None:
    model_id = world.live(
        "convex",
        "newton",
        fallback="retrain",
        **{**CALIBRATED, "calibration": {**CALIBRATED["calibration"], "sizes": [1]}},
    )
    together = world.delete("p5"), world.delete("p6")
    world.work(model_id)
    job = world.claim(model_id)
    assert isinstance(job, Preparation) and job.retrains

    def forget_and_hold() -> None:
        gone = world.delete("p2")
        world.work(model_id)
        assert world.request(gone).status == "completed"
        world.hold("p2")

    prepare.prepare(world.process, job, before("unlearn", world, forget_and_hold))
    assert {world.request(each).status for each in together} == {"completed"}
    assert world.generation(model_id).id == job.generation_id
    assert not in_generation(world, job.generation_id, "s6")
    assert in_generation(world, job.generation_id, "s9")
