"""Expunge beside what a good team would write (``peer.py``): one model, retrained, both over PostgreSQL and Redis.

``python -m benchmarks beside_peer``. Each side has servers of its own, with ``fsync`` on, and computes on one thread.
CPU seconds are those of all its processes and servers, with children that have ended. Both fit scikit-learn's
LogisticRegression to the same table without the same people, and after each round both must have published the same
bytes. The sides take turns, so that a busy machine slows both. What follows a completion, as a certificate does,
belongs to the deletion: a span of CPU ends ``SETTLE_SECONDS`` after the last completion. Memory and idling are measured
one side after the other, for a page that both sides hold would count half to each.

Sizes: ``BENCH_PEOPLE`` (2000, of ten rows each), ``BENCH_ROUNDS`` (5) of ``BENCH_DELETIONS`` (4), ``BENCH_CAMPAIGNS``
(3) of ``BENCH_CAMPAIGN`` (400), ``BENCH_CLIENTS`` (1,16,64), ``BENCH_WINDOWS`` (7) of ``BENCH_WINDOW_SECONDS`` (3),
``BENCH_REST_SECONDS`` (330) until memory and idling are measured, ``BENCH_QUIET_SECONDS`` (60).
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import count, islice
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import psycopg

from benchmarks.posting import ROOT, Endpoint, post, process, serving
from benchmarks.process_tree import cpu_seconds, memory_of_each
from expunge_client.cli.client import Account, Client
from tests.harness import servers

Row = dict[str, Any]


def size(name: str, usual: int) -> int:
    return int(os.environ.get(f"BENCH_{name}", usual))


PEOPLE = size("PEOPLE", 2000)
ROUNDS, DELETIONS = size("ROUNDS", 5), size("DELETIONS", 4)
CAMPAIGNS, CAMPAIGN, CAMPAIGN_CLIENTS = size("CAMPAIGNS", 3), size("CAMPAIGN", 400), 16
CLIENTS = tuple(int(clients) for clients in os.environ.get("BENCH_CLIENTS", "1,16,64").split(","))
WINDOWS, WINDOW_SECONDS = size("WINDOWS", 7), size("WINDOW_SECONDS", 3)
QUIET_SECONDS, SETTLE_SECONDS = size("QUIET_SECONDS", 60), 2.0
REST_SECONDS = size("REST_SECONDS", 330)
"""from the one deletion on: Expunge keeps the process that it trains from for five minutes, and rests after that"""
LOOK_SECONDS, PATIENCE_SECONDS = 0.005, 300.0
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
CALLS_A_SECOND = "1000000"
"""Expunge's limit of one key: it stands for all clients here"""
RECIPE = """
from safetensors.numpy import save
from sklearn.linear_model import LogisticRegression

import unlearning as ul

FEATURES = [f"x{number}" for number in range(20)]


def recipe(rows: ul.Rows = ul.table("people.parquet", person="person")) -> ul.Published:
    fitted = LogisticRegression(max_iter=1000).fit(rows.numpy(*FEATURES), rows["y"])
    return ul.Published({"weights.safetensors": save({"coef": fitted.coef_, "intercept": fitted.intercept_})})
"""


LOGISTIC = {"name": "logistic", "recipe": "logistic", "method": "retrain", "max_accuracy_drop": None}


def rows() -> Iterator[Row]:
    yield from working()
    yield from resting()
    for kind in ("PostgreSQL", "SQLite"):
        yield from accepting(kind)


@dataclass(frozen=True)
class Ground:
    """What one side stands on: its folder, with table and recipe; its servers, and the process ids of these.

    ``keys`` is a second database, because Expunge holds its keys apart.
    """

    folder: Path
    database: str
    keys: str
    broker: str
    servers: tuple[int, ...]


def write_logistic(folder: Path) -> None:
    table = [sys.executable, "-m", "benchmarks.people_table", str(folder), str(PEOPLE)]
    subprocess.run(table, cwd=ROOT, check=True)
    (folder / "logistic.py").write_text(RECIPE)


@contextmanager
def ground(kind: str = "PostgreSQL", write: Callable[[Path], None] = write_logistic) -> Iterator[Ground]:
    """Ground that is new. ``write``: puts table and recipe into its folder."""
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory()))
        write(folder)
        redis = running.enter_context(servers.redis_server())
        started = [redis.process]
        if kind == "PostgreSQL":
            postgres = running.enter_context(servers.postgres(fsync="on"))
            started.append(postgres.process)
            database, keys = (running.enter_context(postgres.database()) for _ in range(2))
        else:
            database, keys = (f"sqlite:///{folder / name}.db" for name in ("rows", "keys"))
        yield Ground(folder, database, keys, redis.url, tuple(each.process.pid for each in started if each.process))


@dataclass(frozen=True)
class Side:
    """One side that runs: where deletions are posted, its processes with those of its servers, and its database.

    Args:
        open_requests: the SQL for how many requests are not completed. published: for the SHA-256 of the weights.
    """

    endpoint: Endpoint
    processes: Sequence[int]
    database: str
    open_requests: str
    published: str

    def cpu_seconds(self) -> float:
        return cpu_seconds(*self.processes)

    @contextmanager
    def watched(self) -> Iterator[Watched]:
        """Yield this side with a connection to its PostgreSQL."""
        with psycopg.connect(self.database.replace("+psycopg", ""), autocommit=True) as connection:
            yield Watched(self, connection)


@dataclass(frozen=True)
class Watched:
    """A side whose database is asked when requests are completed: a look by HTTP would cost each side another price."""

    side: Side
    connection: psycopg.Connection[Any]

    def await_completed(self) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while still := self.ask(self.side.open_requests):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{still} requests were not completed in {PATIENCE_SECONDS:g} s")
            time.sleep(LOOK_SECONDS)

    def ask(self, question: str) -> Any:
        found = self.connection.execute(question.encode()).fetchone()
        return found and found[0]


@contextmanager
def peer(at: Ground, *, workers: bool = True) -> Iterator[Side]:
    """The peer, set up and running; without ``workers`` its API alone."""
    key, port, log = secrets.token_hex(16), servers.free_port(), at.folder / "peer.log"
    facts = {"FOLDER": str(at.folder), "DATABASE_URL": at.database, "BROKER_URL": at.broker, "KEY": key}
    environment = ONE_THREAD | {f"PEER_{name}": value for name, value in facts.items()}
    subprocess.run([sys.executable, "-m", "benchmarks.peer"], env=os.environ | environment, cwd=ROOT, check=True)
    uvicorn = [sys.executable, "-m", "uvicorn", "benchmarks.peer:api", "--no-access-log"]
    celery = [sys.executable, "-m", "celery", "--app", "benchmarks.peer", "worker", "--beat", "--concurrency", "1"]
    schedule = ["--schedule", str(at.folder / "schedule")]
    with ExitStack() as running:
        processes = [*at.servers, running.enter_context(serving(uvicorn, port, environment, log))]
        if workers:
            processes.append(running.enter_context(process([*celery, *schedule], environment, log)))
        yield Side(
            Endpoint(port, "/deletions", key),
            processes,
            at.database,
            open_requests="SELECT count(*) FROM requests WHERE status <> 'completed'",
            published="SELECT sha256 FROM models",
        )


@contextmanager
def expunge(at: Ground, model: Row = LOGISTIC, *, workers: bool = True) -> Iterator[Side]:
    """Expunge by ``expunge up``, with the model live; without ``workers`` its API alone."""
    home, log = at.folder / "home", at.folder / "expunge.log"
    facts = {"HOME": str(home), "RECIPES": str(at.folder), "DATABASE_URL": at.database, "KEY_STORE_URL": at.keys}
    facts |= {"BROKER_URL": at.broker, "RATE": CALLS_A_SECOND, "REGULATION": "none", "DEVICE": "cpu"}
    environment = ONE_THREAD | {f"EXPUNGE_{name}": value for name, value in facts.items()}
    with ExitStack() as running:
        up = [sys.executable, "-m", "expunge_client.cli.main", "up", "--port", "0"]
        api = running.enter_context(process(up, environment, log))
        account = registered(model, home, log)
        port = urlsplit(account.url).port or 0
        if not workers:
            running.close()
            port = servers.free_port()
            serve = [sys.executable, "-m", "expunge_service.serve"]
            api = running.enter_context(serving(serve, port, environment, log))
        yield Side(
            Endpoint(port, "/v1/deletion-requests", account.api_key),
            [*at.servers, api],
            at.database,
            open_requests="SELECT count(*) FROM deletion_requests WHERE status <> 'completed'",
            published="SELECT checkpoint FROM versions JOIN models ON versions.id = models.current_id",
        )


def registered(model: Row, home: Path, log: Path) -> Account:
    """Wait for the service, register the model, and wait until it is live. Raises RuntimeError."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (account := Account.read(home)) is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the service did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.1)
    with Client(account) as client:
        client.post("/v1/models", model)
        while (state := client.get(f"/v1/models/{model['name']}"))["status"] == "preparing":
            time.sleep(0.1)
    if state["status"] != "live":
        raise RuntimeError(f"the model is {state['status']}: {state['reason']}")
    return account


SIDES = {"expunge": expunge, "peer": peer}


@dataclass(frozen=True)
class Spent:
    """What some deletions took: CPU seconds of all processes and servers, and seconds from POST to completed."""

    deletions: int
    cpu: float
    waits: list[float]


def working() -> Iterator[Row]:
    """Deletions one after another, and campaigns."""
    with ExitStack() as running:
        sides = {}
        for name, start in SIDES.items():
            side = running.enter_context(start(running.enter_context(ground())))
            sides[name] = running.enter_context(side.watched())
        leavers = (f"p{person}" for person in count())
        in_turn(sides, leavers, 1, 1, one_by_one)  # loads the libraries
        alone = in_turn(sides, leavers, ROUNDS, DELETIONS, one_by_one)
        together = in_turn(sides, leavers, CAMPAIGNS, CAMPAIGN, campaign)
    cpu = {name: [each.cpu / each.deletions for each in spent] for name, spent in alone.items()}
    waits = {name: [median(each.waits) for each in spent] for name, spent in alone.items()}
    yield compared("one deletion", cpu, "<= 2", "CPU ratio")
    yield compared("one deletion, POST to completed", waits, "<= 2", "wall ratio")
    rates = {name: [each.deletions / each.cpu for each in spent] for name, spent in together.items()}
    seconds = {f"{name}_seconds": [each.waits[0] for each in spent] for name, spent in together.items()}
    name = f"deletions a CPU second, a campaign of {CAMPAIGN} by {CAMPAIGN_CLIENTS} clients"
    yield compared(name, rates, ">= 0.8", "ratio", **seconds)


def in_turn(
    sides: dict[str, Watched],
    leavers: Iterator[str],
    rounds: int,
    deletions: int,
    measure: Callable[[Watched, list[str]], list[float]],
) -> dict[str, list[Spent]]:
    """Measure rounds of deletions of the same people on each side. Raises RuntimeError where their weights differ."""
    spent: dict[str, list[Spent]] = {name: [] for name in sides}
    for _ in range(rounds):
        people = [*islice(leavers, deletions)]
        for name, watched in sides.items():
            before = watched.side.cpu_seconds()
            waits = measure(watched, people)
            time.sleep(SETTLE_SECONDS)
            spent[name].append(Spent(deletions, watched.side.cpu_seconds() - before, waits))
        published = {name: watched.ask(watched.side.published) for name, watched in sides.items()}
        if len({*published.values()}) > 1:
            raise RuntimeError(f"the sides published different weights: {published}")
    return spent


def one_by_one(watched: Watched, people: list[str]) -> list[float]:
    return [seconds for person in people for seconds in campaign(watched, [person], clients=1)]


def campaign(watched: Watched, people: list[str], clients: int = CAMPAIGN_CLIENTS) -> list[float]:
    start = time.perf_counter()
    post(watched.side.endpoint, people, clients)
    watched.await_completed()
    return [time.perf_counter() - start]


def resting() -> Iterator[Row]:
    """Each side alone, after one deletion: what it holds at once and at rest, and computes while nobody asks."""
    shares, memories, at_once = {}, {}, {}
    for name, start in SIDES.items():
        with ground() as at, start(at) as side:
            with side.watched() as watched:
                one_by_one(watched, ["p0"])
            time.sleep(SETTLE_SECONDS)
            at_once[name] = [sum(memory_of_each(*side.processes).values()) / 1e6]
            time.sleep(REST_SECONDS)
            before = side.cpu_seconds()
            time.sleep(QUIET_SECONDS)
            shares[name] = [(side.cpu_seconds() - before) / QUIET_SECONDS]
            memories[name] = [*memory_of_each(*side.processes).values()]
    megabytes = {name: [sum(memory) / 1e6] for name, memory in memories.items()}
    processes = {name: [len(memory)] for name, memory in memories.items()}
    yield compared("memory right after a deletion", at_once, "reported", "PSS ratio")
    yield compared("memory at rest", megabytes, "<= 1.5", "PSS ratio")
    yield compared("processes at rest", processes, "reported", "ratio")
    yield compared(f"idle for {QUIET_SECONDS} s, share of a core", shares, "<= 1", "CPU ratio")


@dataclass
class Window:
    """What an API answered in some seconds: accepted calls a second, CPU milliseconds of each, their median wait."""

    rate: float
    cpu_ms: float
    median_ms: float
    busy: int
    """calls that were answered by a 503"""


def accepting(kind: str) -> Iterator[Row]:
    """Both APIs without workers, on this database: each call writes a request that stays open."""
    with ExitStack() as running:
        sides = {
            name: running.enter_context(start(running.enter_context(ground(kind)), workers=False))
            for name, start in SIDES.items()
        }
        for clients in CLIENTS:
            windows: dict[str, list[Window]] = {name: [] for name in sides}
            for _ in range(1 + WINDOWS):
                for name, side in sides.items():
                    windows[name].append(window(side, clients))
            counted = {name: each[1:] for name, each in windows.items()}  # the first one warms up
            cpu = {name: [each.cpu_ms for each in of_side] for name, of_side in counted.items()}
            rates = {name: [each.rate for each in of_side] for name, of_side in counted.items()}
            more = {f"{name}_windows": [asdict(each) for each in of_side] for name, of_side in counted.items()}
            on = f"{kind}, {clients} client{'s' if clients > 1 else ''}"
            yield compared(f"a POST, {on}", cpu, "<= 1", "CPU ratio", **more)
            yield compared(f"POSTs a second, {on}", rates, ">= 1", "ratio", **more)


def window(side: Side, clients: int) -> Window:
    first, before, start = secrets.randbelow(PEOPLE), side.cpu_seconds(), time.perf_counter()
    people = (f"p{number % PEOPLE}" for number in count(first))
    posted = post(side.endpoint, people, clients, until=start + WINDOW_SECONDS)
    seconds, accepted = time.perf_counter() - start, len(posted.seconds)
    cpu_ms = 1000 * (side.cpu_seconds() - before) / accepted
    return Window(accepted / seconds, cpu_ms, 1000 * median(posted.seconds), posted.busy)


def compared(name: str, found: dict[str, list[Any]], target: str, unit: str, **more: Any) -> Row:
    """Return a row: the median over the rounds of what Expunge came to over what the peer did."""
    value = median(ours / theirs for ours, theirs in zip(found["expunge"], found["peer"], strict=True))
    return {"name": f"{name}: Expunge / peer", "value": value, "target": target, "unit": unit, "sides": found | more}


if __name__ == "__main__":
    for measured_row in rows():
        print(json.dumps(measured_row), flush=True)
