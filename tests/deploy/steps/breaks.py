"""What breaks while deletions come in: a killed process, a stopped server, a full disk, a restarted engine."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.deploy import engine
from tests.deploy.programs import ran, tried
from tests.deploy.project import eventually
from tests.deploy.step import Check, Step, Unverified

BACK_SECONDS = 120.0
AWAY_SECONDS = 15.0
SERVERS = ("postgres", "keys", "redis")
FULL_SECONDS = 12.0
ROOM_BYTES = 24 << 20
"""free on the small disk before it is filled"""
WRITERS = {
    "store": ("api", "worker", "updater", "scheduler", "nightly"),
    "postgres": ("postgres",),
}
"""volumes that are filled, with the services that have them open"""


def kills(check: Check) -> str:
    """Kill each container's process by SIGKILL while deletions come in; the engine starts it again."""
    names = sorted(check.project.running())
    for name in names:
        kill_and_see_back(check, name)
    check.project.await_ready()
    return f"{len(names)} containers killed"


def kill_and_see_back(check: Check, name: str) -> None:
    """Kill the container's process while deletions come in, and wait until the engine has it going again."""
    before = engine.starts(name)
    with check.promises.deleting():
        time.sleep(1)
        engine.killed(name)
        eventually(lambda: engine.starts(name), lambda count: count > before, BACK_SECONDS)
        eventually(lambda: well(name), bool, BACK_SECONDS)


def well(container: str) -> bool:
    """Return whether it runs, and is healthy if it has a health check."""
    state = engine.inspect(container)["State"]
    return bool(state["Running"]) and state.get("Health", {}).get("Status", "healthy") == "healthy"


def servers(check: Check) -> str:
    """Stop database, key store and broker, one after another, while deletions come in; start each again."""
    for name in SERVERS:
        with check.promises.deleting():
            time.sleep(1)
            check.project.compose("stop", name)
            time.sleep(AWAY_SECONDS)
            check.project.compose("start", name)
            check.project.await_ready()
    return f"{', '.join(SERVERS)} stopped for {AWAY_SECONDS:g} s each"


def full_disk(check: Check) -> str:
    """Put a volume on a small disk, fill it while deletions come in, and make room again."""
    for volume, services in WRITERS.items():
        with on_small_disk(check, volume, services) as folder:
            with check.promises.deleting():
                filler = folder / "filler"
                fill(filler)
                time.sleep(FULL_SECONDS)
                assert free(folder) < 1 << 20, f"{folder} has {free(folder)} bytes free"
                filler.unlink()
            check.project.await_ready()
            check.promises.kept()
    return f"{', '.join(WRITERS)} full for {FULL_SECONDS:g} s each"


def free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


def fill(filler: Path) -> None:
    """Write until nothing more fits."""
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return


@contextmanager
def on_small_disk(check: Check, volume: str, services: tuple[str, ...]) -> Iterator[Path]:
    """Have the services work with a copy of the volume on a small disk in memory; put it back afterwards."""
    folder = engine.volume_folder(f"{check.project.name}_{volume}")
    check.project.compose("stop", *services)
    kept = folder.with_name("_kept")
    shutil.rmtree(kept, ignore_errors=True)
    ran("cp", "-a", folder, kept)
    used = int(ran("du", "-s", "--block-size=1", kept).split()[0])
    ran("mount", "-t", "tmpfs", "-o", f"size={used + ROOM_BYTES}", "expunge-check", folder)
    try:
        ran("cp", "-a", f"{kept}/.", folder)
        ran("chown", "--reference", kept, folder)
        ran("chmod", "--reference", kept, folder)
        check.project.compose("start", *services)
        check.project.await_ready()
        yield folder
    finally:
        check.project.compose("stop", *services)
        shutil.rmtree(kept)
        ran("cp", "-a", folder, kept)
        ran("umount", folder)
        for each in [*folder.iterdir()]:
            shutil.rmtree(each) if each.is_dir() and not each.is_symlink() else each.unlink()
        ran("cp", "-a", f"{kept}/.", folder)
        shutil.rmtree(kept)
        check.project.compose("start", *services)
        check.project.await_ready()


def engine_restart(check: Check) -> str:
    """Restart the engine while deletions come in. Containers stop with it, and start with it."""
    if not check.may_restart_engine:
        raise Unverified("the engine may not be restarted: --restart-engine allows it")
    with check.promises.deleting():
        time.sleep(1)
        restart_engine()
        eventually(lambda: tried("docker", "info").returncode, lambda code: code == 0, BACK_SECONDS)
        check.project.await_ready()
    return "the engine restarted"


def restart_engine() -> None:
    """Restart it by systemd where that runs it, else end the process and start the same command."""
    if shutil.which("systemctl") and tried("systemctl", "is-active", "--quiet", "docker").returncode == 0:
        ran("systemctl", "restart", "docker")
        return
    process = int((Path("/var/run/docker.pid")).read_text())
    command = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")[:-1]
    os.kill(process, signal.SIGTERM)
    eventually(lambda: Path(f"/proc/{process}").exists(), lambda there: not there, BACK_SECONDS)
    with Path("/var/log/dockerd-of-check.log").open("ab") as log:
        begun = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
    os.setpriority(os.PRIO_PROCESS, begun.pid, 0)  # whatever that of the check is


STEPS = (
    Step("kills", "Each container's process is killed during deletions.", 240, kills, ("own-recipe",)),
    Step("servers", "Database, key store and broker are stopped and started.", 120, servers, ("own-recipe",)),
    Step("full-disk", "The disks of store and database are full for a while.", 150, full_disk, ("own-recipe",)),
    Step("engine-restart", "The engine is restarted during deletions.", 60, engine_restart, ("own-recipe",)),
)
