"""What an operator is told to do about a blocked request, done with a real worker: it ends the wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.access.api_keys import Scope, create_key
from service.api.app import create_app
from service.infra.tables import Model
from tests.harness.files import root_of
from tests.harness.ways_out import Follow, by_call, by_command
from tests.workers.test_retrain import exhausted
from tests.workers.worlds import World

PATH = "/v1/deletion-requests"


@contextmanager
def api_of(world: World) -> Iterator[TestClient]:
    """The API of the world, with a key that holds every scope."""
    with world.database.write() as session:
        key = create_key(session, world.storage.pepper, label="test", scopes=list(Scope), tenant_id="default")
    with TestClient(create_app(world.settings)) as api:
        api.headers["Authorization"] = f"Bearer {key.secret}"
        yield api


@pytest.fixture
def client(world: World) -> Iterator[TestClient]:
    with api_of(world) as api:
        yield api


@pytest.fixture(params=["call", "command"])
def follow(request: pytest.FixtureRequest, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> Follow:
    return by_call(client) if request.param == "call" else by_command(client, monkeypatch)


@contextmanager
def working(world: World, model_id: str) -> Iterator[None]:
    """Let a worker do what waits for the model until the block is left, and once more then."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(0.1):
            world.work(model_id)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    for _ in range(3):
        world.work(model_id)


def shown(client: TestClient, request: str) -> dict[str, Any]:
    return dict(client.get(f"{PATH}/{request}").json())


def step(client: TestClient, request: str, verb: str, path: str = "") -> dict[str, Any]:
    found = [each for each in shown(client, request)["actions"] if each["verb"] == verb and path in str(each)]
    assert len(found) == 1, found
    return dict(found[0])


@pytest.mark.parametrize("verb", ["retrain", "policy"])
def test_an_exhausted_budget_is_resolved_by_its_steps(
    world: World, client: TestClient, follow: Follow, verb: str
) -> None:
    model_id = exhausted(world, on_exhausted="hold")
    request = world.delete("p7")
    world.work(model_id)
    assert (shown(client, request)["status"], shown(client, request)["reason"]) == ("blocked", "budget_exhausted")
    assert client.get("/v1/models/m").json()["actions"] == shown(client, request)["actions"]
    with working(world, model_id):
        follow(step(client, request, verb))
    assert shown(client, request)["status"] == "completed"
    assert (world.model(model_id).status, world.task(request).samples) == ("live", 3)


def test_a_failed_request_names_the_error_and_is_retried_by_its_step(
    world: World, client: TestClient, follow: Follow
) -> None:
    model_id = world.live()
    request = world.delete("p3")
    store = root_of(world.storage.store)
    away = store.with_name("away")
    store.rename(away)
    store.write_text("not a folder")
    for _ in range(4):
        world.change(Model, model_id, due_at=None)
        world.work(model_id)
    told = shown(client, request)
    assert told["status"] == "blocked" and told["reason"].startswith("failed:FileExistsError at files.py:")
    assert told["reason"].rpartition(":")[2].isdigit() and told["reason"].partition(":")[2] in told["title"]
    store.unlink()
    away.rename(store)
    follow(step(client, request, "retry"))
    world.work(model_id)
    assert shown(client, request)["status"] == "completed"


def test_part_of_a_person_is_forgotten_by_the_fallback(world: World, client: TestClient, follow: Follow) -> None:

    model_id = world.live(granularity="subject")
    request = world.delete(samples=["s0"])
    world.work(model_id)
    assert shown(client, request)["reason"] == "partial_subject"
    follow(step(client, request, "policy", "fallback"))
    assert shown(client, request)["status"] == "queued"
    for _ in range(3):
        world.work(model_id)
    assert shown(client, request)["status"] == "completed"
