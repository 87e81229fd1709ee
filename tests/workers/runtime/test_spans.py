"""Spans: the API's call and the worker's update of one request are one trace, read by the SDK's exporter in memory."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from expunge_service.infra import tracing
from expunge_service.infra.pseudonyms import new_id
from tests.workers.test_resolved import api_of
from tests.workers.worlds import World

PERSON = "p3"
LETTER = "jane.doe@example.org"
CALLER = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.fixture
def finished() -> Iterator[Any]:
    """The exporter in memory, to which every span of this process goes."""
    if not tracing.INSTALLED:
        pytest.skip("unverified here: opentelemetry is not installed")
    pytest.importorskip("opentelemetry.sdk", reason="unverified here: opentelemetry's SDK is not installed")
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: PLC0415
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: PLC0415

    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):  # it can be set once in a process
        provider = TracerProvider()
        trace.set_tracer_provider(provider)
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield exporter
    exporter.shutdown()


def told(exporter: Any) -> str:
    """Everything that the spans say."""
    return " ".join(each.to_json() for each in exporter.get_finished_spans())


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_one_trace_leads_from_the_callers_span_to_the_update(world: World, finished: Any) -> None:
    model_id = world.live("convex")
    with api_of(world) as api:
        headers = {"Idempotency-Key": new_id(), "traceparent": CALLER}
        made = api.post("/v1/deletion-requests", json={"subject_id": PERSON}, headers=headers).json()
        world.work(model_id)
        api.get(f"/v1/deletion-requests/{made['id']}")
    found = {each.name: each for each in finished.get_finished_spans()}
    call, update = found["POST /v1/deletion-requests"], found["update"]
    trace_id, span_id = CALLER.split("-")[1:3]
    assert f"{call.context.trace_id:032x}" == f"{update.context.trace_id:032x}" == trace_id
    assert f"{call.parent.span_id:016x}" == span_id, "the call is a child of the caller's span"
    assert update.parent.span_id == call.context.span_id, "and the update of the call's"
    assert dict(call.attributes) == {
        "http.request.method": "POST",
        "http.route": "/v1/deletion-requests",
        "http.response.status_code": 202,
    }
    assert dict(update.attributes) == {"expunge.model": "m", "expunge.request": made["id"]}
    assert "GET /v1/deletion-requests/{request_id}" in found, "named by its template"
    assert f'"{PERSON}"' not in told(finished) and made["opening"] not in told(finished)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_an_address_or_an_errors_message_is_in_no_span(
    world: World, finished: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError(f"no sample of {LETTER}")

    model_id = world.live("convex")
    with api_of(world) as api:
        api.get(f"/nowhere/{LETTER}")
        headers = {"Idempotency-Key": new_id(), "traceparent": CALLER}
        api.post("/v1/deletion-requests", json={"subject_id": PERSON}, headers=headers)
        monkeypatch.setattr("expunge_workers.app.update", fail)
        world.work(model_id)
    found = {each.name: each for each in finished.get_finished_spans()}
    assert found["GET none"].attributes["http.response.status_code"] == 404
    assert found["update"].attributes["error.type"] == "ValueError" and not found["update"].status.is_ok
    assert LETTER not in told(finished)


def test_without_a_place_to_send_to_nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    assert not tracing.export_spans("api")


def test_without_the_extra_the_service_works_and_makes_no_span() -> None:
    """In a process in which opentelemetry cannot be imported."""
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from expunge_service.infra import tracing\n"
        "assert not tracing.INSTALLED and not tracing.export_spans('api')\n"
        "with tracing.called('GET', None) as call, tracing.updating('m', [('r', 't')]):\n"
        "    assert call is None\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
