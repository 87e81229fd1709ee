"""What the status page says: free text as it was written, words for every reason, and what ended last first."""

from __future__ import annotations

import html
import re

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import select, update

from expunge_service.api.dependencies import Service
from expunge_service.console import words
from expunge_service.infra.db import now
from expunge_service.infra.tables import DeletionRequest, Model, Task
from expunge_service.requests.status import settle
from tests.service.conftest import Login
from tests.service.worlds import live_model


def test_free_text_is_shown_as_it_was_written(login: Login, client: TestClient, service: Service) -> None:
    """Names of settings and files have underscores and capitals of their own."""
    live_model(service)
    sent = client.post("/v1/deletion-requests", json={"subject_id": "ada"}, headers={"Idempotency-Key": "k"})
    request = sent.json()["id"]
    text = "Set EXPUNGE_RECIPES: my_recipe.py raised KeyError in 'a_b'."
    with service.database.write() as session:
        session.scalars(select(Model)).one().reason = text
        session.execute(update(Task).values(reason="some_CODE_that_is_new"))
        session.execute(update(DeletionRequest).values(reason="some_CODE_that_is_new"))
    for path in ("/", "/console/models/digits"):
        assert html.unescape(login().get(path).text).count(text) == 1
    page = login().get(f"/console/requests/{request}").text
    assert "<h1>some_CODE_that_is_new</h1>" in page
    assert '<span class="why">some_CODE_that_is_new</span>' in page


@pytest.mark.both_engines
def test_what_finished_lately_is_ordered_by_its_end_and_not_by_its_receipt(
    login: Login, client: TestClient, service: Service
) -> None:
    """A rejected one too, and one that matched nobody and ended at once; one that was opened again is not finished."""
    model = live_model(service)
    sent = {"models": [model.name]}
    first, second, third, fourth = (
        client.post("/v1/deletion-requests", json=sent | body, headers={"Idempotency-Key": body["subject_id"]}).json()[
            "id"
        ]
        for body in (
            {"subject_id": "ada"},
            {"subject_id": "bob"},
            {"subject_id": "eve", "verified": False},
            {"subject_id": "sam"},
        )
    )
    complete(service, second)
    client.post(f"/v1/deletion-requests/{third}/reject", json={"reason": "unknown"})
    complete(service, first)
    page = login().get("/").text
    listed = re.findall(r'href="/console/requests/([0-9a-f]{32})"', page[page.index('id="recent"') :])
    assert listed == [first, third, second, fourth]
    assert page[page.index('id="recent"') :].count(" ago</time>") >= 4
    with service.database.write() as session:
        session.execute(update(Task).where(Task.request_id == first).values(status="queued", completed_at=None))
        settle(session, [first])
    page = login().get("/").text
    assert first not in page[page.index('id="recent"') :]


def complete(service: Service, request: str) -> None:
    with service.database.write() as session:
        done = {"status": "completed", "samples": 1, "completed_at": now(session)}
        session.execute(update(Task).where(Task.request_id == request).values(done))
        settle(session, [request])


def test_spans_say_two_units_at_most() -> None:
    cases = {0: "0 s", 59.9: "59 s", 60: "1 min", 3725: "1 h 2 min", 86_400: "1 d", 2_595_600: "30 d 1 h", -5: "0 s"}
    assert {seconds: words.span(seconds) for seconds in cases} == cases
