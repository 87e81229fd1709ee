"""``make demo`` and ``expunge up``: what a newcomer runs first, run as they would."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from expunge_client.cli.client import Account
from tests.harness.source import SOURCE_PATH

ROOT = Path(__file__).parents[2]
SECONDS = 90


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("EXPUNGE_")}
    ours = {"EXPUNGE_HOME": str(tmp_path / "home"), "EXPUNGE_RECIPES": str(ROOT / "examples")}
    return kept | ours | {"PYTHONPATH": SOURCE_PATH, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def up(environment: dict[str, str], tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (tmp_path / "said").open("wb") as said:
        command = [sys.executable, "-m", "expunge_client.cli.main", "up", "--port", "0"]
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdout=said, stderr=said, preexec_fn=listen_to_ctrl_c
        )
    yield process
    process.kill()
    process.wait()


def listen_to_ctrl_c() -> None:
    """A suite that runs in a shell's background ignores SIGINT, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_the_demo_ends_with_the_facts_as_one_json_object(environment: dict[str, str]) -> None:
    command = [sys.executable, "examples/digits/demo.py"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout.splitlines()[-1])
    assert list(facts) == [
        "model",
        "version_before",
        "version_after",
        "samples_forgotten",
        "holdout_accuracy_before",
        "holdout_accuracy_after",
        "latency_seconds",
        "certificate",
        "budget",
        "audit_verified",
    ]
    assert list(facts["certificate"]) == [
        "method",
        "guarantee",
        "reference",
        "max_distance",
        "noise_std",
        "epsilon",
        "delta",
    ]
    assert list(facts["budget"]) == ["spent", "limit", "updates_left"]
    assert (facts["version_before"], facts["version_after"], facts["certificate"]["guarantee"]) == (1, 2, "proved")
    assert facts["samples_forgotten"] > 0
    assert facts["holdout_accuracy_after"] > 0.9
    assert facts["audit_verified"] is True
    assert "%" in done.stderr, "progress is to be seen"
    assert "EXPUNGE_REGULATION" not in done.stderr, "the demo sets it"


@pytest.mark.drill
def test_up_runs_everything_restarts_what_dies_and_stops_with_ctrl_c(
    up: subprocess.Popen[bytes], environment: dict[str, str], tmp_path: Path
) -> None:
    home, said = tmp_path / "home", tmp_path / "said"
    account: Account = until(lambda: Account.read(home))
    assert (home / "client.json").stat().st_mode & 0o777 == 0o600
    assert (home / "keys.db").stat().st_mode & 0o777 == 0o600
    until(lambda: said.read_text().count("curl -s") == 3 and "Ctrl-C" in said.read_text())
    assert account.api_key in said.read_text()
    page, link = re.findall(r"^The page: (\S+)/#login=(\S+)$", said.read_text(), re.M)[0]
    assert page == account.url
    assert said.read_text().index("The page: ") < said.read_text().index("curl -s"), "the page comes first"
    statuses = [httpx.post(f"{page}/console/link", data={"link": link}).status_code for _ in range(2)]
    assert statuses == [303, 401], "the link logs in once"
    assert set(children_of(up.pid)) == {"api", "worker", "scheduler"}

    os.kill(children_of(up.pid)["scheduler"], signal.SIGKILL)
    until(lambda: "scheduler ended (SIGKILL)" in said.read_text())
    until(lambda: set(children_of(up.pid)) == {"api", "worker", "scheduler"})
    doctor = [sys.executable, "-m", "expunge_client.cli.main", "doctor"]
    assert until(lambda: subprocess.run(doctor, env=environment, cwd=ROOT, check=False).returncode == 0)

    pids = children_of(up.pid).values()
    up.send_signal(signal.SIGINT)
    assert up.wait(30) == 0
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    with pytest.raises(httpx.ConnectError):
        httpx.get(account.url)


def begin(environment: dict[str, str], stdin: int, said: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "expunge_client.cli.main", "up", "--port", "0"]
    with said.open("wb") as file:
        streams: dict[str, Any] = {"stdin": stdin, "stdout": file, "stderr": file}
        return subprocess.Popen(command, env=environment, cwd=ROOT, preexec_fn=listen_to_ctrl_c, **streams)


def end(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0


def test_the_first_start_on_a_terminal_asks_for_a_regulation_and_keeps_the_answer(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """A real terminal: a wrong answer is asked again, the right one holds for the API, and for the next start."""
    keyboard, terminal = os.openpty()
    said = tmp_path / "said"
    process = begin(environment, terminal, said)
    try:
        until(lambda: "Which law sets the deadline" in said.read_text())
        assert "gdpr" in said.read_text() and "starting" not in said.read_text()
        os.write(keyboard, b"gdrp\n")
        until(lambda: "'gdrp' is none of gdpr" in said.read_text())
        os.write(keyboard, b"GDPR\n")
        account: Account = until(lambda: Account.read(tmp_path / "home"))
        keys = {"Authorization": f"Bearer {account.api_key}", "Idempotency-Key": "k"}
        order = {"subject_id": "ada", "verified": False}
        made = httpx.post(f"{account.url}/v1/deletion-requests", json=order, headers=keys).json()
        assert made["regulation"] == "gdpr" and made["due_at"] is not None
        end(process)
        again = tmp_path / "again"
        process = begin(environment, terminal, again)
        until(lambda: "starting api" in again.read_text())
        assert "Which law" not in again.read_text() and "EXPUNGE_REGULATION" not in again.read_text()
    finally:
        process.kill()
        process.wait()
        os.close(keyboard)
        os.close(terminal)


def test_a_start_without_a_terminal_takes_no_regulation_and_names_the_setting(
    environment: dict[str, str], tmp_path: Path
) -> None:
    for number, more in enumerate(({}, {"EXPUNGE_REGULATION": "none"})):
        said = tmp_path / str(number)
        process = begin(environment | more, subprocess.DEVNULL, said)
        try:
            until(lambda said=said: "starting api" in said.read_text())  # type: ignore[misc]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)
        lines = [line for line in said.read_text().splitlines() if "EXPUNGE_REGULATION" in line]
        assert len(lines) == (0 if more else 1), said.read_text()
        assert not (tmp_path / "home" / "regulation").exists()


def test_up_says_that_its_port_is_taken(environment: dict[str, str]) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        command = [sys.executable, "-m", "expunge_client.cli.main", "up", "--port", str(other.getsockname()[1])]
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.search(r"error: Port \d+ .*\n hint: .*--port", done.stderr)


def until(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SECONDS
    while not (value := look()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return value


def children_of(pid: int) -> dict[str, int]:
    """The service's processes below ``pid``, by name."""
    found = {}
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            shown = Path(f"/proc/{child}/comm").read_text().strip()  # 15 letters
        except FileNotFoundError:
            continue
        for name in ("api", "worker", "scheduler"):
            if shown == f"expunge-{name}"[:15]:
                found[name] = int(child)
    return found
