"""What a request body may be, decided before anything parses it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from expunge_service.api.problems import ApiProblem

_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
_FORMS = "/console/"
MOST_NAMES = 100
"""in one object: each unknown name would be an error of its own"""
BODY_SECONDS = 30.0
"""from the end of the head to the end of the body"""


class Bodies:
    """Refuse bodies that are too long (413), too slow (408), encoded (415) or not JSON (415), that give a name twice,
    too many names or two lengths (400). Pass the others on whole.

    The status page sends HTML forms to separate addresses. No other route takes forms, so another site's form cannot
    reach the API.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        reads = scope["method"] in {"GET", "HEAD"}
        try:
            _check_framing(headers)
            body = b"" if reads else await self._checked(headers, receive, scope["path"])
        except ApiProblem as problem:
            await problem.response()(scope, receive, send)
            return
        await self._app(scope, receive if reads else _replay(body, receive), send)

    async def _checked(self, headers: Headers, receive: Receive, path: str) -> bytes:
        """Read and check the whole body. Raises ApiProblem."""
        self._check_headers(headers)
        body = await self._in_time(receive)
        _check_body(headers, body, _FORM if path.startswith(_FORMS) else _JSON)
        return body

    def _check_headers(self, headers: Headers) -> None:
        if headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise ApiProblem(415, "content_encoding", "Send the body without Content-Encoding.")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise ApiProblem(400, "content_length", "Content-Length is not a number.")
        if int(length) > self._max_bytes:
            raise self._too_long()

    async def _in_time(self, receive: Receive) -> bytes:
        try:
            async with asyncio.timeout(BODY_SECONDS):
                return await self._read(receive)
        except TimeoutError:
            detail = f"The body did not come within {BODY_SECONDS:g} seconds. Send it again."
            raise ApiProblem(408, "body_too_slow", detail, headers={"Connection": "close"}) from None

    async def _read(self, receive: Receive) -> bytes:
        """Read the whole body. The length header may be missing or false, so the bytes are counted."""
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ApiProblem(400, "incomplete_body", "The body ended early.")
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self._max_bytes:
                raise self._too_long()
            if not message.get("more_body", False):
                return b"".join(chunks)

    def _too_long(self) -> ApiProblem:
        return ApiProblem(
            413, "body_too_large", f"A body may have at most {self._max_bytes} bytes. Send several requests."
        )


def _check_framing(headers: Headers) -> None:
    """Refuse two lengths: a proxy that uses the other one would see another request (RFC 9112, 6.3)."""
    if "content-length" in headers and "transfer-encoding" in headers:
        detail = "Send either Content-Length or Transfer-Encoding, not both."
        raise ApiProblem(400, "two_lengths", detail, headers={"Connection": "close"})


def _check_body(headers: Headers, body: bytes, wanted: str) -> None:
    _check_type(headers, body, wanted)
    if wanted == _JSON:
        _check_names(body)


def _once(members: list[tuple[str, Any]]) -> None:
    if len({name for name, _ in members}) < len(members):
        raise ApiProblem(400, "name_given_twice", "The body gives a name twice in one object. Give each once.")
    if len(members) > MOST_NAMES:
        raise ApiProblem(400, "too_many_names", f"An object of a body may have at most {MOST_NAMES} names.")


def _check_names(body: bytes) -> None:
    """Refuse a name given twice: parsers differ in which of the values counts. Refuse too many names in an object.
    Malformed JSON is refused later.
    """
    try:
        json.loads(body, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return


def _check_type(headers: Headers, body: bytes, wanted: str) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != wanted:
        raise ApiProblem(415, "content_type", f"Send the body as {wanted}.")


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again
