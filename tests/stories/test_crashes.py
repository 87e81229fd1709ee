"""Processes that die at the worst moment, and requests that come before there is a model to forget in."""

from __future__ import annotations

import signal
from pathlib import Path

import httpx
import pytest
import redis
from sqlalchemy import func, select

from expunge_service.infra.tables import BudgetEntry, Membership, Model, Removal, Version
from tests.harness.stack import Stack


@pytest.mark.drill  # at each point: tests/workers/test_crashes.py
def test_a_worker_killed_in_the_middle_of_a_deletion_completes_it_once_after_a_restart(stack: Stack) -> None:
    name = stack.live("tiny", guarantee="proved")
    stack.restart("worker", TESTS_DIE_AT="worker-after-compute")
    request = stack.delete(name, subject_id="tiny-person-2")
    stack.eventually(lambda: stack.processes["worker"].exit_code, lambda code: code is not None)
    assert stack.processes["worker"].exit_code == -signal.SIGKILL
    assert stack.head(name)["number"] == 1
    assert stack.client.get(f"/v1/deletion-requests/{request['id']}")["status"] in ("queued", "running")

    stack.start("worker")
    ended = stack.ended(request)
    assert (ended["status"], ended["samples"]) == ("completed", 3)
    assert stack.head(name)["number"] == 2
    database = stack.database()
    with database.read() as session:
        model = session.scalars(select(Model).where(Model.name == name)).one()
        versions = session.scalar(select(func.count()).where(Version.model_id == model.id))
        forgotten = session.scalar(select(func.count()).where(Removal.generation_id == model.generation_id))
        charges = session.scalar(select(func.count()).where(BudgetEntry.generation_id == model.generation_id))
    database.close()
    assert (versions, forgotten, charges) == (2, 3, 1)


@pytest.mark.drill
def test_a_person_deleted_before_training_starts_is_never_in_the_model(stack: Stack) -> None:
    stack.stop("worker")
    name = stack.register("tiny", guarantee="proved")
    request = stack.delete(name, subject_id="tiny-person-2")
    stack.start("worker")
    assert stack.ended(request)["models"][0]["version"] == 1
    assert [version["number"] for version in stack.client.pages(f"/v1/models/{name}/versions")] == [1]
    assert positions_of_all_but_forgotten(stack, name) == 57


@pytest.mark.drill
def test_a_person_deleted_while_the_model_trains_is_out_of_its_first_version(stack: Stack) -> None:
    name = stack.register("slow")
    path = f"/v1/models/{name}"
    stack.eventually(
        lambda: stack.client.get(path),
        lambda state: state["preparation"]["progress"] > 0 or state["status"] != "preparing",
    )
    assert stack.client.get(path)["status"] == "preparing"
    request = stack.ended(stack.delete(name, subject_id="tiny-person-2"))
    assert (request["status"], request["models"][0]["version"]) == ("completed", 1)
    assert [version["number"] for version in stack.client.pages(f"/v1/models/{name}/versions")] == [1]
    assert positions_of_all_but_forgotten(stack, name) == 57


@pytest.mark.drill  # at each point, with and without a broker: tests/service/api/test_crashes.py
def test_an_api_process_that_dies_after_commit_has_kept_the_request(stack: Stack) -> None:
    name = stack.live("tiny")
    stack.restart("api", TESTS_DIE_AT="api-after-commit")
    stack.eventually(lambda: alive(stack), bool)
    headers = {"Authorization": f"Bearer {stack.account.api_key}", "Idempotency-Key": "the-same-twice"}
    body = {"subject_id": "tiny-person-2", "models": [name], "suppress": "named_models"}
    try:
        stack.http.post("/v1/deletion-requests", json=body, headers=headers)
        raise AssertionError("the API answered though it was to die first")
    except httpx.TransportError:
        pass
    stack.processes["api"].await_stop(5)
    stack.start("api")
    stack.eventually(lambda: alive(stack), bool)
    again = stack.http.post("/v1/deletion-requests", json=body, headers=headers)
    assert again.status_code == 202
    assert stack.ended(again.json())["samples"] == 3
    assert len(list(stack.client.pages("/v1/deletion-requests", model=name))) == 1


@pytest.mark.drill  # what repairs it: tests/workers/scheduler/test_scheduler.py
def test_a_broker_that_forgot_everything_delays_a_deletion_and_loses_none(stack: Stack) -> None:
    name = stack.live("tiny")
    stack.stop("worker")
    request = stack.delete(name, subject_id="tiny-person-2")
    wipe_broker(stack)
    stack.start("worker")
    assert stack.ended(request)["status"] == "completed"
    assert stack.head(name)["number"] == 2


def wipe_broker(stack: Stack) -> None:
    """Every message that waits is gone; what the broker itself needs stays."""
    url = stack.settings.broker_url
    if url.startswith("redis://"):
        with redis.Redis.from_url(url) as client:
            assert client.dbsize() > 0
            client.flushall()
        return
    messages = [path for path in Path(url.removeprefix("filesystem://")).rglob("*.msg") if path.is_file()]
    assert messages
    for path in messages:
        path.unlink()


def alive(stack: Stack) -> bool:
    try:
        return stack.http.get("/healthz").is_success
    except httpx.TransportError:
        return False


def positions_of_all_but_forgotten(stack: Stack, name: str) -> int:
    """How many samples the model's first version still rests on."""
    database = stack.database()
    with database.read() as session:
        generation = session.scalars(select(Model.generation_id).where(Model.name == name)).one()
        held = session.scalar(select(func.count()).where(Membership.generation_id == generation)) or 0
        gone = session.scalar(select(func.count()).where(Removal.generation_id == generation)) or 0
    database.close()
    return held - gone
