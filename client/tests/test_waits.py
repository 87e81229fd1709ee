"""The commands that wait look as seldom as the service asks."""

from __future__ import annotations

import time

import httpx
import pytest

from expunge_client.cli.client import POLL_SECONDS, Account, Client
from expunge_client.cli.commands.deletions import await_ended
from expunge_client.cli.commands.models import await_prepared

PREPARATION = {"progress": 0.1, "phase": "train", "work_units": {"done": 0, "count": 0}}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were asked for; none is made."""
    made: list[float] = []
    monkeypatch.setattr(time, "sleep", made.append)
    return made


def answering(*answers: httpx.Response) -> Client:
    """A client of a service that gives these answers, one after the other."""
    client, left = Client(Account("http://here", "exp_key")), iter(answers)
    client._http = httpx.Client(base_url="http://here", transport=httpx.MockTransport(lambda _: next(left)))
    return client


def state(retry_after: int | None, **body: object) -> httpx.Response:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return httpx.Response(200, headers=headers, json=body)


def test_a_deletion_that_waits_a_week_is_looked_at_every_two_minutes(pauses: list[float]) -> None:
    waits = [state(seconds, status="queued", models=[]) for seconds in (120, 120, 12, 2, None)]
    with answering(*waits, state(None, status="completed", models=[], id="r")) as client:
        assert await_ended(client, "r")["id"] == "r"
    assert pauses == [120.0, 120.0, 12.0, POLL_SECONDS, POLL_SECONDS]


def test_a_preparation_of_hours_is_looked_at_as_the_service_asks(pauses: list[float]) -> None:
    trains = {"status": "preparing", "reason": None, "preparation": PREPARATION}
    with answering(state(60, **trains), state(2, **trains), state(None, **trains | {"status": "live"})) as client:
        assert await_prepared(client, "m")["status"] == "live"
    assert pauses == [60.0, POLL_SECONDS]
