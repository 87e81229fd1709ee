"""Twenty thousand acknowledged requests while processes, brokers and databases die: none lost, none doubled."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from statistics import quantiles
from typing import Any

from tests.faults.attacks import attacks_on
from tests.faults.crowd import FEW
from tests.faults.invariants import Broken
from tests.faults.judge import at_rest, eventually, harm, judge, sentences
from tests.faults.result import Result
from tests.faults.sites import KINDS, Site, site
from tests.faults.traffic import Traffic

ACKNOWLEDGED = 20_000
BATCH = 250
BATCHED = 0.97
"""about the part of the requests that come in batches"""
SPARED = 50
SILENT = 100
"""who never ask"""
STAYING = SPARED + SILENT
BETWEEN_SECONDS = (2.0, 6.0)
"""of service between two faults: a fault to what is dead anyway shows nothing"""
START_SECONDS = 60.0


def run(seed: int, scale: float) -> Result:
    people = max(200, int(ACKNOWLEDGED * scale) // len(KINDS) + STAYING)
    cases, faults = 0, 0
    found: list[Broken] = []
    notes: list[str] = []
    for kind in KINDS:
        with site(kind, people=people) as where:
            traffic, done = _under_attack(where, people, random.Random(seed))
            at_rest(where.stack.settings)
            notes.append(f"{kind}: held, and retried before judging: {where.retry()}")
            broken = judge(where.stack.settings, traffic.journal)
        cases += len(traffic.journal.acknowledged)
        faults += len(done)
        found += broken
        notes += [_told(kind, traffic, done), *(f"{kind}: {each}" for each in sentences(broken))]
    return Result("load", cases=cases, faults=faults, **harm(found), notes=tuple(notes))


def _under_attack(where: Site, people: int, chance: random.Random) -> tuple[Traffic, list[str]]:
    """Let everybody in the models ask to be forgotten, while one fault follows the other."""
    models = register(where, people)
    account = where.stack.account
    asking = orders(people - SILENT, chance, BATCH, BATCHED)
    traffic = Traffic(account.url, account.api_key, models, asking, seed=chance.getrandbits(32))
    done: list[str] = []
    traffic.start()
    while traffic.asking:
        for attack in attacks_on(where, chance):
            where.mend()
            eventually(where.ready, START_SECONDS)
            time.sleep(chance.uniform(*BETWEEN_SECONDS))
            if not traffic.asking:
                break
            attack(where)
            done.append(attack.__name__)
    traffic.stop()
    where.mend()
    return traffic, done


def register(where: Site, people: int) -> tuple[str, str]:
    """Register a model that knows everybody, and one with a vector for each of a few."""
    return (
        where.stack.live("crowd", "newton", **crowd(people)),
        where.stack.live("few", "recollection", guarantee="proved"),
    )


def crowd(people: int) -> dict[str, Any]:
    """Return a crowd's policy: the bound lies below what forgetting one changes, which falls with their number."""
    distance = min(1e-5, 0.1 / people)
    return {"guarantee": "proved", "epsilon": 1.0, "noise_std": 1000 * distance, "max_distance": distance}


def orders(people: int, chance: random.Random, batch: int, batched: float) -> Iterator[list[str]]:
    """Yield each person once, alone or in a batch. Some of the few stay: an update that leaves nobody is blocked, by
    design.
    """
    asking = [index for index in range(people) if not FEW - SPARED <= index < FEW]
    first = 0
    while first < len(asking):
        size = batch if chance.random() < batched / batch / (1 - batched) else 1
        yield [f"crowd-person-{index}" for index in asking[first : first + size]]
        first += size


def _told(kind: str, traffic: Traffic, done: list[str]) -> str:
    seconds = sorted(each for _, each in traffic.journal.seconds)
    cuts = quantiles(seconds, n=100) if len(seconds) > 1 else [0.0] * 99
    answers = ", ".join(f"{count} {what}" for what, count in sorted(traffic.journal.answers.items()))
    return (
        f"{kind}: {len(traffic.journal.acknowledged)} acknowledged under {len(done)} faults, "
        f"p50 {cuts[49]:.3f} s and p99 {cuts[98]:.2f} s until the 202, answers {answers}"
    )
