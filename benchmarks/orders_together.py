"""A hundred orders accepted in one call against one call each, in one transaction either way, on SQLite.

``python -m benchmarks orders_together``. CPU seconds of this process; the sides alternate. No model is registered, as
in ``deletion_feed``, so each request is completed at once.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from expunge_service.infra.db import Database
from expunge_service.infra.migrate import migrate
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.tenants import DEFAULT_TENANT
from expunge_service.requests import Order, accept, accept_all

ORDERS, TIMES = 100, 9


def rows() -> Iterator[dict[str, Any]]:
    """Yield CPU milliseconds of an order together, and how many times that one alone costs."""
    pepper, sides = Pepper.of(b"p" * 32), dict[str, list[float]](alone=[], together=[])

    def alone(session: Session, orders: list[Order]) -> None:
        for order in orders:
            accept(session, pepper, DEFAULT_TENANT, order)

    def together(session: Session, orders: list[Order]) -> None:
        accept_all(session, pepper, DEFAULT_TENANT, orders)

    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{Path(folder) / 'expunge.db'}")
        migrate(database)
        for turn in range(TIMES + 1):
            for side in (alone, together):
                orders = [Order(subject_id=f"{side.__name__}-{turn}-{place}") for place in range(ORDERS)]
                spent = milliseconds(database, side, orders)
                if turn:  # the first compiles the statements
                    sides[side.__name__].append(spent)
        database.close()
    one, many = statistics.median(sides["alone"]), statistics.median(sides["together"])
    name = f"accepting {ORDERS} orders together, SQLite"
    yield {"name": f"{name}: each", "value": many, "target": "reported", "unit": "CPU ms", "sides": sides}
    yield {"name": f"{name}: one by one / together", "value": one / many, "target": "reported", "unit": "CPU ratio"} | {
        "sides": sides
    }


def milliseconds(database: Database, side: Callable[[Session, list[Order]], None], orders: list[Order]) -> float:
    """Return the CPU milliseconds of one order, the commit included."""
    start = time.process_time()
    with database.write() as session:
        side(session, orders)
    return 1e3 * (time.process_time() - start) / len(orders)
