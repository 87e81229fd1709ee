"""OpenDSR 2.0 over HTTP, called by a client that was written from the specification alone."""

from __future__ import annotations

import base64
import datetime
import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update

from expunge.service.api.app import create_app
from expunge.service.api.dependencies import Service
from expunge.service.connect.opendsr.processor import Processor
from expunge.service.connect.opendsr.requests import announce_statuses
from expunge.service.infra.settings import Settings, SettingsError
from expunge.service.infra.tables import DeletionRequest, OpendsrRequest, SuppressionEntry, Task, WebhookDelivery
from expunge.workers.scheduler.ssrf_guard import Outbound
from expunge.workers.scheduler.webhook_sender import WebhookSender
from tests.harness.certificates import self_signed
from tests.harness.deaths import crash, post, variables_of
from tests.service.conformity.opendsr_client import Controller
from tests.service.worlds import live_model

DOMAIN = "dsr.example.com"
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
Keys = Callable[..., dict[str, str]]


def certificate_for(domain: str, folder: Path) -> dict[str, Path]:
    """A new key and its certificate, as the settings that name them."""
    key, certificate = self_signed(folder, domain)
    return {"opendsr_key_file": key, "opendsr_certificate_file": certificate}


@pytest.fixture(scope="module")
def processor_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return certificate_for(DOMAIN, tmp_path_factory.mktemp("opendsr"))


@pytest.fixture
def settings(settings: Settings, processor_files: dict[str, Path]) -> Settings:
    return settings.model_copy(
        update={
            "opendsr_url": f"https://{DOMAIN}/opendsr",
            "opendsr_identities": "controller_customer_id, email",
            "opendsr_callback_hosts": "127.0.0.1",
            **processor_files,
        }
    )


@pytest.fixture
def base(api: TestClient) -> Iterator[str]:
    """The API on a port of this machine."""
    server = uvicorn.Server(uvicorn.Config(api.app, port=0, log_level="error", lifespan="off"))  # type: ignore[arg-type]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/opendsr"
    server.should_exit = True
    thread.join(10)


@pytest.fixture
def controller(base: str, key_of: Keys) -> Controller:
    made = Controller(base, key_of("deletions:write", "deletions:read")["Authorization"].removeprefix("Bearer "))
    made.discover()
    return made


def request(person: str = "ada", **changed: Any) -> dict[str, Any]:
    """A request as the specification shows one."""
    return {
        "regulation": "gdpr",
        "subject_request_id": str(uuid.uuid4()),
        "subject_request_type": "erasure",
        "submitted_time": "2026-11-02T15:00:00Z",
        "subject_identities": [
            {"identity_type": "controller_customer_id", "identity_value": person, "identity_format": "raw"}
        ],
        "api_version": "2.0",
        "extensions": {"dsr.example.com": {"foo": "bar"}},
    } | changed


def count(service: Service, table: Any) -> int:
    with service.database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def set_status(service: Service, status: str) -> None:
    with service.database.write() as session:
        session.execute(update(DeletionRequest).values(status=status))


@ON_SQLITE
def test_discovery_says_what_is_supported_under_a_signature(base: str) -> None:
    found = Controller(base, "no key").discover()
    assert found == {
        "api_version": "2.0",
        "supported_identities": [
            {"identity_type": "controller_customer_id", "identity_format": "raw"},
            {"identity_type": "email", "identity_format": "raw"},
        ],
        "supported_subject_request_types": ["erasure"],
        "processor_certificate": f"https://{DOMAIN}/opendsr/certificate.pem",
    }


@ON_SQLITE
def test_a_request_is_a_deletion_request_and_its_receipt_holds_what_was_sent(
    controller: Controller, service: Service
) -> None:
    live_model(service)
    asked = request()
    answer = controller.erase(asked)
    assert answer.status == 201
    receipt = answer.said
    assert json.loads(base64.b64decode(receipt.pop("encoded_request"))) == asked
    assert datetime.datetime.fromisoformat(receipt.pop("received_time")).tzinfo is not None
    assert receipt == {
        "controller_id": "default",
        "expected_completion_time": "2026-12-02T15:00:00.000000Z",
        "subject_request_id": asked["subject_request_id"],
    }
    state = controller.status(asked["subject_request_id"]).said
    assert (state["request_status"], state["api_version"]) == ("pending", "2.0")
    with service.database.read() as session:
        row = session.scalars(select(DeletionRequest)).one()
        assert (row.case_id, row.regulation, row.status) == (asked["subject_request_id"], "gdpr", "queued")
        assert session.scalar(select(func.count()).select_from(Task)) == 1
    other = controller.call("GET", f"/opendsr_requests/{asked['subject_request_id'].upper()}")
    assert other.said == state


WORDS = {
    "queued": "pending",
    "blocked": "pending",
    "running": "in_progress",
    "completed": "completed",
    "cancelled": "cancelled",
    "rejected": "cancelled",
}


@ON_SQLITE
def test_statuses_are_opendsrs_words(controller: Controller, service: Service) -> None:
    asked = request()
    controller.erase(asked)
    said = {}
    for status in WORDS:
        set_status(service, status)
        said[status] = controller.status(asked["subject_request_id"]).said["request_status"]
    assert said == WORDS


@pytest.mark.both_engines
def test_the_same_id_is_the_same_request_also_when_both_come_at_once(controller: Controller, service: Service) -> None:
    live_model(service)
    asked = request()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(controller.erase, [asked] * 4))
    assert {answer.status for answer in answers} == {201}
    assert len({answer.body for answer in answers}) == 1, "the receipt is the first one's"
    assert [count(service, table) for table in (DeletionRequest, OpendsrRequest, Task, SuppressionEntry)] == [1] * 4
    changed = request("bob", subject_request_id=asked["subject_request_id"])
    refused = controller.erase(changed)
    assert (refused.status, count(service, DeletionRequest)) == (409, 1)
    assert refused.said["error"]["code"] == 409 and b"bob" not in refused.body


@ON_SQLITE
def test_several_identities_are_one_person(controller: Controller, service: Service) -> None:
    identities = [
        {"identity_type": "controller_customer_id", "identity_value": "ada", "identity_format": "raw"},
        {"identity_type": "email", "identity_value": "ada@example.com", "identity_format": "raw"},
    ]
    assert controller.erase(request(subject_identities=identities)).status == 201
    assert (count(service, DeletionRequest), count(service, SuppressionEntry)) == (1, 2)


HASHED = [{"identity_type": "email", "identity_value": "ab" * 32, "identity_format": "sha256"}]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"subject_request_type": "access"}, "/subject_request_type"),
    ({"subject_identities": HASHED}, "/subject_identities/0"),
    ({"subject_identities": [{"identity_type": "ios_vendor_id", "identity_value": "canary"}]}, "/subject_identities/0"),
    ({"subject_identities": []}, "/subject_identities"),
    ({"regulation": "canary"}, "/regulation"),
    ({"api_version": "3.0"}, "/api_version"),
    ({"subject_request_id": "canary@example.com"}, "/subject_request_id"),
    ({"submitted_time": "yesterday"}, "/submitted_time"),
    ({"submitted_time": "0001-01-01T00:00:00+00:00"}, "/submitted_time"),
    ({"submitted_time": "0001-01-01T00:00:00+23:59"}, "/submitted_time"),
    ({"submitted_time": "9999-12-31T23:59:59-23:59"}, "/submitted_time"),
    ({"submitted_time": -62_000_000_000}, "/submitted_time"),
    ({"submitted_time": "2999-01-01T00:00:00Z"}, "/received_at"),
    ({"status_callback_urls": ["https://canary.example.com/"]}, "/status_callback_urls/0"),
    ({"status_callback_urls": ["http://u:p@127.0.0.1/"]}, "/status_callback_urls/0"),
    ({"status_callback_urls": ["file://127.0.0.1/etc/passwd"]}, "/status_callback_urls/0"),
]


@ON_SQLITE
def test_what_cannot_be_done_whole_is_refused_and_not_repeated(controller: Controller, service: Service) -> None:
    for changed, place in REFUSED:
        answer = controller.erase(request(**changed))
        assert answer.status == 400, changed
        assert answer.said["error"]["errors"][0]["reason"] == place and b"canary" not in answer.body, changed
    assert controller.call("POST", "/requests", b"[1").status == 400
    assert count(service, DeletionRequest) == count(service, OpendsrRequest) == 0


@ON_SQLITE
def test_a_request_is_cancelled_in_its_window_and_not_after(
    controller: Controller, service: Service, settings: Settings
) -> None:
    live_model(service)
    late = request("bob")
    controller.erase(late)
    refused = controller.cancel(late["subject_request_id"])
    assert refused.status == 409 and controller.status(late["subject_request_id"]).said["request_status"] == "pending"
    object.__setattr__(service, "settings", settings.model_copy(update={"cancel_window": 3600.0}))
    asked = request()
    controller.erase(asked)
    for _ in range(2):
        answer = controller.cancel(asked["subject_request_id"])
        assert answer.status == 202
        assert set(answer.said) == {
            "api_version", "controller_id", "subject_request_id", "received_time", "encoded_request"
        }  # fmt: skip
    assert controller.status(asked["subject_request_id"]).said["request_status"] == "cancelled"


@ON_SQLITE
def test_scopes_and_tenants_are_as_elsewhere(controller: Controller, key_of: Keys, service: Service) -> None:
    asked = request()
    controller.erase(asked)
    place = asked["subject_request_id"]

    def holding(*scopes: str, **of: str) -> Controller:
        return replace(controller, key=key_of(*scopes, **of)["Authorization"].removeprefix("Bearer "))

    assert replace(controller, key="exp_wrong").erase(request()).status == 401
    assert holding("deletions:read").erase(request()).status == 403
    assert holding("deletions:read").cancel(place).status == 403
    assert holding("deletions:write").status(place).status == 403, "who may only write learns nothing"
    assert holding("deletions:write").erase(request()).status == 201
    calling_back = request(status_callback_urls=["http://127.0.0.1/"])
    assert holding("deletions:write").erase(calling_back).status == 403, "nor by a callback"
    other = holding("deletions:write", "deletions:read", tenant_id="other")
    assert other.status(place).status == other.cancel(place).status == 404
    assert other.erase(asked).said["controller_id"] == "other"
    assert controller.status(str(uuid.uuid4())).status == 404
    assert controller.call("GET", "/nothing").status == 404
    assert count(service, OpendsrRequest) == 3


def sender_of(service: Service, settings: Settings, *, on: bool = True) -> WebhookSender:
    processor = Processor.of(settings) if on else None
    outbound = Outbound(loopback=settings.loopback)
    return WebhookSender(service.database, service.session_key, outbound, 0.05, processor)


@pytest.mark.both_engines
def test_its_caller_is_told_of_each_step_once_under_a_signature(
    controller: Controller, service: Service, settings: Settings
) -> None:
    live_model(service)
    server = controller.listen()
    url = f"http://127.0.0.1:{server.server_port}/callbacks"
    asked = request(status_callback_urls=[url])
    controller.erase(asked)
    controller.erase(asked)
    sender = sender_of(service, settings)
    assert (announce_statuses(service.database), sender.round()) == (0, 0), "the receipt said pending"
    for status in ("running", "queued", "running", "completed"):
        set_status(service, status)
        announce_statuses(service.database)
        announce_statuses(service.database)
        sender.round()
    server.shutdown()
    assert controller.rejected == []
    assert [each["request_status"] for each in controller.callbacks] == ["in_progress", "completed"]
    assert controller.callbacks[-1] == {
        "api_version": "2.0",
        "controller_id": "default",
        "expected_completion_time": "2026-12-02T15:00:00.000000Z",
        "request_status": "completed",
        "status_callback_url": url,
        "subject_request_id": asked["subject_request_id"],
    }


@ON_SQLITE
def test_a_callback_that_is_not_taken_is_sent_again_and_none_is_sent_unsigned_or_to_this_machine(
    controller: Controller, service: Service, settings: Settings
) -> None:
    server = controller.listen()
    controller.erase(request(status_callback_urls=[f"http://127.0.0.1:{server.server_port}/"]))
    assert announce_statuses(service.database) == 1, "nobody matched: it was completed at once"
    assert sender_of(service, settings, on=False).round() == 0, "it waits for the key"
    guarded = sender_of(service, settings.model_copy(update={"mode": "production"}))
    assert (guarded.round(), controller.callbacks) == (1, [])
    trusted, controller.trusted = controller.trusted, b""
    for expected in (401, 202):
        with service.database.write() as session:
            session.execute(update(WebhookDelivery).values(next_at=1))
        assert sender_of(service, settings).round() == 1
        with service.database.read() as session:
            assert session.scalars(select(WebhookDelivery.last_status)).one() == expected
        controller.trusted = trusted
    server.shutdown()
    assert (len(controller.rejected), len(controller.callbacks)) == (1, 1)


@ON_SQLITE
def test_callbacks_are_seen_among_the_webhooks_and_get_no_other_news(
    controller: Controller, api: TestClient, key_of: Keys, service: Service
) -> None:
    controller.erase(request(status_callback_urls=["http://127.0.0.1/a"]))
    controller.erase(request("bob", status_callback_urls=["http://127.0.0.1/a"]))
    (endpoint,) = api.get("/v1/webhooks", headers=key_of()).json()["data"]
    assert (endpoint["kinds"], endpoint["protocol"]) == ([], "opendsr")
    assert count(service, WebhookDelivery) == 0


@ON_SQLITE
def test_it_is_off_unless_its_address_is_set(settings: Settings, key_of: Keys) -> None:
    with TestClient(create_app(settings.model_copy(update={"opendsr_url": None}))) as client:
        assert client.get("/opendsr/discovery").status_code == 404
        assert client.post("/opendsr/requests", json=request(), headers=key_of()).status_code == 404


@ON_SQLITE
def test_a_certificate_that_is_not_the_keys_stops_the_start(settings: Settings, tmp_path: Path) -> None:
    other = certificate_for(DOMAIN, tmp_path)
    wrong = settings.model_copy(update={"opendsr_key_file": other["opendsr_key_file"]})
    with pytest.raises(SettingsError, match="EXPUNGE_OPENDSR_CERTIFICATE_FILE"):
        create_app(wrong)
    other["opendsr_key_file"].unlink()
    with pytest.raises(SettingsError, match="EXPUNGE_OPENDSR_KEY_FILE"):
        create_app(wrong)


@pytest.mark.parametrize("point", ["api-after-audit", "api-inside-commit", "api-after-commit"])
def test_a_death_loses_nothing_and_doubles_nothing(
    controller: Controller, service: Service, settings: Settings, point: str
) -> None:
    live_model(service)
    asked = request()
    environment = variables_of(settings) | {
        "EXPUNGE_OPENDSR_URL": str(settings.opendsr_url),
        "EXPUNGE_OPENDSR_KEY_FILE": str(settings.opendsr_key_file),
        "EXPUNGE_OPENDSR_CERTIFICATE_FILE": str(settings.opendsr_certificate_file),
    }
    headers = {"Authorization": f"Bearer {controller.key}"}
    assert crash(point, post, "/opendsr/requests", asked, headers, **environment) == -9
    time.sleep(0.2)  # PostgreSQL may still be ending the dead client's transaction
    tables = (DeletionRequest, OpendsrRequest, Task, SuppressionEntry)
    assert [count(service, table) for table in tables] in ([0] * 4, [1] * 4)
    assert controller.erase(asked).status == 201
    assert [count(service, table) for table in tables] == [1] * 4
