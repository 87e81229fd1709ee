"""A state's deletion list of a million entries against ten million people, on SQLite.

A tenth of the entries is planted: people whom one entry names, and identifiers that two people share. No model is
registered, so each request is completed at once. Every answer is compared with what was planted.
``python -m benchmarks deletion_feed`` takes some five minutes of CPU.
"""

from __future__ import annotations

import csv
import tempfile
import time
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from expunge_client import Expunge
from expunge_connect.drop.identifiers import hash_of
from expunge_connect.drop.items import AnswerCode, Feed, answers, mark_checked, match, refresh, store
from expunge_connect.drop.lists import identities, lists
from expunge_service.access import Scope, create_key
from expunge_service.app import create_app
from expunge_service.infra.db import Database
from expunge_service.infra.migrate import migrate
from expunge_service.infra.settings import Settings

ITEMS, PEOPLE, PLANTED = 1_000_000, 10_000_000, 100_000
SECONDS = 600
NAME = "20261101_4821_Email.csv"


def rows(items: int = ITEMS, people: int = PEOPLE, planted: int = PLANTED) -> Iterator[dict[str, Any]]:
    """Yield the CPU seconds of reading, matching and answering, and how many answers were wrong."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        expected = _write(folder, items, people, planted)
        feed, service = Feed.open(folder / "connect"), _service(folder)
        began = time.process_time()
        for each in lists(folder / NAME):
            store(feed, each.source, each.entries)
        stored = time.process_time()
        with identities(folder / "people.csv") as everyone:
            matched, requests = match(feed, service, everyone)
        mark_checked(feed, matched)
        compared = time.process_time()
        refresh(feed, service)
        given = {each.item: each.status for each in answers(feed)}
        answered = time.process_time()
        wrong = sum(given.get(item) is not status for item, status in expected.items())
        feed.database.close()
    sides: dict[str, Any] = {"store": stored - began, "match": compared - stored, "answer": answered - compared}
    sides |= {"requests": len(requests), "answers": {k.name: n for k, n in Counter(given.values()).items()}}
    cost = answered - began
    what = f"deletion list: {items:,} entries against {people:,} people"
    yield {
        "name": f"{what}: CPU",
        "value": cost,
        "target": SECONDS,
        "unit": "s",
        "met": cost <= SECONDS,
        "sides": sides,
    }
    yield {"name": f"{what}: wrong answers", "value": wrong, "target": 0, "unit": "", "met": wrong == 0, "sides": sides}


def _service(folder: Path) -> Expunge:
    """Return a client of a service in this process, without a socket between them."""
    settings = Settings(home=folder, log_level="WARNING")
    database = Database(settings.database_url)
    migrate(database)
    app = create_app(settings)
    with database.write() as session:
        scopes = [Scope.DELETIONS_WRITE, Scope.DELETIONS_READ]
        key = create_key(session, app.state.service.pepper, label="drop", scopes=scopes, expires_at=None)
    database.close()
    return Expunge("http://service", key.secret, transport=TestClient(app)._transport)


def _write(folder: Path, items: int, people: int, planted: int) -> dict[str, AnswerCode]:
    """Write the list and the people; return what each entry is to be answered.

    Entries 0 to ``planted`` name person 0, 1, ...; of the first fifth of them, each address is a second person's too.
    """
    shared = planted // 5
    expected = {}
    with (folder / NAME).open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["ID", "Hash"])
        for number in range(items):
            whose = number if number < planted else people + number
            found = hash_of("Email", {"email": f"Mail{whose}@example.org"})
            writer.writerow([f"{number:012d}", b64encode(found or b"").decode()])
            known = AnswerCode.OPTED_OUT if number < shared else AnswerCode.DELETED
            expected[f"{number:012d}"] = known if number < planted else AnswerCode.NOT_FOUND
    with (folder / "people.csv").open("w") as lines:
        lines.write("person,email\n")
        for number in range(people):
            whose = number - planted if planted <= number < planted + shared else number
            lines.write(f"p{number},mail{whose}@example.org\n")
    return expected


if __name__ == "__main__":
    for each in rows():
        print(each, flush=True)
