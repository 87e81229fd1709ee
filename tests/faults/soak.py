"""A load of mixed requests for as long as you like, while random processes are killed: ``python -m tests.faults soak``.

It ends with a page and a plot, ``soak.md`` and ``soak.png`` in ``--folder``: what was acknowledged, lost and doubled,
how long clients and people waited, and how much memory each process held over time.
"""

from __future__ import annotations

import argparse
import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from sqlalchemy import select

from expunge_service.infra.db import Database
from expunge_service.infra.tables import DeletionRequest
from tests.faults.attacks import attacks_on
from tests.faults.invariants import Broken
from tests.faults.judge import at_rest, harm, judge, sentences
from tests.faults.load import SILENT, orders, register
from tests.faults.sites import KINDS, Site, site
from tests.faults.traffic import Traffic

REPORTS = Path(__file__).parents[2] / "build" / "reports"
CLIENTS = 4
BATCH = 20
BATCHED = 0.2
"""about the part of the requests that come in batches"""
LOOK_SECONDS = 2.0
ROWS = 10
MEBIBYTE = 1024


@dataclass
class Course:
    """What was measured on the way. Moments are seconds since the load began."""

    kind: str
    seed: int
    minutes: float
    began: float = field(default_factory=time.monotonic)
    memory: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """process -> (moment, resident MiB)"""
    faults: list[tuple[float, str]] = field(default_factory=list)
    acknowledged: list[tuple[float, int]] = field(default_factory=list)

    def now(self) -> float:
        return time.monotonic() - self.began

    def look(self, where: Site, traffic: Traffic) -> None:
        self.acknowledged.append((self.now(), len(traffic.journal.acknowledged)))
        for name, child in where.stack.processes.items():
            if child.process is not None and (resident := resident_mebibytes(child.process.pid)):
                self.memory.setdefault(name, []).append((self.now(), resident))


def resident_mebibytes(pid: int) -> float:
    """Return the resident memory of a process, 0 where it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / MEBIBYTE for line in lines if line.startswith("VmRSS")), 0.0)


def main(arguments: list[str]) -> int:
    chosen = _options(arguments)
    print(f"soak: seed {chosen.seed}, {chosen.minutes:g} minutes on {chosen.kind}", flush=True)
    people = int(chosen.minutes * 60 * chosen.per_second) + 200
    course = Course(chosen.kind, chosen.seed, chosen.minutes)
    with site(chosen.kind, people=people) as where:
        traffic = _endure(where, course, chosen.minutes * 60, chosen.per_second, people)
        at_rest(where.stack.settings)
        held = where.retry()
        found = judge(where.stack.settings, traffic.journal)
        waits = _waits(where)
    chosen.folder.mkdir(parents=True, exist_ok=True)
    plot(course, traffic, chosen.folder / "soak.png")
    page = report(course, traffic, found, waits, held)
    (chosen.folder / "soak.md").write_text(page)
    print(page)
    return 1 if found else 0


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.faults soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--per-second", type=float, default=8, help="deletion requests a second at most")
    parser.add_argument("--kind", choices=KINDS, default="postgres")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(10**6))
    parser.add_argument("--folder", type=Path, default=REPORTS, help="where soak.md and soak.png go")
    return parser.parse_args(arguments)


def _endure(where: Site, course: Course, seconds: float, per_second: float, people: int) -> Traffic:
    chance = random.Random(course.seed)
    models = register(where, people)
    account = where.stack.account
    waiting = orders(people - SILENT, chance, BATCH, BATCHED)
    traffic = Traffic(
        account.url, account.api_key, models, waiting, CLIENTS, pause_seconds=CLIENTS / per_second, seed=course.seed
    )
    course.began = time.monotonic()
    traffic.start()
    attacks: list[Callable[[Site], None]] = []
    due = chance.uniform(5, 20)
    while course.now() < seconds and traffic.asking:
        time.sleep(LOOK_SECONDS)
        course.look(where, traffic)
        if course.now() >= due:
            attacks = attacks or attacks_on(where, chance)
            attack = attacks.pop()
            course.faults.append((course.now(), attack.__name__))
            attack(where)
            due = course.now() + chance.uniform(15, 45)
    traffic.stop()
    where.mend()
    return traffic


def _waits(where: Site) -> list[float]:
    """Return the seconds from each acknowledged request to its completion, by the database's clock."""
    database = Database(where.stack.settings.database_url)
    with database.read() as session:
        ended = select(DeletionRequest.created_at, DeletionRequest.completed_at)
        rows = session.execute(ended.where(DeletionRequest.completed_at.is_not(None))).tuples().all()
    database.close()
    return [(done - begun) / 1e6 for begun, done in rows if done is not None]


def plot(course: Course, traffic: Traffic, path: Path) -> None:
    mpl.use("Agg")
    figure, (memory, latency) = plt.subplots(2, 1, figsize=(9, 6), sharex=True, constrained_layout=True)
    for name, points in course.memory.items():
        memory.plot(*np.array(points).T / np.array([[60], [1]]), label=name, linewidth=1)
    memory.set(ylabel="resident MiB", ylim=(0, None))
    memory.legend(loc="lower right", ncols=4, fontsize=8)
    moments = np.array([(begun - course.began, seconds) for begun, seconds in traffic.journal.seconds])
    latency.semilogy(moments[:, 0] / 60, moments[:, 1], ".", markersize=2, alpha=0.4)
    latency.set(xlabel="minutes", ylabel="seconds until the 202")
    for axes in (memory, latency):
        for moment, _ in course.faults:
            axes.axvline(moment / 60, color="tab:red", linewidth=0.5, alpha=0.5)
    memory.set_title(f"{len(traffic.journal.acknowledged)} deletions; each red line is a fault", fontsize=10)
    figure.savefig(path, dpi=120)
    plt.close(figure)


def report(course: Course, traffic: Traffic, found: list[Broken], waits: list[float], held: str) -> str:
    until = [seconds for _, seconds in traffic.journal.seconds]
    counts = harm(found)
    faults = {name: sum(each == name for _, each in course.faults) for _, name in course.faults}
    command = f"python -m tests.faults soak --minutes {course.minutes:g} --kind {course.kind} --seed {course.seed}"
    figures = [
        ("acknowledged", f"{len(traffic.journal.acknowledged):,}"),
        *((name.replace("_", " "), str(count)) for name, count in counts.items()),
        ("held at the end, by reason, and retried before judging", held),
        ("faults", f"{len(course.faults)}: " + ", ".join(f"{n} x {name}" for name, n in sorted(faults.items()))),
        ("until the 202, dead processes waited for", _percentiles(until)),
        ("from the 202 to the published version", _percentiles(waits)),
        ("answers", ", ".join(f"{n:,} x {what}" for what, n in sorted(traffic.journal.answers.items()))),
    ]
    lines = [
        "# Soak",
        "",
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, `{command}`.",
        "",
        "| what | figure |",
        "|---|---|",
    ]
    lines += [f"| {what} | {figure} |" for what, figure in figures]
    lines += ["", *(f"- {each}" for each in sentences(found))]
    return "\n".join(
        [*lines, "## Resident memory, MiB", "", *_memory(course), "", "![memory, waits and faults](soak.png)", ""]
    )


def _percentiles(seconds: list[float]) -> str:
    p50, p99 = np.percentile(seconds or [0.0], [50, 99])
    return f"p50 {p50:.3f} s, p99 {p99:.2f} s, longest {max(seconds, default=0.0):.1f} s"


def _memory(course: Course) -> list[str]:
    """Return each process's memory at equal distances; a killed process begins again."""
    names = list(course.memory)
    last = max((points[-1][0] for points in course.memory.values()), default=0.0)
    lines = [f"| minute | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for moment in np.linspace(0, last, ROWS + 1):
        row = [min(points, key=lambda point: abs(point[0] - moment))[1] for points in course.memory.values()]
        lines.append(f"| {moment / 60:.1f} | {' | '.join(f'{value:.0f}' for value in row)} |")
    return lines
