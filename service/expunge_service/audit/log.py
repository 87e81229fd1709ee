"""The two append-only ledgers: the audit log, and the privacy budget."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, delete, false, func, insert, literal, or_, select, text, update
from sqlalchemy.orm import Session

from expunge_service.audit import merkle
from expunge_service.audit.signed_note import NotAuthentic, Signer, Verifier
from expunge_service.audit.succession import ROTATED, Succession, successions
from expunge_service.audit.witness import Contradicted, Witness, WitnessedHead, epoch_of
from expunge_service.infra.db import Database, batches, now
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.settings import SettingsError
from expunge_service.infra.tables import AuditEntry, BudgetEntry, Generation, TreeHead, TreeNode
from unlearning.accounting.budget import Overspent

_LOG_LOCK = 0x6578_7075_6E68
NAMED_IN_ONE_ENTRY = 500
"""requests that an entry names at most, because each check of a proof hashes all of its text"""
UNSIGNED = ""
"""the note of a head that waits for its signature"""
UNWITNESSED = 100
"""heads that a rotation of the key, or a release before 0.2, may have signed without the store's witness"""


def canonical(facts: dict[str, Any]) -> str:
    """Write JSON with sorted keys, no spaces, ASCII only: one text for one meaning. Refuses NaN and infinities."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)


def record(
    session: Session,
    tenant_id: str,
    kind: str,
    *,
    request_id: str | None = None,
    model_id: str | None = None,
    **facts: Any,
) -> None:
    """Append an audit entry in the transaction of what it records. It gets its place in the log later.

    ``facts`` are JSON values. People appear in them by keyed digest, never by name.
    """
    record_entries(session, [entry(session, tenant_id, kind, request_id=request_id, model_id=model_id, **facts)])


_APPEND = insert(AuditEntry.__table__)


def record_entries(session: Session, entries: Sequence[Mapping[str, Any]]) -> None:
    """Append the rows that ``entry`` gave, in one statement."""
    session.execute(_APPEND, entries)


def entry(
    session: Session,
    tenant_id: str,
    kind: str,
    /,
    *,
    request_id: str | None = None,
    model_id: str | None = None,
    **facts: Any,
) -> dict[str, Any]:
    """Return the row of an audit entry, as ``record`` appends it. The transaction gives its moment and its actor."""
    at, actor = recorded_at(session), session.info["actor"]
    names = {"entry": new_id(), "at": at, "kind": kind, "tenant": tenant_id, "request": request_id, "model": model_id}
    names |= {"actor": actor.id, "actor_key": actor.key}
    taken = names.keys() & facts.keys()
    if taken:
        raise ValueError(f"An audit entry sets {sorted(taken)} itself; name the fact otherwise.")
    return {
        "tenant_id": tenant_id,
        "kind": kind,
        "request_id": request_id,
        "model_id": model_id,
        "body": canonical(names | facts),
        "created_at": at,
    }


def recorded_at(session: Session) -> int:
    """Return one moment for all entries of a transaction: a session lives as long as its transaction
    (expunge_service.infra.db).
    """
    if "recorded_at" not in session.info:
        session.info["recorded_at"] = now(session)
    return int(session.info["recorded_at"])


def record_at(session: Session, at: int) -> None:
    """Let the transaction's entries have this moment, which one of its statements has just read from the clock."""
    session.info.setdefault("recorded_at", at)


def charge(session: Session, generation_id: int, version_id: str | None, units: int) -> None:
    """Spend ``units`` (1e-12 mu^2) of the generation's budget in one conditional update, and write the ledger's entry.

    ``version_id`` None: a draw that was looked at and then blocked; it is paid for anyway.
    Raises Overspent where it does not fit; reading first and writing then would overspend under contention.
    """
    if units < 0:
        raise ValueError(f"A charge of {units} units would give budget back.")
    spend = (
        update(Generation)
        .where(Generation.id == generation_id)
        .where(or_(Generation.budget.is_(None), Generation.spent + units <= Generation.budget))
        .values(spent=Generation.spent + units)
        .returning(Generation.tenant_id)
        .execution_options(synchronize_session=False)
    )
    tenant_id = session.execute(spend).scalar_one_or_none()
    if tenant_id is None:
        raise Overspent(f"A charge of {units} units does not fit into the budget of generation {generation_id}.")
    session.add(
        BudgetEntry(
            tenant_id=tenant_id,
            generation_id=generation_id,
            version_id=version_id,
            budget_cost=units,
            created_at=recorded_at(session),
        )
    )


NODES_AT_ONCE = 500
"""that one query asks for"""
LOG_WAITS = (
    select(AuditEntry.id).where(AuditEntry.log_index.is_(None)).exists()
    | select(TreeHead.note == UNSIGNED).order_by(TreeHead.size.desc()).limit(1).scalar_subquery()
)
"""whether entries wait for their place in the log, or its newest head for its signature"""


def extend(database: Database, signer: Signer, witness: Witness, limit: int = 500) -> int:
    """Give up to ``limit`` committed entries their places in the log under a new signed head; return how many.

    The new root is committed, then the store witnesses it, and only then it is signed and shown. A head that waits for
    its signature is signed first. Raises SettingsError for a retired key, NotAuthentic for an entry that retires a key
    without being a rotation, OSError where the store does not answer, and Contradicted where another head was signed in
    its place: the database was put back, or has a copy.
    """
    with database.write() as session:
        _lock_log(session)
        head = _unsigned(session)
        entries = [] if head is not None else _waiting(session, limit)
        check_key(_holder(session, entries, newest_head(session)), signer.verifier)
        if head is None and not entries:
            return 0
        head = head or _place(session, entries)
        size, root, before, epoch = head.size, head.root, signed_size(session), epoch_of(session)
    _let_witness(database, witness, epoch)
    with database.write() as session:
        _lock_log(session)
        check_key(newest_key(session), signer.verifier)
        _sign(session, signer, size, root)
    return size - before


def integrate(session: Session, signer: Signer, limit: int = 500) -> int:
    """Do the same in one transaction, where the key is handed over; the store witnesses the head with the next one."""
    _lock_log(session)
    unsigned = _unsigned(session)
    if unsigned is not None:
        check_key(newest_key(session), signer.verifier)
        _sign(session, signer, unsigned.size, unsigned.root)
    before, entries = newest_head(session), _waiting(session, limit)
    check_key(_holder(session, entries, before), signer.verifier)
    if not entries:
        return 0
    head = _place(session, entries)
    _sign(session, signer, head.size, head.root)
    return len(entries)


def _waiting(session: Session, limit: int) -> Sequence[AuditEntry]:
    """Return entries without a place, rotations of the key first, because they say which key signs.

    They are found by their missing place, not by their id: one that commits late under a small id is not skipped.
    """
    rotations_first = (AuditEntry.kind != ROTATED, AuditEntry.id)
    query = select(AuditEntry).where(AuditEntry.log_index.is_(None)).order_by(*rotations_first)
    return session.scalars(query.limit(limit)).all()


def _place(session: Session, entries: Sequence[AuditEntry]) -> TreeHead:
    """Give the entries their places, and add the head over them without a signature.

    Every integrator works under one lock from the head that is stored, so one that was taken for dead and wakes up
    does no harm.
    """
    before = newest_head(session)
    size = before.size if before else 0
    frontier = [bytes.fromhex(each) for each in before.frontier] if before else []
    nodes_added: list[dict[str, Any]] = []
    for entry in entries:
        leaf = merkle.leaf_hash(entry.body.encode())
        nodes_added += [
            {"level": level, "index": index, "hash": found.hex()}
            for level, index, found in merkle.append(frontier, size, leaf)
        ]
        entry.log_index, entry.leaf_hash = size, leaf.hex()
        size += 1
    session.flush()
    if nodes_added:
        session.execute(insert(TreeNode), nodes_added)
    head = TreeHead(
        size=size,
        root=merkle.root(frontier).hex(),
        frontier=[each.hex() for each in frontier],
        note=UNSIGNED,
        created_at=recorded_at(session),
    )
    session.add(head)
    session.flush()
    return head


def _unsigned(session: Session) -> TreeHead | None:
    """Return the newest head where it waits for its signature."""
    head = session.scalar(select(TreeHead).order_by(TreeHead.size.desc()).limit(1))
    return head if head is not None and head.note == UNSIGNED else None


def _let_witness(database: Database, witness: Witness, number: int) -> None:
    """Write the newest head into the store, and those before it that it does not know yet. Raises Contradicted."""
    epoch = witness.epoch(number)
    if epoch.number != number:
        raise Contradicted(f"the database is in epoch {number}, and the store in {epoch.number}")
    with database.read() as session:
        newest = select(TreeHead.size, TreeHead.root).where(TreeHead.size > epoch.begins)
        heads = [
            WitnessedHead(*row) for row in session.execute(newest.order_by(TreeHead.size.desc()).limit(UNWITNESSED + 1))
        ]
    befores = [*(head.size for head in heads[1:]), epoch.begins]
    unknown: list[tuple[int, WitnessedHead]] = []
    for before, head in list(zip(befores, heads, strict=True))[:UNWITNESSED]:
        if witness.head_after(number, before) == head:
            break
        unknown.append((before, head))
    for before, head in reversed(unknown):
        witness.add_head(number, before, head)
    if heads:
        witness.note_head(number, heads[0])


def _sign(session: Session, signer: Signer, size: int, root: str) -> None:
    """Sign the head of this size. Raises Contradicted where the database does not have it, as it had before."""
    head = session.get(TreeHead, size)
    if head is None or head.root != root:
        raise Contradicted(f"the database lacks the head of {size} entries, which it had")
    if head.note == UNSIGNED:
        head.note = signer.checkpoint(size, bytes.fromhex(root))
        session.flush()


_NEWEST_HEAD = select(TreeHead).where(TreeHead.note != UNSIGNED).order_by(TreeHead.size.desc()).limit(1)


def newest_head(session: Session) -> TreeHead | None:
    """Return the newest signed head; None before the first entry is integrated."""
    return session.scalar(_NEWEST_HEAD)


def signed_size(session: Session) -> int:
    """Return how many entries are under a signed head: what may be shown of the log."""
    head = newest_head(session)
    return head.size if head else 0


def unplace(session: Session) -> None:
    """Take back the places of entries under no signed head: an export may give them others."""
    size, last = signed_size(session), session.scalar(select(func.max(AuditEntry.log_index)))
    session.execute(delete(TreeHead).where(TreeHead.size > size))
    placed = update(AuditEntry).where(AuditEntry.log_index >= size)
    session.execute(placed.values(log_index=None, leaf_hash=None))
    for level in range(1, (0 if last is None else last + 1).bit_length() + 1):
        session.execute(delete(TreeNode).where(TreeNode.level == level, TreeNode.index >= size >> level))


def newest_key(session: Session) -> Verifier | None:
    """Return the signing key that the log was last handed over to. None: it was never rotated."""
    handed = select(AuditEntry.log_index, AuditEntry.body).where(AuditEntry.kind == ROTATED)
    found = [(index, body) for index, body in session.execute(handed) if index is not None]
    return Succession.parse(*max(found)).key if found else None


def nodes(session: Session) -> merkle.Node:
    """Return a function that reads the log's stored nodes. A proof reads a few dozen rows, however long the log is."""

    def node(level: int, index: int) -> bytes:
        leaf = select(AuditEntry.leaf_hash).where(AuditEntry.log_index == index)
        inner = select(TreeNode.hash).where(TreeNode.level == level, TreeNode.index == index)
        return bytes.fromhex(str(session.execute(inner if level else leaf).scalar_one()))

    return node


def proofs(session: Session, size: int, indexes: Iterable[int]) -> dict[int, list[bytes]]:
    """Return the inclusion proof of every entry in the tree of ``size``, by index; the nodes of all are read together.

    Raises IndexError for an entry outside of that tree.
    """
    wanted: set[tuple[int, int]] = set()

    def note(level: int, index: int) -> bytes:
        wanted.add((level, index))
        return b""

    places = set(indexes)
    for each in places:
        merkle.inclusion_proof(note, size, each)
    known = _nodes_at(session, sorted(wanted))
    return {each: merkle.inclusion_proof(lambda level, index: known[level, index], size, each) for each in places}


def _nodes_at(session: Session, places: list[tuple[int, int]]) -> dict[tuple[int, int], bytes]:
    """Return the stored nodes at these (level, index).

    The query names each level by itself: SQLite finds pairs in a list of pairs by reading the whole tree.
    """
    known: dict[tuple[int, int], bytes] = {}
    for part in batches(places, NODES_AT_ONCE):
        levels: dict[int, list[int]] = defaultdict(list)
        for level, index in part:
            levels[level].append(index)
        leaves = levels.pop(0, [])
        here = (and_(TreeNode.level == level, TreeNode.index.in_(indexes)) for level, indexes in levels.items())
        inner = select(TreeNode.level, TreeNode.index, TreeNode.hash).where(or_(false(), *here))
        leaf = select(literal(0), AuditEntry.log_index, AuditEntry.leaf_hash).where(AuditEntry.log_index.in_(leaves))
        for query in (inner, leaf):
            known |= {(level, index or 0): bytes.fromhex(found or "") for level, index, found in session.execute(query)}
    return known


def _holder(session: Session, waiting: Iterable[AuditEntry], head: TreeHead | None) -> Verifier | None:
    """Return the key that signs once these entries are in the log; None: it was never rotated.

    A rotation among them is signed by both keys, and retires the key that signed the newest head; or a person who can
    write into the database would choose the signing key. Raises NotAuthentic.
    """
    holder = newest_key(session)
    for each in successions((0, entry.body) for entry in waiting):
        if not (each.endorsed and each.acknowledged):
            raise NotAuthentic("An entry that waits for the log retires a signing key, and not both keys signed it.")
        if holder is None and head is not None:
            each.retired.checkpoint(head.note)
        if holder not in (None, each.retired):
            raise NotAuthentic("An entry that waits for the log retires another key than signed its newest head.")
        holder = each.key
    return holder


def check_key(holder: Verifier | None, key: Verifier) -> None:
    """Refuse a retired key. Raises SettingsError."""
    if holder not in (None, key):
        raise SettingsError(
            "The log was handed over to another signing key. Is signing.key in EXPUNGE_SECRETS the newest? A container "
            "holds the file that was there at its start: in Compose run `docker compose restart api scheduler`. "
            "Where a rotation was cut short, `expunge audit rotate-key` completes it."
        )


def _lock_log(session: Session) -> None:
    """Take the log's lock. SQLite has one writer at a time and needs none."""
    if session.get_bind().dialect.name == "postgresql":
        session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOG_LOCK})
