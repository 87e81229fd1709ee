"""A real Prometheus before a running service, with the configuration that operators are given."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from expunge_service.cli.supervisor import children
from tests.harness.dashboards import FOLDER, program, queries, rules
from tests.harness.servers import free_port
from tests.harness.stack import Stack

pytestmark = pytest.mark.parametrize("stack", ["sqlite"], indirect=True)
SCRAPE_SECONDS = 1


@pytest.fixture
def prometheus(stack: Stack, tmp_path: Path) -> Iterator[httpx.Client]:
    with scraping(stack, [stack.account.url], tmp_path) as http:
        yield http


@contextmanager
def scraping(stack: Stack, urls: Sequence[str], folder: Path) -> Iterator[httpx.Client]:
    """Prometheus with our configuration; only the targets, the pace and the place of the rules are the test's."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"}
    config["rule_files"] = [str(FOLDER / file) for file in config["rule_files"]]
    del config["alerting"]  # nobody is to be told
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [url.removeprefix("http://") for url in urls]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        program("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    process = subprocess.Popen(command)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=30, trust_env=False) as http:
            stack.eventually(lambda: _answers(http), lambda up: up == len(urls))
            yield http
    finally:
        process.terminate()
        process.wait(20)


SELDOM = {"Until the next API key expires"}
"""panels that are empty while there is nothing of the kind"""


def _answers(http: httpx.Client) -> int:
    """How many targets are up."""
    try:
        return len(found(http, 'up{job="expunge"} == 1'))
    except (httpx.TransportError, ValueError):  # not listening, or not ready and saying so in words
        return 0


def found(http: httpx.Client, query: str) -> list[float]:
    """The numbers that a query finds now; what is not a number is not found."""
    answer = http.get("/query", params={"query": query}).json()
    assert answer["status"] == "success", (query, answer)
    values = [float(each["value"][1]) for each in answer["data"]["result"]]
    return [value for value in values if not math.isnan(value)]


@pytest.mark.drill
def test_prometheus_finds_data_for_every_query_of_the_dashboard(prometheus: httpx.Client, stack: Stack) -> None:
    model = stack.live("tiny", epsilon=8, delta=1e-5, noise_std=1e-4)
    stack.client._http.put(f"/v1/models/{model}/consumers/web", json={"version": 1}).raise_for_status()
    stack.forgotten(model, subject_id="tiny-person-0")
    time.sleep(3 * SCRAPE_SECONDS)  # a rate needs the counters before and after
    stack.forgotten(model, subject_id="tiny-person-1")
    stack.stop("worker")
    try:
        late = stack.delete(model, subject_id="tiny-person-2", regulation="gdpr", received_at="2020-01-01T00:00:00Z")
        next_one = stack.delete(model, subject_id="tiny-person-3", regulation="gdpr")
        for panel, query in queries():
            if panel in SELDOM:
                continue
            stack.eventually(lambda query=query: found(prometheus, query), bool)  # type: ignore[misc]
            assert all(math.isfinite(value) for value in found(prometheus, query)), panel
        firing = stack.eventually(lambda: alerts(prometheus), lambda seen: "ExpungeDeadlineMissed" in seen)
        assert firing["ExpungeDeadlineMissed"] is None  # one alarm for the installation, however many models
    finally:
        stack.start("worker")
    for request in (late, next_one):
        stack.ended(request)


def alerts(http: httpx.Client) -> dict[str, Any]:
    """The alarms that ring, each with its model."""
    rows = http.get("/alerts").json()["data"]["alerts"]
    return {row["labels"]["alertname"]: row["labels"].get("model") for row in rows if row["state"] == "firing"}


@pytest.mark.drill  # promtool reads the rules in tests/service/api/test_dashboards.py
def test_prometheus_loads_every_rule_and_none_fails(prometheus: httpx.Client, stack: Stack) -> None:
    def loaded() -> list[dict[str, Any]]:
        return [rule for group in prometheus.get("/rules").json()["data"]["groups"] for rule in group["rules"]]

    seen = stack.eventually(loaded, lambda rows: all(row["health"] == "ok" for row in rows))
    assert [row["name"] for row in seen] == [rule["alert"] for rule in rules()]


@pytest.fixture
def two_of_each(stack: Stack) -> Iterator[list[str]]:
    """A second API and a second worker beside the stack's own; gives the addresses of both APIs."""
    port = free_port()
    more = [child for child in children(stack.home / "second", "127.0.0.1", port, stack.environment)][:2]
    assert [child.name for child in more] == ["api", "worker"]
    for child in more:
        child.start()
    try:
        yield [stack.account.url, f"http://127.0.0.1:{port}"]
    finally:
        for child in more:
            child.ask_to_stop()
        for child in more:
            child.await_stop(20)


@pytest.mark.drill
def test_two_apis_and_two_workers_are_counted_once(stack: Stack, two_of_each: list[str], tmp_path: Path) -> None:
    with scraping(stack, two_of_each, tmp_path) as http:
        stack.eventually(lambda: found(http, 'max(expunge_processes{kind="worker"})'), lambda seen: seen == [2])
        assert found(http, "sum(max by (kind) (expunge_processes))") == [3], "as the dashboard counts: and a scheduler"
        completed = 'sum(max by (status) (expunge_deletion_requests_total{status="completed"}))'
        (before,) = found(http, completed)
        models = [stack.live("tiny"), stack.live("tiny")]
        asked = [stack.delete(model, subject_id=f"tiny-person-{k}") for k in range(3) for model in models]
        ended = [stack.ended(request) for request in asked]
        assert {request["status"] for request in ended} == {"completed"}
        stack.eventually(lambda: found(http, completed), lambda seen: seen == [before + len(asked)])
        ours = f'model=~"{"|".join(models)}"'
        samples = sum(request["models"][0]["samples"] for request in ended)
        for query, expected in (
            (f"sum(max by (model, method) (expunge_samples_forgotten_total{{{ours}}}))", samples),
            (f"sum(max by (model, method) (expunge_deletion_latency_seconds_count{{{ours}}}))", len(asked)),
            (f"sum(max by (model) (expunge_deletion_requests_pending{{{ours}}}))", 0),
            (f"count(max by (instance) (expunge_model_version{{{ours}}}))", 2),
        ):
            stack.eventually(lambda query=query: found(http, query), lambda seen, e=expected: seen == [e])  # type: ignore[misc]
        for metric in ("expunge_deletion_latency_seconds_bucket", "expunge_unlearning_seconds_bucket"):
            each = f"{metric}{{{ours}}}"
            assert found(http, each), "whichever API is asked tells the same"
            stack.eventually(lambda e=each: found(http, f"stddev without (instance) ({e}) > 0"), lambda seen: not seen)  # type: ignore[misc]
    names = {row["model"] for request in ended for row in request["models"]}
    assert names == set(models)


@pytest.mark.drill
def test_a_worker_that_was_stopped_is_not_missed_and_one_that_was_killed_is_seen(stack: Stack) -> None:
    def beating() -> set[str]:
        text = httpx.get(f"{stack.account.url}/metrics", trust_env=False).text
        return {line.split()[0] for line in text.splitlines() if line.startswith("expunge_worker_heartbeat")}

    before = beating()
    stack.processes["worker"].stop(20)
    stopped = beating()
    assert len(before - stopped) == 1, "its row is gone; one that was killed earlier may be seen again"
    stack.start("worker")
    (started,) = stack.eventually(lambda: beating() - before - stopped, bool)
    stack.kill("worker")
    assert started in beating()
    stack.start("worker")
    stack.eventually(lambda: beating() - before - stopped - {started}, bool)
    assert started in beating(), "it has been silent for less than a minute"
