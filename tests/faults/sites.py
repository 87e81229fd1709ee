"""An installation with separate servers, which a drill may harm: API, two workers and a scheduler, as processes."""

from __future__ import annotations

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx

from expunge_client.cli.output import CommandError
from expunge_service.infra.limits import Limits
from tests.faults.crowd import copy_recipes
from tests.harness.servers import Postgres, Redis, postgres, redis_server
from tests.harness.stack import Stack, running

HERE = Path(__file__).parent
KINDS = ("sqlite", "postgres")
"""SQLite with Celery over files; PostgreSQL, for the keys as well, with Redis"""
LEASE_SECONDS = 4.0
LIMITS = Limits(sweep_seconds=0.3, lease_seconds=LEASE_SECONDS, rate_burst=1_000_000)
SETTINGS = {"GRACE": "1", "RATE": "1000000"}


@dataclass
class Site:
    kind: str
    stack: Stack
    postgres: Postgres | None
    redis: Redis | None

    def mend(self) -> None:
        """Start every process that is dead. From the main thread only: a child dies with the thread that started it."""
        for name, child in self.stack.processes.items():
            if not child.alive:
                self.stack.start(name)

    def retry(self) -> str:
        """Retry what is blocked, as an operator does who read the reason; returns how many there were, by reason."""
        held = list(self.stack.client.pages("/v1/deletion-requests", status="blocked"))
        reasons = Counter(
            f"{part['model']} {part['reason']}"
            for request in held
            for part in request["models"]
            if part["status"] == "blocked"
        )
        for request in held:
            with suppress(CommandError):  # a retry cannot help it, which the answer says
                self.stack.client.post(f"/v1/deletion-requests/{request['id']}/retry", {})
        told = ", ".join(f"{count} x {reason}" for reason, count in sorted(reasons.items()))
        return f"{len(held)} ({told})" if held else "0"

    def ready(self) -> bool:
        try:
            return self.stack.http.get("/healthz").is_success
        except httpx.TransportError:
            return False


@contextmanager
def site(kind: str, database: Callable[[str], str] = str, people: int = 1000, **settings: str) -> Iterator[Site]:
    """Run an installation. ``database`` may put a proxy between it and its database; it gets and returns the URL."""
    with ExitStack() as held:
        home = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="expunge-drill-")))
        recipes = copy_recipes(home / "recipes", people)
        shutil.copytree(HERE.parent / "stories" / "recipes", recipes, dirs_exist_ok=True)
        servers = None
        if kind == "postgres":
            servers = held.enter_context(postgres()), held.enter_context(redis_server())
        started = running(home / "home", recipes, servers, database, LIMITS, **SETTINGS | settings)
        stack = held.enter_context(started)
        stack.more_workers(1)
        yield Site(kind, stack, *(servers or (None, None)))
