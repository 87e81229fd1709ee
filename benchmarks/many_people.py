"""A model of very many people on real servers: registered, 1,000 deleted in 20 updates, certified, searched for.

``python -m benchmarks many_people``: 1,000,000 samples of 200,000 people with PostgreSQL (synced) and Redis, and
100,000 people of one sample with SQLite. ``BENCH_MANY`` (``postgresql:200000:5``, by commas) names other cases. Each
case is a process of its own with one thread. Memory is the greatest resident size of a phase in this process. CPU
seconds are those of this process with its readers and worlds, and ``server`` those of PostgreSQL. Each figure stands
beside a floor: the data's own bytes and the process before it began, one solve, four digests of 32 bytes and two
numbers for each membership, one signature and its check. At the end all files of the installation and of the servers,
and Redis, are read for the ids of everyone who left, for rows of their data, and for the tensors of each version that
knew them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sqlalchemy import func, select, text

from benchmarks.crowd import CONVERGED, called, cpu, one_thread, write_crowd
from expunge_service.audit import Signer
from expunge_service.certificates import verify
from expunge_service.infra.db import Database
from expunge_service.infra.migrate import migrate
from expunge_service.infra.stores import Store
from expunge_service.infra.tables import Certificate, Version
from expunge_workers.app import Worker
from expunge_workers.scheduler.run import open_scheduler
from tests.harness import servers
from tests.harness.residue import disguises, numbers, windows
from tests.workers.worlds import World, open_world, settings_of
from unlearning.model.problem import Problem
from unlearning.model.training import train

CASES = os.environ.get("BENCH_MANY", "postgresql:200000:5,sqlite:100000:1")
UPDATES, TOGETHER, FEATURES = 20, 50, 20
LEAVER = "zq-leaver-"
"""how the ids of those begin who will leave: one search finds any of them"""


def rows() -> Iterator[dict[str, Any]]:
    for case in CASES.split(","):
        command = [sys.executable, "-m", "benchmarks.many_people", *case.split(":")]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        yield from reported(case.split(":")[0], json.loads(done.stdout.splitlines()[-1]))


def reported(engine: str, sides: dict[str, Any]) -> Iterator[dict[str, Any]]:
    label = f"{sides['people']:,} people, {sides['samples']:,} samples, {engine}"
    leavers, solve = UPDATES * TOGETHER, sides["solve"]["cpu"]
    for phase in ("registration", "updates", "certificates"):
        peak = sides[phase]["peak"] / 1e9
        yield row(f"{label}: greatest memory, {phase}", peak, "<= 4" if phase == "registration" else None, "GB", sides)
    yield row(f"{label}: registration / one solve", sides["registration"]["cpu"] / solve, None, "CPU ratio", sides)
    each = sides["updates"]["cpu"] / UPDATES
    yield row(f"{label}: an update of {TOGETHER} people / one solve", each / solve, None, "CPU ratio", sides)
    signed = sides["certificates"]["cpu"] / sides["signing"]["cpu"]
    yield row(
        f"{label}: {leavers:,} certificates issued and verified / bare signatures", signed, None, "CPU ratio", sides
    )
    share = sides["database_bytes"] / sides["floor_bytes"]
    yield row(f"{label}: bytes of the database / its digests and numbers", share, None, "ratio", sides)
    yield row(f"{label}: certificates that do not verify", leavers - sides["verified"], "<= 0", "", sides)
    yield row(f"{label}: places where something of the deleted was found", len(sides["found"]), "<= 0", "", sides)


def row(name: str, value: float, target: str | None, unit: str, sides: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "value": value, "target": target or "reported", "unit": unit, "sides": sides}


def measured(engine: str, people: int, each: int) -> dict[str, Any]:
    """Run one case; return its figures."""
    with ExitStack() as running:
        home = Path(running.enter_context(tempfile.TemporaryDirectory()))
        written, url, process = [home / "home"], f"sqlite:///{home}/home/expunge.db", 0
        changes: dict[str, Any] = {"grace": 1.0}
        if engine == "postgresql":
            server = running.enter_context(servers.postgres(fsync="on"))
            broker = running.enter_context(servers.redis_server())
            url, process = running.enter_context(server.database()), server.process.process.pid  # type: ignore[union-attr]
            written, changes = [*written, server.folder, broker.folder], changes | {"broker_url": broker.url}
        sides = phases(home, url, process, changes, (people, each))
        if engine == "postgresql":
            broker.dump()
        if not found(written, [sides.pop("served")]):
            raise RuntimeError("The search does not find the current version's tensors.")
        needles = disguises(LEAVER) + sides.pop("needles")
        sides["found"] = found(written, needles)
    return sides


def phases(home: Path, url: str, server: int, changes: dict[str, Any], size: tuple[int, int]) -> dict[str, Any]:
    people, each = size
    leavers = UPDATES * TOGETHER
    given = home / "given"
    given.mkdir()
    write_crowd(
        given,
        people=people,
        each=each,
        features=FEATURES,
        classes=2,
        model=f"torch.nn.Linear({FEATURES}, 1, bias=False)",
        loss="binary_logistic",
        training=CONVERGED,
        named=lambda person: named(person, people),
    )
    settings = settings_of(home / "home", url, given, **changes)
    migrate(Database(url))
    world = open_world(settings)
    samples = people * each
    distance = 0.2 / people  # what forgetting one person changes falls with the number of people
    policy = {"guarantee": "proved", "max_distance": distance, "noise_std": 1000 * distance}
    sides: dict[str, Any] = {"people": people, "samples": samples, "before": peak_of(lambda: None)}
    sides["data_bytes"] = samples * (4 * FEATURES + 8)
    sides["floor_bytes"] = samples * (4 * 32 + 2 * 8)
    before = bytes_of(world)
    models: list[str] = []
    sides["registration"] = spent(lambda: models.append(world.live("recipe", "newton", **policy)), server)
    sides["database_bytes"] = bytes_of(world) - before
    known: list[bytes] = []
    sides["updates"] = spent(lambda: update(world, models[0], known), server)
    require_right(world, models[0])
    sides["certificates"] = spent(lambda: sides.update(verified=certified(world)), server)
    sides["certificate_bytes"] = bytes_of(world) - before - sides["database_bytes"]
    signer = Signer.of(world.settings)
    sides["signing"] = spent(lambda: [verify_bare(signer) for _ in range(leavers)], 0)
    recipe = called(given)
    examples = recipe.samples.examples()
    sides["solve"] = spent(lambda: train(Problem(recipe), examples), 0)
    first = [each * place * (people // leavers) for place in range(0, leavers, TOGETHER)]
    sides["served"] = windows(tensors(world, models[0]))[0]
    sides["needles"] = known + [needle for place in first for needle in numbers(examples.inputs[place])]
    world.storage.close()
    return sides


def named(person: int, people: int) -> str:
    """Return a person's id; those who leave are spread over all."""
    place, rest = divmod(person, people // (UPDATES * TOGETHER))
    return f"stays-{person}" if rest or place >= UPDATES * TOGETHER else f"{LEAVER}{place}-"


def update(world: World, model_id: str, known: list[bytes]) -> None:
    """Delete everybody who leaves; gather a window of the tensors of each version that is superseded."""
    worker = Worker(world.process, world.pulse())
    for number in range(UPDATES):
        known += windows(tensors(world, model_id))[:1]
        for place in range(number * TOGETHER, (number + 1) * TOGETHER):
            world.delete(f"{LEAVER}{place}-")
        worker.work(model_id)


def tensors(world: World, model_id: str) -> bytes:
    """Return the bytes of the current version's tensors."""
    store = Store.at(world.settings.store)
    data = store.read(world.head(model_id).checkpoint)
    return data[8 + int.from_bytes(data[:8], "little") :]


def require_right(world: World, model_id: str) -> None:
    number = world.head(model_id).number
    if number != 1 + UPDATES:
        raise RuntimeError(f"version {number} is current, and not {1 + UPDATES}: an update was not published")


def certified(world: World) -> int:
    """Do the scheduler's duties until old versions are purged and all is certified; return how many verify."""
    scheduler = open_scheduler(world.settings)
    end = time.monotonic() + 900
    kept = select(func.count()).where(Version.status != "purged")
    signed = select(func.count()).where(Certificate.envelope.is_not(None))
    while time.monotonic() < end:
        scheduler.tick()
        with world.database.read() as session:
            if session.scalar(kept) == 1 and session.scalar(signed) == UPDATES * TOGETHER:
                break
    scheduler.tick(0)
    scheduler.database.close()
    verifier = Signer.of(world.settings).verifier
    return sum(
        1 for each in world.rows_of(Certificate) if each.envelope and verify(json.loads(each.envelope), verifier)
    )


def verify_bare(signer: Signer) -> None:
    payload = b"x" * 4096
    signer.verifier.verify(payload, signer.sign_bytes(payload))


def spent(work: Callable[[], object], server: int) -> dict[str, float]:
    """Return wall-clock and CPU seconds, those of the server with process id ``server``, and the greatest memory."""
    began, theirs, peaks = time.perf_counter(), cpu_of(server), list[int]()
    spent_here = cpu(lambda: peaks.append(peak_of(work)))
    return {
        "seconds": time.perf_counter() - began,
        "cpu": spent_here,
        "server": cpu_of(server) - theirs,
        "peak": peaks[0],
    }


def peak_of(work: Callable[[], object]) -> int:
    """Return the greatest resident size of this process during ``work``, in bytes."""
    Path("/proc/self/clear_refs").write_text("5")  # forget the greatest size so far
    work()
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def cpu_of(process: int) -> float:
    """Return the CPU seconds of a server: its own, its children's, and those of children that ended."""
    if not process:
        return 0.0
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    stats = [Path(f"/proc/{each}/stat") for each in (process, *children)]
    fields = [stat.read_text().rpartition(")")[2].split()[11:15] for stat in stats if stat.exists()]
    return sum(int(ticks) for four in fields for ticks in four) / os.sysconf("SC_CLK_TCK")


def bytes_of(world: World) -> int:
    """Return the bytes that the database takes on disk."""
    if world.database.dialect == "sqlite":
        world.database.truncate_log()
        return Path(world.database.engine.url.database or "").stat().st_size
    with world.database.read() as session:
        return int(session.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


def found(folders: Sequence[Path], needles: Sequence[bytes]) -> list[str]:
    """Return each file that holds one of the needles."""
    places = []
    for path in (path for folder in folders for path in folder.rglob("*") if path.is_file()):
        content = path.read_bytes()
        places += [str(path) for needle in needles if needle in content][:1]
    return places


if __name__ == "__main__":
    one_thread()
    sys.stdout.write(json.dumps(measured(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))) + "\n")
