"""Whoever follows what takes time looks again after a tenth of what is left, every two seconds to every two minutes."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from expunge_service.api.dependencies import Service
from expunge_service.api.http.polling import LEAST_SECONDS, MOST_SECONDS, retry_after
from expunge_service.infra.db import now
from expunge_service.infra.tables import DeletionRequest, Model, Task
from expunge_service.infra.time import DAY_SECONDS, SECOND
from expunge_service.requests.status import settle
from tests.service.conftest import Login
from tests.service.worlds import live_model

PATH = "/v1/deletion-requests"
NOW = 1_700_000_000 * SECOND


@pytest.mark.parametrize(
    ("left", "seconds"),
    [
        ([], 2),
        ([None], 2),
        ([-5.0], 2),
        ([19.0], 2),
        ([60.0], 6),
        ([60.0, None, 300.0], 30),
        ([3600.0], 120),
        ([7 * 86_400.0], 120),
    ],
)
def test_a_tenth_of_what_is_left_within_bounds(left: list[float | None], seconds: int) -> None:
    assert retry_after([None if each is None else NOW + int(each * SECOND) for each in left], NOW) == seconds


@pytest.mark.parametrize("wait", [1.0, 30.0, 600.0, 86_400.0, 7 * 86_400.0])
def test_a_follower_is_late_by_a_tenth_and_never_asks_for_nothing(wait: float) -> None:
    """The slow twin walks through the wait, look by look."""
    at = looks = 0
    while at < wait:
        pause = retry_after([NOW + int(wait * SECOND)], NOW + at * SECOND)
        assert LEAST_SECONDS <= pause <= MOST_SECONDS
        assert pause <= max(LEAST_SECONDS, 0.1 * (wait - at))
        at, looks = at + pause, looks + 1
    assert at - wait <= LEAST_SECONDS and looks <= 100 + wait / MOST_SECONDS


def waits_for_its_batch(client: TestClient, service: Service, seconds: float) -> str:
    """Return the address of a request that waits so long for a model's next update."""
    model = live_model(service)
    made = client.post(PATH, json={"subject_id": "ada"}, headers={"Idempotency-Key": secrets.token_hex(8)}).json()
    with service.database.write() as session:
        session.execute(update(Task).values(reason="awaiting_batch"))
        session.get_one(Model, model.id).due_at = now(session) + int(seconds * SECOND)
    return f"{PATH}/{made['id']}"


@pytest.mark.parametrize(("seconds", "least", "most"), [(7 * DAY_SECONDS, 120, 120), (300, 28, 30), (10, 2, 2)])
def test_a_request_that_waits_for_its_batch_says_when_to_look_again(
    client: TestClient, service: Service, seconds: int, least: int, most: int
) -> None:
    answer = client.get(waits_for_its_batch(client, service, seconds))
    assert least <= int(answer.headers["retry-after"]) <= most


def test_a_request_of_two_models_is_looked_at_as_the_later_of_them_asks(client: TestClient, service: Service) -> None:
    live_model(service, "faces", {"ada": ["x"]})
    path = waits_for_its_batch(client, service, DAY_SECONDS)
    with service.database.write() as session:
        faces = session.scalars(select(Model).where(Model.name == "faces")).one()
        task = session.scalars(select(Task).where(Task.model_id == faces.id)).one()
        task.status, task.reason, task.attempts = "running", None, 1
        settle(session, session.scalars(select(DeletionRequest.id)).all())
    assert client.get(path).headers["retry-after"] == "120"


@pytest.mark.parametrize(("seconds", "busy"), [(7 * DAY_SECONDS, "no"), (5, "yes")])
def test_pages_look_often_only_where_something_changes_soon(
    client: TestClient, service: Service, login: Login, seconds: int, busy: str
) -> None:
    path = waits_for_its_batch(client, service, seconds)
    request: dict[str, Any] = client.get(path).json()
    console = login()
    for page in (f"/console/requests/{request['id']}", "/console/models/digits", "/"):
        assert f'data-busy="{busy}"' in console.get(page).text, page
