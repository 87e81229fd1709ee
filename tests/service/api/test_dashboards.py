"""What operators watch: promtool accepts /metrics and the rules, and every name in them is one that we export."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import select, update

from expunge_service.access.api_keys import create_key
from expunge_service.api.dependencies import Service
from expunge_service.audit.log import integrate, record
from expunge_service.audit.self_check import check_log
from expunge_service.audit.signed_note import Signer
from expunge_service.infra.db import now
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.tables import DeletionRequest, Heartbeat, Model, PhaseSeconds, Task, Version
from expunge_service.infra.time import SECOND
from expunge_service.models.consumers import report_consumer
from expunge_service.requests import reasons
from expunge_service.requests.reasons import Reason
from expunge_service.requests.status import settle
from tests.harness.dashboards import FOLDER, dashboard, metrics_in, program, queries, rules
from tests.service.worlds import live_model, publish

TESTS_OF_RULES = ("alerts_test.yml", "alerts_days_test.yml")
SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def busy(client: TestClient, service: Service) -> TestClient:
    """An API with one of everything: a finished, a held and an unverified request, a failed attempt, a consumer."""
    model = live_model(service)
    for subject in ("ada", "bob"):
        body = {"subject_id": subject, "regulation": "ccpa"}
        assert client.post("/v1/deletion-requests", json=body, headers={"Idempotency-Key": subject}).status_code == 202
    near = {"subject_id": "ADA", "regulation": "ccpa"}
    assert client.post("/v1/deletion-requests", json=near, headers={"Idempotency-Key": "near"}).status_code == 202
    version = publish(service, model, b"two", samples=2)
    with service.database.write() as session:
        first, second = session.scalars(select(Task).order_by(Task.created_at, Task.id))
        first.status, first.samples, first.version_id, first.method = "completed", 2, version.id, "recollection"
        first.completed_at = now(session)
        second.status, second.reason = "blocked", "failed"
        settle(session, [first.request_id, second.request_id])
        record(session, "default", "attempt.failed", model_id=model.id, token=1, why="for the test")
        report_consumer(
            session, model, "web", session.scalars(select(Version).where(Version.number == 1)).one(), "actor"
        )
        takes = {"tenants": None, "places": None, "memory": 8}
        beat = {"process": new_id(), "started_at": 1, "beat_at": now(session), "serves": takes}
        session.add(Heartbeat(kind="worker", software="1", **beat))
        session.get_one(Version, version.id).holdout_accuracy = 0.9
        facts = {"model_id": model.id, "version_id": version.id, "method": "recollection", "created_at": 1}
        session.add(PhaseSeconds(phase="unlearn", seconds=0.03, **facts))
        ends = now(session) + 60 * SECOND
        create_key(session, service.pepper, label="soon over", scopes=["audit:read"], expires_at=ends)
    endpoint = client.post("/v1/webhooks", json={"url": "https://hooks.example.com/"})
    assert endpoint.status_code == 201, endpoint.text
    stranger = {"subject_id": "ada", "regulation": "gdpr", "verified": False}
    for key, more in (("stranger", {}), ("late", {"received_at": "2026-01-01T00:00:00Z"})):
        body = stranger | more
        assert client.post("/v1/deletion-requests", json=body, headers={"Idempotency-Key": key}).status_code == 202
    with service.database.write() as session:
        integrate(session, Signer.of(service.settings))
    check_log(service.database, Signer.of(service.settings).verifier)
    return client


def exported(client: TestClient) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Every sample of /metrics: name -> labels -> value."""
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


@SQLITE
def test_promtool_accepts_the_metrics(busy: TestClient) -> None:
    text = busy.get("/metrics").text
    done = subprocess.run([program("promtool"), "check", "metrics"], input=text, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "command",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "alerts.yml"),
        *(("test", "rules", file) for file in TESTS_OF_RULES),
    ],
    ids=" ".join,
)
def test_promtool_accepts_the_configuration_and_the_rules_do_what_their_tests_say(command: tuple[str, ...]) -> None:
    done = subprocess.run([program("promtool"), *command], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FAILED" not in done.stdout + done.stderr


def test_alertmanager_accepts_its_configuration_as_it_is_and_with_the_receivers_of_its_remarks(tmp_path: Path) -> None:
    text = (FOLDER / "alertmanager.yml").read_text()
    named = re.sub(r"^    # ( *- |  +|\w+_configs:)", r"    \1", text, flags=re.MULTILINE)
    before, after = (yaml.safe_load(each)["receivers"] for each in (text, named))
    assert [set(each) for each in before] == [{"name"}, {"name"}]
    assert [set(each) for each in after] == [{"name", "email_configs"}, {"name", "webhook_configs"}]
    (tmp_path / "named.yml").write_text(named)
    for file in (FOLDER / "alertmanager.yml", tmp_path / "named.yml"):
        done = subprocess.run([program("amtool"), "check-config", str(file)], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_what_always_rings_goes_to_a_receiver_of_its_own() -> None:
    (route,) = yaml.safe_load((FOLDER / "alertmanager.yml").read_text())["route"]["routes"]
    (always,) = [rule for rule in rules() if not metrics_in(rule["expr"])]
    assert route["matchers"] == [f'alertname = "{always["alert"]}"']


def test_prometheus_asks_and_tells_the_services_of_the_compose_file() -> None:
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    services = yaml.safe_load((FOLDER.parent / "docker-compose.yml").read_text())["services"]
    asked = config["scrape_configs"][0]["static_configs"][0]["targets"]
    told = config["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    assert (asked, told) == (["api:8750"], ["alertmanager:9093"])
    assert {"api", "alertmanager"} <= set(services)
    assert "network_mode" not in services["prometheus"], "it would lie in the place of a container that is gone"


def test_every_rule_is_tested_with_an_alarm() -> None:
    cases = [case for file in TESTS_OF_RULES for case in yaml.safe_load((FOLDER / file).read_text())["tests"]]
    fired = {each["alertname"] for case in cases for each in case["alert_rule_test"] if each.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in rules()}


@SQLITE
def test_every_query_and_rule_names_metrics_that_are_exported(busy: TestClient) -> None:
    names = exported(busy).keys() | {"up"}
    expressions = [*queries(), *((rule["alert"], rule["expr"]) for rule in rules())]
    assert len(expressions) > 25
    for title, expression in expressions:
        asked = metrics_in(expression)
        assert asked or title == "ExpungeWatchdog", title
        assert asked <= names, (title, asked - names)


@SQLITE
def test_every_metric_is_in_a_panel_or_in_a_rule(busy: TestClient) -> None:
    looked_at = set[str]().union(
        *(metrics_in(each) for _, each in queries()), *(metrics_in(r["expr"]) for r in rules())
    )
    stems = {re.sub("_(bucket|count|sum|total|created|info)$", "", name) for name in looked_at}
    ours = {
        re.sub("_(bucket|count|sum|total|created|info)$", "", name) for name in exported(busy) if "expunge_" in name
    }
    assert ours <= stems and len(ours) > 30, ours - stems


@SQLITE
def test_a_query_for_a_metric_that_nobody_exports_would_be_found(busy: TestClient) -> None:
    assert not metrics_in("sum(expunge_no_such_thing)") <= exported(busy).keys()


def test_the_dashboard_has_its_rooms_and_no_two_panels_overlap() -> None:
    panels = dashboard()["panels"]
    rooms = [panel["title"].partition(":")[0] for panel in panels if panel["type"] == "row"]
    assert rooms == [
        *("Overview", "Per model", "Latency and its phases", "Budget", "Workers"),
        *("Deadlines, certificates, webhooks", "API"),
    ]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert place["x"] + place["w"] <= 24 and not cells & taken, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_grafana_is_given_the_source_that_the_dashboard_reads() -> None:
    provisioning = FOLDER / "grafana" / "provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())["datasources"]
    asked = {target["datasource"]["uid"] for panel in dashboard()["panels"] for target in panel.get("targets", ())}
    assert asked == {source["uid"]}
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "expunge.yml").read_text())["providers"]
    assert provider["options"]["path"] == "/etc/grafana/dashboards"


@SQLITE
def test_deadlines_holds_failures_and_consumers_are_metrics(busy: TestClient, service: Service) -> None:
    ours = (("model", "digits"), ("tenant", "default"))
    before = exported(busy)
    assert before["expunge_requests_blocked"][ours] == 1
    assert before["expunge_publications_total"][ours[0], ("result", "failed"), ours[1]] == 1
    assert before["expunge_publications_total"][ours[0], ("result", "withheld"), ours[1]] == 0
    assert before["expunge_consumers"][ours[0], ("standing", "behind"), ours[1]] == 1
    assert before["expunge_consumers"][ours[0], ("standing", "current"), ours[1]] == 0
    with service.database.read() as session:
        newest = (
            select(DeletionRequest).where(DeletionRequest.status == "blocked").order_by(DeletionRequest.received_at)
        )
        held = {row.reason: row.due_at for row in session.scalars(newest)}
    assert before["expunge_deletion_next_due_timestamp_seconds"][ours] == pytest.approx(held["failed"] / 1e6)
    unverified = before["expunge_requests_unverified_next_due_timestamp_seconds"][()]
    assert (before["expunge_requests_unverified"][()], unverified) == (2, pytest.approx(held["unverified"] / 1e6))
    with service.database.write() as session:
        session.execute(update(Task).values(status="completed"))
        head = session.scalars(select(Version).where(Version.number == 2)).one()
        report_consumer(session, session.scalars(select(Model)).one(), "web", head, "actor")
    after = exported(busy)
    assert ours not in after.get("expunge_deletion_next_due_timestamp_seconds", {})
    assert after["expunge_consumers"][ours[0], ("standing", "current"), ours[1]] == 1


@SQLITE
@pytest.mark.parametrize("reason", [each for each in Reason if each.remedy and each is not Reason.UNVERIFIED])
def test_what_is_blocked_says_its_reason_and_who_can_act(client: TestClient, service: Service, reason: Reason) -> None:
    """Unverified requests belong to no model, and have a metric of their own."""
    live_model(service)
    for subject in ("ada", "bob"):
        client.post("/v1/deletion-requests", json={"subject_id": subject}, headers={"Idempotency-Key": subject})
    told = [reasons.stored(reason, {"error": "KeyError", "file": "digits.py", "line": 41, "detail": "x"}), None]
    with service.database.write() as session:
        for task, facts in zip(session.scalars(select(Task)).all(), told, strict=True):
            task.status, task.reason, task.facts = "blocked", reason, facts
    why = reasons.explain(reason, "")
    labels = {"tenant": "default", "model": "digits", "reason": reason.value, "by": why["remedy"]["by"]}
    labels |= {"what": why["title"], "action": why["remedy"]["action"]}
    assert exported(client)["expunge_requests_blocked_by_reason"] == {tuple(sorted(labels.items())): 2}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_the_commands_in_an_alert_are_commands(rule: dict[str, Any]) -> None:
    from tests.docs.test_site import require  # noqa: PLC0415  (loads every command)

    for words in re.findall(r"`expunge ([^`]+)`", rule["annotations"]["summary"]):
        require(shlex.split(re.sub(r"\{\{.*?\}\}", "MODEL", words)))


@SQLITE
def test_what_waits_and_what_ends_are_metrics(busy: TestClient, service: Service) -> None:
    """Budget, accuracy, certificates, webhooks, keys and the release, each against the tables."""
    found = exported(busy)
    ours = (("model", "digits"), ("tenant", "default"))
    with service.database.read() as session:
        at = now(session) / SECOND
    assert found["expunge_model_holdout_accuracy"][ours] == 0.9
    assert found["expunge_budget_updates_left"][ours] > 0
    assert found["expunge_certificates_pending"][()] == 1
    assert 0 <= found["expunge_certificates_oldest_pending_seconds"][()] < 60
    ((receiver, waiting),) = found["expunge_webhook_deliveries_pending"].items()
    assert [name for name, _ in receiver] == ["endpoint", "tenant"] and waiting == 4, "two accepted, two blocked"
    assert 0 <= found["expunge_webhook_oldest_pending_seconds"][receiver] < 60
    (expiry,) = found["expunge_api_key_next_expiry_timestamp_seconds"].items()
    assert expiry[0] == (("tenant", "default"),) and 0 < expiry[1] - at < 60
    assert found["expunge_deletion_oldest_queued_seconds"][ours] == 0, "what is blocked waits for people"
    ((labels, value),) = found["expunge_build_info"].items()
    assert value == 1 and {name for name, _ in labels} == {"version", "python"}
