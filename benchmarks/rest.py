"""CPU seconds of what a service does while nobody asks it for a deletion, each over a slow twin in the same run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.unlearning.accounting.test_gaussian import epsilon_by_halving
from unlearning.accounting.budget import epsilon_at

Row = dict[str, Any]


def rows() -> Iterator[Row]:
    yield epsilon()


def epsilon() -> Row:
    """Fifty values of mu, none of which was asked for before."""
    asked = [0.01 * count for count in range(1, 51)]
    fast = cpu(lambda: [epsilon_at(mu, 1e-5) for mu in asked])
    slow = cpu(lambda: [epsilon_by_halving(mu, 1e-5) for mu in asked])
    return row("epsilon of a mu: steps from above / halving", fast, slow, 0.2)


def cpu(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def row(name: str, fast: float, slow: float, target: float) -> Row:
    sides = {"fast": fast, "slow": slow}
    return {"name": name, "value": fast / slow, "target": f"<= {target:g}", "unit": "CPU s", "sides": sides}
