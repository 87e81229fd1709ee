"""``complete_when: served``: a request is over when nobody serves a version from before."""

from __future__ import annotations

from sqlalchemy import delete

from expunge_service.infra.tables import AuditEntry, Certificate, Consumer, Model, Task, Version
from expunge_service.models import consumers
from expunge_service.requests import intake
from expunge_workers.scheduler import run
from tests.workers.training.test_retrain import ONE_UPDATE
from tests.workers.worlds import TENANT, World


def serves(world: World, model_id: str, number: int, name: str = "web") -> None:
    version = next(each for each in world.versions(model_id) if each.number == number)
    with world.database.write() as session:
        consumers.report_consumer(
            session, session.get_one(Model, model_id), name, session.get_one(Version, version.id), "actor"
        )


def stands(world: World, request: str) -> tuple[str, str | None, int | None]:
    task = world.task(request)
    assert (world.request(request).status == "completed") == (task.completed_at is not None)
    return task.status, task.reason, task.samples


def test_a_request_waits_until_every_known_consumer_has_moved_on(world: World) -> None:
    model_id = world.live(guarantee="proved", complete_when="served")
    for name in ("web", "batch"):
        serves(world, model_id, 1, name)
    request = world.delete("p1")
    world.work(model_id)
    waiting = ("running", "awaiting_consumers", 3)
    assert (world.head(model_id).number, stands(world, request)) == (2, waiting)
    assert world.count(Certificate) == 0
    serves(world, model_id, 2)
    assert run.complete_served(world.database) == 0 and stands(world, request) == waiting
    world.change(Consumer, (model_id, "batch"), seen_at=1)
    assert run.complete_served(world.database) == 0, "one that fell silent is unknown, never current"
    later = world.delete("p2")
    world.work(model_id)
    assert world.head(model_id).number == 3 and stands(world, request) == waiting == stands(world, later)
    serves(world, model_id, 2, "batch")
    assert run.complete_served(world.database) == 1
    assert stands(world, request) == ("completed", None, 3) and stands(world, later) == waiting
    assert world.count(Certificate) == 1
    for name in ("web", "batch"):
        serves(world, model_id, 3, name)
    assert run.complete_served(world.database) == 1 and stands(world, later) == ("completed", None, 3)


def test_a_consumer_that_is_gone_for_good_keeps_nobody_waiting(world: World) -> None:
    model_id = world.live(guarantee="proved", complete_when="served")
    serves(world, model_id, 1)
    request = world.delete("p1")
    world.work(model_id)
    with world.database.write() as session:
        consumers.remove_consumer(
            session, session.get_one(Model, model_id), session.get_one(Consumer, (model_id, "web"))
        )
    assert run.complete_served(world.database) == 1 and stands(world, request)[0] == "completed"
    assert "consumer.removed" in {entry.kind for entry in world.rows_of(AuditEntry)}


def test_without_consumers_or_matches_there_is_nothing_to_wait_for(world: World) -> None:
    model_id = world.live(guarantee="proved", complete_when="served")
    alone = world.delete("p1")
    world.work(model_id)
    assert stands(world, alone) == ("completed", None, 3)
    serves(world, model_id, 1)
    again = world.delete("p1")
    world.work(model_id)
    assert stands(world, again) == ("running", "awaiting_consumers", 0), "it is gone, and still served"
    serves(world, model_id, 2)
    assert run.complete_served(world.database) == 1 and stands(world, again) == (
        "completed",
        "already_deleted",
        0,
    )


def test_a_switch_leaves_alone_what_only_waits_for_consumers(world: World) -> None:
    model_id = world.live(guarantee="proved", complete_when="served", **ONE_UPDATE)
    serves(world, model_id, 1)
    requests = []
    while world.model(model_id).status == "live":
        requests.append(world.delete(f"p{len(requests)}"))
        world.work(model_id)
    tasks = [world.task(request) for request in requests]
    world.work(model_id)
    assert world.versions(model_id)[-1].generation_id != tasks[0].version_id
    for request, before in zip(requests, tasks, strict=True):
        after = world.task(request)
        assert (after.version_id, after.samples, after.reason) == (before.version_id, 3, "awaiting_consumers")
    with world.database.write() as session:
        session.execute(delete(Consumer))
    assert run.complete_served(world.database) == len(requests)


def test_a_large_request_is_not_carried_out_by_a_retrain_before_it_is_approved(world: World) -> None:
    model_id = world.live(guarantee="proved", fallback="retrain", **ONE_UPDATE)
    with world.database.write() as session:
        order = intake.Order(subject_id="p9")
        held = intake.accept(session, world.storage.pepper, TENANT, order, intake.Windows(0, 2, 3600)).request.id
    index = 0
    while world.model(model_id).status == "live":
        world.delete(f"p{index}")
        world.work(model_id)
        index += 1
    world.work(model_id)
    assert world.model(model_id).status == "live" and world.generation(model_id).status == "live"
    assert stands(world, held) == ("blocked", "large", None)
    world.change(Task, world.task(held).id, not_before=1)
    run.retry_large(world.database)
    world.work(model_id)
    assert stands(world, held) == ("completed", None, 3)
