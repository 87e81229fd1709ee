"""What the client raises. No message repeats a person's id."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from expunge_client.answers import DeletionRequest


class ExpungeError(Exception):
    """Something did not work between this program and Expunge."""


class Refused(ExpungeError):
    """The service refused a call.

    ``code`` is the problem's code as in the API reference, ``errors`` says which fields are wrong.
    """

    def __init__(self, status: int, code: str, detail: str, errors: list[dict[str, str]]) -> None:
        fields = "; ".join(f"{_place(each)}: {each.get('detail', '')}" for each in errors)
        super().__init__(f"{detail} {fields}".strip() + f" (HTTP {status}, {code})")
        self.status = status
        self.code = code
        self.detail = detail
        self.errors = errors


class Unreachable(ExpungeError):
    """The service did not answer, after several attempts.

    ``idempotency_key`` is that of a deletion request. It may have been accepted: send it again under the same key,
    and it takes effect at most once.
    """

    def __init__(self, what: str, idempotency_key: str | None) -> None:
        again = f" Send it again with idempotency_key={idempotency_key!r}." if idempotency_key else ""
        super().__init__(what + again)
        self.idempotency_key = idempotency_key


class NotCompleted(ExpungeError):
    """A deletion request ended without a deletion, or is blocked. ``request`` has the reason and the remedy."""

    def __init__(self, request: DeletionRequest) -> None:
        parts: list[Any] = [part for part in request["models"] if part["title"]] or [request]
        reasons = dict.fromkeys(str(part["title"]) for part in parts if part["title"])
        remedies = dict.fromkeys(part["remedy"]["action"] for part in parts if part["remedy"])
        said = " ".join([f"Request {request['id']} is {request['status']}.", *reasons, *remedies])
        super().__init__(said)
        self.request = request


class NotAuthentic(ExpungeError, ValueError):
    """A certificate, a webhook or a version's file is not what it seems. The message says what does not fit."""


def _place(error: dict[str, str]) -> str:
    return next((error[name] for name in ("pointer", "header", "parameter") if name in error), "body")
