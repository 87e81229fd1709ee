"""Issue 14: a network with batch normalisation and dropout, trained by its owner's own loop, that forgets exactly."""

from __future__ import annotations

import json
import threading
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from safetensors.torch import load

from tests.harness.stack import Stack
from tests.stories.recipes import writers

AT_ONCE = 20
ON_STACK = pytest.mark.parametrize("stack", ["sqlite"], indirect=True)


class Consumer(threading.Thread):
    """Serves the model: asks for the current version's file, loads it into the owner's module, and says so."""

    def __init__(self, stack: Stack, name: str) -> None:
        super().__init__(daemon=True)
        headers = {"Authorization": f"Bearer {stack.account.api_key}"}
        self.http = httpx.Client(base_url=f"{stack.account.url}/v1/models/{name}", headers=headers, trust_env=False)
        self.module, self.served, self.ended = writers.build(), list[int](), threading.Event()

    def run(self) -> None:
        while not self.ended.is_set():
            head = self.http.get("/versions/current").json()
            if head["number"] not in self.served[-1:]:
                file = self.http.get(f"/versions/{head['number']}/checkpoint")
                if file.is_success:  # it may have been replaced meanwhile
                    self.module.load_state_dict(load(file.content))
                    self.http.put("/consumers/reader", json={"version": head["number"]}).raise_for_status()
                    self.served.append(head["number"])
            time.sleep(0.05)


@contextmanager
def following(stack: Stack, name: str) -> Iterator[Consumer]:
    consumer = Consumer(stack, name)
    consumer.start()
    try:
        yield consumer
    finally:
        consumer.ended.set()
        consumer.join(10)


def write_writers(stack: Stack) -> None:
    """Write the table of who wrote which digit."""
    digits = range(writers.WRITERS * writers.EACH)
    lines = [f"writers-scan-{digit},writers-{digit // writers.EACH},{digit}" for digit in digits]
    (stack.settings.recipes / "writers.csv").write_text("\n".join(["id,person,image", *lines]) + "\n")


def forgotten(stack: Stack, people: range) -> list[str]:
    """Delete these writers with one call, wait until everyone serves a version without them; return the requests."""
    orders = [{"subject_id": f"writers-{person}", "regulation": "gdpr"} for person in people]
    answer = stack.client.post("/v1/deletion-requests/batch", {"requests": orders}, f"writers-{people.start}")
    ids = [outcome["request"]["id"] for outcome in answer["outcomes"]]
    for request in ids:
        ended = stack.ended({"id": request})
        assert (ended["status"], ended["samples"]) == ("completed", writers.EACH), ended
    return ids


def claims_of(stack: Stack, request: str) -> list[dict[str, Any]]:
    """Return the claims of the request's certificate, once it is issued."""
    path, headers = f"/v1/deletion-requests/{request}/certificate", {"Authorization": f"Bearer {stack.account.api_key}"}
    answer = stack.eventually(lambda: stack.http.get(path, headers=headers), lambda found: found.is_success)
    statement = json.loads(b64decode(answer.json()["payload"]))
    return [model["claim"] for model in statement["predicate"]["models"]]


@pytest.mark.drill  # without processes of its own: tests/workers/training/test_own_training.py
@pytest.mark.parametrize("gone", [20, 200])
@ON_STACK
def test_people_leave_a_network_twenty_at_a_time_as_if_they_had_never_been_there(stack: Stack, gone: int) -> None:
    write_writers(stack)
    name = stack.live("writers", "late", complete_when="served", max_accuracy_drop=None)
    with following(stack, name) as consumer:
        stack.eventually(lambda: consumer.served, bool)
        requests = [
            request for first in range(0, gone, AT_ONCE) for request in forgotten(stack, range(first, first + AT_ONCE))
        ]
        head = stack.head(name)
        assert (head["number"], consumer.served) == (1 + gone // AT_ONCE, list(range(1, 2 + gone // AT_ONCE)))
    assert {claim["guarantee"] for request in requests for claim in claims_of(stack, request)} == {"exact"}
    never = stack.live("writers", "late", leave_out_forgotten=True, max_accuracy_drop=None)
    assert stack.head(never)["checkpoint_sha256"] == head["checkpoint_sha256"]
    assert writers.accuracy(consumer.module) > 0.8
