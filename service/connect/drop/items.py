"""The work items of deletion lists: keep them, find the people whom they name, ask for their deletion, and answer.

An item that names nobody is kept, because the person may come with later data. Everything may be repeated: an item is
stored once, and a person is asked for once for each item.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import NamedTuple

from sqlalchemy import ColumnElement, bindparam, func, insert, select, update
from sqlalchemy.orm import Session

from expunge.service.audit.log import record
from expunge.service.connect.drop.identifiers import PERSON, Row, hash_of
from expunge.service.connect.drop.lists import ListEntry, received_at
from expunge.service.infra.db import Database, batches, now
from expunge.service.infra.pseudonyms import Pepper, digests, subject_digest
from expunge.service.infra.tables import DeletionRequest, FeedItem, FeedMatch
from expunge.service.requests.cancel import cancel
from expunge.service.requests.intake import Accepted, Order, accept_all
from expunge.service.requests.reasons import Reason
from expunge.service.requests.states import Regulation, RequestRefused

ROWS = 5_000
"""that are stored, hashed or marked together"""
PEOPLE = 100
"""whose requests are accepted in one transaction: other writers wait for it, about a third of a second"""
ITEM_LENGTH, DIGEST_BYTES = 12, 32


@dataclass(frozen=True)
class Feed:
    """The items that one tenant was sent."""

    database: Database
    pepper: Pepper
    tenant_id: str

    def digests(self, hashes: Sequence[bytes]) -> list[bytes]:
        """Return the keyed digests of a list's hashes, by which items are kept."""
        joined = digests(self.pepper, "feed", self.tenant_id, hashes)
        return [joined[start : start + DIGEST_BYTES] for start in range(0, len(joined), DIGEST_BYTES)]

    def digest_of(self, person: str) -> str:
        return subject_digest(self.pepper, self.tenant_id, person)


class AnswerCode(IntEnum):
    """What the state is answered (DROP, technical specifications 1.2.0, status codes)."""

    EXEMPTED = 2
    DELETED = 3
    OPTED_OUT = 4
    NOT_FOUND = 5


@dataclass
class Matched:
    """What a comparison with known people found."""

    people: int = 0
    """lines that were read"""
    hashed: dict[str, int] = field(default_factory=dict)
    """by list with open items: how many of the lines gave a hash for it"""
    compared: list[str] = field(default_factory=list)
    """ids of the items that a hash was compared with, joined where several have the same identifier"""
    uncompared: int = 0
    """open items on lists for which no line gave a hash"""
    requests: list[str] = field(default_factory=list)
    """deletion requests that were made"""
    shared: int = 0
    """items whose identifier several people have"""
    to_notify: set[str] = field(default_factory=set)
    """models whose workers have work now"""


class Answer(NamedTuple):
    """One line of an answer."""

    source: str
    list_name: str
    item: str
    status: AnswerCode
    amends: bool
    """the state was answered otherwise before"""


def store(feed: Feed, source: str, entries: Iterable[ListEntry]) -> int:
    """Keep the entries of a list that are not kept yet; return how many. An interrupted call is simply repeated."""
    return sum(_store(feed, source, read) for read in batches(entries, ROWS))


def withdraw(feed: Feed, source: str, entries: Iterable[ListEntry]) -> int:
    """Take back the items that the state withdrew, and cancel their requests where that is still possible.

    An item that is not kept yet is kept as withdrawn, so that its list may be read later. Return how many requests
    could not be cancelled: these people stay deleted.
    """
    kept = 0
    for read in batches(entries, ROWS):
        _store(feed, source, read, withdrawn=True)
        with feed.database.write() as session:
            items = [each.item for each in read]
            for part in batches(items):
                gone = update(FeedItem).where(FeedItem.tenant_id == feed.tenant_id, FeedItem.item.in_(part))
                session.execute(gone.where(FeedItem.removed_at.is_(None)).values(removed_at=now(session)))
                named = select(FeedMatch.request_id).where(
                    FeedMatch.tenant_id == feed.tenant_id, FeedMatch.item.in_(part)
                )
                for request_id in session.scalars(named.where(FeedMatch.request_id.is_not(None)).distinct()).all():
                    kept += _too_late(session, request_id or "")
            record(session, feed.tenant_id, "feed.withdrawn", items=len(items))
    return kept


def _store(feed: Feed, source: str, read: Iterable[ListEntry], *, withdrawn: bool = False) -> int:
    batch = list({each.item: each for each in read}.values())
    found = feed.digests([each.hash for each in batch])
    with feed.database.write() as session:
        known = _known(session, feed.tenant_id, [each.item for each in batch])
        at = now(session)
        rows = [
            {
                "tenant_id": feed.tenant_id,
                "item": each.item,
                "list_name": each.list_name,
                "source": source,
                "digest": digest.hex(),
                "imported_at": at,
                "shared": False,
                "removed_at": at if withdrawn else None,
            }
            for each, digest in zip(batch, found, strict=True)
            if each.item not in known
        ]
        if rows:
            session.execute(insert(FeedItem), rows)
            if not withdrawn:
                record(session, feed.tenant_id, "feed.imported", source=source, items=len(rows))
    return len(rows)


def _too_late(session: Session, request_id: str) -> bool:
    """Cancel a request that no other item asks for as well; return whether that was no longer possible."""
    others = (
        select(FeedMatch.item)
        .join(FeedItem, (FeedItem.tenant_id == FeedMatch.tenant_id) & (FeedItem.item == FeedMatch.item))
        .where(FeedMatch.request_id == request_id, FeedItem.removed_at.is_(None))
    )
    if session.scalar(others.limit(1)) is not None:
        return False
    try:
        cancel(session, session.get_one(DeletionRequest, request_id))
    except RequestRefused:
        return True
    return False


def match(feed: Feed, people: Iterable[Row]) -> Matched:
    """Ask for the deletion of everybody among ``people`` whom an item names.

    An identifier that several of them have deletes nobody: the item is answered as opted out. One that named a person
    before names each further one as well, so that nobody comes back under another id.
    """
    result, holders = _compared(feed, people)
    sources = _sources(feed, holders)
    shared = {item for item, them in holders.items() if len(them) > 1 and not sources[item].matched}
    result.shared = _mark_shared(feed, {item: holders[item] for item in shared})
    wanted: dict[str, list[str]] = defaultdict(list)
    for item in holders.keys() - shared:
        for person in holders[item]:
            wanted[person].append(item)
    for part in batches(sorted(wanted), PEOPLE):
        with feed.database.write() as session:
            for accepted in _ask(session, feed, {person: wanted[person] for person in part}, sources):
                result.requests.append(accepted.request.id)
                result.to_notify.update(accepted.to_notify)
    return result


def _compared(feed: Feed, people: Iterable[Row]) -> tuple[Matched, dict[str, set[str]]]:
    """Return the counts, and by item the ids of the people whom it names."""
    index = _open_items(feed)
    result = Matched(hashed=dict.fromkeys(index, 0))
    holders: dict[str, set[str]] = defaultdict(set)
    for batch in batches(people, ROWS):
        result.people += len(batch)
        for list_name, items in index.items():
            hashed = [(row[PERSON], found) for row in batch if (found := hash_of(list_name, row)) is not None]
            result.hashed[list_name] += len(hashed)
            for (person, _), digest in zip(hashed, feed.digests([each for _, each in hashed]), strict=True):
                for item in _ids(items.get(digest, "")):
                    holders[item].add(person)
    for list_name, items in index.items():
        if result.hashed[list_name]:
            result.compared += items.values()
        else:
            result.uncompared += sum(map(len, items.values())) // ITEM_LENGTH
    return result, holders


def mark_checked(feed: Feed, matched: Matched) -> None:
    """Note that everybody who is known was compared with these items; from now on they may be answered "not found".

    Items that were stored during the comparison, and those of a list for which no line gave a hash, are not among them.
    """
    here = FeedItem.tenant_id == feed.tenant_id, FeedItem.item == bindparam("named")
    mark = update(FeedItem).where(*here).values(checked_at=bindparam("at"))
    for batch in batches((item for joined in matched.compared for item in _ids(joined)), ROWS):
        with feed.database.write() as session:
            at = now(session)
            session.connection().execute(mark, [{"named": item, "at": at} for item in batch])


def count_open(session: Session, tenant_id: str) -> int:
    """Count the items that a person who is registered now must be compared with."""
    return session.scalar(select(func.count()).where(*_open(tenant_id))) or 0


def counts(session: Session, tenant_id: str) -> dict[str, int]:
    """Count the items by what they would be answered now; ``waiting``: nothing yet."""
    found: Counter[str] = Counter()
    for row, status in _statuses(session, tenant_id):
        found["waiting" if status is None else status.name.lower()] += 1
        found["to_report"] += status is not None and status != row.reported
    return dict(found)


def answers(session: Session, tenant_id: str) -> Iterator[Answer]:
    """Yield the answers that the state was not given yet, in the order of lists and items."""
    for row, status in _statuses(session, tenant_id):
        if status is not None and status != row.reported:
            yield Answer(row.source, row.list_name, row.item, status, amends=row.reported is not None)


def mark_reported(feed: Feed, given: Iterable[Answer]) -> None:
    """Note the answers as given."""
    here = FeedItem.tenant_id == feed.tenant_id, FeedItem.item == bindparam("named")
    mark = update(FeedItem).where(*here).values(reported=bindparam("answered"))
    for batch in batches(given, ROWS):
        with feed.database.write() as session:
            rows = [{"named": each.item, "answered": int(each.status)} for each in batch]
            session.connection().execute(mark, rows)
            record(session, feed.tenant_id, "feed.reported", items=len(rows))


def _open(tenant_id: str) -> tuple[ColumnElement[bool], ...]:
    return FeedItem.tenant_id == tenant_id, FeedItem.removed_at.is_(None), FeedItem.shared.is_(False)


def _open_items(feed: Feed) -> dict[str, dict[bytes, str]]:
    """Return the ids of the open items by list and digest, joined where several have the same."""
    index: dict[str, dict[bytes, str]] = defaultdict(dict)
    with feed.database.read() as session:
        columns = select(FeedItem.list_name, FeedItem.digest, FeedItem.item).where(*_open(feed.tenant_id))
        for list_name, digest, item in session.execute(columns.execution_options(yield_per=ROWS)):
            items, key = index[list_name], bytes.fromhex(digest)
            items[key] = items.get(key, "") + item
    return {name: index[name] for name in sorted(index)}


def _ids(joined: str) -> Iterator[str]:
    return (joined[start : start + ITEM_LENGTH] for start in range(0, len(joined), ITEM_LENGTH))


class _Source(NamedTuple):
    source: str
    matched: bool
    """it named somebody before"""


def _sources(feed: Feed, items: Iterable[str]) -> dict[str, _Source]:
    found: dict[str, _Source] = {}
    with feed.database.read() as session:
        for part in batches(sorted(items)):
            here = select(FeedItem.item, FeedItem.source).where(
                FeedItem.tenant_id == feed.tenant_id, FeedItem.item.in_(part)
            )
            before = set(
                session.scalars(
                    select(FeedMatch.item).where(FeedMatch.tenant_id == feed.tenant_id, FeedMatch.item.in_(part))
                )
            )
            found |= {item: _Source(source, item in before) for item, source in session.execute(here)}
    return found


def _mark_shared(feed: Feed, holders: Mapping[str, Iterable[str]]) -> int:
    for part in batches(sorted(holders), PEOPLE):
        with feed.database.write() as session:
            here = FeedItem.tenant_id == feed.tenant_id, FeedItem.item.in_(part)
            session.execute(update(FeedItem).where(*here).values(shared=True))
            rows = [
                {"tenant_id": feed.tenant_id, "item": item, "subject_digest": feed.digest_of(person)}
                for item in part
                for person in sorted(holders[item])
            ]
            session.execute(insert(FeedMatch), rows)
            record(session, feed.tenant_id, "feed.shared", items=len(part))
    return len(holders)


def _ask(
    session: Session, feed: Feed, wanted: Mapping[str, Sequence[str]], sources: Mapping[str, _Source]
) -> list[Accepted]:
    """Make one request for each person and all items that name the person and do not ask for that yet.

    Args:
        wanted: the items that name a person, by person; at most ``PEOPLE`` of them.
        sources: of these items at least.
    """
    digests = {person: feed.digest_of(person) for person in wanted}
    asked = select(FeedMatch.subject_digest, FeedMatch.item).where(
        FeedMatch.tenant_id == feed.tenant_id, FeedMatch.subject_digest.in_(digests.values())
    )
    known = {(digest, item) for digest, item in session.execute(asked)}
    new = {
        person: items
        for person, named in wanted.items()
        if (items := sorted(item for item in named if (digests[person], item) not in known))
    }
    if not new:
        return []
    orders = [_order(person, [sources[item].source for item in items]) for person, items in new.items()]
    made = accept_all(session, feed.pepper, feed.tenant_id, orders)
    rows = [
        {"tenant_id": feed.tenant_id, "subject_digest": digests[person], "request_id": each.request.id, "item": item}
        for (person, items), each in zip(new.items(), made, strict=True)
        for item in items
    ]
    session.execute(insert(FeedMatch), rows)
    return made


def _order(person: str, sources: Iterable[str]) -> Order:
    received = min(map(received_at, sources))
    return Order(subject_id=person, regulation=Regulation.DELETE_ACT, received_at=received)


def _statuses(session: Session, tenant_id: str) -> Iterator[tuple[FeedItem, AnswerCode | None]]:
    """Yield every item that the state has not withdrawn with what it is answered; None: that is not known yet."""
    states: dict[str, list[tuple[str, str | None]]] = defaultdict(list)
    asked = select(FeedMatch.item, DeletionRequest.status, DeletionRequest.reason).join(
        DeletionRequest, DeletionRequest.id == FeedMatch.request_id
    )
    for item, status, reason in session.execute(asked.where(FeedMatch.tenant_id == tenant_id)):
        states[item].append((status, reason))
    items = select(FeedItem).where(FeedItem.tenant_id == tenant_id, FeedItem.removed_at.is_(None))
    order = items.order_by(FeedItem.source, FeedItem.list_name, FeedItem.item)
    for row in session.scalars(order.execution_options(yield_per=ROWS)):
        yield row, status_of(shared=row.shared, checked=row.checked_at is not None, requests=states.get(row.item, ()))


def status_of(*, shared: bool, checked: bool, requests: Sequence[tuple[str, str | None]]) -> AnswerCode | None:
    """Return what an item is answered, from the status and reason of its requests; None: that is not known yet.

    A legal hold is an exemption. A request that was cancelled or blocked otherwise needs somebody's decision first.
    """
    if shared:
        return AnswerCode.OPTED_OUT
    if not requests:
        return AnswerCode.NOT_FOUND if checked else None
    if all(status == "completed" for status, _ in requests):
        return AnswerCode.DELETED
    held = any(status == "blocked" and reason == Reason.LEGAL_HOLD for status, reason in requests)
    return AnswerCode.EXEMPTED if held else None


def _known(session: Session, tenant_id: str, items: Sequence[str]) -> set[str]:
    here = (
        select(FeedItem.item).where(FeedItem.tenant_id == tenant_id, FeedItem.item.in_(part)) for part in batches(items)
    )
    return {item for query in here for item in session.scalars(query)}
