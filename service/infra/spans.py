"""Spans of OpenTelemetry, where its SDK is installed (``expunge[otel]``); elsewhere none is made.

A call is a span, and the update that serves its request is a span of the same trace. A span names methods, routes,
models and the ids of requests, never a person, an address or an error's message.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

try:
    from opentelemetry import trace
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError:
    INSTALLED = False
else:
    INSTALLED = True

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
        """Return what continues the trace below this call; None: nobody records it."""
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
