"""Cancelling inside the window, also while others decide; batches and estimates."""

from __future__ import annotations

import secrets
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from datetime import datetime, timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import func, select, update

from expunge_service.api.dependencies import Service
from expunge_service.audit.log import charge
from expunge_service.infra.tables import (
    AuditEntry,
    DeletionRequest,
    Generation,
    Lease,
    Model,
    Removal,
    SuppressionEntry,
    Task,
)
from expunge_service.queue import claim_deletions
from expunge_service.requests.reasons import Reason
from expunge_service.requests.status import settle
from expunge_service.requests.suppression import positions
from tests.service.worlds import live_model

SEARCHED = "people.searched"
PATH = "/v1/deletion-requests"
LARGE = {"cancel_window": 3600.0, "large_request": 1}


@pytest.fixture
def window(service: Service) -> None:
    object.__setattr__(service, "settings", service.settings.model_copy(update={"cancel_window": 3600.0}))


def post(client: TestClient, **body: Any) -> Any:
    return client.post(PATH, json=body, headers={"Idempotency-Key": secrets.token_hex(8)}).json()


def test_a_request_inside_its_window_is_cancelled_as_a_whole(
    window: None, client: TestClient, service: Service
) -> None:
    model = live_model(service)
    live_model(service, "faces", {"ada": ["x"]})
    made = post(client, subject_id="ada")
    answer = client.delete(f"{PATH}/{made['id']}")
    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
    assert {part["status"] for part in answer.json()["models"]} == {"cancelled"}
    assert client.delete(f"{PATH}/{made['id']}").json() == answer.json()
    with service.database.read() as session:
        assert positions(session, "default", "digits", model.generation_id or 0) == {}
        kinds = session.scalars(select(AuditEntry.kind).where(AuditEntry.request_id == made["id"])).all()
    assert kinds == ["request.accepted", "request.cancelled"]


@pytest.mark.both_engines
def test_one_task_that_has_begun_keeps_the_whole_request(window: None, client: TestClient, service: Service) -> None:
    live_model(service)
    live_model(service, "faces", {"ada": ["x"]})
    made = post(client, subject_id="ada")
    with service.database.write() as session:
        session.scalars(select(Task)).first().status = "running"  # type: ignore[union-attr]
        settle(session, [made["id"]])
    answer = client.delete(f"{PATH}/{made['id']}")
    assert (answer.status_code, answer.json()["code"]) == (409, "not_cancellable")
    with service.database.read() as session:
        assert session.scalar(select(func.count()).where(Task.status == "cancelled")) == 0
        assert session.scalar(select(func.count()).where(SuppressionEntry.lifted_at.is_not(None))) == 0


def test_without_a_window_a_request_is_cancelled_until_a_worker_begins(client: TestClient, service: Service) -> None:
    live_model(service)
    request = f"{PATH}/{post(client, subject_id='ada')['id']}"
    shown = client.get(request).json()
    assert (shown["cancellable"], shown["cancellable_until"]) == (True, None)
    assert client.delete(request).json()["status"] == "cancelled"
    assert not client.get(request).json()["cancellable"]
    over = f"{PATH}/{post(client, subject_id='nobody')['id']}"
    assert client.delete(over).status_code == 409 and not client.get(over).json()["cancellable"]
    assert client.delete(f"{PATH}/{'0' * 32}").status_code == 404


@pytest.mark.parametrize(
    ("changes", "possible"),
    [
        ({"reason": "awaiting_batch"}, True),
        ({"status": "blocked", "reason": "large"}, True),
        ({"status": "blocked", "reason": "no_worker"}, True),
        ({"status": "running", "attempts": 1}, False),
        ({"status": "running", "attempts": 1, "reason": "awaiting_consumers", "version_id": "v"}, False),
        ({"attempts": 1, "reason": "failed"}, False),
        ({"attempts": 1, "reason": "awaiting_retrain"}, False),
        ({"status": "blocked", "attempts": 1, "reason": "legal_hold"}, False),
        ({"status": "blocked", "reason": "failed"}, False),
        ({"status": "completed", "attempts": 1}, False),
    ],
)
def test_what_is_said_of_a_cancellation_is_what_happens(
    client: TestClient, service: Service, changes: dict[str, Any], possible: bool
) -> None:
    live_model(service)
    live_model(service, "faces", {"ada": ["x"]})
    request = post(client, subject_id="ada")["id"]
    with service.database.write() as session:
        task = session.scalars(select(Task).join(Model, Model.id == Task.model_id).where(Model.name == "faces")).one()
        for name, value in changes.items():
            setattr(task, name, value)
        settle(session, [request])
    assert client.get(f"{PATH}/{request}").json()["cancellable"] is possible
    listed = client.get(PATH).json()["data"]
    assert [each["cancellable"] for each in listed] == [possible]
    assert client.delete(f"{PATH}/{request}").status_code == (200 if possible else 409)
    with service.database.read() as session:
        cancelled = session.scalar(select(func.count()).where(Task.status == "cancelled"))
        lifted = session.scalar(select(func.count()).where(SuppressionEntry.lifted_at.is_not(None)))
    assert (cancelled, lifted) == ((2, 1) if possible else (0, 0))


@pytest.mark.parametrize(
    ("generation", "possible"),
    [
        ({"attempts": 0}, True),
        ({"attempts": 1}, False),
        ({"attempts": 0, "manifest": {"members_frozen": True}}, False),
        ({"attempts": 1, "report": {"dry_run": True}}, True),
        ({"attempts": 1, "status": "refused"}, True),
    ],
    ids=["planned", "begun", "given back", "dry run", "refused"],
)
def test_a_training_that_leaves_the_person_out_has_begun_too(
    client: TestClient, service: Service, generation: dict[str, Any], possible: bool
) -> None:
    model = live_model(service)
    with service.database.write() as session:
        row = {"status": "candidate", "method": "retrain", "guarantee": "none", "created_at": 1} | generation
        session.add(Generation(tenant_id="default", model_id=model.id, **row))
    request = f"{PATH}/{post(client, subject_id='ada')['id']}"
    assert client.get(request).json()["cancellable"] is possible
    assert client.delete(request).status_code == (200 if possible else 409)


def test_inside_its_window_a_person_is_trained_on_and_the_request_can_be_cancelled(
    window: None, client: TestClient, service: Service
) -> None:
    model = live_model(service)
    with service.database.write() as session:
        row = {"status": "candidate", "method": "retrain", "guarantee": "none", "created_at": 1, "attempts": 1}
        session.add(Generation(tenant_id="default", model_id=model.id, **row))
    request = f"{PATH}/{post(client, subject_id='ada')['id']}"
    shown = client.get(request).json()
    ends = datetime.fromisoformat(shown["received_at"]) + timedelta(hours=1)
    assert shown["cancellable"] and abs(datetime.fromisoformat(shown["cancellable_until"]) - ends) < timedelta(
        seconds=9
    )
    assert client.delete(request).status_code == 200


@pytest.mark.both_engines
def test_a_claim_and_a_cancellation_at_the_same_moment_end_in_one_of_the_two(
    client: TestClient, service: Service
) -> None:
    model = live_model(service)
    ends: set[tuple[str, int]] = set()
    for turn in range(8):
        with service.database.write() as session:
            for lease in session.scalars(select(Lease)):
                lease.token, lease.expires_at = 0, 0
            session.execute(update(Task).values(status="cancelled"))
        request = post(client, subject_id="ada")["id"]
        start = threading.Barrier(2)

        def work(begins: threading.Barrier = start, late: bool = turn % 2 == 1) -> bool:
            begins.wait()
            time.sleep(0.004 * late)
            return claim_deletions(service.database, model.id, "worker", 30.0) is not None

        def take_back(begins: threading.Barrier = start, path: str = f"{PATH}/{request}") -> int:
            begins.wait()
            return client.delete(path).status_code

        with ThreadPoolExecutor(2) as pool:
            claimed, answered = pool.submit(work), pool.submit(take_back)
        assert (claimed.result(), answered.result()) in {(True, 409), (False, 200)}
        ends.add((client.get(f"{PATH}/{request}").json()["status"], answered.result()))
    assert ends <= {("running", 409), ("cancelled", 200)}


@pytest.mark.both_engines
def test_an_approval_and_a_cancellation_at_the_same_moment_end_in_one_of_the_two(
    client: TestClient, service: Service
) -> None:
    service.settings.__dict__.update(LARGE)
    live_model(service)
    seen: set[tuple[int, ...]] = set()
    for _ in range(12):
        made = post(client, subject_id="ada")["id"]
        seen.add(at_once(client, ("POST", f"{PATH}/{made}/approve"), ("DELETE", f"{PATH}/{made}")))
        shown = client.get(f"{PATH}/{made}").json()
        assert {part["status"] for part in shown["models"]} == {shown["status"]}
    assert seen <= {(200, 200), (409, 200)}, "an approved request can be cancelled until a worker begins"


@pytest.mark.both_engines
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize(("what", "reason"), [("approve", Reason.LARGE), ("retry", Reason.FAILED)])
def test_what_was_blocked_is_not_queued_in_a_model_that_is_retired_meanwhile(
    client: TestClient, service: Service, what: str, reason: Reason
) -> None:
    """The retirement has ended the task and waits to commit: the other call must not take the task for blocked."""
    service.settings.__dict__.update(LARGE)
    live_model(service)
    made = post(client, subject_id="ada")["id"]
    with service.database.write() as session:
        session.scalars(select(Task)).one().reason = reason
    calls = (("POST", "/v1/models/digits/retire"), ("POST", f"{PATH}/{made}/{what}"))
    sent: list[Future[Any]] = []
    with ThreadPoolExecutor(2) as pool:
        with service.database.write() as session:
            session.get_one(DeletionRequest, made, with_for_update=True)
            for call in calls:
                sent.append(pool.submit(client.request, *call))
                assert not wait(sent, 0.3).done
        retired, other = (each.result().status_code for each in sent)
    assert retired == 200 and other in (200, 409), "on a busy machine the second may come first"
    assert client.get(f"{PATH}/{made}").json()["status"] == "completed"


def at_once(client: TestClient, *calls: tuple[str, str]) -> tuple[int, ...]:
    """The status of each call, all of them sent at the same moment."""
    start = threading.Barrier(len(calls))

    def send(call: tuple[str, str]) -> int:
        start.wait()
        return client.request(*call).status_code

    with ThreadPoolExecutor(len(calls)) as pool:
        return tuple(pool.map(send, calls))


@pytest.mark.both_engines
def test_a_batch_gives_each_item_its_outcome(client: TestClient, service: Service) -> None:
    live_model(service)
    items = [{"subject_id": "ada"}, {"subject_id": "bob", "models": ["canary"]}, {"subject_id": "nobody"}]
    headers = {"Idempotency-Key": "batch-1"}
    answer = client.post(f"{PATH}/batch", json={"requests": items}, headers=headers)
    assert answer.status_code == 207
    outcomes = answer.json()["outcomes"]
    assert [(each["index"], each["status"]) for each in outcomes] == [(0, 202), (1, 422), (2, 202)]
    assert outcomes[0]["request"]["status"] == "queued"
    assert outcomes[1]["problem"]["code"] == "unknown_model"
    assert outcomes[2]["request"]["reason"] == "no_match"
    assert "canary" not in answer.text
    assert len({outcomes[place]["request"]["opening"] for place in (0, 2)}) == 2
    assert client.post(f"{PATH}/batch", json={"requests": items}, headers=headers).json() == answer.json()
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(DeletionRequest)) == 2


@pytest.mark.parametrize(
    "requests",
    [[], [{"subject_id": "ada"}] * 1001, [{"subject_id": "ada"}, {"canary": 1}], [{"sample_ids": ["x"] * 51}]],
)
def test_a_malformed_batch_is_refused_whole(client: TestClient, service: Service, requests: list[Any]) -> None:
    answer = client.post(f"{PATH}/batch", json={"requests": requests}, headers={"Idempotency-Key": "k"})
    assert answer.status_code == 422
    assert "canary" not in answer.text
    with service.database.read() as session:
        assert session.scalar(select(func.count()).select_from(DeletionRequest)) == 0


@pytest.mark.both_engines
def test_an_estimate_says_what_it_would_cost_and_changes_nothing(client: TestClient, service: Service) -> None:
    model = live_model(service)
    live_model(service, "faces", {"zoe": ["x"]})
    with service.database.read() as session:
        before = session.scalar(select(func.count()).select_from(AuditEntry).where(AuditEntry.kind != SEARCHED))
    assert _estimated(client, subject_id="ada") == {
        "samples": 2,
        "models": [
            {
                "model": "digits",
                "samples": 2,
                "method": "recollection",
                "guarantee": "proved",
                "budget_cost": 1_000_000,
                "updates_left": 9,
                "retrain_due": False,
                "repeats": None,
                "seconds": None,
                "version": 2,
                "reason": None,
            }
        ],
        "preparing": [],
        "regulation": None,
        "due_at": None,
        "near": None,
    }
    assert client.post(f"{PATH}/estimate", json={"sample_ids": ["ada-1", "x", "nope"]}).json()["samples"] == 2
    unknown = {"samples": 0, "models": [], "preparing": [], "regulation": None, "due_at": None, "near": None}
    assert _estimated(client, subject_id="nobody") == unknown
    assert client.post(f"{PATH}/estimate", json={"subject_id": "ada", "models": ["nope"]}).status_code == 422
    with service.database.write() as session:
        session.add(Removal(generation_id=model.generation_id or 0, position=0, version_id="v"))
        charge(session, model.generation_id or 0, None, 9_000_000)
    (cost,) = client.post(f"{PATH}/estimate", json={"subject_id": "ada"}).json()["models"]
    assert (cost["samples"], cost["updates_left"], cost["retrain_due"]) == (1, 0, True)
    with service.database.read() as session:
        others = select(func.count()).select_from(AuditEntry).where(AuditEntry.kind != SEARCHED)
        assert session.scalar(others) == before
        assert session.scalar(select(func.count()).select_from(DeletionRequest)) == 0


def _estimated(client: TestClient, **order: Any) -> dict[str, Any]:
    """What is told, all but the search's id, moments and the letter."""
    told: dict[str, Any] = client.post(f"{PATH}/estimate", json=order).json()
    assert told["letter"]["headline"] and all(part.pop("expected_at") for part in told["models"])
    return {name: value for name, value in told.items() if name not in ("search", "letter")}
