"""The OpenAPI document by Spectral with OWASP's rules. It needs npm and its registry.

python -m pytest -m drill tests/service/api/test_spectral.py
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

RULES = Path(__file__).parents[1] / "conformity" / "spectral.yaml"
PACKAGES = ("@stoplight/spectral-cli@6.16.3", "@stoplight/spectral-owasp-ruleset@2.0.1")


@pytest.fixture(scope="module")
def spectral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which it is installed, with our rules."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("there is no npm: unverified here")
    folder = tmp_path_factory.mktemp("spectral")
    (folder / "package.json").write_text("{}")
    command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund", *PACKAGES]
    if subprocess.run(command, cwd=folder, capture_output=True, timeout=280).returncode:
        pytest.skip("npm cannot install Spectral: unverified here")
    shutil.copy(RULES, folder / "spectral.yaml")
    return folder


def lint(folder: Path, document: object) -> subprocess.CompletedProcess[str]:
    (folder / "openapi.json").write_text(json.dumps(document))
    program = str(folder / "node_modules" / ".bin" / "spectral")
    command = [program, "lint", "openapi.json", "--ruleset", "spectral.yaml", "--fail-severity", "warn"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200)


@pytest.mark.drill
@pytest.mark.timeout(600)
@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_the_document_satisfies_owasps_rules(api: TestClient, spectral: Path) -> None:
    document = api.app.openapi()  # type: ignore[attr-defined]
    done = lint(spectral, document)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr
    del document["paths"]["/v1/keys"]["get"]["responses"]["429"]
    assert "rate-limit-responses-429" in lint(spectral, document).stdout  # it does look
    api.app.openapi_schema = None  # type: ignore[attr-defined]
