"""The example server, as its users start it: every request is answered while the version changes under it."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from expunge_service.access.api_keys import Scope
from tests.harness.source import SOURCE_PATH
from tests.harness.stack import Stack

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "tests" / "stories" / "recipes" / "tiny.py"
pytestmark = pytest.mark.parametrize("stack", ["sqlite"], indirect=True)


@dataclass(frozen=True)
class Serving:
    model: str
    url: str
    http: httpx.Client


@pytest.fixture
def serving(stack: Stack) -> Iterator[Serving]:
    """The example in a process of its own, serving version 1 of a new model."""
    name = stack.live("tiny", epsilon=8, delta=1e-5, noise_std=1e-4, granularity="sample")
    command = [sys.executable, ROOT / "examples" / "serving" / "server.py", "--model", name, "--recipe", RECIPE]
    options = ["--consumer", "example", "--port", "0", "--url", stack.account.url]
    key = stack.key(Scope.MODELS_READ, Scope.CHECKPOINTS_READ)
    environment = stack.environment | {"EXPUNGE_API_KEY": key, "PYTHONPATH": SOURCE_PATH}
    process = subprocess.Popen([*command, *options], env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found
        with httpx.Client(base_url=found[0], timeout=30, trust_env=False) as http:
            stack.eventually(lambda: http.get("/healthz").status_code, lambda code: code == 200)
            yield Serving(name, found[0], http)
    finally:
        process.terminate()
        process.wait(10)


def ask(url: str, ended: threading.Event) -> Counter[tuple[int, int]]:
    """Ask without pause; how often each (status, version) was answered. A dropped connection raises."""
    seen: Counter[tuple[int, int]] = Counter()
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as http:
        while not ended.is_set():
            answer = http.post("/predict", json={"inputs": [[1.0, 0.0, 0.0, 0.0]]})
            seen[answer.status_code, answer.json().get("version", 0)] += 1
            time.sleep(0.005)
    return seen


@pytest.mark.parametrize("count", [8, pytest.param(20, marks=pytest.mark.drill)])
@pytest.mark.drill  # the client library alone: test_light_client.py
def test_every_request_is_served_while_versions_are_published(serving: Serving, stack: Stack, count: int) -> None:
    ended = threading.Event()
    with ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(ask, serving.url, ended) for _ in range(4)]
        try:
            for sample in range(count):
                stack.forgotten(serving.model, sample_ids=[f"tiny-{sample}"])
                if sample % 3 == 0:  # versions may come faster than it polls: let it catch up now and then
                    await_version(serving, stack, 2 + sample)
            head = stack.head(serving.model)["number"]
            assert head == 1 + count
            await_version(serving, stack, head)
        finally:
            ended.set()
        seen = sum((caller.result(30) for caller in callers), Counter[tuple[int, int]]())
    assert {status for status, _ in seen} == {200}
    assert seen.total() > 25 * count
    versions = {version for _, version in seen}
    assert {1, head} <= versions
    assert len(versions) > count // 4, "it did not follow"
    current = [{"name": "example", "version": head, "status": "current"}]
    stack.eventually(  # it serves a version before it reports it
        lambda: stack.client.get(f"/v1/models/{serving.model}/consumers")["data"], lambda told: told == current
    )


def await_version(serving: Serving, stack: Stack, wanted: int) -> None:
    stack.eventually(lambda: serving.http.get("/healthz").json()["version"], lambda served: served == wanted)


@pytest.mark.drill
def test_it_goes_on_serving_while_expunge_is_away(serving: Serving, stack: Stack) -> None:
    stack.kill("api")
    try:
        time.sleep(2)
        answer = serving.http.post("/predict", json={"inputs": [[1.0, 0.0, 0.0, 0.0]]})
        assert (answer.status_code, answer.json()["version"]) == (200, 1)
    finally:
        stack.start("api")
    stack.eventually(lambda: _ready(stack), bool)
    stack.forgotten(serving.model, sample_ids=["tiny-9"])
    stack.eventually(lambda: serving.http.get("/healthz").json()["version"], lambda served: served == 2)


def test_it_tells_which_answers_did_not_depend_on_the_forgotten_and_refuses_what_makes_no_sense(
    serving: Serving, stack: Stack
) -> None:
    inputs = [[1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]]
    answer = serving.http.post("/predict", json={"inputs": inputs}).json()
    assert stack.head(serving.model)["claim"]["guarantee"] == "proved"
    assert answer["independent"] == [True, False], "a margin of zero decides nothing"
    for body in (b"", b"{}", b'{"inputs": [[1]]}', b'{"inputs": "x"}', b"[]"):
        assert serving.http.post("/predict", content=body).status_code == 400, body
    assert serving.http.post("/other", json={}).status_code == 404
    assert serving.http.get("/other").status_code == 404


def _ready(stack: Stack) -> bool:
    try:
        return stack.http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False
