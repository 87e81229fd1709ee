"""deploy/: variables and ports of every file, the systemd units and the sample of a proxy."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import yaml

from expunge_service.infra.settings import Settings
from expunge_service.serve import config
from tests.harness.certificates import self_signed

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
VALUES = yaml.safe_load((DEPLOY / "helm" / "expunge" / "values.yaml").read_text())
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


@cache
def sources() -> dict[Path, str]:
    """Return the text of each file but the chart's copies of the dashboards."""
    paths = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.parent.name != "files")
    return {path: path.read_text() for path in paths}


def test_every_variable_is_a_setting_and_every_port_the_default_one() -> None:
    connected = set(re.findall(r"EXPUNGE_[A-Z_]*[A-Z]", (ROOT / "docs" / "connectors.md").read_text()))
    ours = {f"EXPUNGE_{name.upper()}" for name in Settings.model_fields} | connected
    for path, text in sources().items():
        assert set(re.findall(r"EXPUNGE_[A-Z_]*[A-Z]", text)) <= ours, path
        assert set(re.findall(r"127\.0\.0\.1:(\d+)", text)) <= {"8750"}, path
    assert Settings.model_fields["listen"].default == f"127.0.0.1:{VALUES['api']['port']}"
    assert COMPOSE["api"]["ports"] == ["127.0.0.1:8750:8750"]


def test_systemd_reads_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("unverified here: there is no systemd-analyze")
    program = tmp_path / "expunge"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    units = []
    for name in ("expunge@.service", "expunge-migrate.service"):
        unit = tmp_path / name.replace("@", "@api")
        unit.write_text((DEPLOY / "systemd" / name).read_text().replace("/opt/expunge/bin/expunge", str(program)))
        units.append(unit)
    judged = subprocess.run(["systemd-analyze", "verify", *units], check=False, capture_output=True, text=True)
    ours = [line for line in judged.stderr.splitlines() if "expunge" in line]
    assert (judged.returncode, ours) == (0, []), judged.stderr


def test_nginx_reads_the_sample(tmp_path: Path) -> None:
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None:
        pytest.skip("unverified here: there is no nginx")
    key, certificate = self_signed(tmp_path, "expunge.example.com")
    sample = (DEPLOY / "nginx" / "expunge.conf").read_text()
    sample = sample.replace("/etc/ssl/expunge/fullchain.pem", str(certificate))
    sample = sample.replace("/etc/ssl/expunge/privkey.pem", str(key)).replace("/var/log/nginx", str(tmp_path))
    text = f"pid {tmp_path}/pid; error_log stderr; events {{}} http {{ {sample} }}"
    (tmp_path / "nginx.conf").write_text(text)
    judged = subprocess.run([nginx, "-t", "-c", tmp_path / "nginx.conf"], check=False, capture_output=True, text=True)
    assert judged.returncode == 0, judged.stderr


def test_the_proxy_lets_go_of_a_connection_before_the_api_does() -> None:
    """Else a call on a connection that the API is just closing is lost, and one with a body is not sent again."""
    sample = (DEPLOY / "nginx" / "expunge.conf").read_text()
    upstream = [int(each) for each in re.findall(r"keepalive_timeout (\d+)s;", sample)]
    assert len(upstream) == 1 and upstream[0] < config("127.0.0.1", 0).timeout_keep_alive
