"""OpenDSR 2.0 over HTTP, called by a client that was written from the specification alone."""

from __future__ import annotations

import base64
import datetime
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, func, select, update

from connect.tests.conftest import key_for, serving
from connect.tests.opendsr_client import Controller
from expunge_client import Expunge
from expunge_connect.opendsr.app import create_app
from expunge_connect.opendsr.callbacks import _public, keep_calling_back, send_due
from expunge_connect.opendsr.orders import read
from expunge_connect.opendsr.processor import Processor, Unusable
from expunge_connect.opendsr.requests import Intake, announce, receive
from expunge_service.infra.tables import DeletionRequest, IdempotencyKey, SuppressionEntry, Task
from tests.harness.certificates import self_signed
from tests.workers.worlds import World

DOMAIN, TOKEN = "dsr.example.com", "t" * 32


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The settings that name a new key, its certificate and the tokens."""
    folder = tmp_path_factory.mktemp("opendsr")
    key, certificate = self_signed(folder, DOMAIN)
    (folder / "tokens").write_text(f"{'u' * 40}\n{TOKEN}\n")
    return {
        "EXPUNGE_OPENDSR_URL": f"https://{DOMAIN}",
        "EXPUNGE_OPENDSR_KEY_FILE": str(key),
        "EXPUNGE_OPENDSR_CERTIFICATE_FILE": str(certificate),
        "EXPUNGE_OPENDSR_TOKENS_FILE": str(folder / "tokens"),
        "EXPUNGE_OPENDSR_IDENTITIES": "controller_customer_id, email",
        "EXPUNGE_OPENDSR_CALLBACK_HOSTS": "127.0.0.1",
    }


@pytest.fixture
def intake(files: dict[str, str], folder: Path, service: Expunge) -> Iterator[Intake]:
    opened = Intake.open(folder, service, replace(Processor.of(files), loopback=True))
    yield opened
    opened.database.close()


@pytest.fixture
def base(intake: Intake) -> Iterator[str]:
    yield from serving(create_app(intake))


@pytest.fixture
def controller(base: str) -> Controller:
    made = Controller(base, TOKEN)
    made.discover()
    return made


def request(person: str = "p1", **changed: Any) -> dict[str, Any]:
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


def count(world: World, table: Any) -> int:
    with world.database.read() as session:
        return session.scalar(select(func.count()).select_from(table)) or 0


def rows(intake: Intake, table: str) -> int:
    return int(intake.database.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def set_status(world: World, status: str) -> None:
    with world.database.write() as session:
        session.execute(update(DeletionRequest).values(status=status))


def test_discovery_says_what_is_supported_under_a_signature(base: str) -> None:
    found = Controller(base, "no key").discover()
    assert found == {
        "api_version": "2.0",
        "supported_identities": [
            {"identity_type": "controller_customer_id", "identity_format": "raw"},
            {"identity_type": "email", "identity_format": "raw"},
        ],
        "supported_subject_request_types": ["erasure"],
        "processor_certificate": f"https://{DOMAIN}/certificate.pem",
    }


def test_a_request_is_a_deletion_request_and_its_receipt_holds_what_was_sent(
    controller: Controller, world: World
) -> None:
    world.live(guarantee="proved")
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
    with world.database.read() as session:
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


def test_statuses_are_opendsrs_words(controller: Controller, world: World) -> None:
    asked = request()
    controller.erase(asked)
    said = {}
    for status in WORDS:
        set_status(world, status)
        said[status] = controller.status(asked["subject_request_id"]).said["request_status"]
    assert said == WORDS


def test_the_same_id_is_the_same_request_also_when_both_come_at_once(
    controller: Controller, world: World, intake: Intake
) -> None:
    world.live(guarantee="proved")
    asked = request()
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(controller.erase, [asked] * 4))
    assert {answer.status for answer in answers} == {201}
    assert len({answer.body for answer in answers}) == 1, "the receipt is the first one's"
    assert [count(world, table) for table in (DeletionRequest, Task, SuppressionEntry)] == [1] * 3
    assert rows(intake, "requests") == 1
    changed = request("p2", subject_request_id=asked["subject_request_id"])
    refused = controller.erase(changed)
    assert (refused.status, count(world, DeletionRequest)) == (409, 1)
    assert refused.said["error"]["code"] == 409 and b"p2" not in refused.body


def test_several_identities_are_one_person(controller: Controller, world: World) -> None:
    identities = [
        {"identity_type": "controller_customer_id", "identity_value": "ada", "identity_format": "raw"},
        {"identity_type": "email", "identity_value": "ada@example.com", "identity_format": "raw"},
    ]
    assert controller.erase(request(subject_identities=identities)).status == 201
    assert (count(world, DeletionRequest), count(world, SuppressionEntry)) == (1, 2)


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
    ({"status_callback_urls": ["http://:p@127.0.0.1/"]}, "/status_callback_urls/0"),
    ({"status_callback_urls": ["file://127.0.0.1/etc/passwd"]}, "/status_callback_urls/0"),
]


def test_what_cannot_be_done_whole_is_refused_and_not_repeated(
    controller: Controller, world: World, intake: Intake
) -> None:
    for changed, place in REFUSED:
        answer = controller.erase(request(**changed))
        assert answer.status == 400, changed
        assert answer.said["error"]["errors"][0]["reason"] == place and b"canary" not in answer.body, changed
    for body in (b"[1", b'{"regulation": "gdpr", "regulation": "ccpa"}'):
        assert controller.call("POST", "/requests", body).status == 400
    assert controller.call("POST", "/requests", b" " * 1_048_577).status == 413
    assert count(world, DeletionRequest) == rows(intake, "requests") == 0


def test_a_request_is_cancelled_until_a_worker_begins_and_not_after(controller: Controller, world: World) -> None:
    model_id = world.live(guarantee="proved")
    late = request("p2")
    controller.erase(late)
    assert world.claim(model_id) is not None
    refused, status = (call(late["subject_request_id"]) for call in (controller.cancel, controller.status))
    assert refused.status == 409 and status.said["request_status"] == "in_progress"
    asked = request()
    controller.erase(asked)
    for _ in range(2):
        answer = controller.cancel(asked["subject_request_id"])
        assert answer.status == 202
        assert set(answer.said) == {
            "api_version", "controller_id", "subject_request_id", "received_time", "encoded_request"
        }  # fmt: skip
    assert controller.status(asked["subject_request_id"]).said["request_status"] == "cancelled"


def test_nobody_calls_without_a_token(controller: Controller, intake: Intake) -> None:
    asked = request()
    controller.erase(asked)
    place = asked["subject_request_id"]
    for wrong in ("", "exp_wrong", TOKEN + "t", "u" * 39):
        stranger = replace(controller, key=wrong)
        answers = stranger.erase(request()), stranger.status(place), stranger.cancel(place)
        assert [each.status for each in answers] == [401] * 3
    assert replace(controller, key="u" * 40).status(place).status == 200
    assert controller.status(str(uuid.uuid4())).status == controller.cancel(str(uuid.uuid4())).status == 404
    assert controller.call("GET", "/nothing").status == 404
    assert rows(intake, "requests") == 1


def test_a_service_that_is_away_or_takes_no_calls_is_no_fault_of_the_caller(
    controller: Controller, intake: Intake, world: World, url: str
) -> None:
    asked = request()
    here = intake.service
    for away in (Expunge(url, "exp_" + "0" * 40), Expunge("http://127.0.0.1:9", "exp_")):
        object.__setattr__(intake, "service", away)
        assert controller.erase(asked).status == 503
    object.__setattr__(intake, "service", here)
    assert (controller.erase(asked).status, count(world, DeletionRequest)) == (201, 1)


def test_its_caller_is_told_of_each_step_once_under_a_signature(
    controller: Controller, world: World, intake: Intake
) -> None:
    world.live(guarantee="proved")
    server = controller.listen()
    url = f"http://127.0.0.1:{server.server_port}/callbacks"
    asked = request(status_callback_urls=[url])
    controller.erase(asked)
    controller.erase(asked)
    assert (announce(intake), send_due(intake)) == (0, 0), "the receipt said pending"
    for status in ("running", "queued", "running", "completed"):
        set_status(world, status)
        announce(intake)
        announce(intake)
        send_due(intake)
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


def test_a_callback_that_is_not_taken_is_sent_again_and_none_is_sent_to_this_machine(
    controller: Controller, intake: Intake
) -> None:
    server = controller.listen()
    controller.erase(request(status_callback_urls=[f"http://127.0.0.1:{server.server_port}/"]))
    assert announce(intake) == 1, "nobody matched: it was completed at once"
    guarded = replace(intake, processor=replace(intake.processor, loopback=False))
    assert (send_due(guarded), controller.callbacks) == (1, [])
    trusted, controller.trusted = controller.trusted, b""
    for expected in (1, 0):
        assert send_due(intake) == 0, "not at once"
        intake.database.execute("UPDATE callbacks SET next_at = 0")
        assert send_due(intake) == 1
        assert rows(intake, "callbacks") == expected
        controller.trusted = trusted
    server.shutdown()
    assert (len(controller.rejected), len(controller.callbacks)) == (1, 1)


@pytest.mark.parametrize("text", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:10.0.0.1", "2002:a00:1::"])
def test_no_callback_leads_into_a_private_network(text: str) -> None:
    assert not _public(text)
    assert _public("1.1.1.1") and _public("2606:4700:4700::1111")


def test_files_that_do_not_fit_stop_the_start(files: dict[str, str], tmp_path: Path) -> None:
    other, _ = self_signed(tmp_path, DOMAIN)
    with pytest.raises(Unusable, match="EXPUNGE_OPENDSR_CERTIFICATE_FILE"):
        Processor.of(files | {"EXPUNGE_OPENDSR_KEY_FILE": str(other)})
    with pytest.raises(Unusable, match="EXPUNGE_OPENDSR_KEY_FILE"):
        Processor.of(files | {"EXPUNGE_OPENDSR_KEY_FILE": str(tmp_path / "none")})
    with pytest.raises(Unusable, match="EXPUNGE_OPENDSR_URL"):
        Processor.of(files | {"EXPUNGE_OPENDSR_URL": ""})
    (tmp_path / "short").write_text("short\n")
    for name in ("short", "none"):
        with pytest.raises(Unusable, match="EXPUNGE_OPENDSR_TOKENS_FILE"):
            Processor.of(files | {"EXPUNGE_OPENDSR_TOKENS_FILE": str(tmp_path / name)})


@pytest.mark.parametrize("accepted", [False, True], ids=["before the service accepted", "after it accepted"])
def test_a_death_loses_nothing_and_doubles_nothing(
    controller: Controller, world: World, intake: Intake, monkeypatch: pytest.MonkeyPatch, accepted: bool
) -> None:
    """What each statement wrote stays, as after a kill. The service forgets its Idempotency-Key in between."""
    world.live(guarantee="proved")
    asked, real = request(), intake.service.delete
    tables = (DeletionRequest, Task, SuppressionEntry)

    def dying(**order: Any) -> Any:
        if accepted:
            real(**order)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(intake.service, "delete", dying)
        receive(intake, read(json.dumps(asked).encode(), intake.processor))
    assert controller.status(asked["subject_request_id"]).status == 404, "nothing was promised"
    assert [count(world, table) for table in tables] == [int(accepted)] * 3
    with world.database.write() as session:
        session.execute(delete(IdempotencyKey))
    for _ in range(2):
        assert controller.erase(asked).status == 201
    assert [count(world, table) for table in tables] == [1] * 3 and rows(intake, "requests") == 1


def test_what_the_service_lost_is_made_again_when_the_caller_sends_it_again(
    controller: Controller, world: World, intake: Intake
) -> None:
    """The service was restored from a backup that is older than the request."""
    asked = request()
    controller.erase(asked)
    intake.database.execute("UPDATE requests SET request = ?", ["0" * 32])
    with world.database.write() as session:
        session.execute(delete(IdempotencyKey))
        session.execute(update(DeletionRequest).values(case_id=None))
    assert controller.status(asked["subject_request_id"]).status == 404
    assert controller.erase(asked).status == 201
    assert controller.status(asked["subject_request_id"]).said["request_status"] == "completed"
    assert count(world, DeletionRequest) == 2


def test_with_a_worker_a_person_leaves_the_model_and_the_caller_is_called_back(
    controller: Controller, world: World, intake: Intake
) -> None:
    model_id = world.live(guarantee="proved")
    server = controller.listen()
    controller.erase(request("p1", status_callback_urls=[f"http://127.0.0.1:{server.server_port}/"]))
    world.work(model_id)
    stop = threading.Event()
    calling = threading.Thread(target=keep_calling_back, args=(intake, stop))
    calling.start()
    assert controller.arrived.wait(30)
    stop.set()
    calling.join()
    server.shutdown()
    assert [each["request_status"] for each in controller.callbacks] == ["completed"]
    assert world.head(model_id).number == 2


def test_the_command_serves_it_and_ends_with_a_signal(
    world: World, url: str, files: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    world.live(guarantee="proved")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    account = {"EXPUNGE_URL": url, "EXPUNGE_API_KEY": key_for(world)}
    command = [sys.executable, "-m", "expunge_client.cli.main", "opendsr", "serve", "--port", str(port)]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, env=os.environ | files | account, stdout=log, stderr=log)
    try:
        controller = Controller(f"http://127.0.0.1:{port}", TOKEN)
        for _ in range(200):
            try:
                controller.discover()
                break
            except urllib.error.URLError:
                assert process.poll() is None, (tmp_path / "log").read_text()
                time.sleep(0.1)
        assert controller.erase(request()).status == 201
    finally:
        process.terminate()
        assert process.wait(20) in (0, -signal.SIGTERM)
    assert (folder / "opendsr.db").exists()
