"""Tracing: the ``traceparent`` of a call (W3C trace context) is stored with the deletion request that it makes.

The worker's log lines about that request name it, so that one trace leads from the client's call to the update. Where
OpenTelemetry's SDK is installed (``expunge[otel]``) the call is a span, a child of the client's, and the update that
serves its request is a span of the same trace. A span names methods, routes, models and the ids of requests, never a
person, an address or an error's message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

try:
    from opentelemetry import trace
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    INSTALLED = False
else:
    INSTALLED = True

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_SHAPE = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_CARRIED: ContextVar[str | None] = ContextVar("traceparent", default=None)
_HEADER = "traceparent"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
NO_ROUTE = "none"
NO_TELEMETRY: Any = {
    "tracing": False,
    "metrics": False,
    "logs": False,
    "operation_spans": False,
    "auto_configure": False,
}
"""for FastAPI, whose own spans hold addresses and whose log records errors' messages where a process has a provider"""


def export_spans(process: str) -> bool:
    """Send the spans of this process where OpenTelemetry's own variables say; return whether they name a place.

    ``process``: api or worker, the service's name in the spans.
    """
    if not INSTALLED or not any(os.environ.get(name) for name in _ENDPOINTS):
        return False
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 (an extra)
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(resource=Resource.create({"service.name": f"expunge-{process}"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return True


class Call:
    """The span of one call to the API."""

    def __init__(self, span: Span, method: str) -> None:
        self._span = span
        self._method = method

    @property
    def traceparent(self) -> str | None:
        """Return what continues the trace below this call; None: it is not recorded."""
        carrier: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(carrier, trace.set_span_in_context(self._span))
        return carrier.get(_HEADER)

    def answered(self, route: Any, status: int) -> None:
        """Name the span by the route's template. An answer of 500 or more is an error."""
        template = str(getattr(route, "path_format", NO_ROUTE))
        self._span.update_name(f"{self._method} {template}")
        self._span.set_attributes({"http.route": template, "http.response.status_code": status})
        if status >= 500:
            self._span.set_status(Status(StatusCode.ERROR))


@contextmanager
def called(method: str, traceparent: str | None) -> Iterator[Call | None]:
    """Record one call as a span, below the caller's span where there is one. None: OpenTelemetry is not installed."""
    if not INSTALLED:
        yield None
        return
    span = _tracer().start_span(
        method, _below(traceparent), SpanKind.SERVER, attributes={"http.request.method": method}
    )
    try:
        yield Call(span, method)
    finally:
        span.end()


@contextmanager
def updating(model: str, traces: Iterable[tuple[str, str]]) -> Iterator[None]:
    """Record an update as a span for each request whose call had a trace: ``traces`` has (request id, traceparent).

    An error is named by its type alone: its message may quote a value.
    """
    with ExitStack() as open_spans:
        spans = [_update(model, *each) for each in traces] if INSTALLED else []
        for span in spans:
            open_spans.callback(span.end)
        try:
            yield
        except Exception as error:
            for span in spans:
                span.set_status(Status(StatusCode.ERROR))
                span.set_attribute("error.type", type(error).__name__)
            raise


def _update(model: str, request_id: str, traceparent: str) -> Span:
    facts = {"expunge.model": model, "expunge.request": request_id}
    span: Span = _tracer().start_span("update", _below(traceparent), SpanKind.CONSUMER, attributes=facts)
    return span


def _below(traceparent: str | None) -> Any:
    """Return the context in which a span is the child of this one; without one it begins a trace."""
    carrier = {} if traceparent is None else {_HEADER: traceparent}
    return TraceContextTextMapPropagator().extract(carrier)


def _tracer() -> Any:
    return trace.get_tracer("expunge")


def carried() -> str | None:
    """Return the traceparent of the call that is being answered; None: it has none, or a malformed one."""
    return _CARRIED.get()


class Traced:
    """ASGI middleware that reads the header and ignores a malformed one, as the specification asks."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sent = Headers(scope=scope).get("traceparent", "")
        parent = sent if _SHAPE.fullmatch(sent) else None
        with called(scope["method"] if scope["method"] in METHODS else "other", parent) as call:
            _CARRIED.set(parent if call is None else call.traceparent or parent)
            await self._app(scope, receive, send if call is None else _noting(call, scope, send))


def _noting(call: Call, scope: Scope, send: Send) -> Send:
    """Return ``send``, which also notes in the call's span how it is answered."""

    async def noted(message: Message) -> None:
        if message["type"] == "http.response.start":
            call.answered(scope.get("route"), message["status"])
        await send(message)

    return noted
