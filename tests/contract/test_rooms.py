"""What a process loads: the API and the command line start without torch, and the maths without a service."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def loaded_by(statement: str) -> set[str]:
    """The modules in a fresh interpreter after the statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.split())


COMMANDS = (
    "from expunge_client.cli.main import ADMINISTER, EVERYDAY, Commands, grouped; "
    "[Commands().get_command(None, each) for title in (EVERYDAY, ADMINISTER) for each in grouped()[title]]"
)


SCHEDULER = "import expunge_workers.main, expunge_workers.scheduler.run, expunge_workers.storage"


@pytest.mark.parametrize("statement", [COMMANDS, SCHEDULER, "import unlearning", "import unlearning.accounting.policy"])
def test_torch_is_not_loaded(statement: str) -> None:
    assert "torch" not in loaded_by(statement)


def test_a_command_that_asks_the_service_loads_no_database() -> None:
    modules = loaded_by("from expunge_client.cli.main import Commands; Commands().get_command(None, 'models')")
    assert "httpx" in modules
    assert not modules & {"sqlalchemy", "redis", "alembic", "fastapi"}


def test_the_api_process_loads_no_worker_and_no_maths() -> None:
    modules = loaded_by("import expunge_service.app")
    assert not modules & {"torch", "expunge_workers", "numpy", "safetensors", "sklearn"}


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
