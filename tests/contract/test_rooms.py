"""What a process loads: the API and the command line start without torch, and the maths without a service."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from setuptools import find_packages

ROOT = Path(__file__).parents[2]


def loaded_by(statement: str) -> set[str]:
    """The modules in a fresh interpreter after the statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


ROOMS = ("unlearning", "expunge/service", "expunge/workers", "expunge/migrations")
COMMANDS = (
    "from expunge_client.cli.main import ADMINISTER, EVERYDAY, Commands, grouped; "
    "[Commands().get_command(None, each) for title in (EVERYDAY, ADMINISTER) for each in grouped()[title]]"
)


SCHEDULER = "import expunge.workers.main, expunge.workers.scheduler.run, expunge.workers.storage"


@pytest.mark.parametrize("statement", [COMMANDS, SCHEDULER, "import unlearning", "import unlearning.accounting.policy"])
def test_torch_is_not_loaded(statement: str) -> None:
    assert "torch" not in loaded_by(statement)


def test_a_command_that_asks_the_service_loads_no_database() -> None:
    modules = loaded_by("from expunge_client.cli.main import Commands; Commands().get_command(None, 'models')")
    assert "httpx" in modules
    assert not modules & {"sqlalchemy", "redis", "alembic", "fastapi"}


def test_the_api_process_loads_no_worker_and_no_maths() -> None:
    modules = loaded_by("import expunge.service.api.app")
    assert not modules & {"torch", "expunge.workers", "numpy", "safetensors", "sklearn"}


def test_the_maths_load_no_service_no_server_and_no_compiler() -> None:
    """Torch's own setter loads its compiler: over a second and 70 MB in every worker and in every trial."""
    code = (
        "import unlearning\nunlearning.Recipe\n"
        "from unlearning.model.global_state import settings_kept\nwith settings_kept(): pass\n"
        "import sys\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "torch" in modules and "torch._dynamo" not in modules
    assert not modules & {"expunge", "sqlalchemy", "fastapi", "celery", "redis", "pydantic"}


def test_every_package_is_shipped() -> None:
    found_by = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]["find"]
    listed = find_packages(str(ROOT), include=found_by["include"])
    found = {path.parent.relative_to(ROOT) for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    assert sorted(listed) == sorted({"expunge", *(".".join(folder.parts) for folder in found)})


def test_every_file_that_is_no_code_is_shipped() -> None:
    """Templates, styles and scripts: what lies in a package and is not Python must be named as its data."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    shipped = {
        path for name, globs in listed.items() for glob in globs for path in (ROOT / name.replace(".", "/")).glob(glob)
    }
    rooms = (*ROOMS, "expunge", "expunge/examples")
    files = {path for room in rooms for path in (ROOT / room).glob("**/*") if path.is_file()}
    data = {path for path in files if path.suffix not in {".py", ".pyc", ".mako"}}
    assert data == {path for path in shipped if path.suffix != ".py"}  # the examples are code that is no package
