"""What the client sends and how often, against a transport with given answers."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from expunge_client import AsyncExpunge, Expunge, NotCompleted, Refused, Unreachable

Answer = httpx.Response | Exception
PART = {"model": "digits", "status": "blocked", "title": None, "remedy": None}


class Site:
    """A transport for both clients. It gives the answers in turn, and the last one from then on."""

    def __init__(self, *answers: Answer) -> None:
        self.answers, self.asked = list(answers), list[httpx.Request]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def asynchronous(self, request: httpx.Request) -> httpx.Response:
        return self(request)


Run = Callable[..., Any]


@pytest.fixture(params=["sync", "async"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Call a method by name on one of the clients; pauses take no time and are noted in ``run.pauses``."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setattr(asyncio, "sleep", pause)

    def call(site: Site, method: str, *arguments: Any, **more: Any) -> Any:
        if request.param == "sync":
            with Expunge("http://here", "exp_key", httpx.MockTransport(site)) as expunge:
                return getattr(expunge, method)(*arguments, **more)

        async def ask() -> Any:
            async with AsyncExpunge("http://here", "exp_key", httpx.MockTransport(site.asynchronous)) as expunge:
                return await getattr(expunge, method)(*arguments, **more)

        return asyncio.run(ask())

    call.pauses = pauses  # type: ignore[attr-defined]
    yield call


def said(number: int, /, **body: Any) -> httpx.Response:
    return httpx.Response(number, json=body)


def test_an_answer_that_is_lost_is_asked_for_again_under_the_same_key(run: Run) -> None:
    site = Site(httpx.ReadTimeout("slow"), httpx.ConnectError("gone"), said(503), said(202, id="r", status="queued"))
    assert run(site, "delete", subject_id="ada", models=["digits"])["id"] == "r"
    keys = {request.headers["Idempotency-Key"] for request in site.asked}
    assert len(site.asked) == 4 and len(keys) == 1
    assert {request.content for request in site.asked} == {site.asked[0].content}
    assert json.loads(site.asked[0].content) == {"subject_id": "ada", "models": ["digits"]}
    assert site.asked[0].headers["Authorization"] == "Bearer exp_key"


def test_two_deletions_have_two_keys_unless_one_is_given(run: Run) -> None:
    site = Site(said(202, id="r"))
    for key in (None, None, "mine"):
        run(site, "delete", subject_id="ada", idempotency_key=key)
    first, second, third = (request.headers["Idempotency-Key"] for request in site.asked)
    assert first != second and third == "mine"


def test_who_does_not_answer_is_unreachable_and_the_key_is_handed_over(run: Run) -> None:
    site = Site(httpx.ReadTimeout("ada"))
    with pytest.raises(Unreachable) as error:
        run(site, "delete", subject_id="ada")
    assert error.value.idempotency_key == site.asked[0].headers["Idempotency-Key"]
    assert error.value.idempotency_key in str(error.value)
    assert not re.search(r"\bada\b", str(error.value)), "its digits may hold these letters"
    assert len(site.asked) == 5


def test_what_might_happen_twice_is_not_repeated(run: Run) -> None:
    """A search writes an audit entry each time."""
    site = Site(httpx.ReadTimeout("slow"), said(200))
    with pytest.raises(Unreachable):
        run(site, "find", "ada")
    assert len(site.asked) == 1
    site = Site(httpx.ConnectError("it never left"), said(200, models=[], requests=[]))
    assert run(site, "find", "ada") == {"models": [], "requests": []}


def test_the_pause_that_is_asked_for_is_made(run: Run) -> None:
    busy = httpx.Response(429, headers={"Retry-After": "7"}, json={})
    assert run(Site(busy, said(200, id="r")), "request", "r") == {"id": "r"}
    assert 7.0 in run.pauses  # type: ignore[attr-defined]


def test_a_key_that_a_killed_service_still_holds_is_asked_with_again(run: Run) -> None:
    """It is released once the database has seen that the process is gone."""
    held = httpx.Response(409, headers={"Retry-After": "1"}, json={"code": "idempotency_key_in_flight"})
    site = Site(held, held, said(202, id="r"))
    assert run(site, "delete", subject_id="ada") == {"id": "r"}
    assert len({request.headers["Idempotency-Key"] for request in site.asked}) == 1
    assert run.pauses.count(1.0) == 2  # type: ignore[attr-defined]
    with pytest.raises(Refused, match="idempotency_key_in_flight"):
        run(Site(held), "delete", subject_id="ada")


def test_a_refusal_says_what_the_service_said(run: Run) -> None:
    errors = [{"pointer": "/models/0", "detail": "There is no such model."}]
    with pytest.raises(Refused, match=r"Not so\. /models/0: There is no such model\.") as error:
        run(Site(said(422, code="unknown_model", detail="Not so.", errors=errors)), "delete", subject_id="ada")
    assert (error.value.status, error.value.code) == (422, "unknown_model")
    for odd in (httpx.Response(502, text="<html>"), httpx.Response(404, json=["x"])):
        with pytest.raises(Refused, match="The service refused the call"):
            run(Site(odd), "request", "r")


def test_wait_ends_with_the_request(run: Run) -> None:
    site = Site(said(200, status="queued"), said(200, status="running"), said(200, status="completed", id="r"))
    assert run(site, "wait", "r")["id"] == "r"


def test_wait_looks_as_seldom_as_the_service_asks_and_within_its_own_time(run: Run) -> None:
    week, soon = (
        httpx.Response(200, headers={"Retry-After": "120"}, json={"status": "queued"}),
        said(200, status="queued"),
    )
    odd = httpx.Response(200, headers={"Retry-After": "99999"}, json={"status": "queued"})
    least = httpx.Response(200, headers={"Retry-After": "2"}, json={"status": "running"})
    site = Site(soon, week, odd, least, said(200, status="completed", id="r"))
    assert run(site, "wait", "r")["id"] == "r"
    first, long, longest, quick = run.pauses[-4:]  # type: ignore[attr-defined]
    assert (long, longest) == (120.0, 300.0) and first < 1 and quick < 2, "the least is followed by our own pauses"
    with pytest.raises(TimeoutError):
        run(Site(week), "wait", "r", timeout_seconds=0.0)


@pytest.mark.parametrize("status", ["blocked", "cancelled", "rejected"])
def test_wait_says_why_nothing_was_deleted(run: Run, status: str) -> None:
    part = PART | {"title": "The budget is exhausted.", "remedy": {"action": "Retrain the model."}}
    request = {"id": "r", "status": status, "title": None, "remedy": None, "models": [part, part]}
    with pytest.raises(NotCompleted) as error:
        run(Site(said(200, **request)), "wait", "r")
    assert str(error.value) == f"Request r is {status}. The budget is exhausted. Retrain the model."
    assert error.value.request == request


def test_wait_has_an_end(run: Run) -> None:
    with pytest.raises(TimeoutError, match="Request r"):
        run(Site(said(200, status="queued")), "wait", "r", timeout_seconds=0.0)


def test_a_certificate_is_waited_for_and_one_that_never_comes_is_not(run: Run) -> None:
    pending, ready = said(409, code="certificate_pending", detail="Soon."), said(200, payload="x")
    assert run(Site(pending, pending, ready), "certificate", "r") == {"payload": "x"}
    with pytest.raises(TimeoutError):
        run(Site(pending), "certificate", "r", timeout_seconds=0.0)
    with pytest.raises(Refused, match="nothing to certify"):
        run(Site(said(404, code="no_certificate", detail="nothing to certify")), "certificate", "r")
