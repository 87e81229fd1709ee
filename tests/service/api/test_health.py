"""Health, readiness and metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select, text, update

from expunge_service.access.api_keys import create_key, revoke_key, rotate_key
from expunge_service.api.dependencies import Service
from expunge_service.audit.log import charge
from expunge_service.infra.db import Busy, now
from expunge_service.infra.files import DiskFolder, Entry
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.tables import (
    Certificate,
    DeletionRequest,
    Heartbeat,
    Model,
    PhaseSeconds,
    Task,
    WebhookDelivery,
    WebhookEndpoint,
)
from expunge_service.models import restore_guard
from expunge_service.requests.status import settle
from tests.service.certificates.test_certificates import carry_out
from tests.service.worlds import live_model, publish

ROOT = Path(__file__).parents[3]


def beat(service: Service, age_seconds: float, kind: str = "worker", **serves: object) -> None:
    takes = {"tenants": None, "places": None, "memory": 8} | serves
    with service.database.write() as session:
        at = now(session) - int(age_seconds * 1e6)
        row = {"process": new_id(), "kind": kind, "software": "1", "started_at": at, "beat_at": at}
        session.add(Heartbeat(serves=takes if kind == "worker" else None, **row))


def test_healthy_means_that_the_process_answers(api: TestClient) -> None:
    assert api.get("/healthz").json() == {"status": "ok"}


def test_ready_needs_a_live_worker(api: TestClient, service: Service) -> None:
    answer = api.get("/readyz")
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    assert "worker" in answer.json()["detail"]
    beat(service, 3600)
    beat(service, 0, "scheduler")
    assert api.get("/readyz").status_code == 503
    beat(service, 1)
    assert api.get("/readyz").json() == {"status": "ready", "workers": 1}


def test_ready_needs_a_worker_that_the_broker_lets_in(api: TestClient, service: Service) -> None:
    beat(service, 1, broker_refuses=True)
    answer = api.get("/readyz")
    assert answer.status_code == 503 and "No worker can log in to the broker" in answer.json()["detail"]
    assert "\nexpunge_workers_refused_by_broker 1.0\n" in api.get("/metrics").text
    beat(service, 1)
    assert api.get("/readyz").json() == {"status": "ready", "workers": 2}
    assert "\nexpunge_workers_refused_by_broker 1.0\n" in api.get("/metrics").text


def test_a_drained_worker_is_counted_and_shown(api: TestClient, service: Service) -> None:
    beat(service, 1)
    assert "\nexpunge_workers_drained 0.0\n" in api.get("/metrics").text
    with service.database.write() as session:
        session.execute(update(Heartbeat).values(drained=True))
    assert "\nexpunge_workers_drained 1.0\n" in api.get("/metrics").text
    assert api.get("/readyz").status_code == 200, "it takes requests, which wait"


def test_without_a_worker_an_api_process_is_ready_by_itself(api: TestClient, service: Service) -> None:
    """The chart's probe: requests are taken in while no worker lives, so the Service must lead to the API."""
    assert api.get("/readyz?workers=0").json() == {"status": "ready", "workers": 0}
    beat(service, 1, broker_refuses=True)
    assert api.get("/readyz?workers=0").json() == {"status": "ready", "workers": 1}
    assert api.get("/readyz?workers=1").status_code == 503
    assert api.get("/readyz?workers=2").status_code == 422


def test_readiness_lists_no_folder_however_many_updates_there_are(
    api: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks for no key, so anybody may ask. The journal is listed once in the life of a process."""
    monkeypatch.setattr(restore_guard, "FRESH_SECONDS", 0.0)
    live_model(service)
    beat(service, 0)
    listed: list[str] = []
    entries = DiskFolder.entries

    def counted(folder: DiskFolder) -> Iterator[Entry]:
        listed.append(str(folder))
        return entries(folder)

    monkeypatch.setattr(DiskFolder, "entries", counted)
    assert [api.get("/readyz").status_code for _ in range(5)] == [200] * 5
    assert len(listed) <= 1


@pytest.mark.both_engines
def test_ready_needs_the_schema_of_this_release(api: TestClient, service: Service) -> None:
    beat(service, 0)
    with service.database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = 'future'"))
    assert "ahead" in api.get("/readyz").json()["detail"]
    with service.database.write() as session:
        session.execute(text("DELETE FROM alembic_version"))
    assert "behind" in api.get("/readyz").json()["detail"]


@pytest.mark.both_engines
def test_a_key_that_was_rotated_has_its_successor_and_ends_without_an_alarm(api: TestClient, service: Service) -> None:
    def expiries() -> list[str]:
        name = "expunge_api_key_next_expiry_timestamp_seconds{"
        return [line for line in lines_of_metrics(api) if line.startswith(name)]

    with service.database.write() as session:
        made = create_key(session, service.pepper, label="crm", scopes=["audit:read"])
    with service.database.write() as session:
        successor = rotate_key(session, service.pepper, made.id, 60 * 1_000_000)
    assert expiries() == []
    assert successor is not None
    with service.database.write() as session:
        revoke_key(session, successor.id, "default")
    assert len(expiries()) == 1, "its successor is gone"


def test_a_scrape_tells_a_database_that_is_away_from_an_api_that_is(
    api: TestClient, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    beat(service, 1)
    assert {"expunge_database_answers 1.0", 'expunge_processes{kind="worker"} 1.0'} <= set(lines_of_metrics(api))

    def away() -> None:
        raise Busy("The database is busy or unreachable.")

    with monkeypatch.context() as patch:
        patch.setattr(service.database, "snapshot", away)
        found = lines_of_metrics(api)
        assert "expunge_database_answers 0.0" in found and any(
            each.startswith("expunge_http_requests") for each in found
        )
        assert not any(each.startswith("expunge_processes") for each in found)
    with service.database.write() as session:
        session.execute(text("ALTER TABLE models RENAME COLUMN place TO of_later"))
    assert "expunge_database_answers 0.0" in lines_of_metrics(api), "another schema"


def lines_of_metrics(api: TestClient) -> list[str]:
    answer = api.get("/metrics")
    assert answer.status_code == 200
    return answer.text.splitlines()


@pytest.mark.both_engines
def test_a_call_before_the_migration_names_it(client: TestClient, service: Service) -> None:
    with service.database.write() as session:
        session.execute(text("ALTER TABLE models RENAME COLUMN place TO of_later"))
    broken = client.get("/v1/models")
    assert broken.json()["code"] == "internal_error", "the tables are of this release, and wrong"
    assert broken.headers["cache-control"] == "no-store"
    with service.database.write() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '0001'"))
    answer = client.get("/v1/models")
    assert (answer.status_code, answer.json()["code"]) == (503, "not_ready")
    assert "`expunge migrate`" in answer.json()["detail"]


def scrape(api: TestClient) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    answer = api.get("/metrics")
    assert answer.status_code == 200
    families = text_string_to_metric_families(answer.text)
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


@pytest.mark.both_engines
def test_metrics_are_what_the_database_says(client: TestClient, service: Service) -> None:
    model = live_model(service)
    live_model(service, "digits", tenant_id="other")
    headers = {"Idempotency-Key": "k"}
    old = {"subject_id": "ada", "regulation": "gdpr", "received_at": "2026-01-01T00:00:00Z"}
    made = client.post("/v1/deletion-requests", json=old, headers=headers).json()
    beat(service, 0)
    ours = (("model", "digits"), ("tenant", "default"))
    before = scrape(client)
    assert before["expunge_deletion_requests_total", (("status", "queued"),)] == 1
    assert before["expunge_deletion_requests_pending", ours] == 1
    assert before["expunge_deletion_requests_pending", (("model", "digits"), ("tenant", "other"))] == 0
    assert before["expunge_requests_overdue", ()] == 1
    assert before["expunge_deletion_oldest_pending_seconds", ours] > 1e6
    version = publish(service, model, b"two", samples=2)
    with service.database.write() as session:
        charge(session, model.generation_id or 0, version.id, 1_000_000)
        task = session.scalars(select(Task)).one()
        task.status, task.samples, task.version_id, task.method = "completed", 2, version.id, "recollection"
        task.completed_at = now(session)
        settle(session, [made["id"]])
        session.add(
            PhaseSeconds(
                model_id=model.id,
                version_id=version.id,
                method="recollection",
                phase="unlearn",
                seconds=2.0**-5,
                created_at=1,
            )
        )
    after = scrape(client)
    labels = (("method", "recollection"), ("model", "digits"), ("tenant", "default"))
    phase = (*labels[:2], ("phase", "unlearn"), labels[2])
    assert after["expunge_deletion_requests_total", (("status", "completed"),)] == 1
    assert after["expunge_deletion_requests_pending", ours] == after["expunge_requests_overdue", ()] == 0
    assert after["expunge_deletion_latency_seconds_count", labels] == 1
    assert after["expunge_deletion_latency_seconds_bucket", (("le", "60.0"), *labels)] == 0
    assert after["expunge_samples_forgotten_total", labels] == 2
    assert after["expunge_unlearning_seconds_bucket", (("le", "0.03125"), *phase)] == 1
    assert after["expunge_unlearning_seconds_bucket", (("le", "0.015625"), *phase)] == 0
    assert after["expunge_unlearning_seconds_sum", phase] == 2.0**-5
    assert (
        after["expunge_publications_total", (("model", "digits"), ("result", "published"), ("tenant", "default"))] == 2
    )
    assert after["expunge_model_version", ours] == 2
    assert after["expunge_budget_spent_ratio", ours] == pytest.approx(1 / 10.5)
    assert 0 < after["expunge_budget_epsilon_spent", ours] < after["expunge_budget_epsilon_limit", ours]
    assert after["expunge_audit_log_size", ()] == 0
    assert any(name == "expunge_worker_heartbeat_timestamp_seconds" for name, _ in after)


@pytest.mark.parametrize("status", ["retired", "cancelled"])
def test_a_model_that_ended_has_no_series(client: TestClient, service: Service, status: str) -> None:
    """They stood for ever, and a dashboard counted the model among those that are served."""
    model, other = live_model(service), live_model(service, "letters")
    for subject in ("ada", "bob"):
        made = client.post("/v1/deletion-requests", json={"subject_id": subject}, headers={"Idempotency-Key": subject})
        if subject == "ada":
            for each in (model, other):
                carry_out(service, each, made.json()["id"])
    before = scrape(client)
    total = "expunge_deletion_requests_total", (("status", "queued"),)
    assert {"digits", "letters"} <= {dict(labels).get("model") for _, labels in before}
    if status == "retired":
        assert client.post("/v1/models/digits/retire").status_code == 200
    else:
        with service.database.write() as session:
            session.execute(update(Model).where(Model.id == model.id).values(status=status))
            session.execute(update(Task).where(Task.model_id == model.id).values(status="cancelled"))
    after = scrape(client)
    assert [key for key in after if dict(key[1]).get("model") == "digits"] == []
    letters = {key for key in before if dict(key[1]).get("model") == "letters"}
    assert letters <= after.keys() and after[total] == before[total] == 2


@pytest.mark.both_engines
def test_a_missed_deadline_counts_once_per_request_verified_or_not(client: TestClient, service: Service) -> None:
    for name in ("digits", "letters"):
        live_model(service, name)
    old = {"regulation": "gdpr", "received_at": "2026-01-01T00:00:00Z"}
    for subject, verified in (("ada", True), ("bob", False)):
        body = {**old, "subject_id": subject, "verified": verified}
        answer = client.post("/v1/deletion-requests", json=body, headers={"Idempotency-Key": subject})
        assert answer.status_code == 202
    found = scrape(client)
    assert found["expunge_requests_overdue", ()] == 2
    missed = datetime(2026, 2, 1, tzinfo=UTC).timestamp()
    assert abs(found["expunge_requests_first_missed_timestamp_seconds", ()] - missed) < 86_400
    with service.database.write() as session:
        session.execute(update(DeletionRequest).values(status="completed"))
    over = scrape(client)
    assert over["expunge_requests_overdue", ()] == 0
    assert ("expunge_requests_first_missed_timestamp_seconds", ()) not in over


@pytest.mark.both_engines
def test_a_missed_deadline_hides_no_deadline_that_is_ahead(client: TestClient, service: Service) -> None:
    """One overdue request that is verified and one that is not, each beside one that is due in five days."""
    live_model(service)
    at = datetime.now(UTC)
    received = (at - timedelta(days=40)).isoformat()
    soon = at + timedelta(days=5)
    for subject, due_at in (("ada", at - timedelta(days=2)), ("bob", soon)):
        for verified in (True, False):
            body = {"subject_id": subject, "received_at": received, "due_at": due_at.isoformat(), "verified": verified}
            key = {"Idempotency-Key": f"{subject}-{verified}"}
            assert client.post("/v1/deletion-requests", json=body, headers=key).status_code == 202
    found = scrape(client)
    digits = (("model", "digits"), ("tenant", "default"))
    assert found["expunge_requests_overdue", ()] == 2
    for name, labels in (
        ("expunge_requests_next_due_timestamp_seconds", ()),
        ("expunge_requests_unverified_next_due_timestamp_seconds", ()),
        ("expunge_deletion_next_due_timestamp_seconds", digits),
    ):
        assert found[name, labels] == pytest.approx(soon.timestamp(), abs=1e-3), name
    share = found["expunge_requests_deadline_used_ratio", (("tenant", "default"),)]
    assert share == pytest.approx(40 / 45, abs=0.01), "the late ones are beyond 1"


@pytest.mark.both_engines
def test_a_request_without_a_deadline_is_counted_and_its_age_grows(client: TestClient, service: Service) -> None:
    live_model(service)
    tenant = (("tenant", "default"),)
    old = (datetime.now(UTC) - timedelta(days=9)).isoformat()
    for subject, body in (("ada", {"received_at": old}), ("bob", {}), ("cyd", {"regulation": "gdpr"})):
        key = {"Idempotency-Key": subject}
        assert (
            client.post("/v1/deletion-requests", json={"subject_id": subject, **body}, headers=key).status_code == 202
        )
    found = scrape(client)
    assert found["expunge_requests_without_deadline", tenant] == 2
    age = found["expunge_requests_without_deadline_oldest_seconds", tenant]
    assert age == pytest.approx(9 * 86_400, abs=60)
    with service.database.write() as session:
        session.execute(update(DeletionRequest).values(status="completed"))
    assert ("expunge_requests_without_deadline", tenant) not in scrape(client)


def test_a_refused_certificate_does_not_hide_that_another_is_late(client: TestClient, service: Service) -> None:
    live_model(service)
    requests = []
    for subject in ("ada", "bob"):
        key = {"Idempotency-Key": subject}
        requests.append(client.post("/v1/deletion-requests", json={"subject_id": subject}, headers=key).json()["id"])
    with service.database.write() as session:
        at = now(session)
        for request_id, hours, refused in zip(requests, (50, 1), ("The row was edited.", None), strict=True):
            done = at - hours * 3_600_000_000
            session.get_one(DeletionRequest, request_id).completed_at = done
            session.add(Certificate(request_id=request_id, tenant_id="default", completed_at=done, refused=refused))
    found = scrape(client)
    assert found["expunge_certificates_refused", ()] == 1
    assert found["expunge_certificates_oldest_pending_seconds", ()] == pytest.approx(3600, abs=60)


def test_one_dead_endpoint_hides_no_other(client: TestClient, service: Service) -> None:
    with service.database.write() as session:
        at = now(session)
        for name, age in (("dead", 60), ("late", 2)):
            facts = {"tenant_id": "default", "url": f"https://{name}.example", "kinds": [], "created_at": at}
            session.add(WebhookEndpoint(id=name.ljust(32, "0"), **facts))
            session.flush()
            sent = {"endpoint_id": name.ljust(32, "0"), "kind": "webhook.test", "payload": "{}", "next_at": at}
            session.add(WebhookDelivery(id=new_id(), created_at=at - age * 3_600_000_000, **sent))
    found = scrape(client)
    hours = {
        dict(labels)["endpoint"][:4]: round(value / 3600)
        for (name, labels), value in found.items()
        if name == "expunge_webhook_oldest_pending_seconds"
    }
    assert hours == {"dead": 60, "late": 2}


def test_every_metric_of_the_surface_is_there(client: TestClient, service: Service) -> None:
    named = {
        "deletion_requests_total deletion_requests_pending deletion_oldest_pending_seconds deletion_latency_seconds",
        "unlearning_seconds samples_forgotten_total publications_total model_version budget_epsilon_spent",
        "budget_epsilon_limit budget_spent_ratio requests_overdue worker_heartbeat_timestamp_seconds audit_log_size",
        "processes",
    }
    shown = set(re.findall(r"^# TYPE expunge_(\S+)", client.get("/metrics").text, re.MULTILINE))
    assert {name for line in named for name in line.split()} <= shown
