"""A world and its parts: what they are given, what they share, how they end, and which libraries run in them."""

from __future__ import annotations

import base64
import mmap
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from expunge_workers.runtime import world
from expunge_workers.runtime.walls import EVERY, WITHOUT_NAMESPACES, draw
from expunge_workers.runtime.world import WorldEnded, seal
from tests.workers.runtime.template import Template

HERE = Path(__file__).parent
ESCAPES = {"recipe.py": (HERE / "escapes.py").read_text()}
LIBRARIES = {"recipe.py": (HERE / "libraries.py").read_text()}
MODES = {"new root": EVERY, "landlock": WITHOUT_NAMESPACES}


USERS = [False, pytest.param(True, marks=pytest.mark.drill)] if os.geteuid() == 0 else [False]
"""whether root starts the template as an ordinary user; the escapes are tried as both by default"""


@pytest.fixture(scope="module", params=USERS, ids=lambda nobody: "nobody" if nobody else "own")
def template(request: pytest.FixtureRequest) -> Iterator[Template]:
    process = Template(nobody=request.param)
    yield process
    process.close()


@pytest.fixture
def walled(template: Template) -> Template:
    if set(template.probe["standing"]) != EVERY:
        pytest.skip(f"unverified here: {template.probe['lacking']}")
    return template


def recipe(body: str, before: str = "") -> dict[str, str]:
    """Return a recipe of one function, ``recipe(rows)``; its body begins in line 6."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return {"recipe.py": f"import os, sys\nfrom pathlib import Path\n{before}\n\ndef recipe(rows):\n{lines}"}


def processes(mark: str) -> list[int]:
    """Return the processes of this machine with this word in their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if mark.encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def wait_until(condition: Any) -> bool:
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("mode", MODES)
def test_each_part_answers_for_its_own_rows(template: Template, mode: str) -> None:
    if not set(template.probe["standing"]) >= MODES[mode]:
        pytest.skip(f"unverified here: {template.probe['lacking']}")
    answers = template.ask(LIBRARIES, [("train", {})] * 2, only=MODES[mode])
    assert [answer["outcome"]["rows"] for answer in answers] == ["rows 0", "rows 1"]
    # The same seeds in both, and in every world: only the rows differ, which this training leaves out.
    assert len(base64.b64decode(answers[0]["data"])) == 16
    assert answers[0]["data"] == answers[1]["data"]
    assert template.ask(LIBRARIES, [("train", {})], seed=1)[0]["data"] != answers[0]["data"]


def test_a_world_repeats_in_another_template(walled: Template) -> None:
    other = Template(variables={"PYTHONHASHSEED": "5"})
    try:
        (there,), (here,) = (each.ask(LIBRARIES, [("train", {})]) for each in (other, walled))
    finally:
        other.close()
    assert there["data"] == here["data"]


@pytest.mark.parametrize("mode", MODES)
def test_parts_find_nothing_of_each_other(template: Template, mode: str) -> None:
    if not set(template.probe["standing"]) >= MODES[mode]:
        pytest.skip(f"unverified here: {template.probe['lacking']}")
    name = f"trace-{os.getpid()}"
    calls = [("leave", {"name": name}), ("find", {"name": name})]
    first, second = template.ask(ESCAPES, calls, only=MODES[mode])
    assert first["outcome"] == "rows 0"
    assert second["outcome"] == ["rows 1"]
    assert not any(Path(folder, name).exists() for folder in ("/tmp", "/dev/shm", "/run", "/var/tmp"))


def test_what_the_module_wrote_while_it_was_imported_stays_in_the_world(walled: Template) -> None:
    """It was written without rows, and a part that adds to it would reach the next one."""
    before = "Path(os.environ['HOME'], 'words').write_text('')\nPath('/dev/shm/words').write_text('')"
    body = "return [Path(p).exists() for p in (os.environ['HOME'] + '/words', '/dev/shm/words')]"
    (answer,) = walled.ask(recipe(body, before), [("recipe", {})])
    assert answer["outcome"] == [False, False]


@pytest.mark.parametrize(
    "before",
    [
        "import mmap; WORDS = mmap.mmap(-1, 4096)",
        "import torch; WORDS = torch.zeros(4).share_memory_()",
        "import multiprocessing; WORDS = multiprocessing.Value('i')",
    ],
    ids=["mmap", "torch", "multiprocessing"],
)
def test_memory_that_parts_would_share_is_refused(walled: Template, before: str) -> None:
    refused = walled.ask(recipe("return 1", before), [("recipe", {})] * 2)
    assert "makes memory that its parts would share" in refused["ended"]


def test_a_process_that_parts_would_share_is_refused(walled: Template) -> None:
    before = "import subprocess; HELP = subprocess.Popen(['sleep', '60'])"
    refused = walled.ask(recipe("return 1", before), [("recipe", {})] * 2)
    assert "The recipe's module starts processes." in refused["ended"]


def test_descriptors_that_the_module_opened_lead_nowhere(walled: Template) -> None:
    before = "import socket; HERE, THERE = socket.socketpair(); FILE = os.memfd_create('words')"
    body = "os.write(FILE, rows)\nfound = os.pread(FILE, 9, 0).decode()\n"
    body += "try:\n    HERE.send(rows)\nexcept OSError:\n    return found\nreturn 'sent'"
    answers = walled.ask(recipe(body, before), [("recipe", {})] * 2)
    assert [answer["outcome"] for answer in answers] == ["", ""]


def test_rows_cannot_be_written(walled: Template) -> None:
    calls = [("write_rows", {}), ("unlock_rows", {}), ("find", {"name": "-"})]
    written, unlocked, last = walled.ask(ESCAPES, calls, same=True)
    assert written["outcome"] == {"status": -signal.SIGSEGV, "rows": "rows 0"}
    assert unlocked["outcome"] in {"rows 0", "\0" * 6}  # its own copy
    assert last["outcome"] == ["rows 0"]


def test_sealed_rows_are_for_reading() -> None:
    rows = seal(b"rows")
    try:
        for attempt in (
            lambda: os.write(rows, b"x"),
            lambda: os.ftruncate(rows, 0),
            lambda: os.ftruncate(rows, 9),
            lambda: mmap.mmap(rows, 4),
        ):
            with pytest.raises(PermissionError):
                attempt()
    finally:
        os.close(rows)


def test_a_file_outside_is_an_ordinary_error_with_its_line(walled: Template, tmp_path: Path) -> None:
    (tmp_path / "patients.csv").write_text("1")
    path = str(tmp_path / "patients.csv")
    refused = walled.ask(recipe(f"x = 1\nreturn open({path!r}).read()"), [("recipe", {})])
    assert refused["raised"] == ["FileNotFoundError", path, "recipe.py", 7]
    refused = walled.ask(recipe("return 1", "open('/etc/shadow')"), [("recipe", {})] * 2)
    assert refused["raised"] == ["FileNotFoundError", "/etc/shadow", "recipe.py", 3]
    refused = walled.ask(recipe("open('/usr/left', 'w')"), [("recipe", {})])
    assert refused["raised"] == ["OSError", "/usr/left", "recipe.py", 6]  # read-only
    assert refused["text"] == "The recipe raised OSError for /usr/left at line 6 of recipe.py."


def test_an_error_names_the_recipes_line_and_no_message(walled: Template) -> None:
    files = recipe("import other\nother.fail('Jane')") | {"other.py": "def fail(name):\n    raise ValueError(name)\n"}
    refused = walled.ask(files, [("recipe", {})])
    assert refused["raised"] == ["ValueError", None, "other.py", 2]
    assert "Jane" not in str(refused)
    assert walled.ask(recipe("sys.exit('Jane')"), [("recipe", {})])["raised"][0] == "SystemExit"
    refused = walled.ask({"recipe.py": "x = 1\ndef recipe(:\n"}, [("recipe", {})])
    assert refused["raised"] == ["SyntaxError", None, "recipe.py", 2]


@pytest.mark.parametrize(
    "body",
    [
        "os._exit(0)",
        'forged = b\'{"nonce": "0", "facts": {"outcome": 1}}\'\n'
        "for number in range(3, 64):\n    try:\n        os.write(number, forged)\n    except OSError:\n        pass\n"
        "os._exit(0)",
        'for number in range(3, 64):\n    try:\n        os.write(number, b"[" * 100000)\n'
        "    except OSError:\n        pass",
    ],
    ids=["ended", "forged", "spoiled"],
)
def test_what_is_no_answer_to_the_order_does_not_count(walled: Template, body: str) -> None:
    refused = walled.ask(recipe(body), [("recipe", {})] * 2)
    assert refused["ended"] == "A part of the world ended without an answer to its order."


@pytest.mark.parametrize("body", ["os._exit(3)", "os.kill(os.getpid(), 9)\nos.abort()"])
def test_a_part_that_ends_itself_is_the_recipes_own_error(walled: Template, body: str) -> None:
    assert walled.ask(recipe(body), [("recipe", {})] * 2)["raised"] == ["SystemExit", None, None, None]


def test_an_answer_that_the_part_sealed_itself_does_not_count(walled: Template) -> None:
    body = "import fcntl\nfor number in range(3, 64):\n    try:\n        fcntl.fcntl(number, 1033, 1)\n"
    refused = walled.ask(recipe(body + "    except OSError:\n        pass"), [("recipe", {})])
    assert refused["ended"] == "A part of the world left its answer open to others."


def test_a_module_cannot_answer_for_its_parts(walled: Template) -> None:
    """While it is imported it holds the ends of the channels, and has got no order whose nonce it could repeat."""
    before = 'forged = b\'.{"nonce": "0", "facts": {"outcome": 1}}\'\nfor number in range(3, 64):\n'
    before += "    try:\n        os.write(number, forged)\n    except OSError:\n        pass\n"
    refused = walled.ask(recipe("return 2", before), [("recipe", {})] * 2)
    assert refused["type"] == "WorldEnded"


def test_time_is_limited_and_nothing_is_left(walled: Template) -> None:
    mark = f"7{os.getpid()}.25"
    body = f"import subprocess\nsubprocess.Popen(['sleep', '{mark}'], start_new_session=True)\nwhile True: pass"
    refused = walled.ask(recipe(body), [("recipe", {})] * 2, seconds=1)
    assert refused["type"] == "TimeoutError"
    assert processes(mark) == []


def test_what_a_part_started_ends_with_it(walled: Template) -> None:
    mark = f"8{os.getpid()}.25"
    body = f"import subprocess\nsubprocess.Popen(['sleep', '{mark}'], start_new_session=True)\nreturn 1"
    (answer,) = walled.ask(recipe(body), [("recipe", {})])
    assert answer["outcome"] == 1
    assert processes(mark) == []


@pytest.mark.parametrize("nobody", [False, True] if os.geteuid() == 0 else [False])
def test_a_killed_caller_leaves_no_process_and_no_file(nobody: bool) -> None:
    caller, mark = Template(nobody=nobody), f"9{os.getpid()}.25"
    if set(caller.probe["standing"]) != EVERY:
        caller.close()
        pytest.skip(f"unverified here: {caller.probe['lacking']}")
    with tempfile.TemporaryDirectory() as name:
        before = {*Path(name).parent.iterdir()}
        body = f"import subprocess\nPath('row').write_bytes(rows)\nsubprocess.run(['sleep', '{mark}'])"
        caller.send(recipe(body), [("recipe", {})] * 2)
        try:
            assert wait_until(lambda: processes(mark))
            children = children_of(caller.process.pid)
            assert len(children) >= 5  # the one that waits and the world, and so for each part
        finally:
            caller.close()
        assert wait_until(lambda: not processes(mark))
        assert wait_until(lambda: not any(Path(f"/proc/{child}").exists() for child in children))
        assert [path for path in {*Path(name).parent.iterdir()} - before if "expunge-world" in path.name] == []


def children_of(process: int) -> list[int]:
    """Return the processes below this one."""
    listed = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [child for name in listed for child in (int(name), *children_of(int(name)))]


def test_a_part_without_namespaces_of_its_own_gets_no_rows() -> None:
    """The caller looks for itself: code of the recipe was imported before the part's walls were made."""
    with pytest.raises(WorldEnded, match=r"no namespace of its own: ipc:.*, mnt:.*, net:.*, pid:"):
        world._inspect(os.getpid(), end=0, walls=draw(EVERY), others=world._namespaces(os.getpid()))


@pytest.mark.parametrize("name", ["joblib_processes", "data_loader", "gloo", "lightgbm", "python"])
def test_libraries_run_behind_the_walls(walled: Template, name: str) -> None:
    answers = walled.ask(LIBRARIES, [(name, {})])
    assert isinstance(answers, list), answers
    if answers[0]["outcome"] is None:
        pytest.skip(f"unverified here: {name} is not installed")
    assert answers[0]["outcome"] == ("/world/home" if name == "python" else True)


@pytest.mark.drill
@pytest.mark.parametrize("name", ["torchrun", "compiled", "matplotlib"])
def test_slow_libraries_run_behind_the_walls(walled: Template, name: str) -> None:
    if name == "compiled" and shutil.which("g++") is None:
        pytest.skip("unverified here: there is no compiler")
    answers = walled.ask(LIBRARIES, [(name, {})], seconds=250)
    assert isinstance(answers, list), answers
    assert answers[0]["outcome"] == ("3.0\n3.0\n" if name == "torchrun" else True)


def test_what_scores_a_part_comes_when_its_data_are_out(walled: Template) -> None:
    """The job of the tests says which files it was given, and scores by the bytes of the others."""
    files = {"recipe.py": "def recipe(rows, **others):\n    return {'given': [*others], 'data': b'model'}\n"}
    (answer,) = walled.ask(files, [("recipe", {})], aside="kept apart")
    assert answer["outcome"] == {"given": []} and answer["score"] == {"bytes": len("kept apart")}
