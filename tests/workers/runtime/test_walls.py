"""Every way out of a world, tried by Python and by C behind the walls, and again with one wall left out."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy

from expunge_workers.runtime.walls import EVERY, WITHOUT_NAMESPACES, Wall, Walls, draw, environment
from tests.workers.runtime.template import Template
from unlearning.accounting.world import Enclosure

HERE = Path(__file__).parent
ESCAPES = {"recipe.py": (HERE / "escapes.py").read_text()}
USERS = [False, True] if os.geteuid() == 0 else [True]
"""whether the template is an ordinary user's; only root can be another's too"""
SECRET = "secret-variable"


@pytest.fixture(scope="module", params=USERS, ids=lambda nobody: "nobody" if nobody else "root")
def template(request: pytest.FixtureRequest) -> Iterator[Template]:
    process = Template(nobody=request.param and os.geteuid() == 0, variables={"EXPUNGE_PEPPER": SECRET})
    yield process
    process.close()


@pytest.fixture
def walled(template: Template) -> Template:
    if set(template.probe["standing"]) != EVERY:
        pytest.skip(f"unverified here: {template.probe['lacking']}")
    return template


@pytest.fixture(scope="module")
def library() -> Iterator[Path]:
    """The escapes in C, readable for every user."""
    if shutil.which("gcc") is None:
        pytest.skip("unverified here: there is no gcc")
    with tempfile.TemporaryDirectory(prefix="escapes-") as name:
        Path(name).chmod(0o755)
        built = Path(name) / "escapes.so"
        subprocess.run(["gcc", "-shared", "-fPIC", "-w", "-o", str(built), str(HERE / "escapes.c")], check=True)
        yield built


@pytest.fixture(scope="module")
def target() -> Iterator[dict[str, Any]]:
    """What lies outside, open to every user of this machine, so that walls alone keep it."""
    name, libc = f"expunge-{secrets.token_hex(4)}", ctypes.CDLL(None)
    key = secrets.randbelow(2**30) + 1
    with ExitStack() as left:
        folder = Path(left.enter_context(tempfile.TemporaryDirectory(prefix="recipes-")))
        folder.chmod(0o755)
        (folder / "secret.csv").write_text("patient,benign\n")
        memory = Path("/dev/shm") / name
        memory.write_text("row")
        left.callback(memory.unlink)
        segment = libc.shmget(key, 16, 0o1000 | 0o666)
        left.callback(libc.shmctl, segment, 0, None)
        listeners = [left.enter_context(socket.socket(family)) for family in (socket.AF_UNIX, socket.AF_UNIX)]
        listeners.append(left.enter_context(socket.socket(socket.AF_INET)))
        for listener, address in zip(listeners, (str(folder / "socket"), "\0" + name, ("127.0.0.1", 0)), strict=True):
            listener.bind(address)
            listener.listen(64)
            threading.Thread(target=_accept, args=[listener], daemon=True).start()
        (folder / "socket").chmod(0o666)
        yield {
            "secret": str(folder / "secret.csv"),
            "home": str(Path(__file__).parents[3] / "docs"),
            "package": pytest.__file__,
            "socket": str(folder / "socket"),
            "abstract": name,
            "port": listeners[2].getsockname()[1],
            "memory": str(memory),
            "key": key,
        }


def _accept(listener: socket.socket) -> None:
    with suppress(OSError):
        while True:
            listener.accept()[0].close()


def attempt(template: Template, library: Path, target: dict[str, Any], **settings: Any) -> dict[str, str]:
    """Try every way out in one world; return what came of each."""
    arguments = {"library": str(library), "target": target | {"parent": template.process.pid}}
    answers = template.ask(ESCAPES, [("attempt", arguments)], more=[library], **settings)
    assert isinstance(answers, list), answers
    outcomes: dict[str, str] = answers[0]["outcome"]
    return outcomes


def through(outcomes: dict[str, str]) -> set[str]:
    return {name for name, outcome in outcomes.items() if outcome == "through"}


def test_every_way_out_is_refused(walled: Template, library: Path, target: dict[str, Any]) -> None:
    outcomes = attempt(walled, library, target)
    assert len(outcomes) == 44
    assert through(outcomes) == set()
    assert outcomes["read"] == outcomes["read (C)"] == "ENOENT"
    assert outcomes["touch a package"] in {"EROFS", "EPERM"}
    assert outcomes["write into a package"] in {"EROFS", "EACCES"}


def test_without_landlock_the_new_root_is_enough(walled: Template, library: Path, target: dict[str, Any]) -> None:
    """So it is under gVisor."""
    assert through(attempt(walled, library, target, without=[Wall.LANDLOCK])) == set()
    assert draw(EVERY - {Wall.LANDLOCK}).strength is Enclosure.NEW_ROOT


def test_a_module_gets_no_further_while_it_is_imported(walled: Template, library: Path, target: dict[str, Any]) -> None:
    """It may make namespaces then, as its parts do, and there is nothing in them but what it has."""
    outside = target | {"parent": walled.process.pid}
    code = ESCAPES["recipe.py"] + f"\n\nFOUND = attempt(b'', {str(library)!r}, {outside!r})\n"
    code += "\n\ndef outcomes(rows):\n    return FOUND\n"
    (answer,) = walled.ask({"recipe.py": code}, [("outcomes", {})], more=[library])
    assert len(answer["outcome"]) == 44
    assert through(answer["outcome"]) <= {"mount again (C)"}


FILES = {"read", "list", "stat", "read home"}
LEFT_OUT = {
    Wall.ROOT: ({Wall.ROOT, Wall.LANDLOCK}, {*FILES, "read (C)", "stat (C)", "shared memory", "socket by path (C)"}),
    Wall.NETWORK: ({Wall.NETWORK, Wall.LANDLOCK}, {"port", "port (C)", "abstract socket", "abstract socket (C)"}),
    Wall.IPC: ({Wall.IPC, Wall.SECCOMP}, {"System V (C)"}),
    Wall.PID: ({Wall.PID, Wall.LANDLOCK}, {"command line of the parent"}),
    Wall.SECCOMP: ({Wall.SECCOMP}, {"io_uring (C)", "leave a key (C)", "x32 call (C)"}),
}


@pytest.mark.parametrize("wall", LEFT_OUT, ids=lambda wall: wall.name)
def test_a_wall_that_is_left_out_is_noticed(
    walled: Template, library: Path, target: dict[str, Any], wall: Wall
) -> None:
    """So each way out is one: what refuses it above is the wall, and no fault of the attempt."""
    without, ways = LEFT_OUT[wall]
    open_ways = through(attempt(walled, library, target, without=without))
    if wall is Wall.SECCOMP:
        # Which of them a kernel was built with differs; one is enough.
        assert open_ways & ways
    else:
        assert open_ways >= ways
    assert open_ways <= {*ways, *FURTHER.get(wall, ())}


FURTHER = {
    Wall.ROOT: {
        "list (C)",
        "leave through a folder",
        "shared memory (C)",
        "socket by path",
        "command line of the parent",
        "mount again (C)",
    },
    Wall.IPC: {"io_uring (C)", "leave a key (C)", "find a key (C)", "x32 call (C)", "32-bit call (C)"},
    Wall.PID: {
        "variables of the parent",
        "root of the parent",
        "signal to the parent",
        "signal to the parent (C)",
        "trace the parent (C)",
        "memory of the parent (C)",
    },
    Wall.SECCOMP: {"find a key (C)", "32-bit call (C)"},
}
"""what may come through too where a wall is left out"""


def test_landlock_alone_closes_files_and_says_that_it_is_no_more(
    template: Template, library: Path, target: dict[str, Any]
) -> None:
    if not set(template.probe["standing"]) >= WITHOUT_NAMESPACES:
        pytest.skip(f"unverified here: {template.probe['lacking']}")
    open_ways = through(attempt(template, library, target, only=WITHOUT_NAMESPACES))
    # Names and sizes, processes of the machine, and a capability without a use: so it is the operator's word.
    assert open_ways <= {
        "stat",
        "stat (C)",
        "command line of the parent",
        "change a package's mode",
        "change a package's mode (C)",
        "touch a package",
        "touch a package (C)",
        "signal to the parent",
        "signal to the parent (C)",
    }
    assert draw(WITHOUT_NAMESPACES).strength is Enclosure.LANDLOCK


def test_a_world_sees_itself_alone(walled: Template) -> None:
    (answer,) = walled.ask(ESCAPES, [("look_around", {})])
    world = answer["outcome"]
    assert world["processes"] == [1]
    assert world["capabilities"] == ["0000000000000000"] * 4
    assert world["no_new_privs"] == "1"
    assert world["interfaces"] == ["lo"]
    assert world["host"] == "world"
    for folder in ("/tmp", "/dev/shm", "/run"):  # this checkout may lie in one of them
        opened = [Path(path).relative_to(folder) for path in draw(EVERY).opened if path.startswith(f"{folder}/")]
        assert world["lists"][folder] == sorted({path.parts[0] for path in opened})
    assert world["lists"]["/world"] == ["code", "home"]
    assert world["devices"] == [
        *("fd", "full", "null", "random", "shm", "stdin", "stdout", "urandom", "zero"),
    ]
    assert SECRET not in world["variables"].values()
    assert world["variables"]["HOME"] == "/world/home"
    assert (world["variables"]["TZ"], world["variables"]["LC_ALL"]) == ("UTC", "C.UTF-8")


def test_a_folder_that_is_closed_is_empty_where_a_package_holds_it(walled: Template) -> None:
    """The recipe's folder may lie in Python's own."""
    code = {"recipe.py": "import os\n\ndef recipe(rows, folder):\n    return sorted(os.listdir(folder))\n"}
    folder = Path(pytest.__file__).parent
    (answer,) = walled.ask(code, [("recipe", {"folder": str(folder)})])
    assert "__init__.py" in answer["outcome"]
    (answer,) = walled.ask(code, [("recipe", {"folder": str(folder)})], closed=[folder])
    assert answer["outcome"] == []
    declared = [folder / "py.typed", folder / "__main__.py"]
    (answer,) = walled.ask(code, [("recipe", {"folder": str(folder)})], more=declared, closed=[folder])
    assert answer["outcome"] == ["__main__.py", "py.typed"], "what is declared in it, and no more"
    outer = Path(sqlalchemy.__file__).parent
    inner, closed = outer / "dialects", [outer, outer / "dialects" / "sqlite"]
    calls = [("recipe", {"folder": str(folder)}) for folder in (outer, inner, closed[1])]
    (all_of_it, *_) = walled.ask(code, calls[:1], closed=closed)
    assert all_of_it["outcome"] == [], "a closed folder in a closed one"
    listed = [answer["outcome"] for answer in walled.ask(code, calls, more=[inner], closed=closed)]
    assert listed[0] == ["dialects"] and "postgresql" in listed[1] and listed[2] == [], "and in a declared one"
    with pytest.raises(ValueError, match="no new root can hide it"):
        draw(WITHOUT_NAMESPACES, closed=[folder])


def test_a_machine_without_namespaces_says_so(walled: Template) -> None:
    """A process in the walls is on such a machine: no user namespace may be made in them."""
    code = "from expunge_workers.runtime.walls import probe\n\n"
    code += "def recipe(rows):\n    found = probe()\n    return [sorted(found.standing), list(found.lacking)]\n"
    (answer,) = walled.ask({"recipe.py": code}, [("recipe", {})])
    standing, lacking = answer["outcome"]
    assert set(standing) == WITHOUT_NAMESPACES
    assert "unshare" in lacking[0]


def test_the_list_names_packages_and_no_folder_of_people(tmp_path: Path) -> None:
    walls = draw(EVERY, closed=[tmp_path, "/usr/share/people"])
    opened = [Path(path) for path in walls.opened]
    assert any(Path(sys.prefix).resolve().is_relative_to(path) for path in opened)
    assert not any(
        Path(path).is_relative_to(folder) for path in ("/root", "/home", "/var", "/etc") for folder in opened
    )
    assert not any(Path(__file__).is_relative_to(folder) for folder in opened)
    assert walls.closed == ("/usr/share/people",)  # the other one is out of reach
    assert walls.strength is Enclosure.NEW_ROOT
    assert Walls(frozenset(), ()).strength is Enclosure.NONE


def test_links_on_the_way_to_a_package_are_made_again(tmp_path: Path) -> None:
    real = tmp_path / "python-3.12.8"
    real.mkdir()
    (tmp_path / "python-3.12").symlink_to(real.name)
    walls = draw(EVERY, more=[tmp_path / "python-3.12"])
    assert os.path.realpath(real) in walls.opened
    assert walls.links[str(tmp_path / "python-3.12")] == real.name


def test_the_environment_is_an_allow_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("PYTHONHASHSEED", "17")
    variables = environment("/world", 3)
    assert SECRET not in variables.values()
    assert (variables["PYTHONHASHSEED"], variables["OMP_NUM_THREADS"]) == ("0", "3")
