"""Nobody comes back unasked: rolling back, publishing, registering anew, and what an ended generation still tells."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from expunge_service.access.api_keys import Scope, create_key
from expunge_service.app import create_app
from expunge_service.infra.tables import DeletionRequest, Model, StoredVector, SuppressionEntry
from expunge_service.queue import Selection, Target
from expunge_service.requests import intake, legal_holds, suppression
from expunge_workers.training.prepare import prepare
from expunge_workers.update import run
from tests.faults.invariants import broken
from tests.workers.training.test_retrain import ONE_UPDATE, exhausted, generations
from tests.workers.update.test_switch import before
from tests.workers.worlds import TENANT, World


@pytest.fixture
def api(world: World) -> Iterator[TestClient]:
    with world.database.write() as session:
        key = create_key(session, world.storage.pepper, label="test", scopes=list(Scope), tenant_id=TENANT)
    with TestClient(create_app(world.settings), headers={"Authorization": f"Bearer {key.secret}"}) as client:
        yield client


def forget(world: World, model_id: str, person: str) -> str:
    request = world.delete(person)
    world.work(model_id)
    return request


def forgotten(world: World, subject: str | None = None, sample: str | None = None) -> list[tuple[str, int]]:
    with world.database.write() as session:
        pepper = world.storage.pepper
        return legal_holds.forgotten_already(session, pepper, TENANT, subject_id=subject, sample_id=sample)


def test_rolling_back_is_refused_with_the_requests_that_the_old_version_does_not_lack(
    world: World, api: TestClient
) -> None:
    model_id = world.live(guarantee="proved")
    first, second = forget(world, model_id, "p1"), forget(world, model_id, "p2")
    path = "/v1/models/m/versions"
    for number, there, gone in ((1, [first, second], []), (2, [second], [first])):
        refused = api.get(f"{path}/{number}/checkpoint")
        assert (refused.status_code, refused.json()["code"]) == (410, "version_superseded")
        detail = refused.json()["detail"]
        assert all(f"request {request} (forgotten in version" in detail for request in there)
        assert not any(request in detail for request in gone)
        assert api.post(f"{path}/{number}/restore").status_code == 404, "there is no way back"
    assert world.head(model_id).number == 3


def test_publishing_a_version_that_still_holds_whom_a_request_names_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planner that overlooks a person: the transaction sees it, and nothing is written."""
    model_id = world.live(guarantee="proved")
    one, other = world.delete("p1"), world.delete("p2")
    job = world.claim(model_id)
    plan = run.plan

    def careless(*values: object, **named: object) -> Selection:
        whole = plan(*values, **named)  # type: ignore[arg-type]
        kept = next(positions for task, positions in whole.forget.items() if task.request_id == one)
        digest = world.request(one).subject_digest or ""
        return replace(whole, target=Target(tuple(sorted(kept)), (digest,), 1))

    before_it = world.footprint()
    monkeypatch.setattr(run, "plan", careless)
    with pytest.raises(RuntimeError, match=f"request {other} names 3 samples that this version still holds"):
        world.update(job)  # type: ignore[arg-type]
    assert world.footprint() == before_it and world.head(model_id).number == 1


def test_a_suppression_that_appears_while_version_one_is_drafted_is_named(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []
    model_id = world.register(recipe="convex", guarantee="proved")
    job = world.claim(model_id)
    with caplog.at_level(logging.WARNING):
        prepare(world.process, job, before("store", world, lambda: asked.append(world.delete("p3"))))  # type: ignore[arg-type]
    assert f"request {asked[0]} names 3 samples" in caplog.text and "p3" not in caplog.text
    assert world.request(asked[0]).status == "completed" and world.model(model_id).status == "live"


def refusal(world: World, name: str, recipe: str = "convex", **policy: str) -> str:
    model_id = world.register(recipe=recipe, name=name, **policy)
    world.work(model_id)
    assert world.model(model_id).status == "refused" and world.versions(model_id) == []
    return world.model(model_id).reason or ""


def test_registering_a_recipe_that_still_names_them_is_refused_with_their_requests_and_what_to_do(
    world: World,
) -> None:
    first = world.live(guarantee="proved")
    one = forget(world, first, "p1")
    with world.database.write() as session:
        order = intake.Order(sample_ids=("s6", "s7", "nobody's"))
        other = intake.accept(session, world.storage.pepper, TENANT, order).request.id
    elsewhere = world.delete("p3", models=("m",))
    told = refusal(world, "again")
    assert "still names 5 samples" in told and f"requests: 2; {', '.join(sorted((one, other)))})" in told
    assert elsewhere not in told, "that one asked to be limited to another model"
    for way in ("Take these samples out", "--leave-out-forgotten", "POST /v1/deletion-requests/REQUEST/lift"):
        assert way in told
    for index in (5, 6, 7):
        forget(world, first, f"p{index}")
    assert "still names 14 samples" in refusal(world, "once_more") and "requests: 5;" in refusal(world, "more")
    assert refusal(world, "last").count(", ") >= 3 and " and 2 more)" in refusal(world, "last_of_all")
    assert world.head(first).number > 1 and broken(world.database) == []


def test_who_is_under_a_hold_or_was_lifted_or_never_verified_keeps_no_recipe_out(world: World) -> None:
    first = world.live(guarantee="proved")
    back = forget(world, first, "p1")
    with world.database.write() as session:
        suppression.lift_suppression(session, session.get_one(DeletionRequest, back), "deleted by mistake")
        legal_holds.place_hold(session, world.storage.pepper, TENANT, subject_id="p2", sample_id=None, reason="court")
    world.delete("p2")
    world.stranger("p3")
    again = world.live(guarantee="proved", name="again")
    assert (world.generation(again).manifest or {})["samples"] == 36


def test_whoever_asks_while_a_model_is_prepared_is_left_out_and_refuses_nothing(world: World) -> None:
    stranger = world.stranger("p4")
    model_id = world.register(recipe="convex", guarantee="proved")
    asked = world.delete("p3")
    world.verify(stranger)
    with world.database.write() as session:  # a clock that was put back meanwhile
        session.execute(update(SuppressionEntry).where(SuppressionEntry.request_id == asked).values(created_at=1))
    world.work(model_id)
    assert world.model(model_id).status == "live", world.model(model_id).reason
    assert (world.generation(model_id).manifest or {})["samples"] == 30
    assert {world.request(each).status for each in (asked, stranger)} == {"completed"}


def test_a_retrain_never_refuses_whatever_its_recipe_still_names(world: World) -> None:
    """A model that had left somebody out, and whose next registration would not."""
    forget(world, world.live(guarantee="proved"), "p1")
    old = world.live(guarantee="proved", name="old", leave_out_forgotten=True, fallback="retrain", **ONE_UPDATE)
    world.change(Model, old, leave_out_forgotten=False)
    index = 2
    while world.model(old).status == "live":
        forget(world, old, f"p{index}")
        index += 1
    world.work(old)
    assert len(generations(world, old)) == 2 and world.model(old).status == "live"
    assert (world.generation(old).manifest or {})["samples"] == 36 - 3 * (index - 1)


def test_registering_a_recipe_that_still_names_them_says_which_requests_keep_them_out(world: World) -> None:
    first = world.live(guarantee="proved")
    requests = [forget(world, first, person) for person in ("p1", "p2")]
    again = world.live(guarantee="proved", name="again", leave_out_forgotten=True)
    told = world.report(again)["kept_out"]
    assert told["requests"] == [{"request": request, "samples": 3} for request in sorted(requests)]
    assert "refused" in told["why"] and "REQUEST/lift" in told["why"]
    assert (
        len({row.holder for row in world.rows_of(StoredVector) if row.generation_id == world.generation(again).id})
        == 10
    )
    assert "kept_out" not in world.report(first)


def test_a_recipe_of_nobody_but_them_is_refused_with_their_requests(world: World) -> None:
    first = world.live(guarantee="proved")
    requests = [world.delete(f"p{index}") for index in range(12)]
    again = world.register(recipe="convex", guarantee="proved", name="again", leave_out_forgotten=True)
    world.work(again)
    model = world.model(again)
    assert model.status == "refused" and sorted(requests)[0] in (model.reason or "")
    assert world.head(first).number == 1


def test_after_a_switch_an_old_deletion_is_still_known(world: World) -> None:
    """Its memberships went with the old generation; a user who asks again, or for a hold, is told what happened."""
    model_id = exhausted(world)
    first = next(row for row in world.rows_of(DeletionRequest) if row.created_at == min_created(world))
    world.work(model_id)
    assert len(generations(world, model_id)) == 2 and world.model(model_id).status == "live"
    repeated = world.delete("p0")
    assert (world.request(repeated).status, world.request(repeated).reason) == ("completed", "already_deleted")
    stranger = world.delete("nobody")
    assert world.request(stranger).reason == "no_match"
    number = next(v.number for v in world.versions(model_id) if v.id == world.task(first.id).version_id)
    for named in ({"subject": "p0"}, {"sample": "s0"}):
        assert ("m", number) in forgotten(world, **named)
    assert not forgotten(world, subject="p11")
    assert not forgotten(world, sample="s35")


def min_created(world: World) -> int:
    return min(row.created_at for row in world.rows_of(DeletionRequest))


def test_a_person_deleted_by_mistake_comes_back_with_the_next_retrain_and_not_before(world: World) -> None:
    model_id = world.live(guarantee="proved", fallback="retrain", **ONE_UPDATE)
    mistake = forget(world, model_id, "p0")
    with world.database.write() as session:
        suppression.lift_suppression(session, session.get_one(DeletionRequest, mistake), "deleted by mistake")
    index = 1
    while world.model(model_id).status == "live":
        forget(world, model_id, f"p{index}")
        index += 1
    assert (world.generation(model_id).manifest or {})["samples"] == 36
    world.work(model_id)
    assert world.model(model_id).status == "live"
    assert (world.generation(model_id).manifest or {})["samples"] == 36 - 3 * (index - 1)
    again = forget(world, model_id, "p0")
    assert (world.request(again).status, world.task(again).samples) == ("completed", 3)
