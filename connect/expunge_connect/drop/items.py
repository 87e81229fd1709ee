"""The work items of deletion lists: keep them, find the people whom they name, ask for their deletion, and answer.

An item that names nobody is kept, because the person may come with later data. Everything may be repeated: an item is
stored once, and a person is asked for once for each item.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import sqlite3
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from expunge_client import DeletionRequest, Expunge, Refused
from expunge_client.calls import Order
from expunge_connect.drop.identifiers import PERSON, Row, hash_of
from expunge_connect.drop.lists import ListEntry, received_at
from expunge_connect.places import batches, opened, read_secret, secret_of, writing

ROWS = 5_000
"""that are stored, hashed or marked together"""
PEOPLE = 100
"""whose requests are made by one call: the service accepts them in one transaction, for which other writers wait"""
ITEM_LENGTH = 12
DATABASE = "drop.db"
_HASH, _PERSON, _CALL = b"expunge-connect/hash\0", b"expunge-connect/person\0", b"expunge-connect/call\0"
TABLES = """
CREATE TABLE IF NOT EXISTS items (
    item TEXT PRIMARY KEY,        -- the state's id, which the answer names
    list_name TEXT NOT NULL,
    source TEXT NOT NULL,         -- of the downloaded file's name: its day and the broker's number
    digest BLOB NOT NULL,         -- of the list's hash, under the secret: bare hashes could be tried one by one
    imported_at INTEGER NOT NULL, -- moments are seconds since 1970
    checked_at INTEGER,           -- when all known people were compared with it; NULL: never
    shared INTEGER NOT NULL,      -- several people have the identifier, so nobody is deleted for it
    removed_at INTEGER,           -- when the state withdrew it
    reported INTEGER              -- the status that the last answer gave
) WITHOUT ROWID;
CREATE VIEW IF NOT EXISTS open_items AS SELECT * FROM items WHERE removed_at IS NULL AND NOT shared;
CREATE TABLE IF NOT EXISTS matches (
    item TEXT NOT NULL REFERENCES items,
    person BLOB NOT NULL,         -- digest of the id, under the secret
    request TEXT,                 -- NULL: the identifier is shared, or the service does not know the request any more
    source TEXT,                  -- the case of the request
    status TEXT, reason TEXT,     -- of the request, when the service was last asked
    PRIMARY KEY (item, person)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS matches_person ON matches (person);
CREATE INDEX IF NOT EXISTS matches_request ON matches (request);
"""


@dataclass(frozen=True)
class Feed:
    """The items that one tenant was sent."""

    database: sqlite3.Connection
    secret: bytes = field(repr=False)

    @classmethod
    def open(cls, folder: Path) -> Feed:
        """Open the feed in this folder; make it where there is none."""
        secret = secret_of(folder)
        return cls(opened(folder / DATABASE, TABLES), secret)

    @classmethod
    def read(cls, folder: Path) -> Feed:
        """Open a feed that is there, to read it. Raises OSError, ValueError or sqlite3.Error where that fails."""
        database = sqlite3.connect(f"{(folder / DATABASE).as_uri()}?mode=ro", uri=True)
        database.row_factory = sqlite3.Row
        return cls(database, read_secret(folder))

    def digests(self, hashes: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the keyed digests of a list's hashes, by which items are kept."""
        keyed = hmac.new(self.secret, _HASH, hashlib.sha256)
        for each in hashes:
            one = keyed.copy()
            one.update(each)
            yield one.digest()

    def digest_of(self, person: str) -> bytes:
        return hmac.digest(self.secret, _PERSON + person.encode(), "sha256")

    def key_of(self, orders: Sequence[Mapping[str, Any]]) -> str:
        """Return the Idempotency-Key of these orders. It is keyed: from a bare digest people could be guessed."""
        return hmac.digest(self.secret, _CALL + json.dumps(orders, sort_keys=True).encode(), "sha256").hex()


class AnswerCode(IntEnum):
    """What the state is answered (DROP, technical specifications 1.2.0, status codes)."""

    EXEMPTED = 2
    DELETED = 3
    OPTED_OUT = 4
    NOT_FOUND = 5


@dataclass
class Compared:
    """What a comparison with known people found."""

    people: int = 0
    """lines that were read"""
    hashed: dict[str, int] = field(default_factory=dict)
    """by list with open items: how many of the lines gave a hash for it"""
    compared: dict[str, list[str]] = field(default_factory=dict)
    """by list: ids of the items that a hash was compared with, joined where several have the same identifier"""
    uncompared: int = 0
    """open items on lists for which no line gave a hash"""
    wanted: dict[str, list[str]] = field(default_factory=dict)
    """by person: the items that name the person alone, or that named somebody before"""
    shared: dict[str, set[str]] = field(default_factory=dict)
    """by item whose identifier several people have, and which named nobody before: these people"""


class Answer(NamedTuple):
    """One line of an answer."""

    source: str
    list_name: str
    item: str
    status: AnswerCode
    amends: bool
    """the state was answered otherwise before"""


def store(feed: Feed, source: str, entries: Iterable[ListEntry], *, withdrawn: bool = False) -> int:
    """Keep the entries of a list that are not kept yet; return how many. An interrupted call is simply repeated."""
    new = (
        "INSERT OR IGNORE INTO items (item, list_name, source, digest, imported_at, shared, removed_at) "
        "VALUES (?, ?, ?, ?, ?, 0, ?)"
    )
    kept = 0
    for read in batches(entries, ROWS):
        at = int(time.time())
        digests = feed.digests([each.hash for each in read])
        rows = [
            (each.item, each.list_name, source, digest, at, at if withdrawn else None)
            for each, digest in zip(read, digests, strict=True)
        ]
        with writing(feed.database):
            kept += feed.database.executemany(new, rows).rowcount
    return kept


def withdraw(feed: Feed, service: Expunge, source: str, entries: Iterable[ListEntry]) -> int:
    """Take back the items that the state withdrew, and cancel their requests where that is still possible.

    An item that is not kept yet is kept as withdrawn, so that its list may be read later. Return how many requests
    could not be cancelled: these people stay deleted.
    """
    kept = 0
    for read in batches(entries, ROWS):
        store(feed, source, read, withdrawn=True)
        items = json.dumps([each.item for each in read])
        gone = "UPDATE items SET removed_at = ? WHERE removed_at IS NULL AND item IN (SELECT value FROM json_each(?))"
        feed.database.execute(gone, (int(time.time()), items))
        named = (
            "SELECT DISTINCT request FROM matches WHERE item IN (SELECT value FROM json_each(?)) "
            "AND request IS NOT NULL"
        )
        for (request_id,) in feed.database.execute(named, (items,)).fetchall():
            kept += _too_late(feed, service, request_id)
    return kept


def _too_late(feed: Feed, service: Expunge, request_id: str) -> bool:
    """Cancel a request that no other item asks for as well; return whether that was no longer possible."""
    others = "SELECT 1 FROM matches JOIN items USING (item) WHERE request = ? AND removed_at IS NULL LIMIT 1"
    if feed.database.execute(others, (request_id,)).fetchone():
        return False
    try:
        service.cancel(request_id)
    except Refused as error:
        if error.status not in (404, 409):
            raise
        return error.status == 409
    return False


def compare(feed: Feed, people: Iterable[Row]) -> Compared:
    """Find whom the open items name among everybody who is known. Nothing is written.

    An identifier that several of them have names nobody. One that named a person before names each further one as
    well, so that nobody comes back under another id.
    """
    index = _open_items(feed)
    result = Compared(hashed=dict.fromkeys(index, 0))
    holders: dict[str, set[str]] = defaultdict(set)
    for batch in batches(people, ROWS):
        result.people += len(batch)
        for list_name, items in index.items():
            hashed = [(row[PERSON], found) for row in batch if (found := hash_of(list_name, row)) is not None]
            result.hashed[list_name] += len(hashed)
            for (person, _), digest in zip(hashed, feed.digests(each for _, each in hashed), strict=True):
                for item in _ids(items.get(digest, "")):
                    holders[item].add(person)
    for list_name, items in index.items():
        if result.hashed[list_name]:
            result.compared[list_name] = list(items.values())
        else:
            result.uncompared += sum(map(len, items.values())) // ITEM_LENGTH
    before = "SELECT DISTINCT item FROM matches WHERE item IN (SELECT value FROM json_each(?))"
    known = {item for (item,) in feed.database.execute(before, (json.dumps(list(holders)),))}
    wanted: dict[str, list[str]] = defaultdict(list)
    for item, them in holders.items():
        if len(them) > 1 and item not in known:
            result.shared[item] = them
        else:
            for person in them:
                wanted[person].append(item)
    result.wanted = dict(wanted)
    return result


def match(feed: Feed, service: Expunge, people: Iterable[Row]) -> tuple[Compared, list[str]]:
    """Ask for the deletion of everybody whom an item names; return the comparison, and the requests that were made.

    A shared identifier deletes nobody: its item is answered as opted out.
    """
    found = compare(feed, people)
    with writing(feed.database):
        feed.database.executemany("UPDATE items SET shared = 1 WHERE item = ?", [(item,) for item in found.shared])
        rows = [(item, feed.digest_of(person)) for item, them in found.shared.items() for person in them]
        feed.database.executemany("INSERT OR IGNORE INTO matches (item, person) VALUES (?, ?)", rows)
    requests: list[str] = []
    for part in batches(sorted(found.wanted), PEOPLE):
        requests += _ask(feed, service, {person: found.wanted[person] for person in part})
    return found, requests


def _ask(feed: Feed, service: Expunge, wanted: Mapping[str, Sequence[str]]) -> list[str]:
    """Make one request for each person and all items that name the person and do not ask for that yet.

    A call that was sent before this process died is sent under the same key: it takes effect once.

    Raises:
        ValueError: the service did not accept one of them. The others are kept.
    """
    asked = "SELECT item FROM matches WHERE person = ? AND request IS NOT NULL"
    sourced = "SELECT min(source) FROM items WHERE item IN (SELECT value FROM json_each(?))"
    new: dict[str, list[str]] = {}
    orders: list[Order] = []
    for person, named in wanted.items():
        known = {item for (item,) in feed.database.execute(asked, (feed.digest_of(person),))}
        if items := sorted(set(named) - known):
            new[person] = items
            (source,) = feed.database.execute(sourced, (json.dumps(items),)).fetchone()
            received = received_at(source).strftime("%Y-%m-%dT%H:%M:%SZ")
            orders.append(Order(subject_id=person, regulation="delete-act", received_at=received, case_id=source))
    if not orders:
        return []
    made, refused = [], []
    rows = []
    outcomes = service.delete_many(orders, idempotency_key=feed.key_of(orders))
    for (person, items), order, outcome in zip(new.items(), orders, outcomes, strict=True):
        if (request := outcome["request"]) is None:
            refused.append(str((outcome["problem"] or {}).get("detail")))
            continue
        made.append(request["id"])
        digest = feed.digest_of(person)
        rows += [(item, digest, request["id"], order["case_id"], _status(request)) for item in items]
    kept = "INSERT OR REPLACE INTO matches (item, person, request, source, status) VALUES (?, ?, ?, ?, ?)"
    with writing(feed.database):
        feed.database.executemany(kept, rows)
    if refused:
        raise ValueError(f"The service did not accept {len(refused)} of {len(orders)} requests: {refused[0]}")
    return made


def mark_checked(feed: Feed, found: Compared, unsure: Collection[str] = ()) -> None:
    """Note that everybody who is known was compared with these items; from now on they may be answered "not found".

    Items that were stored during the comparison, and those of a list for which no line gave a hash, are not among them;
    nor are those of the lists ``unsure``, with which too many people could not be compared.
    """
    at = int(time.time())
    sure = (joined for name, items in found.compared.items() if name not in unsure for joined in items)
    for batch in batches((item for joined in sure for item in _ids(joined)), ROWS):
        with writing(feed.database):
            feed.database.executemany("UPDATE items SET checked_at = ? WHERE item = ?", [(at, each) for each in batch])


def refresh(feed: Feed, service: Expunge) -> None:
    """Ask the service what became of the requests that were not completed when it was last asked.

    A request that it does not know any more, because it was restored from a backup, is made again by ``match``.
    """
    waiting = "SELECT DISTINCT source FROM matches WHERE request IS NOT NULL AND status <> 'completed'"
    for (source,) in feed.database.execute(waiting).fetchall():
        here = "SELECT DISTINCT request FROM matches WHERE source = ? AND request IS NOT NULL AND status <> 'completed'"
        unseen = {request for (request,) in feed.database.execute(here, (source,))}
        for page in batches(service.requests(case_id=source), ROWS):
            told = [(_status(each), each["reason"], each["id"]) for each in page if each["id"] in unseen]
            unseen -= {each["id"] for each in page}
            with writing(feed.database):
                feed.database.executemany("UPDATE matches SET status = ?, reason = ? WHERE request = ?", told)
        lost = "UPDATE matches SET request = NULL, status = NULL, reason = NULL WHERE request = ?"
        with writing(feed.database):
            feed.database.executemany(lost, [(request,) for request in sorted(unseen)])


def _status(request: DeletionRequest) -> str:
    """Return the request's status; one whose keys are not destroyed yet still runs."""
    return "running" if request.get("erasing") else request["status"]  # an older service does not say


def count_open(feed: Feed) -> int:
    """Count the items that a person who is registered now must be compared with."""
    found: int = feed.database.execute("SELECT count(*) FROM open_items").fetchone()[0]
    return found


def imported_at(feed: Feed) -> int | None:
    """Return when a list was last imported, in seconds since 1970; None: never."""
    found: int | None = feed.database.execute("SELECT max(imported_at) FROM items").fetchone()[0]
    return found


def counts(feed: Feed) -> dict[str, int]:
    """Count the items by what they would be answered now; ``waiting``: nothing yet."""
    found: Counter[str] = Counter()
    for row, status in _statuses(feed):
        found["waiting" if status is None else status.name.lower()] += 1
        found["to_report"] += status is not None and status != row["reported"]
    return dict(found)


def answers(feed: Feed) -> Iterator[Answer]:
    """Yield the answers that the state was not given yet, in the order of lists and items."""
    for row, status in _statuses(feed):
        if status is not None and status != row["reported"]:
            amends = row["reported"] is not None
            yield Answer(row["source"], row["list_name"], row["item"], status, amends=amends)


def mark_reported(feed: Feed, given: Iterable[Answer]) -> None:
    """Note the answers as given."""
    for batch in batches(given, ROWS):
        rows = [(int(each.status), each.item) for each in batch]
        with writing(feed.database):
            feed.database.executemany("UPDATE items SET reported = ? WHERE item = ?", rows)


def _open_items(feed: Feed) -> dict[str, dict[bytes, str]]:
    """Return the ids of the open items by list and digest, joined where several have the same."""
    index: dict[str, dict[bytes, str]] = defaultdict(dict)
    for list_name, digest, item in feed.database.execute("SELECT list_name, digest, item FROM open_items"):
        items = index[list_name]
        items[digest] = items.get(digest, "") + item
    return {name: index[name] for name in sorted(index)}


def _ids(joined: str) -> Iterator[str]:
    return (joined[start : start + ITEM_LENGTH] for start in range(0, len(joined), ITEM_LENGTH))


def _statuses(feed: Feed) -> Iterator[tuple[sqlite3.Row, AnswerCode | None]]:
    """Yield every item that the state has not withdrawn with what it is answered; None: that is not known yet."""
    states: dict[str, list[tuple[str | None, str | None]]] = defaultdict(list)
    for item, status, reason in feed.database.execute("SELECT item, status, reason FROM matches"):
        states[item].append((status, reason))
    rows = "SELECT * FROM items WHERE removed_at IS NULL ORDER BY source, list_name, item"
    for row in feed.database.execute(rows):
        shared, checked = bool(row["shared"]), row["checked_at"] is not None
        yield row, status_of(shared=shared, checked=checked, requests=states.get(row["item"], ()))


def status_of(*, shared: bool, checked: bool, requests: Sequence[tuple[str | None, str | None]]) -> AnswerCode | None:
    """Return what an item is answered, from the status and reason of its requests; None: that is not known yet.

    A legal hold is an exemption. A request that was cancelled or blocked otherwise needs somebody's decision first.
    """
    if shared:
        return AnswerCode.OPTED_OUT
    if not requests:
        return AnswerCode.NOT_FOUND if checked else None
    if all(status == "completed" for status, _ in requests):
        return AnswerCode.DELETED
    held = any(status == "blocked" and reason == "legal_hold" for status, reason in requests)
    return AnswerCode.EXEMPTED if held else None
