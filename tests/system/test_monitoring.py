"""A real Prometheus before a running service, with the configuration that operators are given."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.dashboards import FOLDER, program, queries, rules
from tests.servers import free_port
from tests.stack import Stack

pytestmark = pytest.mark.parametrize(
    "stack", [pytest.param("sqlite", marks=pytest.mark.xdist_group("sqlite"))], indirect=True
)
SCRAPE_SECONDS = 1


@pytest.fixture
def prometheus(stack: Stack, tmp_path: Path) -> Iterator[httpx.Client]:
    """Prometheus with our configuration; only the target, the pace and the place of the rules are this test's."""
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"}
    config["rule_files"] = [str(FOLDER / file) for file in config["rule_files"]]
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [stack.account.url.removeprefix("http://")]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    port = free_port()
    command = [
        program("prometheus"),
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=error",
    ]
    process = subprocess.Popen(command)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", timeout=30, trust_env=False) as http:
            stack.eventually(lambda: _answers(http), bool)
            yield http
    finally:
        process.terminate()
        process.wait(20)


def _answers(http: httpx.Client) -> bool:
    try:
        return bool(found(http, 'up{job="expunge"} == 1'))
    except (httpx.TransportError, ValueError):  # not listening, or not ready and saying so in words
        return False


def found(http: httpx.Client, query: str) -> list[float]:
    """The numbers that a query finds now; what is not a number is not found."""
    answer = http.get("/query", params={"query": query}).json()
    assert answer["status"] == "success", (query, answer)
    values = [float(each["value"][1]) for each in answer["data"]["result"]]
    return [value for value in values if not math.isnan(value)]


def test_prometheus_finds_data_for_every_query_of_the_dashboard(prometheus: httpx.Client, stack: Stack) -> None:
    model = stack.live("tiny", epsilon=8, delta=1e-5, sigma=1e-4)
    stack.client._http.put(f"/v1/models/{model}/consumers/web", json={"version": 1}).raise_for_status()
    stack.forgotten(model, subject_id="tiny-person-0")
    time.sleep(3 * SCRAPE_SECONDS)  # a rate needs the counters before and after
    stack.forgotten(model, subject_id="tiny-person-1")
    stack.stop("worker")
    try:
        waiting = stack.delete(model, subject_id="tiny-person-2", regulation="gdpr", received_at="2020-01-01T00:00:00Z")
        for panel, query in queries():
            stack.eventually(lambda query=query: found(prometheus, query), bool)  # type: ignore[misc]
            assert all(math.isfinite(value) for value in found(prometheus, query)), panel
        firing = stack.eventually(lambda: alerts(prometheus), lambda seen: "ExpungeDeadlineMissed" in seen)
        assert firing["ExpungeDeadlineMissed"] == model
    finally:
        stack.start("worker")
    stack.ended(waiting)


def alerts(http: httpx.Client) -> dict[str, Any]:
    """The alarms that ring, each with its model."""
    rows = http.get("/alerts").json()["data"]["alerts"]
    return {row["labels"]["alertname"]: row["labels"].get("model") for row in rows if row["state"] == "firing"}


def test_prometheus_loads_every_rule_and_none_fails(prometheus: httpx.Client, stack: Stack) -> None:
    def loaded() -> list[dict[str, Any]]:
        return [rule for group in prometheus.get("/rules").json()["data"]["groups"] for rule in group["rules"]]

    seen = stack.eventually(loaded, lambda rows: all(row["health"] == "ok" for row in rows))
    assert [row["name"] for row in seen] == [rule["alert"] for rule in rules()]
