"""Counts over what has ended, kept in rows, so that a scrape of /metrics reads no history.

The scheduler adds what a version did to the tallies when the version is served no more and none of its tasks waits, and
each audit entry once it is in the log. A scrape adds what is not tallied yet. Both count with the same queries, and a
tally is written in the transaction that marks what it counts: each is counted once, and no counter falls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, String, case, func, literal, select, text, update
from sqlalchemy import cast as cast_to
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from expunge_service.infra.actors import OPERATOR
from expunge_service.infra.db import Database, batches
from expunge_service.infra.tables import AuditEntry, DeletionRequest, PhaseSeconds, Tally, Task, Version
from expunge_service.infra.time import BUCKETS, SECOND

LATENCY_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800, 3600, 86_400, 604_800, 2_592_000)
"""upper edges in seconds"""
BEYOND = "+Inf"
LATENCY, INTAKE, PHASE, SAMPLES, VERSIONS, ENTRIES = "latency", "intake", "phase", "samples", "published", "entries"
OUTCOMES = "outcomes"
"""of requests when they were accepted: ``method`` is the outcome, ``label`` the caller"""
TALLIED_TO = "tallied to"
"""the tally that holds how many audit entries are counted: the log's first ones"""
VERSIONS_AT_ONCE = 100
ENTRIES_AT_ONCE = 10_000
_LOCK = 7205
_OPEN = ("queued", "running", "blocked")


class Key(NamedTuple):
    """What a tally counts. ``model_id``, ``method``, ``label`` and ``bound`` are empty where they do not apply."""

    name: str
    model_id: str = ""
    method: str = ""
    label: str = ""
    bound: str = ""


def counts(session: Session) -> Counter[Key]:
    """Return every count: the tallies, and what is not tallied yet. Read it in one snapshot."""
    rows = session.execute(select(Tally.name, Tally.model_id, Tally.method, Tally.label, Tally.bound, Tally.count))
    found = Counter({Key(*key): count for *key, count in rows})
    untallied = session.scalars(select(Version.id).where(Version.tallied.is_(False))).all()
    for part in batches(untallied):
        found.update(_of_versions(session, part))
    done = found.pop(Key(TALLIED_TO), 0)
    for rest in (AuditEntry.log_index >= done, AuditEntry.log_index.is_(None)):
        found.update(_of_entries(session, rest))
    return found


_WAITS = select(Task.id).where(Task.version_id == Version.id, Task.status.in_(_OPEN))
_ENDED = select(Version.id).where(Version.tallied.is_(False), Version.status != "current", ~_WAITS.exists())
"""versions that are not tallied, are served no more, and have no open task"""
_DONE = select(Tally.count).where(Tally.name == TALLIED_TO).scalar_subquery()
_NEWEST = select(func.max(AuditEntry.log_index)).scalar_subquery()
UNTALLIED = _ENDED.exists() | (func.coalesce(_DONE, 0) <= _NEWEST)
"""whether ``tally`` has something to do"""


def tally(database: Database) -> int:
    """Tally some of the versions and audit entries that have ended; return how many. The scheduler calls this.

    One at a time: a scheduler that was taken for dead may wake up while its successor works.
    """
    with database.read() as session:
        if not _ended(session) and _logged(session) is None:
            return 0
    with database.write() as session:
        if database.dialect == "postgresql":
            session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        versions, entries = _ended(session), _logged(session)
        found = _of_versions(session, versions)
        session.execute(update(Version).where(Version.id.in_(versions)).values(tallied=True))
        if entries is not None:
            first, last = entries
            found.update(_of_entries(session, AuditEntry.log_index.between(first, last)))
            found[Key(TALLIED_TO)] = last - first + 1
        _add(session, found)
    return len(versions) + (0 if entries is None else entries[1] - entries[0] + 1)


def _ended(session: Session) -> list[str]:
    return list(session.scalars(_ENDED.limit(VERSIONS_AT_ONCE)))


def _logged(session: Session) -> tuple[int, int] | None:
    """Return the first and the last index of the next audit entries to tally; None where there are none."""
    done = session.scalar(select(Tally.count).where(Tally.name == TALLIED_TO))
    first = 0 if done is None else done
    newest = session.scalar(select(func.max(AuditEntry.log_index)))
    if newest is None or newest < first:
        return None
    return first, min(newest, first + ENTRIES_AT_ONCE - 1)


def _of_versions(session: Session, versions: Sequence[str]) -> Counter[Key]:
    """Count what these versions did: samples, publications, phases, and the latencies of their tasks."""
    found: Counter[Key] = Counter()
    theirs = Version.id.in_(versions)
    grouped = select(Version.model_id, Version.method, func.sum(Version.samples), func.count()).where(theirs)
    for model_id, method, samples, count in session.execute(grouped.group_by(Version.model_id, Version.method)):
        found[Key(SAMPLES, model_id, method)] += int(samples)
        found[Key(VERSIONS, model_id, method)] += count
    bound = _bound(PhaseSeconds.seconds, BUCKETS)
    labels = (PhaseSeconds.model_id, PhaseSeconds.method, PhaseSeconds.phase, bound)
    phases = select(*labels, func.count()).where(PhaseSeconds.version_id.in_(versions)).group_by(*labels)
    for model_id, method, phase, edge, count in session.execute(phases):
        found[Key(PHASE, model_id, method, phase, edge)] += count
    for name, start in ((LATENCY, DeletionRequest.received_at), (INTAKE, DeletionRequest.created_at)):
        edges = _bound((Task.completed_at - start) / float(SECOND), LATENCY_BUCKETS)
        ended = (
            select(Task.model_id, Task.method, edges, func.count())
            .join(DeletionRequest, DeletionRequest.id == Task.request_id)
            .where(Task.version_id.in_(versions), Task.completed_at.is_not(None), Task.method.is_not(None))
            .group_by(Task.model_id, Task.method, edges)
        )
        for model_id, by, edge, count in session.execute(ended):
            found[Key(name, model_id, by or "", "", edge)] += count
    return found


def _of_entries(session: Session, which: ColumnElement[bool]) -> Counter[Key]:
    """Count these audit entries by kind, attempts that failed by model too; and the outcomes of accepted requests."""
    columns = (AuditEntry.kind, AuditEntry.model_id, AuditEntry.request_id)
    entries = session.execute(select(*columns).where(which)).all()
    failed = "attempt.failed"
    found = Counter(Key(ENTRIES, (model_id or "") if kind == failed else "", "", kind) for kind, model_id, _ in entries)
    accepted = [request_id for kind, _, request_id in entries if kind == "request.accepted" and request_id is not None]
    for batch in batches(accepted):
        said = select(DeletionRequest.outcome, DeletionRequest.caller)
        named = said.where(DeletionRequest.id.in_(batch), DeletionRequest.outcome.is_not(None))
        found.update(Key(OUTCOMES, "", outcome or "", caller or OPERATOR) for outcome, caller in session.execute(named))
    return found


def _bound(seconds: Any, edges: tuple[float, ...]) -> ColumnElement[str]:
    """Return the expression for the upper edge of the bucket that holds ``seconds``, as text."""
    return case(*((seconds <= edge, cast_to(literal(str(float(edge))), String)) for edge in edges), else_=BEYOND)


def _add(session: Session, found: Counter[Key]) -> None:
    """Add these counts to their tallies. A tally that is not there begins at its count."""
    insert = postgresql.insert if session.get_bind().dialect.name == "postgresql" else sqlite.insert
    rows = [{**key._asdict(), "count": count} for key, count in sorted(found.items())]
    for part in batches(rows, 100):
        new = insert(Tally).values(part)
        table = [Tally.name, Tally.model_id, Tally.method, Tally.label, Tally.bound]
        session.execute(
            new.on_conflict_do_update(index_elements=table, set_={"count": Tally.count + new.excluded.count})
        )
