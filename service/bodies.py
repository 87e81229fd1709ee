"""What a request body may be, decided before anything parses it."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.problems import Problem

_JSON = "application/json"
_FORM = "application/x-www-form-urlencoded"
_FORMS = "/console/"


class Bodies:
    """Refuse bodies that are too long (413), encoded (415) or not JSON (415); hand on the others whole.

    The status page sends HTML forms to addresses of its own. Nothing else takes them, so that no other site's form
    can reach the API.
    """

    def __init__(self, app: ASGIApp, max_bytes: int) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in {"GET", "HEAD"}:
            await self._app(scope, receive, send)
            return
        try:
            headers = Headers(scope=scope)
            self._check_headers(headers)
            body = await self._read(receive)
            _check_type(headers, body, _FORM if scope["path"].startswith(_FORMS) else _JSON)
        except Problem as problem:
            await problem.response()(scope, receive, send)
            return
        await self._app(scope, _replay(body, receive), send)

    def _check_headers(self, headers: Headers) -> None:
        if headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise Problem(415, "content_encoding", "Send the body without Content-Encoding.")
        length = headers.get("content-length", "0")
        if not (length.isascii() and length.isdigit()):
            raise Problem(400, "content_length", "Content-Length is not a number.")
        if int(length) > self._max_bytes:
            raise self._too_long()

    async def _read(self, receive: Receive) -> bytes:
        """The whole body. The length header may be missing or false, so the bytes are counted."""
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Problem(400, "incomplete_body", "The body ended early.")
            chunks.append(message.get("body", b""))
            size += len(chunks[-1])
            if size > self._max_bytes:
                raise self._too_long()
            if not message.get("more_body", False):
                return b"".join(chunks)

    def _too_long(self) -> Problem:
        return Problem(
            413, "body_too_large", f"A body may have at most {self._max_bytes} bytes. Send several requests."
        )


def _check_type(headers: Headers, body: bytes, wanted: str) -> None:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != wanted:
        raise Problem(415, "content_type", f"Send the body as {wanted}.")


def _replay(body: bytes, receive: Receive) -> Receive:
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again
