"""What a version commits to: a keyed digest of each table that says what it holds.

The digests stand in the version's row, in the journal's sealed draft, and in the audit entry that publishes it. They
are HMAC-SHA-256 under the pepper, which lies outside the database. Whoever may change rows can make no other set of
rows fit, and whoever reads the log cannot try whether a person was among them.

Memberships never change while a generation lives, so their digests are made once, by blocks: all rows whose person (or
sample) has a digest with the same first digits. The marks of forgotten samples are in blocks too, by position, which a
version writes anew where it forgets. A deletion looks at the blocks of the people that it names alone. A block shows
that a row is there unchanged, and also that none is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby, product
from operator import itemgetter
from typing import TypeAlias

from sqlalchemy import ColumnElement, String, bindparam, cast, delete, func, insert, literal, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from expunge_service.audit import canonical
from expunge_service.infra.db import batches
from expunge_service.infra.pseudonyms import Pepper, rows_digest
from expunge_service.infra.tables import Generation, HoldoutPerson, Membership, MembershipBlock, Removal, Version

MEMBERSHIPS, FORGOTTEN, GENERATIONS, HOLDOUT = "memberships", "forgotten", "generations", "holdout_people"
"""the tables, by their names in the database"""
SUBJECT, SAMPLE, MARK = "subject", "sample", "mark"
"""what blocks are made by"""
ROWS = 512
"""of a block of memberships, on average at most; positions of a block of marks"""
WORK_NOTES = frozenset({"by_key", "in_parts", "leaving", "prepared", "trained"})
"""what a manifest says of work that is shared out; it comes and goes with that work"""
_TERMS = (
    "id",
    "tenant_id",
    "model_id",
    "method",
    "guarantee",
    "noise_std",
    "max_distance",
    "budget_cost",
    "budget",
    "epsilon",
    "delta",
)
_AT_ONCE = 20_000
"""rows that are in memory together"""
_COLUMNS: Mapping[str, InstrumentedAttribute[str]] = {
    SUBJECT: Membership.subject_digest,
    SAMPLE: Membership.sample_digest,
}
_MEMBER: ColumnElement[str] = (
    cast(Membership.position, String)
    .concat(literal("|"))
    .concat(Membership.subject_digest)
    .concat(literal("|"))
    .concat(Membership.sample_digest)
    .concat(literal("|"))
    .concat(Membership.content_digest)
    .concat(literal("|"))
    .concat(Membership.holder)
)
"""``member_line``, joined by the database: one text a row is read in a third of the time of five values"""
# Every update runs what follows, and SQLAlchemy takes longer to build such a statement than a database to run it.
_BLOCK = MembershipBlock.__table__
_HERE = _BLOCK.c.generation_id == bindparam("generation")
_NAMED = _BLOCK.c.prefix.in_(bindparam("names", expanding=True))
Row: TypeAlias = dict[str, int | str]
Mark: TypeAlias = tuple[int, str]
"""a forgotten sample: its position, and the id of the version that forgot it"""


@dataclass(frozen=True)
class Committed:
    """The digests of the tables of one generation, by table."""

    generation_id: int
    tables: Mapping[str, str]
    memberships: Mapping[str, str]
    """the digest of each block of memberships that is made by people, by the block's name"""
    marks: Mapping[str, str]
    """the same of each block of marks of forgotten samples"""
    written: frozenset[str] = frozenset()
    """blocks of marks that are not stored yet: a version's publication stores them"""


_BLOCKS = (
    select(_BLOCK.c.made_by, _BLOCK.c.prefix, _BLOCK.c.digest)
    .where(_HERE, _BLOCK.c.made_by.in_(bindparam("kinds", expanding=True)))
    .order_by(_BLOCK.c.made_by, _BLOCK.c.prefix)
)


def committed(session: Session, pepper: Pepper, generation: Generation) -> Committed:
    """Return what the tables say now of a generation, by the stored digests of their blocks."""
    blocks: dict[str, dict[str, str]] = {SUBJECT: {}, MARK: {}}
    for by, name, digest in session.execute(_BLOCKS, {"generation": generation.id, "kinds": [*blocks]}):
        blocks[by][name] = digest
    return _committed(session, pepper, generation, blocks[SUBJECT], blocks[MARK])


def committed_in_full(session: Session, pepper: Pepper, generation: Generation) -> Committed:
    """Return the same by every membership, and every mark."""
    memberships = dict(_computed(session, pepper, generation.id, SUBJECT))
    return _committed(session, pepper, generation, memberships, _marked(session, pepper, generation.id))


def forgetting(
    session: Session, pepper: Pepper, before: Committed, *, positions: Iterable[int], version_id: str
) -> Committed:
    """Return what a version commits to that forgets these positions too."""
    new = [(position, version_id) for position in sorted(positions)]
    generation_id = before.generation_id
    touched = _marked_in(session, pepper, generation_id, {position // ROWS for position, _ in new}, new)
    marks = {**before.marks, **touched}
    tables = {**before.tables, FORGOTTEN: _whole(pepper, FORGOTTEN, generation_id, marks.items())}
    return Committed(before.generation_id, tables, before.memberships, marks, frozenset(touched))


_HELD_OUT = (
    select(HoldoutPerson.subject_digest)
    .where(HoldoutPerson.generation_id == bindparam("generation"))
    .order_by(HoldoutPerson.subject_digest)
)


def _committed(
    session: Session,
    pepper: Pepper,
    generation: Generation,
    memberships: Mapping[str, str],
    marks: Mapping[str, str],
) -> Committed:
    held_out = session.scalars(_HELD_OUT, {"generation": generation.id})
    tables = {
        MEMBERSHIPS: _whole(pepper, MEMBERSHIPS, generation.id, memberships.items()),
        FORGOTTEN: _whole(pepper, FORGOTTEN, generation.id, marks.items()),
        GENERATIONS: rows_digest(pepper, GENERATIONS, generation.id, [_terms(generation)]),
        HOLDOUT: rows_digest(pepper, HOLDOUT, generation.id, held_out),
    }
    return Committed(generation.id, tables, memberships, marks)


def memberships_changed(
    session: Session, pepper: Pepper, generation_id: int, see: Callable[[Sequence[str]], object] | None = None
) -> bool:
    """Return whether any membership row of a generation was changed, removed or added. Every row is read.

    ``see``: is shown the rows, some at a time and ordered by person, as the lines that ``member_line`` makes.
    """
    computed = dict(_computed(session, pepper, generation_id, SUBJECT, see))
    return _stored(session, generation_id, SUBJECT) != computed


def marks_changed(session: Session, pepper: Pepper, generation_id: int) -> bool:
    """Return whether any mark of a generation was changed, removed or added. Every mark is read."""
    return _stored(session, generation_id, MARK) != _marked(session, pepper, generation_id)


def block_rows(session: Session, pepper: Pepper, generation_id: int) -> list[Row]:
    """Return the rows of a generation's blocks. Every membership is read twice."""
    blocks = {by: list(_computed(session, pepper, generation_id, by)) for by in _COLUMNS}
    blocks[MARK] = list(_marked(session, pepper, generation_id).items())
    return [
        {"generation_id": generation_id, "made_by": by, "prefix": prefix, "digest": digest}
        for by, digests in blocks.items()
        for prefix, digest in digests
    ]


_ADD_BLOCKS = insert(_BLOCK)


def write_blocks(session: Session, rows: Iterable[Row]) -> None:
    for batch in batches(rows):
        session.execute(_ADD_BLOCKS, batch)


_DROP_MARKED = delete(_BLOCK).where(_HERE, _BLOCK.c.made_by == MARK, _NAMED)


def write_marked(session: Session, generation_id: int, blocks: Mapping[str, str]) -> None:
    """Store these digests of blocks of marks, by the blocks' names, in place of what the blocks had."""
    for batch in batches(blocks):
        session.execute(_DROP_MARKED, {"generation": generation_id, "names": batch})
    write_blocks(
        session,
        (
            {"generation_id": generation_id, "made_by": MARK, "prefix": name, "digest": digest}
            for name, digest in blocks.items()
        ),
    )


def marked(session: Session, pepper: Pepper, generation_id: int, positions: Iterable[int]) -> dict[str, str]:
    """Return the digest of each block of marks that has one of these positions, by the block's name, from its rows."""
    return _marked_in(session, pepper, generation_id, {position // ROWS for position in positions})


def has_blocks(session: Session, generation_id: int) -> bool:
    """Return whether digests of the generation's blocks were written: every release from 0.3 on does."""
    return session.execute(_BLOCKS.limit(1), {"generation": generation_id, "kinds": [SUBJECT]}).first() is not None


def changed(session: Session, pepper: Pepper, tables: Committed, by: str, names: Iterable[str]) -> frozenset[str]:
    """Return those of these people, or samples, in whose block a membership row was changed, removed or added.

    ``tables``: what ``committed`` read in this transaction. ``names``: keyed digests. Only their blocks are read.
    """
    generation_id = tables.generation_id
    wanted = frozenset(names)
    first = next(iter(tables.memberships), None)
    if first is None:
        return wanted
    by_prefix = {name: name[: len(first)] for name in wanted}  # of samples there are as many blocks as of people
    stored = tables.memberships if by == SUBJECT else _stored_of(session, generation_id, by, by_prefix.values())
    other = {
        prefix
        for prefix in frozenset(by_prefix.values())
        if stored.get(prefix) != _block(pepper, generation_id, by, prefix, _lines(session, generation_id, by, prefix))
    }
    return frozenset(name for name, prefix in by_prefix.items() if prefix in other)


def member_line(position: int, subject: str, sample: str, content: str, holder: str) -> str:
    """Return the element that a membership row is in a version's set. The database joins the same (``_MEMBER``)."""
    return f"{position}|{subject}|{sample}|{content}|{holder}"


_PLACES = {
    by: select(column, Membership.position).where(
        Membership.generation_id == bindparam("generation"), column.in_(bindparam("names", expanding=True))
    )
    for by, column in _COLUMNS.items()
}


def changed_marks(session: Session, pepper: Pepper, tables: Committed, by: str, names: Iterable[str]) -> frozenset[str]:
    """Return those of these people, or samples, with a position in whose block a mark was changed, removed or added.

    ``tables``, ``names``: as in ``changed``.
    """
    generation_id = tables.generation_id
    places: dict[int, set[str]] = {}
    for batch in batches(names):
        for name, position in session.execute(_PLACES[by], {"generation": generation_id, "names": batch}):
            places.setdefault(position // ROWS, set()).add(name)
    now = _marked_in(session, pepper, generation_id, places)
    other = (theirs for block, theirs in places.items() if tables.marks.get(_name(block)) != now.get(_name(block)))
    return frozenset().union(*other)


def differing(version: Version, now: Mapping[str, str]) -> list[str]:
    """Return the tables that are not what the version commits to; none for a version of before 0.3, which does not."""
    said = version.commitments or {}
    return [table for table, digest in said.items() if now.get(table) != digest]


def _stored(session: Session, generation_id: int, by: str) -> dict[str, str]:
    """Return the stored digest of each block by its name, in order."""
    blocks = session.execute(_BLOCKS, {"generation": generation_id, "kinds": [by]})
    return {name: digest for _, name, digest in blocks}


def _stored_of(session: Session, generation_id: int, by: str, names: Iterable[str]) -> dict[str, str]:
    stored: dict[str, str] = {}
    for batch in batches(sorted(frozenset(names))):
        blocks = session.execute(_BLOCKS.where(_NAMED), {"generation": generation_id, "kinds": [by], "names": batch})
        stored |= {name: digest for _, name, digest in blocks}
    return stored


def _whole(pepper: Pepper, table: str, generation_id: int, blocks: Iterable[tuple[str, str]]) -> str:
    """Return the digest of a table from the digests of its blocks."""
    return rows_digest(pepper, table, generation_id, (f"{name}|{digest}" for name, digest in sorted(blocks)))


def _name(block: int) -> str:
    return f"{block:08x}"


_MARKS = select(Removal.position, Removal.version_id).order_by(Removal.position)


def _marked(session: Session, pepper: Pepper, generation_id: int) -> dict[str, str]:
    """Return the digest of each block of marks by its name, in order, from every mark."""
    marks = _MARKS.where(Removal.generation_id == generation_id)
    read = session.execute(marks.execution_options(yield_per=_AT_ONCE))
    by_block = groupby(((position, version) for position, version in read), key=lambda mark: mark[0] // ROWS)
    return {_name(block): _of_marks(pepper, generation_id, block, part) for block, part in by_block}


_MARKS_WITHIN = _MARKS.where(
    Removal.generation_id == bindparam("generation"),
    Removal.position.between(bindparam("first"), bindparam("last")),
)


def _marked_in(
    session: Session, pepper: Pepper, generation_id: int, blocks: Iterable[int], new: Iterable[Mark] = ()
) -> dict[str, str]:
    """Return the digest of each of these blocks of marks by its name, from its rows and these new ones.

    A block without marks has none.
    """
    added: dict[int, list[Mark]] = {}
    for mark in new:
        added.setdefault(mark[0] // ROWS, []).append(mark)
    digests: dict[str, str] = {}
    for block in sorted(blocks):
        within = {"first": block * ROWS, "last": (block + 1) * ROWS - 1}
        rows = session.execute(_MARKS_WITHIN, {"generation": generation_id, **within})
        marks = sorted([*((position, version) for position, version in rows), *added.get(block, ())])
        if marks:
            digests[_name(block)] = _of_marks(pepper, generation_id, block, marks)
    return digests


def _of_marks(pepper: Pepper, generation_id: int, block: int, marks: Iterable[Mark]) -> str:
    lines = (f"{position}|{version}" for position, version in marks)
    return rows_digest(pepper, f"{FORGOTTEN}/{_name(block)}", generation_id, lines)


def _block(pepper: Pepper, generation_id: int, by: str, prefix: str, lines: Iterable[str]) -> str:
    return rows_digest(pepper, f"{MEMBERSHIPS}/{by}/{prefix}", generation_id, lines)


def _computed(
    session: Session, pepper: Pepper, generation_id: int, by: str, see: Callable[[Sequence[str]], object] | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the digest of each block by its prefix, from the rows; of empty blocks too. ``see`` is shown the lines.

    A row whose name is no digest makes a block that is stored nowhere.
    """
    column, mine = _COLUMNS[by], Membership.generation_id == generation_id
    count = session.scalar(select(func.count()).select_from(Membership).where(mine)) or 0
    digits = next(digits for digits in range(64) if count <= ROWS * 16**digits)
    rows = select(column, _MEMBER).where(mine).order_by(column, Membership.position, Membership.subject_digest)
    # the connection gives plain rows; the session would look for entities in each of them
    read = session.connection().execute(rows.execution_options(yield_per=_AT_ONCE))

    def prefixed() -> Iterator[tuple[str, str]]:
        for part in read.partitions():
            flat = list(chain.from_iterable(part))
            names, lines = flat[::2], flat[1::2]
            if see is not None:
                see(lines)
            yield from zip([name[:digits] for name in names], lines, strict=True)

    found = {
        prefix: _block(pepper, generation_id, by, prefix, map(itemgetter(1), part))
        for prefix, part in groupby(prefixed(), key=itemgetter(0))
    }
    empty = ("".join(prefix) for prefix in product("0123456789abcdef", repeat=digits))
    blank = {prefix: _block(pepper, generation_id, by, prefix, ()) for prefix in empty if prefix not in found}
    yield from sorted((found | blank).items())


_LINES = {
    by: select(_MEMBER)
    .where(Membership.generation_id == bindparam("generation"), column >= bindparam("first"), column < bindparam("end"))
    .order_by(column, Membership.position, Membership.subject_digest)
    for by, column in _COLUMNS.items()
}


def _lines(session: Session, generation_id: int, by: str, prefix: str) -> Iterable[str]:
    """Return the lines of one block, in order."""
    return session.scalars(_LINES[by], {"generation": generation_id, "first": prefix, "end": f"{prefix}g"})


def _terms(generation: Generation) -> str:
    """Return what a generation fixed before its first version, in canonical JSON."""
    manifest = {name: fact for name, fact in (generation.manifest or {}).items() if name not in WORK_NOTES}
    return canonical({name: str(getattr(generation, name)) for name in _TERMS} | {"manifest": manifest})
