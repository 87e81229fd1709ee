"""Child processes: restarted when they die, stopped together, gone when their parent is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from expunge_service.cli.supervisor import Child, Supervisor, card_workers, cards, children

SLEEP = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
PARENT = """
import sys, time
from pathlib import Path
from expunge_service.cli.supervisor import Child
child = Child("child", [sys.executable, "-c", "import time; time.sleep(60)"], {}, Path(sys.argv[1]))
child.start()
print(child.process.pid, flush=True)
time.sleep(60)
"""


FORKING = """
import atexit, json, os, signal, sys, time, types
from pathlib import Path
from expunge_service.cli.supervisor import Child
from expunge_service.infra.python import PYTHON

def main(arguments):
    atexit.register(print, "left", flush=True)
    facts = [arguments, sys.argv, os.environ.get("ONLY"), "HOME" in os.environ, os.getsid(0) == os.getpid()]
    print(json.dumps([*facts, os.getcwd() in sys.path[:1], Path("/proc/self/comm").read_text()]), flush=True)
    if arguments == ["code"]:
        sys.exit(3)
    if arguments == ["sleep"]:
        time.sleep(60)

sys.modules["imported"] = module = types.ModuleType("imported")
module.main = main
atexit.register(print, "the parent's", flush=True)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = Child("api", [*PYTHON, "-m", "imported", sys.argv[1]], {"ONLY": "this"}, Path(sys.argv[2]), forked=True)
child.start()
print(child.process.pid, flush=True)
if sys.argv[1] == "sleep":
    time.sleep(60)
child.await_stop(20)
print(child.exit_code, child.alive)
"""


def child(folder: Path, code: str = SLEEP) -> Child:
    return Child("child", [sys.executable, "-c", code], os.environ, folder / "logs" / "child.log")


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_child_that_dies_is_reported_and_started_again(tmp_path: Path) -> None:
    said: list[str] = []
    supervisor = Supervisor([child(tmp_path)], said.append)
    supervisor.start()
    first = supervisor.members[0].process
    assert first
    first.kill()
    first.wait()
    until(lambda: supervisor.watch() or supervisor.members[0].alive)
    assert supervisor.members[0].process is not first
    assert "child ended (SIGKILL)" in said[0]
    supervisor.stop()


def test_a_child_that_keeps_dying_is_given_more_and_more_time(tmp_path: Path) -> None:
    said: list[str] = []
    supervisor = Supervisor([child(tmp_path, "raise SystemExit(3)")], said.append)
    supervisor.start()
    until(lambda: supervisor.watch() or len(said) == 2)
    assert "exit code 3" in said[0]
    assert "in 1 s" in said[0]
    assert "in 2 s" in said[1]
    supervisor.stop()


def test_stopping_ends_every_child_and_waits_for_none_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("expunge_service.cli.supervisor.STOP_SECONDS", 0.5)
    members = [child(tmp_path / "polite"), child(tmp_path / "stubborn", STUBBORN)]
    supervisor = Supervisor(members, lambda _: None)
    supervisor.start()
    until(lambda: all("up" in member.last_words() for member in members))
    supervisor.stop()
    assert [member.exit_code for member in members] == [-signal.SIGTERM, -signal.SIGKILL]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux alone tells a child of its parent's death")
def test_children_die_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "log")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
    assert parent.stdout
    pid = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not _running(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux alone tells a child of its parent's death")
def test_a_child_whose_parent_died_before_it_could_ask_ends_by_itself() -> None:
    """Nobody tells it later: a worker was left behind, and went on, without its supervisor."""
    alive = "import os; die_with_parent(os.getppid()); print('alive', flush=True); die_with_parent(os.getpid())"
    code = f"from expunge_service.cli.forked import die_with_parent\n{alive}\nprint('still alive')"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (child.stdout, child.returncode) == ("alive\n", -signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
@pytest.mark.parametrize(("word", "code"), [("none", 0), ("code", 3)])
def test_a_forked_child_is_as_one_with_an_interpreter_of_its_own(tmp_path: Path, word: str, code: int) -> None:
    command, log = [sys.executable, "-c", FORKING, word, str(tmp_path / "log")], tmp_path / "log"
    done = subprocess.run(command, capture_output=True, check=True, text=True, cwd=Path(__file__).parents[3])
    assert done.stdout.splitlines()[1:] == [f"{code} False", "the parent's"]
    said, left = log.read_text().splitlines()
    assert json.loads(said) == [[word], ["imported", word], "this", False, True, False, "expunge-api\n"]
    assert left == "left", "what the child registered for its end is done, and nothing of the parent's"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
def test_a_forked_child_dies_with_its_parent_and_by_its_own_signals(tmp_path: Path) -> None:
    command = [sys.executable, "-c", FORKING, "sleep", str(tmp_path / "log")]
    for number in (signal.SIGKILL, signal.SIGTERM):
        parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3])
        assert parent.stdout
        pid = int(parent.stdout.readline())
        until(lambda: (tmp_path / "log").exists() and "sleep" in (tmp_path / "log").read_text())
        if number == signal.SIGTERM:
            os.kill(pid, number)
            until(lambda pid=pid: not _running(pid))  # type: ignore[misc]
        parent.kill()
        parent.wait()
        parent.stdout.close()
        until(lambda pid=pid: not _running(pid))  # type: ignore[misc]
        (tmp_path / "log").unlink()


def test_the_service_has_four_processes(tmp_path: Path) -> None:
    found = {each.name: each.command[1:] for each in children(tmp_path, "127.0.0.1", 8750, {})}
    assert set(found) == {"api", "worker", "updater", "scheduler"}
    assert found["worker"] == ["-P", "-m", "expunge_workers.main", "worker"]
    assert found["api"] == ["-P", "-m", "expunge_service.serve", "--host", "127.0.0.1", "--port", "8750"]


def _running(pid: int) -> bool:
    """Zombies, which nobody may have collected yet, do not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_api_that_may_not_start_says_why_in_one_line(tmp_path: Path) -> None:
    environment = os.environ | {"EXPUNGE_HOME": str(tmp_path), "EXPUNGE_MODE": "production"}
    command = [sys.executable, "-m", "expunge_service.serve", "--port", "0"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("EXPUNGE_SECRETS: there is no file") and done.stderr.count("\n") == 1


LISTING = """GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0a)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-1b)
  MIG 3g.40gb     Device  0: (UUID: MIG-1c)
  MIG 3g.40gb     Device  1: (UUID: MIG-1d)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-2e)
"""


def test_each_card_or_slice_gets_a_worker_that_sees_it_alone(tmp_path: Path) -> None:
    uuids = cards(LISTING)
    assert uuids == ["GPU-0a", "MIG-1c", "MIG-1d", "GPU-2e"]
    assert cards("No devices were found") == []
    workers = card_workers(tmp_path, uuids, {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "3", "EXPUNGE_DEVICE": "cpu"})
    for worker, uuid in zip(workers, uuids, strict=True):
        assert worker.environment == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": uuid, "EXPUNGE_DEVICE": "cuda"}
        assert worker.command[-2:] == ["expunge_workers.main", "worker"] and not worker.forked
    assert len({worker.log for worker in workers}) == 4


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 9", "nvidia-smi did not list the cards: CalledProcessError."),
        ("echo none", "nvidia-smi lists no card."),
    ],
)
def test_workers_for_cards_that_are_not_there_are_refused(tmp_path: Path, script: str, said: str) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "EXPUNGE_HOME": str(tmp_path)}
    command = [str(Path(sys.executable).with_name("expunge")), "run", "worker", "--gpus", "all"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode != 0 and said in done.stderr
