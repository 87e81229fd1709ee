"""What is asked and how often, apart from how it is sent: one text for the client and for its asynchronous twin.

A call is a generator. It yields what to send, gets the answer or the error of the transport, and returns its result.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, TypedDict, TypeVar
from urllib.parse import urlencode

import httpx

from expunge_client.errors import NotCompleted, Refused, Unreachable

Result = TypeVar("Result")
ATTEMPTS = 5
LONGEST_PAUSE_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 300.0
"""between two looks at a request, whatever the service asks for"""
_REQUESTS = "/v1/deletion-requests"
_OVER = {"completed", "cancelled", "rejected", "blocked"}


class Order(TypedDict, total=False):
    """The person: one of ``subject_id``, ``subject_ids``, ``sample_ids``. The API reference explains the fields."""

    subject_id: str
    subject_ids: Sequence[str]
    sample_ids: Sequence[str]
    models: Sequence[str]
    regulation: str
    received_at: str
    due_at: str
    case_id: str
    verified: bool
    suppress: str
    expected_samples: int


@dataclass(frozen=True)
class Ask:
    """One call of the service, sent ``after_seconds``."""

    method: str
    path: str
    json: Mapping[str, Any] | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    after_seconds: float = 0.0

    @property
    def idempotency_key(self) -> str | None:
        return self.headers.get("Idempotency-Key")

    def repeatable(self, error: httpx.TransportError) -> bool:
        """Return whether it may be sent again: it changes nothing twice, or it never left."""
        again = self.method in {"GET", "PUT"} or self.idempotency_key is not None
        return again or isinstance(error, httpx.ConnectError)


Call: TypeAlias = Generator[Ask, httpx.Response | httpx.TransportError, Result]


def answered(ask: Ask) -> Call[httpx.Response]:
    """Send until there is an answer: 2xx or 304. Raises Refused, or Unreachable after the last attempt."""
    for attempt in range(ATTEMPTS):
        last = attempt == ATTEMPTS - 1
        answer = yield ask
        if isinstance(answer, httpx.TransportError):
            if last or not ask.repeatable(answer):
                raise Unreachable(f"Expunge does not answer ({type(answer).__name__}).", ask.idempotency_key)
            pause = _backoff(attempt)
        elif answer.is_success or answer.status_code == httpx.codes.NOT_MODIFIED:
            return answer
        elif last or not _passes(answer):
            raise _refusal(answer)
        else:
            pause = _asked_pause(answer, _backoff(attempt))
        ask = replace(ask, after_seconds=pause)
    raise AssertionError("the last attempt returns or raises")


def answer_of(ask: Ask) -> Call[Any]:
    """Send, and return the JSON of the answer; None where it has no body."""
    answer = yield from answered(ask)
    return answer.json() if answer.content else None


def delete(order: Order, idempotency_key: str | None) -> Call[Any]:
    """Ask for a deletion, under one Idempotency-Key over all attempts."""
    headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
    return (yield from answer_of(Ask("POST", _REQUESTS, order, headers)))


def delete_many(orders: Sequence[Order], idempotency_key: str | None) -> Call[Any]:
    """Ask for up to 1,000 deletions in one transaction, under one Idempotency-Key over all attempts."""
    headers = {"Idempotency-Key": idempotency_key or str(uuid.uuid4())}
    ask = Ask("POST", f"{_REQUESTS}/batch", {"requests": list(orders)}, headers)
    return (yield from answer_of(ask))["outcomes"]


def page(path: str, query: Mapping[str, str]) -> Call[Any]:
    return (yield from answer_of(Ask("GET", f"{path}?{urlencode(query)}")))


def cancel(request_id: str) -> Call[Any]:
    return (yield from answer_of(Ask("DELETE", f"{_REQUESTS}/{request_id}")))


def show(request_id: str) -> Call[Any]:
    return (yield from answer_of(Ask("GET", f"{_REQUESTS}/{request_id}")))


def wait(request_id: str, timeout_seconds: float | None) -> Call[Any]:
    """Ask until the request is over. Raises NotCompleted, or TimeoutError."""
    ends = _end(timeout_seconds)
    ask = Ask("GET", f"{_REQUESTS}/{request_id}")
    for turn in range(1 << 30):
        answer = yield from answered(ask)
        request = answer.json()
        if request["status"] == "completed":
            return request
        if request["status"] in _OVER:
            raise NotCompleted(request)
        pause = pause_before_look(answer, _backoff(turn))
        ask = replace(ask, after_seconds=_within(ends, pause, f"Request {request_id} is not completed."))
    raise AssertionError("more turns than any request takes")


def certificate(request_id: str, timeout_seconds: float) -> Call[Any]:
    """Ask until the certificate is signed. Raises Refused where there is none, or TimeoutError."""
    ends = _end(timeout_seconds)
    ask = Ask("GET", f"{_REQUESTS}/{request_id}/certificate")
    for turn in range(1 << 30):
        try:
            return (yield from answer_of(ask))
        except Refused as error:
            if error.code != "certificate_pending":
                raise
        ask = replace(ask, after_seconds=_within(ends, _backoff(turn), "The certificate is not signed yet."))
    raise AssertionError("more turns than any certificate takes")


def find(subject_id: str) -> Call[Any]:
    return (yield from answer_of(Ask("POST", f"{_REQUESTS}/search", {"subject_id": subject_id})))


def estimate(order: Order) -> Call[Any]:
    return (yield from answer_of(Ask("POST", f"{_REQUESTS}/estimate", order)))


def current(model: str, known_etag: str | None) -> Call[httpx.Response]:
    headers = {"If-None-Match": known_etag} if known_etag else {}
    return (yield from answered(Ask("GET", f"/v1/models/{model}/versions/current", headers=headers)))


def report(model: str, consumer: str, number: int) -> Call[Any]:
    return (yield from answer_of(Ask("PUT", f"/v1/models/{model}/consumers/{consumer}", {"version": number})))


def refuse(answer: httpx.Response) -> None:
    """Raise Refused where the answer is an error."""
    if answer.is_error:
        raise _refusal(answer)


def _refusal(answer: httpx.Response) -> Refused:
    try:
        problem = answer.json()
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        problem = {}
    code, detail = problem.get("code", "unknown"), problem.get("detail", "The service refused the call.")
    return Refused(answer.status_code, code, detail, problem.get("errors") or [])


def _passes(answer: httpx.Response) -> bool:
    """Return whether the same call may be answered otherwise later. A killed API may still hold the key."""
    return answer.status_code in (429, 503) or _refusal(answer).code == "idempotency_key_in_flight"


def _backoff(attempt: int) -> float:
    return min(LONGEST_PAUSE_SECONDS, 0.1 * 1.5 ** min(attempt, 20))


def _asked_pause(answer: httpx.Response, otherwise: float) -> float:
    """Return the seconds that Retry-After asks for, at most a minute."""
    asked = answer.headers.get("Retry-After", "")
    return min(60.0, float(asked)) if asked.isdigit() else otherwise


def pause_before_look(answer: httpx.Response, otherwise: float) -> float:
    """Return the seconds until the next look at what an answer shows.

    The service asks for more than our own longest pause where it knows that there is more time.
    """
    asked = answer.headers.get("Retry-After", "")
    seconds = float(asked) if asked.isdigit() else 0.0
    return otherwise if seconds <= LONGEST_PAUSE_SECONDS else min(LONGEST_WAIT_SECONDS, seconds)


def _end(timeout_seconds: float | None) -> float:
    return float("inf") if timeout_seconds is None else time.monotonic() + timeout_seconds


def _within(ends: float, pause: float, what: str) -> float:
    """Return the pause, or what is left of the time. Raises TimeoutError."""
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError(what)
    return min(pause, left)
