"""The client, and its asynchronous twin: they send what ``calls`` asks for."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, Unpack, cast

import httpx

from expunge_client import calls
from expunge_client.answers import DeletionRequest, Estimate, Findings, Outcome, Version
from expunge_client.calls import Ask, Call, Order, Result
from expunge_client.errors import NotAuthentic, Unreachable

TIMEOUT_SECONDS = 30.0


class Expunge:
    """A connection to the service at ``url``. Several threads may use one.

    Every method raises Refused where the service refuses, and Unreachable where it does not answer; a call that may be
    sent twice is tried five times. ``transport`` replaces the network in tests.
    """

    def __init__(self, url: str, api_key: str, transport: httpx.BaseTransport | None = None) -> None:
        # trust_env off: a proxy from the environment must not see keys and ids of people
        self._http = httpx.Client(
            base_url=url, headers=_headers(api_key), timeout=TIMEOUT_SECONDS, trust_env=False, transport=transport
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def delete(self, *, idempotency_key: str | None = None, **order: Unpack[Order]) -> DeletionRequest:
        """Ask for the deletion of a person (``subject_id``) or of samples (``sample_ids``).

        Without ``models`` it covers every model. When it returns, the service has promised to carry the request out.
        After Unreachable send it again under that error's ``idempotency_key``: it takes effect at most once. Keep the
        ``opening`` of the answer; it shows later which person the certificate is about.
        """
        return cast(DeletionRequest, self._run(calls.delete(order, idempotency_key)))

    def delete_many(self, orders: Sequence[Order], *, idempotency_key: str | None = None) -> list[Outcome]:
        """Ask for up to 1,000 deletions in one call; return what became of each, in the same order.

        Under one key it takes effect at most once, as ``delete`` does.
        """
        return cast(list[Outcome], self._run(calls.delete_many(orders, idempotency_key)))

    def cancel(self, request_id: str) -> DeletionRequest:
        """Cancel a request. Raises Refused (409) once a worker has begun."""
        return cast(DeletionRequest, self._run(calls.cancel(request_id)))

    def requests(self, *, case_id: str) -> Iterator[DeletionRequest]:
        """Yield the requests of a case, newest first."""
        yield from self._pages("/v1/deletion-requests", {"case_id": case_id})

    def models(self) -> Iterator[dict[str, Any]]:
        """Yield the models."""
        yield from self._pages("/v1/models", {})

    def request(self, request_id: str) -> DeletionRequest:
        """Return the request as it is now."""
        return cast(DeletionRequest, self._run(calls.show(request_id)))

    def wait(self, request_id: str, timeout_seconds: float | None = None) -> DeletionRequest:
        """Return the request when it is completed.

        Raises:
            NotCompleted: it was cancelled or rejected, or it is blocked; the message says why and what to do.
            TimeoutError: ``timeout_seconds`` have passed.
        """
        return cast(DeletionRequest, self._run(calls.wait(request_id, timeout_seconds)))

    def certificate(self, request_id: str, timeout_seconds: float = 300.0) -> dict[str, Any]:
        """Return the certificate of a completed request, a DSSE envelope, as soon as it is signed.

        Raises TimeoutError once ``timeout_seconds`` have passed.
        """
        return cast(dict[str, Any], self._run(calls.certificate(request_id, timeout_seconds)))

    def find(self, subject_id: str) -> Findings:
        """Return every request and every model that knows the person. The key needs the scope people:search."""
        return cast(Findings, self._run(calls.find(subject_id)))

    def estimate(self, **order: Unpack[Order]) -> Estimate:
        """Return what a deletion would cost, and change nothing. The key needs the scope people:search."""
        return cast(Estimate, self._run(calls.estimate(order)))

    def current(self, model: str, known_etag: str | None = None) -> tuple[str, Version] | None:
        """Return the ETag and the current version of a model; None where it is still the one with ``known_etag``."""
        answer = self._run(calls.current(model, known_etag))
        if answer.status_code == httpx.codes.NOT_MODIFIED:
            return None
        return answer.headers["ETag"], cast(Version, answer.json())

    def download(self, version: Version, path: Path) -> None:
        """Write a version's checkpoint to ``path``, whole or not at all, after its SHA-256 was checked.

        Raises NotAuthentic where the bytes have another digest, and Refused (410) where a later version was published.
        """
        part, digest = path.with_name(f"{path.name}.part"), hashlib.sha256()
        address = f"/v1/models/{version['model']}/versions/{version['number']}/checkpoint"
        try:
            with self._http.stream("GET", address) as answer, part.open("wb") as file:
                if answer.is_error:
                    answer.read()
                    calls.refuse(answer)
                for block in answer.iter_bytes(1 << 20):
                    digest.update(block)
                    file.write(block)
            if digest.hexdigest() != version["checkpoint_sha256"]:
                raise NotAuthentic(f"The file does not have the digest of version {version['number']}.")
            part.replace(path)
        except httpx.TransportError as error:
            raise Unreachable(f"The download broke off ({type(error).__name__}).", None) from error
        finally:
            part.unlink(missing_ok=True)

    def report(self, model: str, consumer: str, number: int) -> str:
        """Report which version a consumer serves; return its standing: current or behind."""
        return str(self._run(calls.report(model, consumer, number))["status"])

    def _pages(self, path: str, query: Mapping[str, str]) -> Iterator[Any]:
        turn: Mapping[str, str] | None = {**query, "limit": "200"}
        while turn is not None:
            page = self._run(calls.page(path, turn))
            yield from page["data"]
            turn = {**turn, "cursor": page["next_cursor"]} if page["has_more"] else None

    def _run(self, call: Call[Result]) -> Result:
        try:
            ask = next(call)
            while True:
                time.sleep(ask.after_seconds)
                ask = call.send(self._send(ask))
        except StopIteration as ended:
            return cast(Result, ended.value)

    def _send(self, ask: Ask) -> httpx.Response | httpx.TransportError:
        try:
            return self._http.request(ask.method, ask.path, json=ask.json, headers=dict(ask.headers))
        except httpx.TransportError as error:
            return error


class AsyncExpunge:
    """The same for ``asyncio``: the methods do and raise what those of Expunge do."""

    def __init__(self, url: str, api_key: str, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._http = httpx.AsyncClient(
            base_url=url, headers=_headers(api_key), timeout=TIMEOUT_SECONDS, trust_env=False, transport=transport
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def delete(self, *, idempotency_key: str | None = None, **order: Unpack[Order]) -> DeletionRequest:
        return cast(DeletionRequest, await self._run(calls.delete(order, idempotency_key)))

    async def request(self, request_id: str) -> DeletionRequest:
        return cast(DeletionRequest, await self._run(calls.show(request_id)))

    async def wait(self, request_id: str, timeout_seconds: float | None = None) -> DeletionRequest:
        return cast(DeletionRequest, await self._run(calls.wait(request_id, timeout_seconds)))

    async def certificate(self, request_id: str, timeout_seconds: float = 300.0) -> dict[str, Any]:
        return cast(dict[str, Any], await self._run(calls.certificate(request_id, timeout_seconds)))

    async def find(self, subject_id: str) -> Findings:
        return cast(Findings, await self._run(calls.find(subject_id)))

    async def estimate(self, **order: Unpack[Order]) -> Estimate:
        return cast(Estimate, await self._run(calls.estimate(order)))

    async def _run(self, call: Call[Result]) -> Result:
        try:
            ask = next(call)
            while True:
                await asyncio.sleep(ask.after_seconds)
                ask = call.send(await self._send(ask))
        except StopIteration as ended:
            return cast(Result, ended.value)

    async def _send(self, ask: Ask) -> httpx.Response | httpx.TransportError:
        try:
            return await self._http.request(ask.method, ask.path, json=ask.json, headers=dict(ask.headers))
        except httpx.TransportError as error:
            return error


def _headers(api_key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {api_key}", "User-Agent": "expunge-client"}
