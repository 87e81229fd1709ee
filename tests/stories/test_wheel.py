"""The wheels of all packages, installed apart from this repository, work in any folder.

Also in one whose packages have our names.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from tests.stories.test_readme import code_of
from tests.stories.test_up import listen_to_ctrl_c

ROOT = Path(__file__).parents[2]
SECONDS = 90
PRINTED = re.compile(r"^curl .*?(?<!\\)$", re.DOTALL | re.MULTILINE)
"""the commands that ``up`` prints"""
SOURCE = (
    "expunge",
    "unlearning",
    "service",
    "workers",
    "migrations",
    "client",
    "connect",
    "lab",
    "examples",
    "pyproject.toml",
    "setup.py",
    "README.md",
    "LICENSE",
)
PACKAGES = (".", "client", "connect", "lab")
HOUSES = ("service", "workers", "migrations")
"""each holds a package of the wheel ``expunge``"""
TEMPLATE_OF_A_MIGRATION = "expunge_migrations/script.py.mako"
"""for whoever writes one, in a clone"""
FOLDERS: dict[str, tuple[str, ...]] = {
    "hostile": ("service/__init__.py", "workers/__init__.py", "migrations/__init__.py", "celery.py", "types.py"),
    "celery": ("celery.py",),
    "empty": (),
}
"""files of the user's own, each of which raises where it is imported"""


@pytest.fixture(scope="module")
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that has the wheel, and the libraries of this one.

    ``EXPUNGE_TEST_PROGRAMS`` names that of another, where pip installed both wheels: on another Python, for instance.
    """
    if (given := os.environ.get("EXPUNGE_TEST_PROGRAMS")) is not None:
        return Path(given)
    return installed(request.getfixturevalue("wheels"), tmp_path_factory.mktemp("wheel") / "environment")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the wheels, built from a copy of the source: a build leaves files beside it."""
    folder = tmp_path_factory.mktemp("wheels")
    source = folder / "source"
    source.mkdir()
    for name in SOURCE:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    run(
        "-m",
        "pip",
        "wheel",
        "-q",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        folder,
        *(source / name for name in PACKAGES),
    )
    return folder


def installed(wheels: Path, environment: Path) -> Path:
    """Install the wheels into a new environment; return the folder of its programs."""
    venv.create(environment, with_pip=False, symlinks=True)
    (site,) = environment.glob("lib/python*/site-packages")
    libraries = [path for path in sys.path if path.endswith("-packages")]  # after ours; a world opens them, no links
    (site / "libraries.pth").write_text("\n".join(libraries) + "\n")
    run("-m", "pip", "install", "-q", "--no-deps", "--target", site, *wheels.glob("expunge*.whl"))
    program = environment / "bin" / "expunge"  # as pip writes it where it installs into its own environment
    program.write_text(
        f"#!{environment}/bin/python\nimport sys\nfrom expunge_client.cli.main import main\nsys.exit(main())\n"
    )
    program.chmod(0o755)
    return environment / "bin"


def run(*arguments: object) -> None:
    subprocess.run([sys.executable, *map(str, arguments)], check=True, cwd="/")


def test_the_wheel_has_every_file_of_its_packages(wheels: Path) -> None:
    """Code, templates, styles, scripts and the examples' data: setup.py or pyproject.toml must name what is there."""
    (wheel,) = wheels.glob("expunge-*.whl")
    shipped = {name for name in ZipFile(wheel).namelist() if ".dist-info/" not in name}
    houses = {ROOT: ("expunge", "unlearning")} | {ROOT / house: (f"expunge_{house}",) for house in HOUSES}
    files = {
        path.relative_to(house).as_posix()
        for house, packages in houses.items()
        for package in packages
        for path in files_beneath(house / package)
    }
    examples = ROOT / "examples"
    files |= {f"expunge/examples/{path.relative_to(examples).as_posix()}" for path in files_beneath(examples)}
    assert shipped == files - {TEMPLATE_OF_A_MIGRATION}


def files_beneath(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]


@pytest.mark.parametrize(
    "folder", ["hostile", *(pytest.param(each, marks=pytest.mark.drill) for each in FOLDERS if each != "hostile")]
)
def test_a_person_is_deleted_and_the_certificate_verified(programs: Path, tmp_path: Path, folder: str) -> None:
    for name in FOLDERS[folder]:
        place = tmp_path / name
        place.parent.mkdir(exist_ok=True)
        place.write_text("raise RuntimeError('this module is the user\\'s own')\n")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EXPUNGE_", "PYTHON"))}
    ours = {"EXPUNGE_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    environment = kept | ours | {"PATH": f"{programs}:{kept['PATH']}"}

    def expunge(*words: str) -> Any:
        done = subprocess.run(
            [programs / "expunge", *words], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    expunge("init")
    with running(programs, tmp_path, environment):
        register, ask, look = PRINTED.findall((tmp_path / "said").read_text())
        assert code_of(register) == 202
        until(lambda: json.loads(expunge("models", "show", "digits", "--json"))["status"] == "live")
        assert code_of(ask) == 202 and code_of(look) == 200
        request = json.loads(expunge("delete", "--subject", "person-003", "--wait", "--json"))
        assert request["status"] == "completed"
        until(lambda: fetched(expunge, request["id"]))
    told = json.loads(expunge("certificate", "verify", "certificate.json", "--key", "home/log.vkey", "--json"))
    assert told["verified"] is True and told["claims"] == ["digits: proved"]


def fetched(expunge: Any, request: str) -> bool:
    try:
        expunge("certificate", "show", request, "--out", "certificate.json")
    except AssertionError:  # it is signed within seconds
        return False
    return True


@contextmanager
def running(programs: Path, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    """Run ``expunge up`` in the folder."""
    with (folder / "said").open("wb") as said:
        up = subprocess.Popen(
            [programs / "expunge", "up", "--port", "0"],
            env=environment,
            cwd=folder,
            stdout=said,
            stderr=said,
            stdin=subprocess.DEVNULL,
            preexec_fn=listen_to_ctrl_c,
        )
    try:
        until(lambda: "Ctrl-C stops it." in (folder / "said").read_text())
        yield
    except BaseException:
        print((folder / "said").read_text())
        raise
    finally:
        up.send_signal(signal.SIGINT)
        assert up.wait(30) == 0


def until(look: Any) -> None:
    end = time.monotonic() + SECONDS
    while not look():
        assert time.monotonic() < end
        time.sleep(0.3)
