"""Every named crash point, twenty times on each stack: SIGKILL there, a restart, and the invariants.

The stacks are SQLite with the filesystem as broker, and PostgreSQL with Redis. A worker takes its message from the
real broker, in a forked process: loading torch for each death would take an hour.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from random import Random

import torch

from tests.faults.deaths import DEATHS
from tests.faults.invariants import Broken, counted
from tests.faults.places import NotReached, open_place, stack_of
from tests.faults.result import Result

TIMES = 20
STACKS = ("sqlite", "postgresql")
RENEWED_AFTER = 60
"""deaths in one world: its tables are read whole after each of them"""


def run(seed: int, scale: float) -> Result:
    times = max(1, round(TIMES * scale))
    with ProcessPoolExecutor(len(STACKS), mp_context=get_context("spawn")) as pool:
        outcomes = list(pool.map(killed_on, STACKS, [seed] * len(STACKS), [times] * len(STACKS)))
    found = [each for _, harms in outcomes for each in harms]
    deaths = sum(count for count, _ in outcomes)
    return Result(
        "crash points",
        cases=deaths,
        faults=deaths,
        **counted(found),
        notes=(
            f"{len(DEATHS)} points, {times} times on each of {' and '.join(STACKS)}",
            *(f"{words} ({count} times)" for words, count in Counter(each.words for each in found).most_common(10)),
        ),
    )


def killed_on(stack_name: str, seed: int, times: int) -> tuple[int, list[Broken]]:
    """Kill processes on a stack; return how many died, and what did not hold afterwards."""
    dice = Random(f"{stack_name} {seed}")
    torch.set_num_threads(1)  # a fork of a process whose torch has threads waits for them for ever
    deaths = [death for death in DEATHS for _ in range(times)]
    dice.shuffle(deaths)
    found: list[Broken] = []
    with tempfile.TemporaryDirectory(prefix="expunge-deaths-") as name, stack_of(stack_name, Path(name)) as stack:
        for start in range(0, len(deaths), RENEWED_AFTER):
            place = open_place(stack, Path(name) / f"place-{start}")
            known: set[Broken] = set()
            for point, death in deaths[start : start + RENEWED_AFTER]:
                try:
                    wrong = death(place, point, dice)
                except NotReached as error:  # shows nothing: the table must not look as if it had
                    wrong = [Broken("lost", f"nobody died: {error}")]
                harms = set(wrong) - known  # what is broken stays so: it counts where it began
                known |= harms
                found += [Broken(each.harm, f"{stack_name}, {point}: {each.words}") for each in harms]
            place.close()
            print(f"  {stack_name}: {min(start + RENEWED_AFTER, len(deaths))} of {len(deaths)} deaths", flush=True)
    return len(deaths), found
