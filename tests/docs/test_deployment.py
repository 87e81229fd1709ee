"""The Dockerfile and docker-compose.yml, as far as they can be checked without a Docker engine."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE = (ROOT / "docker-compose.yml").read_text()


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE)["services"]


def test_every_variable_is_a_setting_or_belongs_to_another_image(services: dict[str, Any]) -> None:
    ours = {f"EXPUNGE_{name.upper()}" for name in Settings.model_fields}
    for service in services.values():
        given = {name for name in service.get("environment", {}) if name.startswith("EXPUNGE_")}
        assert given <= ours


def test_no_password_has_a_default() -> None:
    interpolated = re.findall(r"\$\{([^}]*)\}", COMPOSE)
    assert interpolated
    assert all(re.fullmatch(r"EXPUNGE_[A-Z]+_PASSWORD:\?choose one", each) for each in interpolated)


def test_the_api_can_open_neither_states_nor_vectors(services: dict[str, Any]) -> None:
    api = services["api"]
    assert "sealing" not in api["secrets"]
    assert not {"EXPUNGE_SEALING_KEY_FILE", "EXPUNGE_KEY_STORE_URL", "EXPUNGE_PRIVATE_STORE"} & set(api["environment"])
    assert api["volumes"] == ["store:/var/lib/expunge/store:ro"]


def test_everything_named_exists(services: dict[str, Any]) -> None:
    document = yaml.safe_load(COMPOSE)
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= set(services), name
        assert set(service.get("secrets", [])) <= set(document["secrets"]), name
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (ROOT / source).exists() if source.startswith(".") else source in document["volumes"], name


def test_ports_are_published_on_this_host_alone(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_image_copies_every_package_and_runs_as_a_number() -> None:
    text = (ROOT / "Dockerfile").read_text()
    packages = {"unlearning", "service", "workers", "migrations"}
    assert packages <= set(re.findall(r"^COPY (\w+) \1$", text, re.MULTILINE))
    assert re.search(r"^USER [1-9]\d*$", text, re.MULTILINE)


def test_hadolint_finds_nothing() -> None:
    linter = shutil.which("hadolint")
    if linter is None:
        pytest.skip("unverified here: there is no hadolint")
    subprocess.run([linter, str(ROOT / "Dockerfile")], check=True)
