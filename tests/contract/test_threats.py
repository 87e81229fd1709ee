"""The threat table of SECURITY.md: every row is an attack, and names the tests that show its control."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from expunge_service.audit.signed_note import Signer
from expunge_service.cli.checks import examine
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.settings import SECRETS, Settings, ensure_secrets
from expunge_workers.runtime import recipes
from expunge_workers.storage.encryption import Sealer
from unlearning.types import Refused

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "SECURITY.md").read_text().partition("| an attacker wants")[2].splitlines()[2:]
ROWS = {row.split("|")[1].strip(): re.findall(r"`(test_\w+)`", row) for row in TABLE if row.startswith("|")}
RUNS_CODE = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "yaml"}


@cache
def present_tests() -> frozenset[str]:
    sources = [
        path.read_text()
        for room in ("tests", "connect/tests", "lab/tests")
        for path in (ROOT / room).rglob("test_*.py")
    ]
    return frozenset(name for source in sources for name in re.findall(r"^(?:async )?def (test_\w+)", source, re.M))


def test_the_table_has_every_row() -> None:
    assert len(ROWS) >= 13


@pytest.mark.parametrize("threat", ROWS)
def test_a_threat_is_met_by_tests(threat: str) -> None:
    assert ROWS[threat], "the row names no test"
    assert set(ROWS[threat]) <= present_tests(), f"no such test: {set(ROWS[threat]) - present_tests()}"


def test_nothing_that_can_run_code_is_read() -> None:
    """torch.load, pickle and their kind are nowhere in what is installed."""
    for folder in ("unlearning", "service", "workers", "migrations", "connect/expunge_connect", "lab/expunge_lab"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    assert not {name.name.split(".")[0] for name in node.names} & RUNS_CODE, path
                if isinstance(node, ast.ImportFrom):
                    assert (node.module or "").split(".")[0] not in RUNS_CODE, path
                if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                    assert (node.value.id, node.attr) != ("torch", "load"), path


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "a/../../b", "a\0", "A", "a//b", "a/", "", ".", "a.py", "é"]
)
def test_a_path_in_a_name_reaches_no_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("raise SystemExit")
    (tmp_path / "recipes").mkdir()
    with pytest.raises(Refused):
        recipes.find(tmp_path / "recipes", name)


def test_no_secret_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Settings, keys and the doctor's findings, also where a secret is malformed or a password stands in a URL."""
    settings = Settings(home=tmp_path, database_url="postgresql://me:canary@127.0.0.1:1/none")
    ensure_secrets(settings)
    shown = [repr(settings), *(str(finding) for finding in examine(settings))]
    secrets = [getattr(settings, name).read_text().strip() for name in SECRETS]
    shown += [
        repr(Pepper.load(settings.pepper_file)),
        repr(Signer.of(settings)),
        repr(Sealer(bytes.fromhex(secrets[0]))),
    ]
    settings.pepper_file.write_text("canary" + secrets[1])
    shown += [str(finding) for finding in examine(settings)]
    shown += capsys.readouterr()
    assert not [each for each in shown for secret in (*secrets, "canary") if secret in each]
