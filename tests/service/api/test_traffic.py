"""Rate, errors and duration of the API by route; disks; and a process that another has replaced."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select, update

from expunge_service.api.dependencies import Service
from expunge_service.api.traffic import BOUNDS, Measured, Traffic
from expunge_service.infra.db import now
from expunge_service.infra.settings import Settings
from expunge_service.infra.tables import DeletionRequest, Heartbeat, Model
from expunge_service.infra.time import SECOND
from tests.harness.dashboards import rules
from tests.service.api.test_dashboards import busy, exported

__all__ = ["busy"]
SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@SQLITE
def test_calls_are_counted_by_template_and_class_and_name_nobody(client: TestClient) -> None:
    person = "jane.doe@example.org"
    client.get("/v1/models")
    client.get(f"/v1/models/{'x' * 20}")
    client.get("/v1/models/y")
    client.get(f"/nowhere/{person}")
    client.request("BREW", "/v1/models")
    found = exported(client)
    said = {(dict(key)["method"], dict(key)["route"], dict(key)["status"]): value for key, value in _total(found)}
    assert said["GET", "/v1/models", "2xx"] == 1
    assert said["GET", "/v1/models/{name}", "4xx"] == 2, "two addresses, one series"
    assert said["GET", "none", "4xx"] == 1
    assert {method for method, _, _ in said} <= {"GET", "other"}
    assert person not in client.get("/metrics").text
    assert all(set(dict(key)) == {"method", "route"} for key in found["expunge_http_request_seconds_count"])


def _total(found: dict[str, Any]) -> Any:
    return found["expunge_http_requests_total"].items()


def test_a_duration_is_counted_as_its_buckets_edge() -> None:
    """An exact sum would tell how long a single search took."""
    traffic = Traffic()
    for seconds in (0.0123, 0.0199, 99.0):
        traffic.count("POST", "/v1/deletion-requests/search", 200, seconds)
    _, histogram = traffic.registry.collect()
    values = {(each.name.rpartition("_")[2], each.labels.get("le")): each.value for each in histogram.samples}
    assert values["sum", None] == pytest.approx(0.025 + 0.025 + BOUNDS[-1])
    assert values["count", None] == values["bucket", "+Inf"] == 3 and values["bucket", "10.0"] == 2
    assert values["bucket", "0.01"] == 0 and values["bucket", "0.025"] == 2


def test_a_stream_is_counted_when_it_begins() -> None:
    traffic = Traffic()
    seen: list[float] = []

    async def stream(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        seen.append(sum(1 for family in traffic.registry.collect() for _ in family.samples))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def ignore(message: Any) -> None: ...

    scope = {"type": "http", "method": "GET", "path": "/v1/events"}
    asyncio.run(Measured(stream, traffic)(scope, None, ignore))  # type: ignore[arg-type]
    assert seen[0] > 0


def beat(process: str, kind: str, started: int, last: int) -> Heartbeat:
    return Heartbeat(process=process, kind=kind, software="1", started_at=started, beat_at=last, dropped=0)


@SQLITE
def test_who_died_is_exported_and_so_are_the_disks(busy: TestClient, service: Service) -> None:
    with service.database.write() as session:
        at = now(session)
        session.add(beat("died", "scheduler", 1, at - 300 * SECOND))
    found = exported(busy)
    assert (("worker", "died"),) in found["expunge_worker_heartbeat_timestamp_seconds"]
    service.settings.home.mkdir(exist_ok=True)
    assert exported(busy)["expunge_disk_free_bytes"][(("place", "home"),)] > 0
    assert found["expunge_disk_reserve_bytes"][()] == service.limits.disk_reserve_bytes


@SQLITE
def test_the_places_of_workers_are_exported_and_a_model_that_none_takes(busy: TestClient, service: Service) -> None:
    assert exported(busy)["expunge_models_without_worker"] == {(): 0}
    serves = {"tenants": None, "places": ["any", "cuda"], "memory": 80}
    with service.database.write() as session:
        row = session.scalars(select(Heartbeat)).one()
        row.process, row.device, row.card, row.serves = "w", "cuda", "H100", serves
        session.execute(update(Model).where(Model.name == "digits").values(place="west"))
    found = exported(busy)
    told = (("card", "H100"), ("device", "cuda"), ("places", "any cuda"), ("worker", "w"))
    assert found["expunge_worker_memory_bytes"][told] == 80
    assert found["expunge_models_without_worker"] == {(): 1}


@SQLITE
def test_latency_is_told_from_intake_and_from_receipt(busy: TestClient, service: Service) -> None:
    """A request that came by letter ten days before it was typed in: the service is not slow."""
    with service.database.write() as session:
        session.execute(update(DeletionRequest).values(received_at=DeletionRequest.created_at - 864_000 * SECOND))
    found = exported(busy)
    ours = (("le", "10.0"), ("method", "recollection"), ("model", "digits"), ("tenant", "default"))
    assert found["expunge_deletion_latency_seconds_bucket"][ours] == 0
    assert found["expunge_deletion_latency_from_intake_seconds_bucket"][ours] == 1


@SQLITE
def test_the_share_of_the_period_that_is_over(busy: TestClient, service: Service) -> None:
    with service.database.write() as session:
        at = now(session)
        times = {"received_at": at - 90 * SECOND, "due_at": at + 10 * SECOND}
        session.execute(update(DeletionRequest).values(**times))
    ((labels, share),) = exported(busy)["expunge_requests_deadline_used_ratio"].items()
    assert labels == (("tenant", "default"),) and 0.9 <= share < 1


@SQLITE
def test_every_alert_leads_to_a_section_that_the_api_serves_as_the_docs_have_it(client: TestClient) -> None:
    from tests.docs.runbooks import DOCS, PAGE, page  # noqa: PLC0415 (the tests of the docs load every command)

    assert PAGE.read_text() == page(), "run: python -m tests.docs.runbooks"
    del client.headers["Authorization"]
    for rule in rules():
        address, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert address == f"{Settings.model_fields['url'].default}/runbooks"
        answer = client.get(urlsplit(address).path)
        assert answer.status_code == 200
        section = re.search(rf'<section id="{anchor}">(.*?)</section>', answer.text, re.DOTALL)
        assert section and f"<h2>{rule['alert']}</h2>" in section[1]
        assert f"\n| `{rule['alert']}` | " in DOCS.read_text()


def test_the_exposition_is_parsed_by_prometheus_own_parser(busy: TestClient) -> None:
    families = {family.name for family in text_string_to_metric_families(busy.get("/metrics").text)}
    assert {"expunge_http_requests", "expunge_http_request_seconds"} <= families
