"""The units of deploy/systemd, started by a real systemd: migrated, a deletion made, killed, stopped in order."""

from __future__ import annotations

import json
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import systemd
from tests.harness.systemd import Systemd
from tests.stories.conftest import recipes_in

pytestmark = [pytest.mark.drill, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]
UNITS = ROOT / "deploy" / "systemd"
FILES = ("pepper", "sealing.key", "signing.key", "session.key")
HOLDS = {
    "migrate": set(FILES),
    "api": {"pepper", "signing.key", "session.key"},
    "scheduler": {"pepper", "signing.key", "session.key"},
    "worker": {"pepper", "sealing.key"},
    "updater": {"pepper", "sealing.key"},
}
"""as docs/settings.md says"""
RUN = [f"expunge@{name}.service" for name in ("api", "worker", "updater", "scheduler")]
PATIENCE_SECONDS = 120.0


def installed(files: Path) -> None:
    """Lay out under ``files`` what an operator puts on a host."""
    (system := files / "etc" / "systemd" / "system").mkdir(parents=True)
    for unit in (*UNITS.glob("*.service"), *UNITS.glob("*.timer")):
        shutil.copy(unit, system)
    for name in ("worker", "updater"):
        (drop := system / f"expunge@{name}.service.d").mkdir()
        shutil.copy(UNITS / "expunge-worlds.conf", drop / "worlds.conf")
    (programs := files / "usr" / "local" / "sbin").mkdir(parents=True)
    shutil.copy(UNITS / "expunge-admin", programs)
    (program := files / "opt" / "expunge" / "bin" / "expunge").parent.mkdir(parents=True)
    program.write_text(f'#!/bin/sh\nexec {Path(sys.executable).parent}/expunge "$@"\n')
    program.chmod(0o755)
    (settings := files / "etc" / "expunge").mkdir()
    settings.chmod(0o700)
    (settings / "common.env").write_text("EXPUNGE_RECIPES=/srv/recipes\nEXPUNGE_DEVICE=cpu\nOMP_NUM_THREADS=1\n")
    kept = {name: secrets.token_hex(32) for name in FILES}
    for process, names in HOLDS.items():
        (folder := settings / "secrets" / process).mkdir(parents=True)
        for name in names:
            (folder / name).write_text(kept[name])
            (folder / name).chmod(0o600)
    recipes_in(files / "srv" / "recipes")
    for name, line in {
        "passwd": "expunge:x:10001:10001::/var/lib/expunge:/usr/sbin/nologin",
        "group": "expunge:x:10001:",
    }.items():
        (files / "etc" / name).write_text(Path("/etc", name).read_text() + line + "\n")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Systemd]:
    if not systemd.is_here():
        pytest.skip(systemd.MISSING)
    folder, files = tmp_path_factory.mktemp("systemd"), tmp_path_factory.mktemp("files")
    files.chmod(0o755)
    installed(files)
    with systemd.booted(folder, files) as started:
        for units in (["expunge-migrate"], RUN):
            begun = started.run("systemctl", "start", *units, check=False)
            assert begun.returncode == 0, "".join(map(started.journal, units))
        eventually(lambda: call(started, "/readyz")[0] == 200, lambda: "".join(map(started.journal, RUN)))
        yield started


def eventually(holds: Callable[[], bool], otherwise: Callable[[], str]) -> None:
    ends = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < ends, otherwise()
        time.sleep(0.3)


def call(host: Systemd, path: str, key: str = "", body: dict[str, Any] | None = None) -> tuple[int, Any]:
    command = ["curl", "-s", "-m", "20", "-w", "\n%{http_code}", "-H", f"Authorization: Bearer {key}"]
    if body is not None:
        command += ["-H", "Content-Type: application/json", "-H", f"Idempotency-Key: {secrets.token_hex(8)}"]
        command += ["-d", json.dumps(body)]
    text, _, status = host.run(*command, f"http://127.0.0.1:8750{path}", check=False).stdout.rpartition("\n")
    return int(status), json.loads(text) if text.startswith("{") else text


@pytest.fixture(scope="module")
def key(host: Systemd) -> str:
    """As an operator makes the first one."""
    made = host.run("expunge-admin", "keys", "create", "--role", "admin", "--label", "first")
    return made.stdout.strip()


def test_a_process_gets_its_own_secret_files_and_no_other_user_reads_them(host: Systemd) -> None:
    for name in ("api", "worker", "updater", "scheduler"):
        folder = f"/run/credentials/expunge@{name}.service"
        for file in FILES:
            content = host.run("cat", f"{folder}/{file}").stdout.strip()
            assert (content != "none") == (file in HOLDS[name]), (name, file)
        listed = host.run("setpriv", "--reuid=nobody", "--clear-groups", "ls", folder, check=False)
        assert "Permission denied" in listed.stderr


def test_a_model_is_trained_and_a_person_deleted(host: Systemd, key: str) -> None:
    made = {"name": "first", "recipe": "tiny", "method": "newton", "batch": 0}
    assert call(host, "/v1/models", key, made)[0] == 202
    eventually(lambda: call(host, "/v1/models/first", key)[1]["status"] == "live", lambda: host.journal(RUN[1]))
    status, asked = call(host, "/v1/deletion-requests", key, {"subject_id": "tiny-person-3"})
    assert status == 202
    path = f"/v1/deletion-requests/{asked['id']}"
    eventually(lambda: call(host, path, key)[1]["status"] == "completed", lambda: host.journal(RUN[1]))


def test_the_operators_command_asks_the_doctor_and_makes_a_backup(host: Systemd, key: str) -> None:
    judged = host.run("expunge-admin", "doctor", "--json", check=False)
    faults = [each for each in json.loads(judged.stdout) if not each["well"]]
    assert faults == [], judged.stderr
    host.run("systemctl", "enable", "--now", "expunge-daily.timer")
    assert host.shows("expunge-daily.timer", "ActiveState") == "active"
    host.run("systemctl", "start", "expunge-daily")
    copies = host.run("sh", "-c", "cd /var/lib/expunge-backups && stat -c '%U %a' *").stdout
    assert copies == "expunge 600\n"
    assert host.shows("expunge-daily.service", "Result") == "success", host.journal("expunge-daily")
    assert host.run("expunge-admin", "models", "list", EXPUNGE_API_KEY=key).returncode == 0


def test_the_signing_key_is_replaced_by_the_lines_of_the_page(host: Systemd, key: str) -> None:
    (lines,) = re.findall(
        r"So the signing key is replaced thus:\n\n((?:    .*\n)+)", (ROOT / "docs" / "install.md").read_text()
    )
    kept = "/etc/expunge/secrets/{}/signing.key"
    before = host.run("cat", kept.format("api")).stdout
    host.run("sh", "-ec", lines)
    after = {host.run("cat", kept.format(name)).stdout for name in ("migrate", "api", "scheduler")}
    assert len(after) == 1 and before not in after
    assert host.shows("expunge@scheduler.service", "ActiveState") == "active"
    eventually(lambda: call(host, "/readyz")[0] == 200, lambda: host.journal(RUN[0]))
    verified = host.run("expunge-admin", "audit", "verify", check=False, EXPUNGE_API_KEY=key)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_a_process_that_is_killed_comes_back(host: Systemd) -> None:
    for unit in RUN:
        host.run("systemctl", "kill", "--signal=KILL", "--kill-who=main", unit)
        eventually(lambda unit=unit: host.shows(unit, "NRestarts") == "1", lambda unit=unit: host.journal(unit))  # type: ignore[misc]
    eventually(lambda: call(host, "/readyz")[0] == 200, lambda: host.journal(RUN[0]))


def test_every_process_ends_in_order_within_its_time(host: Systemd) -> None:
    """The last test: nothing runs after it."""
    for unit in RUN:
        host.run("systemctl", "stop", unit)
        assert host.shows(unit, "Result") == "success", f"none was killed by TimeoutStopSec\n{host.journal(unit)}"
