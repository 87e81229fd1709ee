"""Several hosts on one machine: each process has a home and its own recipes; they share servers, and no folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from expunge_client.cli.client import Account, Client
from expunge_service.access.api_keys import Scope
from expunge_service.cli.commands.processes import prepare
from expunge_service.cli.supervisor import Child
from expunge_service.infra.settings import SECRETS, Settings
from tests.harness.process import FAST, PATH_OF_TESTS, command
from tests.harness.s3 import S3
from tests.harness.servers import Postgres, Redis, free_port
from tests.harness.stack import Stack

ROLES = {
    "api-1": "api",
    "api-2": "api",
    "worker-1": "worker",
    "worker-2": "worker",
    "worker-3": "worker",
    "scheduler": "scheduler",
}


@dataclass
class Hosts(Stack):
    """An installation on one host for each process. ``client`` talks to the first API, ``second`` to the second."""

    base: Path = Path()
    second: Client = field(default_factory=lambda: Client(Account("", "")))

    @property
    def home(self) -> Path:
        """Return the folder that holds the homes of all hosts."""
        return self.base

    def start(self, name: str, **environment: str) -> None:
        """Start the process of that host, with more environment this time if given."""
        child = self.processes[name]
        own = child.environment
        child.environment = {**own, **environment}
        child.start()
        child.environment = own

    def mend(self) -> None:
        """Start every process that is dead, as a supervisor does. From the main thread only."""
        for name, child in self.processes.items():
            if not child.alive:
                self.start(name)


@contextmanager
def hosts(
    base: Path, recipes: Path, servers: tuple[Postgres, Redis, S3], place: str, **settings: str
) -> Iterator[Hosts]:
    """Run two APIs, three workers and a scheduler; stop them afterwards. ``place`` is a URL in a bucket."""
    postgres, redis, s3 = servers
    with ExitStack() as held:
        shared = {
            "DATABASE_URL": held.enter_context(postgres.database()),
            "KEY_STORE_URL": held.enter_context(postgres.database()),
            "BROKER_URL": redis.url,
            "STORE": f"{place}/store",
            "PRIVATE_STORE": f"{place}/private",
            "KEY_FOLDER": f"{place}/keys",
            "DEVICE": "cpu",
            **settings,
        }
        first = chosen(base / "secrets-made-here", recipes, shared)
        prepare(first).close()
        processes = {name: _child(base / name, name, role, first, recipes, shared, s3) for name, role in ROLES.items()}
        stack = _stack(base, first, processes)
        stack.servers = [
            (postgres.folder, lambda: postgres.execute("CHECKPOINT")),
            (redis.folder, redis.dump),
            (s3.folder / "data", s3.compact),
        ]
        try:
            for child in processes.values():
                child.start()
            stack.eventually(lambda: ready(stack), bool)
            yield stack
        finally:
            for child in processes.values():
                child.ask_to_stop()
            for child in processes.values():
                child.await_stop(1)


def chosen(home: Path, recipes: Path, shared: dict[str, str]) -> Settings:
    """Return the settings of a process with that home."""
    values: dict[str, Any] = {name.lower(): value for name, value in shared.items()}
    return Settings(home=home, recipes=recipes, **values)


def ready(stack: Hosts) -> bool:
    """Return whether both APIs are ready, and every worker is alive."""
    try:
        told = [httpx.get(f"{client.url}/readyz", timeout=5) for client in (stack.client, stack.second)]
    except httpx.TransportError:
        return False
    workers = sum(role == "worker" for role in ROLES.values())
    return all(answer.status_code == httpx.codes.OK and answer.json()["workers"] == workers for answer in told)


def _stack(base: Path, first: Settings, processes: dict[str, Child]) -> Hosts:
    urls = [f"http://{processes[name].environment['EXPUNGE_LISTEN']}" for name in ("api-1", "api-2")]
    account = Account(urls[0], "")
    stack = Hosts(first, {}, processes, Client(account), account, httpx.Client(base_url=urls[0]), base=base)
    key = stack.key(*Scope)
    stack.account = Account(urls[0], key)
    stack.client, stack.second = Client(stack.account), Client(Account(urls[1], key))
    return stack


def _child(home: Path, name: str, role: str, first: Settings, recipes: Path, shared: dict[str, str], s3: S3) -> Child:
    """Make the host's home, with copies of secrets and recipes, and the process that is to run there."""
    (home / "secrets").mkdir(parents=True)
    for each in SECRETS:
        secret: Path = getattr(first, each)
        shutil.copy(secret, home / "secrets" / secret.name)
    own = recipes.with_name(f"{recipes.name}-{name}")  # not in the home: what the service writes is searched there
    shutil.copytree(recipes, own)
    (home / "tmp").mkdir()
    port = free_port()
    ours = {**shared, "HOME": str(home), "RECIPES": str(own), "LISTEN": f"127.0.0.1:{port}"}
    environment = {key: value for key, value in os.environ.items() if not key.startswith("EXPUNGE_")}
    environment |= {f"EXPUNGE_{key}": value for key, value in ours.items()} | s3.environment
    environment |= PATH_OF_TESTS | {"OMP_NUM_THREADS": "1", "TMPDIR": str(home / "tmp")}
    return Child(name, command(role, port, FAST), environment, home / "logs" / f"{name}.log")
