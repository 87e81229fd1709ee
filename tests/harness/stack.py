"""The whole service as its users run it: API, worker and scheduler as separate processes."""

from __future__ import annotations

import os
import secrets
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx

from expunge_client.cli.client import Account, Client
from expunge_service.access.api_keys import Scope, create_key
from expunge_service.cli.commands.processes import prepare
from expunge_service.cli.supervisor import Child, children
from expunge_service.infra.db import Database
from expunge_service.infra.limits import Limits
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.settings import Settings
from tests.harness.draws import fix_draw, keeps_apart
from tests.harness.process import FAST, PATH_OF_TESTS, command
from tests.harness.servers import Postgres, Redis, free_port

Value = TypeVar("Value")
PATIENCE_SECONDS = 90.0
TESTED = os.environ.get("EXPUNGE_TESTS_DEVICE", "cpu")
"""the device of the workers: tests.card names another"""


@dataclass
class Stack:
    """A running installation. ``client`` holds every scope; ``settings`` are those of its processes."""

    settings: Settings
    environment: dict[str, str]
    processes: dict[str, Child]
    client: Client
    account: Account
    http: httpx.Client = field(repr=False)
    servers: list[tuple[Path, Callable[[], object]]] = field(default_factory=list)
    """folders of the servers it uses, each with what makes the server write all it holds there"""

    @property
    def home(self) -> Path:
        return self.settings.home

    def start(self, name: str, **environment: str) -> None:
        """Start ``api``, ``worker``, ``updater`` or ``scheduler``, with more environment if given."""
        child = self.processes[name]
        child.environment = self.environment | environment
        child.start()

    def more_workers(self, count: int) -> None:
        """Start ``count`` more workers: ``worker-2`` and so on."""
        first = self.processes["worker"]
        for number in range(2, count + 2):
            log = first.log.with_name(f"worker-{number}.log")
            self.processes[f"worker-{number}"] = Child(f"worker-{number}", first.command, self.environment, log)
            self.start(f"worker-{number}")

    def stop(self, name: str) -> None:
        """Ask it to stop, and kill it a second later: Celery takes four to look up."""
        self.processes[name].stop(1)

    def restart(self, name: str, **environment: str) -> None:
        self.stop(name)
        self.start(name, **environment)

    def kill(self, name: str) -> None:
        """Kill the process with SIGKILL."""
        self.processes[name].kill()

    def key(self, *scopes: Scope) -> str:
        """Make an API key with these scopes and return it."""
        database = self.database()
        try:
            with database.write() as session:
                pepper = Pepper.load(self.settings.pepper_file)
                return create_key(session, pepper, label="test", scopes=scopes).secret
        finally:
            database.close()

    def database(self) -> Database:
        return Database(self.settings.database_url)

    def register(self, recipe: str, method: str = "recollection", **policy: Any) -> str:
        """Register a model under a new name, by default without a batch; returns the name without waiting."""
        name = f"m-{secrets.token_hex(4)}"
        self.client.post("/v1/models", {"name": name, "recipe": recipe, "method": method, "batch": 0, **policy})
        return name

    def prepared(self, name: str) -> dict[str, Any]:
        """Wait for the end of the preparation and return the model, live or not."""
        path = f"/v1/models/{name}"
        return self.eventually(lambda: self.client.get(path), lambda state: state["status"] != "preparing")

    def live(self, recipe: str, method: str = "recollection", **policy: Any) -> str:
        """Register a model, wait for its version 1, and return its name."""
        name = self.register(recipe, method, **policy)
        state = self.prepared(name)
        assert state["status"] == "live", f"{state}\n{self.logs()}"
        return name

    def delete(self, *models: str, **order: Any) -> dict[str, Any]:
        """Send a deletion request for ``subject_id`` or ``sample_ids`` and return it as accepted.

        One that names models leaves later registrations alone: tests share the service and register the same people.
        """
        body = order | ({"models": list(models), "suppress": "named_models"} if models else {})
        answer: dict[str, Any] = self.client.post("/v1/deletion-requests", body, str(uuid.uuid4()))
        return answer

    def ended(self, request: dict[str, Any]) -> dict[str, Any]:
        """Wait until the request is no longer queued or running, and return it."""
        path = f"/v1/deletion-requests/{request['id']}"
        return self.eventually(lambda: self.client.get(path), lambda now: now["status"] not in ("queued", "running"))

    def forgotten(self, *models: str, **order: Any) -> dict[str, Any]:
        """Make a deletion request, wait until it is completed, and return it."""
        request = self.ended(self.delete(*models, **order))
        assert request["status"] == "completed", f"{request}\n{self.logs()}"
        return request

    def head(self, name: str) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.get(f"/v1/models/{name}/versions/current")
        return answer

    def keeps_apart(self, person: str, aside: float) -> bool:
        """Return whether a recipe with this ``aside`` measures the person only: each installation draws its own."""
        return keeps_apart(self.settings, person, aside)

    def eventually(self, look: Callable[[], Value], enough: Callable[[Value], bool]) -> Value:
        """Call ``look`` until its value is ``enough``, and return that value."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not enough(value := look()):
            assert time.monotonic() < deadline, f"still {value} after {PATIENCE_SECONDS:g} s\n{self.logs()}"
            time.sleep(0.1)
        return value

    def files(self) -> list[Path]:
        """Return every file that this installation or its servers have written."""
        for _, write in self.servers:
            write()
        folders = [self.home, *(folder for folder, _ in self.servers)]
        return [path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]

    def logs(self) -> str:
        return "\n".join(
            f"--- {child.name} ({child.exit_code})\n{child.last_words(30)}" for child in self.processes.values()
        )


@contextmanager
def running(
    home: Path,
    recipes: Path,
    servers: tuple[Postgres, Redis] | None = None,
    through: Callable[[str], str] = str,
    limits: Limits = FAST,
    **settings: str,
) -> Iterator[Stack]:
    """Migrate and start a service under ``home``, and stop it afterwards.

    Args:
        home: the folder for its secrets, files and logs.
        recipes: the folder of its recipes.
        servers: hold its rows, keys and messages, in new databases; None: SQLite, and messages in files.
        through: gets the URL of the PostgreSQL database and returns the one to use, of a proxy for instance.
        limits: those of its processes.
        settings: EXPUNGE_ variables without the prefix.
    """
    with ExitStack() as databases:
        written: list[tuple[Path, Callable[[], object]]] = []
        if servers is not None:
            postgres, redis = servers
            settings["DATABASE_URL"] = through(databases.enter_context(postgres.database()))
            settings["KEY_STORE_URL"] = databases.enter_context(postgres.database())
            settings["BROKER_URL"] = redis.url
            written = [(postgres.folder, lambda: postgres.execute("CHECKPOINT")), (redis.folder, redis.dump)]
        with _started(home, recipes, settings, limits) as stack:
            stack.servers = written
            yield stack


@contextmanager
def _started(home: Path, recipes: Path, settings: Mapping[str, str], limits: Limits) -> Iterator[Stack]:
    port = free_port()
    ours = {"HOME": str(home), "RECIPES": str(recipes), "LISTEN": f"127.0.0.1:{port}", "DEVICE": TESTED, **settings}
    variables = {f"EXPUNGE_{name}": value for name, value in ours.items()}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("EXPUNGE_")}
    # two cores are shared by everything here; several threads per process only get in each other's way
    # what they leave in a temporary folder is theirs, and is searched with the rest
    (temporary := home / "tmp").mkdir(parents=True, exist_ok=True)
    environment |= PATH_OF_TESTS | variables | {"OMP_NUM_THREADS": "1", "TMPDIR": str(temporary)}
    values: dict[str, Any] = {name.lower(): value for name, value in ours.items()}
    chosen = Settings(**values)
    fix_draw(chosen)
    prepare(chosen).close()
    processes = {child.name: child for child in children(home, "127.0.0.1", port, environment)}
    for child in processes.values():
        child.command = command(child.name, port, limits)
    account = Account(f"http://127.0.0.1:{port}", "")
    stack = Stack(chosen, environment, processes, Client(account), account, httpx.Client(base_url=account.url))
    stack.account = Account(account.url, stack.key(*Scope))
    stack.client = Client(stack.account)
    try:
        for child in processes.values():
            if child.name != "updater":  # tests stop the worker to see what waits; they start the updater themselves
                child.start()
        stack.eventually(lambda: _readiness(stack), lambda code: code == httpx.codes.OK)
        yield stack
    finally:
        for child in processes.values():
            child.ask_to_stop()
        for child in processes.values():
            child.await_stop(1)


def _readiness(stack: Stack) -> int:
    try:
        return stack.http.get("/readyz").status_code
    except httpx.TransportError:
        return 0
