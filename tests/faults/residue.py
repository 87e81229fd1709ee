"""A canary person is found, forgotten and found again by the search over HTTP, and every byte that the installation
wrote or holds is searched for them.

Searched: database files and write-ahead logs, SQLite's and PostgreSQL's, Redis by dump and by SCAN, both stores, the
key store, logs, temporary folders, metrics, the webhooks that were received, and each process's environment and
command line. Searched for: the person's id and sample ids in clear, in other encodings and under plain digests, the
numbers of their samples, every 16 bytes of their vector and of the model that knew them, their key, and the share of it
that its key file holds. The key store is on PostgreSQL where the database is.

Ids, numbers, the vector and the whole key must never appear at all. The share, and the model that knew the person, must
be gone ``BOUND_SECONDS`` after the completion.
"""

from __future__ import annotations

import time

from tests.faults.judge import eventually
from tests.faults.result import Result
from tests.faults.sites import KINDS, LEASE_SECONDS, SETTINGS, Site, site
from tests.harness import residue

BOUND_SECONDS = float(SETTINGS["GRACE"]) + 2 * LEASE_SECONDS + 10
"""the grace of a retired checkpoint; a lease, should its scheduler have died, and one for its successor; and ticks,
which on a busy machine take seconds"""
METHODS = ("recollection", "newton")
DEATHS = (None, "worker-after-commit", "keys-erased", "worker-after-erasure")
"""a worker that dies there leaves the destruction of the key, or the rest of it, to the scheduler"""


def run(_: int, scale: float) -> Result:
    cases, found, worst = 0, [], 0.0
    deaths = DEATHS if scale >= 1 else DEATHS[: max(1, round(len(DEATHS) * scale))]
    for kind in KINDS:
        with site(kind) as where, residue.ear() as listener:
            for name in ("worker-2", "updater"):  # the worker that is to die must be the one that takes the deletion
                where.stack.kill(name)
            residue.listen(where.stack, listener.url)
            for method in METHODS:
                for death in deaths if method == "recollection" else (None,):
                    left, seconds = _forget(where, method, death, listener.heard)
                    found += [f"{kind}, {method}, death {death}: {place}" for place in left]
                    worst, cases = max(worst, seconds), cases + 1
    return Result(
        "residue",
        cases=cases,
        faults=len(KINDS) * (len(deaths) - 1),
        left_behind=len(found),
        notes=(f"all was gone {worst:.1f} s after completion; the bound is {BOUND_SECONDS:g} s", *found[:8]),
    )


def _forget(where: Site, method: str, death: str | None, heard: list[bytes]) -> tuple[list[str], float]:
    """Forget the canary; return where something of it was found that must not be there, and how long the rest took to
    go.
    """
    stack = where.stack
    name = stack.live("canary", method, guarantee="proved")
    residue.complain(stack, residue.CANARY)
    residue.seek(stack, residue.CANARY)
    secret = residue.secret_of(stack, name, residue.CANARY)
    weights = residue.windows(residue.head_weights(stack, name))
    shares = [] if secret is None else [secret.share]
    never = residue.personal(b"" if secret is None else secret.vector)
    never += [] if secret is None else [secret.key]
    if not all(residue.found(stack, each) for each in (weights, shares) if each):
        return ["the search does not even find what is there"], 0.0
    transient = [*weights, *shares]
    left = residue.found(stack, never, heard)
    if death is not None:
        stack.stop("scheduler")  # it destroys keys too, and the worker would not come to where it is to die
        stack.restart("worker", TESTS_DIE_AT=death)
    request = stack.delete(name, subject_id=residue.CANARY)
    if death is not None:
        stack.eventually(lambda: stack.processes["worker"].exit_code, lambda code: code is not None)
        stack.start("scheduler")
        stack.start("worker")
    if stack.ended(request)["status"] != "completed":
        left.append("the deletion was not completed")
    residue.seek(stack, residue.CANARY)
    since = time.monotonic()
    eventually(lambda: not residue.found(stack, transient, heard), BOUND_SECONDS)
    seconds = time.monotonic() - since
    return left + residue.found(stack, [*never, *transient], heard), seconds
