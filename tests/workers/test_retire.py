"""Ending a model with a real worker and scheduler: nothing is published afterwards, and nothing of it is left."""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select

from expunge_service.infra.stores import Damaged
from expunge_service.infra.tables import AuditEntry, Certificate, Erasure, Membership, StoredVector
from expunge_service.requests.reasons import Reason
from expunge_workers.scheduler.run import open_scheduler
from expunge_workers.storage.key_store import HolderKey
from tests.faults.invariants import broken
from tests.workers import meanwhile
from tests.workers.test_crashes import die_at
from tests.workers.test_resolved import api_of
from tests.workers.worlds import World, end_schedulers_lease

MODEL = "/v1/models/m"


@pytest.fixture
def client(world: World) -> Iterator[TestClient]:
    with api_of(world) as api:
        yield api


def shown(client: TestClient, request: str) -> dict[str, Any]:
    found: dict[str, Any] = client.get(f"/v1/deletion-requests/{request}").json()
    return found


def keys_left(world: World) -> int:
    """Count the keys that open anything."""
    with world.storage.keys._database.read() as session:
        return len(session.scalars(select(HolderKey.id).where(HolderKey.file != "")).all())


def kinds(world: World, kind: str) -> int:
    with world.database.read() as session:
        return len(session.scalars(select(AuditEntry.id).where(AuditEntry.kind == kind)).all())


def tick(world: World) -> None:
    end_schedulers_lease(world)
    assert open_scheduler(world.settings).tick()


@pytest.mark.both_engines
def test_a_retired_model_ends_its_requests_and_leaves_nothing(world: World, client: TestClient) -> None:
    model_id = world.live(guarantee="proved")
    done = world.delete("p0")
    world.work(model_id)
    waiting = world.delete("p3")
    state, checkpoint = world.head(model_id).state, f"{MODEL}/versions/2/checkpoint"
    assert client.get(checkpoint).status_code == 200
    assert "expunge_budget_spent_ratio{" in client.get("/metrics").text
    answer = client.post(f"{MODEL}/retire")
    assert (answer.status_code, answer.json()["status"], answer.json()["current"]) == (200, "retired", None)
    assert client.post(f"{MODEL}/retire").json() == answer.json()
    assert kinds(world, "model.retired") == 1
    assert "expunge_budget_spent_ratio{" not in client.get("/metrics").text
    told = shown(client, waiting)
    assert (told["status"], told["models"][0]["reason"]) == ("completed", "model_retired")
    assert told["models"][0]["title"] == Reason.MODEL_RETIRED.sentence and told["actions"] == []
    for path in (checkpoint, f"{MODEL}/versions/current/checkpoint", f"{MODEL}/versions/current"):
        gone = client.get(path)
        assert (gone.status_code, gone.json()["code"]) == (410, "model_retired")
    tick(world)
    tick(world)
    assert world.count(StoredVector) == world.count(Membership) == keys_left(world) == 0
    assert all(each.destroyed_at is not None for each in world.rows_of(Erasure))
    with pytest.raises(Damaged):
        world.storage.private.read(state)
    certificates = {each.request_id: each for each in world.rows_of(Certificate)}
    assert set(certificates) == {done} and certificates[done].envelope is not None
    payload = json.loads(b64decode(json.loads(certificates[done].envelope)["payload"]))
    assert payload["predicate"]["models"][0]["keys_destroyed_with_release"]["count"] == 1
    assert shown(client, world.delete("p5"))["status"] == "completed"
    assert broken(world.database) == []


def test_a_certificate_claims_nothing_about_a_model_that_was_retired(world: World, client: TestClient) -> None:
    other, model_id = world.live(guarantee="proved", name="other"), world.live(guarantee="proved")
    request = world.delete("p3")
    world.work(other)
    assert world.model(model_id).status == "live" and client.post(f"{MODEL}/retire").status_code == 200
    tick(world)
    tick(world)
    (row,) = world.rows_of(Certificate)
    predicate = json.loads(b64decode(json.loads(row.envelope)["payload"]))["predicate"]
    assert (row.request_id, [part["model"] for part in predicate["models"]]) == (request, ["other"])
    (said,) = predicate["without_version"]
    assert (said["model"], said["reason"]) == ("m", "model_retired")
    assert "no certificate covers it" in said["statement"] and predicate["together"] is None


def test_an_update_that_is_under_way_publishes_nothing_once_the_model_is_retired(
    world: World, client: TestClient
) -> None:
    model_id = world.live(method="retrain")
    request = world.delete("p3")
    meanwhile.HAPPENINGS.append(lambda: client.post(f"{MODEL}/retire"))
    world.work(model_id)
    assert meanwhile.HAPPENINGS == []
    assert (len(world.versions(model_id)), world.task(request).reason) == (1, "model_retired")
    assert world.model(model_id).status == "retired" and world.claim(model_id) is None
    assert broken(world.database) == []


def test_a_legal_hold_keeps_a_model_until_it_is_lifted(world: World, client: TestClient) -> None:
    world.live()
    hold = client.post("/v1/holds", json={"subject_id": "p3", "reason": "case 1"}).json()["id"]
    refused = client.post(f"{MODEL}/retire")
    assert (refused.status_code, refused.json()["code"]) == (409, "legal_hold")
    lift = refused.json()["actions"][-1]
    assert (lift["verb"], lift["path"]) == ("lift", f"/v1/holds/{hold}")
    assert world.model(world.model_named("m")).status == "live"
    client.request(lift["method"], lift["path"])
    assert client.post(f"{MODEL}/retire").status_code == 200


def test_a_cancelled_preparation_frees_its_name_and_leaves_nothing(world: World, client: TestClient) -> None:
    model_id = world.register()
    request = world.delete("p3")
    meanwhile.HAPPENINGS.append(lambda: client.post(f"{MODEL}/retire"))
    world.work(model_id)
    answer = client.get(MODEL).json()
    assert (answer["status"], answer["actions"][0]["verb"]) == ("cancelled", "register")
    assert client.post(f"{MODEL}/retire").status_code == 200 and kinds(world, "model.cancelled") == 1
    told = shown(client, request)
    assert (told["status"], told["models"][0]["reason"]) == ("completed", "not_published")
    assert world.versions(model_id) == []
    tick(world)
    assert world.count(StoredVector) == world.count(Membership) == keys_left(world) == 0
    again = world.live(leave_out_forgotten=True)
    assert again != model_id and world.model(model_id).name == "m-cancelled-1"
    assert broken(world.database) == []


def test_keys_that_a_worker_made_before_the_cancel_are_destroyed(world: World, client: TestClient) -> None:
    model_id = world.register()
    world.storage.keys.create(world.generation(model_id).id, 3)
    assert client.post(f"{MODEL}/retire").status_code == 200
    assert keys_left(world) == 3
    tick(world)
    assert keys_left(world) == 0
    world.storage.keys.create(world.generation(model_id).id, 2)  # by a worker that has not noticed yet
    tick(world)
    assert keys_left(world) == 0


def test_a_preparation_is_not_ended_by_whom_it_was_shown_to_before_the_model_went_live(
    world: World, client: TestClient
) -> None:
    model_id = world.register()
    before = client.get(MODEL)
    assert [each["verb"] for each in before.json()["actions"]] == ["retire"]
    world.work(model_id)
    refused = client.post(f"{MODEL}/retire", headers={"If-Match": before.headers["etag"]})
    assert (refused.status_code, world.model(model_id).status) == (412, "live")


DEATHS = [
    ("sqlite", "retire-after-audit"),
    ("sqlite", "erase-after-state"),
    ("sqlite", "keys-erased"),
    ("postgresql", "retire-inside-commit"),
    *(
        pytest.param(*case, marks=pytest.mark.drill)
        for case in (
            ("sqlite", "retire-inside-commit"),
            ("postgresql", "retire-after-audit"),
            ("postgresql", "erase-after-state"),
            ("postgresql", "keys-erased"),
        )
    ),
]


def call(world: World, path: str, method: str = "POST", body: dict[str, str] | None = None) -> None:
    with api_of(world) as api:
        assert api.request(method, path, json=body).status_code == 200


@pytest.mark.both_engines
@pytest.mark.parametrize(("database_url", "point"), DEATHS, indirect=["database_url"])
def test_retiring_survives_a_death_at_each_point(world: World, point: str) -> None:
    model_id = world.live(guarantee="proved")
    request = world.delete("p3")
    candidate = world.register(name="n")
    world.storage.keys.create(world.generation(candidate).id, 2)
    asked = point.startswith("retire")
    if not asked:
        call(world, f"{MODEL}/retire")
        call(world, "/v1/models/n/retire")
    world.storage.database.close()
    world.storage.keys.close()
    die_at(world, point, lambda other: call(other, f"{MODEL}/retire") if asked else tick(other))
    if asked:
        assert world.model(model_id).status in ("live", "retired")
        call(world, f"{MODEL}/retire")
        call(world, "/v1/models/n/retire")
    tick(world)
    tick(world)
    assert (world.model(model_id).status, kinds(world, "model.retired")) == ("retired", 1)
    assert (world.request(request).status, world.task(request).reason) == ("completed", "model_retired")
    assert world.count(StoredVector) == keys_left(world) == 0
    assert all(each.destroyed_at is not None for each in world.rows_of(Erasure))
    assert broken(world.database) == []


@pytest.mark.parametrize("point", ["cancel-after-audit", "retire-inside-commit"])
def test_cancelling_survives_a_death_at_each_point(world: World, point: str) -> None:
    model_id = world.register()
    request = world.delete("p3")
    world.storage.database.close()
    world.storage.keys.close()
    die_at(world, point, lambda other: call(other, f"{MODEL}/retire"))
    assert world.model(model_id).status in ("preparing", "cancelled")
    call(world, f"{MODEL}/retire")
    assert (world.model(model_id).status, kinds(world, "model.cancelled")) == ("cancelled", 1)
    assert world.request(request).status == "completed"
    assert broken(world.database) == []


@pytest.mark.parametrize("point", ["policy-after-audit", "policy-inside-commit"])
def test_a_change_of_policy_survives_a_death_at_each_point(world: World, point: str) -> None:
    model_id = world.live(fallback="hold")
    change = {"fallback": "retrain"}
    world.storage.database.close()
    world.storage.keys.close()
    die_at(world, point, lambda other: call(other, f"{MODEL}/policy", "PATCH", change))
    assert world.model(model_id).policy["fallback"] in ("hold", "retrain")
    call(world, f"{MODEL}/policy", "PATCH", change)
    assert (world.model(model_id).policy["fallback"], kinds(world, "model.policy_changed")) == ("retrain", 1)
