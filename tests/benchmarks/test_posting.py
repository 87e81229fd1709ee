"""The clients post each deletion once, and the processes that serve them are counted to the last child."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.posting import Endpoint, post
from benchmarks.process_tree import cpu_seconds, family, memory_of_each

BURNS_IN_A_CHILD = """
import subprocess, sys
subprocess.run([sys.executable, "-c", "import time\\nwhile time.process_time() < 0.4: pass"])
waits = subprocess.Popen([sys.executable, "-c", "input()"])
print("ready", flush=True)
waits.wait()
"""


class Receiver(BaseHTTPRequestHandler):
    """Is busy once for each subject, and then accepts it."""

    protocol_version = "HTTP/1.1"
    asked: list[str]
    keys: set[str]

    def do_POST(self) -> None:
        subject = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["subject_id"]
        self.keys.add(self.headers["Idempotency-Key"])
        status = 418 if subject == "teapot" else 202 if subject in self.asked else 503
        self.asked.append(subject)
        self.send_response(status)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    Receiver.asked, Receiver.keys = [], set()
    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield Endpoint(server.server_address[1], "/deletions", "key")
        server.shutdown()


def test_each_subject_is_accepted_once_and_a_503_is_posted_again(endpoint: Endpoint) -> None:
    subjects = [f"p{number}" for number in range(10)]
    posted = post(endpoint, subjects, clients=3)
    assert len(posted.seconds) == posted.busy == 10
    assert sorted(Receiver.asked) == sorted(2 * subjects) and len(Receiver.keys) == 20


def test_another_answer_ends_the_measurement(endpoint: Endpoint) -> None:
    with pytest.raises(RuntimeError, match="418"):
        post(endpoint, ["teapot"])


def test_children_that_ended_and_children_that_live_are_counted() -> None:
    command = [sys.executable, "-c", BURNS_IN_A_CHILD]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout and parent.stdout.readline() == "ready\n"
        assert len(family([parent.pid])) == 2
        assert cpu_seconds(parent.pid) >= 0.4
        memory = memory_of_each(parent.pid)
        assert memory.keys() == {*family([parent.pid])} and min(memory.values()) > 1_000_000
        parent.communicate("")
