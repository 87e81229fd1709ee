"""Near misses: whether an id that no model knows may be the id of somebody whom a model knows.

Four questions, in this order: is somebody's id written nearly so, is a legal hold on one, is the text no id at all,
does no id of the models look so? One yes, and a person decides (``spelling_decisions``). What is kept of an id's text
are numbers under the pepper: those of its reduced forms and of its look. The rules about text are the client's
(``expunge_client.spelling``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import BindParameter, CompoundSelect, bindparam, func, null, select, union
from sqlalchemy.orm import Session

from expunge.service.infra.db import batches
from expunge.service.infra.pseudonyms import Pepper, look_number, person_number, spelling_number
from expunge.service.infra.tables import (
    DeletionRequest,
    Generation,
    Hold,
    HoldoutPerson,
    Membership,
    Spelling,
    SuppressionEntry,
    Task,
)
from expunge.service.requests.reasons import Cause, Reason
from expunge.service.requests.states import Status
from expunge_client.spelling import PLAIN, damage, forms, usual_looks

SPELLINGS = "spellings"
"""the note of a generation whose people's forms are in the table: ``looks``, the numbers of its common looks, or None
where they tell nothing. Without the note its people are compared exactly only"""
MOST_NEAR = 1000
"""people that one request is asked about"""
_BY = {
    "number": "leading zeros, decimals or an exponent",
    "plain": "case, blanks or look-alike letters",
    "start": "the last digits of a long number",
    "uuid": "what is around a UUID, or the order of its bytes",
    "mailbox": "dots or a tag in an e-mail address",
    "segments": "a prefix or leading zeros",
    "bare": "punctuation, or letters read as digits",
}
"""in what two ids with a form of this kind in common differ"""
_WHOLE = frozenset({"number", "plain", "uuid", "mailbox"})
"""kinds of forms that keep the whole id; the others drop a prefix or a part, in which ids of two models may differ"""
_NOTES = select(Generation.id, Generation.manifest[SPELLINGS]).where(
    Generation.id.in_(bindparam("generations", expanding=True))
)
_NEAR = select(Spelling.form, Spelling.generation_id, Spelling.person).where(
    Spelling.form.in_(bindparam("forms", expanding=True)),
    Spelling.generation_id.in_(bindparam("generations", expanding=True)),
)
_GENERATIONS: BindParameter[Any] = bindparam("generations", expanding=True)
_SUBJECTS: BindParameter[Any] = bindparam("subjects", expanding=True)
_EXACT: CompoundSelect[Any] = union(
    *(
        select(table.subject_digest, null())
        .where(table.generation_id.in_(_GENERATIONS))
        .where(table.subject_digest.in_(_SUBJECTS))
        for table in (Membership, HoldoutPerson)
    ),
    select(SuppressionEntry.subject_digest, Task.model_id)
    .join(Task, Task.request_id == SuppressionEntry.request_id)
    .where(
        SuppressionEntry.tenant_id == bindparam("tenant"),
        SuppressionEntry.subject_digest.in_(_SUBJECTS),
        SuppressionEntry.lifted_at.is_(None),
        Task.model_id.in_(bindparam("models", expanding=True)),
        Task.samples > 0,
    ),
)
_HOLDS = select(Hold.subject_digest, Hold.spelling).where(
    Hold.tenant_id == bindparam("tenant"),
    Hold.lifted_at.is_(None),
    Hold.subject_digest.is_not(None),
    Hold.spelling.is_not(None),
)
_BUILDING = (
    select(func.min(Generation.created_at))
    .where(Generation.tenant_id == bindparam("tenant"), Generation.status.in_(("preparing", "candidate")))
    .scalar_subquery()
)
_TO_DELETE = (
    select(SuppressionEntry.subject_digest, SuppressionEntry.spelling)
    .join(DeletionRequest, DeletionRequest.id == SuppressionEntry.request_id)
    .where(SuppressionEntry.tenant_id == bindparam("tenant"), SuppressionEntry.lifted_at.is_(None))
    .where(SuppressionEntry.subject_digest.is_not(None), SuppressionEntry.spelling.is_not(None))
    .where(
        DeletionRequest.status.in_((Status.QUEUED, Status.RUNNING, Status.BLOCKED))
        | (SuppressionEntry.created_at >= _BUILDING)
    )
)
_DECIDED = (
    select(DeletionRequest.others)
    .join(SuppressionEntry, SuppressionEntry.request_id == DeletionRequest.id)
    .where(SuppressionEntry.tenant_id == bindparam("tenant"))
    .where(SuppressionEntry.subject_digest.in_(bindparam("subjects", expanding=True)))
    .where(DeletionRequest.others.is_not(None))
)


@dataclass(frozen=True)
class Written:
    """How an id is written, in numbers that do not give it away."""

    forms: Mapping[str, int]
    """by kind, the number of each reduced form"""
    looks: tuple[int, ...]
    """numbers of the looks of which any makes the id usual"""
    damage: str | None
    """why the text is no id; None: it may be one"""

    @classmethod
    def of(cls, pepper: Pepper, tenant_id: str, subject: str) -> Written:
        return cls(
            {kind: spelling_number(pepper, tenant_id, form) for kind, form in forms(subject).items()},
            tuple(look_number(pepper, tenant_id, shape) for shape in usual_looks(subject)),
            damage(subject),
        )

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Written:
        return cls(row["forms"], tuple(row["looks"]), row["damage"])

    def to_json(self) -> dict[str, Any]:
        return {"forms": dict(self.forms), "looks": list(self.looks), "damage": self.damage}

    @property
    def plain(self) -> frozenset[int]:
        """Return the number of the plain form."""
        return frozenset(number for kind, number in self.forms.items() if kind in PLAIN)


class Question(NamedTuple):
    """Why a request waits until a person has decided about its id."""

    cause: Cause
    near: tuple[int, ...] = ()
    """the people whose ids are written nearly so, as ``Spelling.person`` has them; sorted"""
    by: tuple[str, ...] = ()
    """in what those differ"""

    @property
    def facts(self) -> dict[str, Any]:
        """Return what the reason's sentence names."""
        counted = {"near": len(self.near), "differs": ", or ".join(self.by)} if self.near else {}
        return {"cause": self.cause, **counted}


class Compared(StrEnum):
    """With what of a generation's people the id of a request is compared."""

    EXACTLY = "exactly"
    """their ids alone"""
    BY_FORMS = "by_forms"
    """their reduced forms too; their ids look in too many ways for any to be unusual"""
    BY_FORMS_AND_LOOKS = "by_forms_and_looks"

    @classmethod
    def of(cls, generation: Generation) -> Compared:
        note = (generation.manifest or {}).get(SPELLINGS)
        if note is None:
            return cls.EXACTLY
        return cls.BY_FORMS if note["looks"] is None else cls.BY_FORMS_AND_LOOKS


class Searched(NamedTuple):
    """A model that an order covers, with its generation. ``twins``: its policy asks about twins."""

    model_id: str
    generation_id: int
    twins: bool


@dataclass(frozen=True)
class Asked:
    """What the four questions came to."""

    question: Question | None
    compared: bool
    """every model that was searched has the forms of its people: other spellings were looked for"""
    text: Cause | None
    """what the text and the looks alone say, and no match: damaged, or of an unusual shape"""


def ask(
    session: Session,
    tenant_id: str,
    ids: Mapping[str, Written | None],
    searched: Sequence[Searched],
    *,
    unknown: bool = False,
    waits: bool = False,
    decided: Collection[int] | None = None,
) -> Asked:
    """Ask the four questions about the ids of one person.

    The same statements are sent for every id, so that an answer's time says little.

    Args:
        ids: by digest; None: the text was never kept, so the id is compared exactly only.
        searched: the models whose people are known.
        unknown: there are other models, with people not known yet: no shape is unusual, and any id may be known.
        waits: the request waits for one of those, and is asked about again when its people are known, or when it ends
            without a version. Until then a prefix or a part in which ids differ is no question: of two models with ids
            of their own, customer-17 of one is no misspelled order-17 of the other.
        decided: people who were said to be others than this one; None: no person has decided about this request yet.
            What was decided about the same ids in other requests counts too.
    """
    generations = [each.generation_id for each in searched]
    written = {subject: known for subject, known in ids.items() if known is not None}
    near_holds = _alike(session.execute(_HOLDS, {"tenant": tenant_id}), written)
    held = {subject: by for subject, by in near_holds.items() if subject not in ids}
    anybody = _known_in(session, tenant_id, [*ids, *held], searched)
    exact = anybody.keys() & ids.keys()
    sought = {number for known in written.values() for number in known.forms.values()}
    rows = near_rows(session, sought, generations)
    notes = {key: note for key, note in session.execute(_NOTES, {"generations": generations}) if note is not None}
    before = _decided_about(session, tenant_id, ids) + ([] if decided is None else [decided])
    apart = {person_number(subject) for subject in ids}.union(*before)
    models = {each.generation_id: each.model_id for each in searched}
    twins_asked = {each.generation_id for each in searched if each.twins}
    near: dict[int, set[str]] = {}
    twins: dict[int, set[str]] = {}
    for subject, known in written.items():
        kinds = {number: kind for kind, number in known.forms.items() if not waits or kind in _WHOLE}
        for form, generation, person in rows:
            if form not in kinds or person in apart:
                continue
            if anybody.get(subject, frozenset()).isdisjoint({None, models[generation]}):
                near.setdefault(person, set()).add(_BY[kinds[form]])
            elif form in known.plain and generation in twins_asked:
                twins.setdefault(person, set()).add(_BY[kinds[form]])
    holds = {
        person_number(subject): set(by)
        for subject, by in held.items()
        if subject not in anybody  # else the hold keeps that person, and no other is meant
    }
    under_hold = {person: by for person, by in holds.items() if person not in apart}
    compared = len(notes) == len(set(generations)) and len(written) == len(ids) and bool(ids)
    damaged = any(known.damage is not None for subject, known in written.items() if subject not in exact)
    odd = not unknown and compared and _unusual(written.values(), list(notes.values()))
    text = (
        Cause.DAMAGED if any(known.damage is not None for known in written.values()) else Cause.SHAPE if odd else None
    )
    if near or twins:
        question = _about(Cause.SPELLING if near else Cause.TWINS, near, twins)
    elif under_hold:
        question = _about(Cause.HOLD, under_hold)
    elif damaged and not before:
        question = Question(Cause.DAMAGED)
    elif odd and not exact and not before:
        question = Question(Cause.SHAPE)
    else:
        question = None
    return Asked(question, compared, text)


def near_to_delete(session: Session, tenant_id: str, subject: str, written: Written) -> Question | None:
    """Return the question whether an id is nearly that of somebody whose deletion is under way; None: it is not.

    Under way is, too, what was asked for since the oldest generation in work began: that may turn out to hold them.
    None as well where the id is that of such a person.
    """
    alike = _alike(session.execute(_TO_DELETE, {"tenant": tenant_id}), {subject: written})
    if not alike or subject in alike:
        return None
    return _about(Cause.SPELLING, {person_number(other): by for other, by in alike.items()})


class NamedPerson(NamedTuple):
    """A suppression entry of a person: the request, the person's digest, and how the id is written."""

    request_id: str
    subject_digest: str
    written: Written


def questions_of(
    session: Session, entries: Iterable[NamedPerson], holders: Mapping[int, Iterable[int]], apart: Collection[int] = ()
) -> dict[str, Question]:
    """Return the question of each request of which an entry's id is written nearly as somebody's, but for no prefix.

    What was decided about the same ids in other requests counts, as in ``ask``.

    Args:
        holders: by form, the people who have it, as ``Spelling.person`` has them.
        apart: people about whom no question is asked.
    """
    near: dict[str, dict[int, set[str]]] = {}
    ids: dict[str, set[str]] = {}
    for request_id, subject, written in entries:
        ids.setdefault(request_id, set()).add(subject)
        for kind, form in written.forms.items():
            # user-17 of one model's data is no misspelled order-17 of another's, and must not stop its registration
            for person in holders.get(form, ()) if kind in _WHOLE else ():
                near.setdefault(request_id, {}).setdefault(person, set()).add(_BY[kind])
    found: dict[str, Question] = {}
    for request_id, people in near.items():
        own = ids[request_id]
        tenant_id = session.get_one(DeletionRequest, request_id).tenant_id
        others = set(apart).union(map(person_number, own), *_decided_about(session, tenant_id, own))
        left = {person: by for person, by in people.items() if person not in others}
        if left:
            found[request_id] = _about(Cause.SPELLING, left)
    return found


def _decided_about(session: Session, tenant_id: str, ids: Iterable[str]) -> list[Collection[int]]:
    """Return the people who were said to be others than the one with these ids, by request in which that was said."""
    return list(session.scalars(_DECIDED, {"tenant": tenant_id, "subjects": list(ids)}))


def near_rows(session: Session, numbers: Iterable[int], generations: Collection[int]) -> list[tuple[int, int, int]]:
    """Return (form, generation, person) of the people of these generations that have one of these forms."""
    place = {"generations": list(generations)}
    return [
        (form, generation, person)
        for part in batches(sorted(numbers))
        for form, generation, person in session.execute(_NEAR, {"forms": part, **place})
    ]


def how_compared(reason: str | None, facts: Mapping[str, Any]) -> Cause | None:
    """Return how an id that no model knows was compared; None for any other reason, and for a request of release 0.2.

    ``facts``: those of the request, by reason.
    """
    if reason not in (Reason.NO_MATCH, Reason.NOT_IN_NAMED_MODELS):
        return None
    cause = facts.get(reason, {}).get("cause")
    return None if cause is None else Cause(cause)


def written_of(session: Session, request: DeletionRequest) -> dict[str, Written | None]:
    """Return how the ids of a request's subject are written, by digest; none where it names samples."""
    rows = select(SuppressionEntry.subject_digest, SuppressionEntry.spelling).where(
        SuppressionEntry.request_id == request.id, SuppressionEntry.subject_digest.is_not(None)
    )
    return {
        subject: None if spelling is None else Written.from_json(spelling)
        for subject, spelling in session.execute(rows)
        if subject is not None
    }


def known_exactly(session: Session, tenant_id: str, ids: Iterable[str], searched: Sequence[Searched]) -> frozenset[str]:
    """Return those of the ids that a model was trained on, that a holdout has, or that was deleted already."""
    return frozenset(_known_in(session, tenant_id, ids, searched))


def _known_in(
    session: Session, tenant_id: str, ids: Iterable[str], searched: Sequence[Searched]
) -> dict[str, frozenset[str | None]]:
    """Return where each of these ids is known, of those that are: models that deleted it; None: some model's data.

    That a model has deleted an id, maybe under its right spelling, says nothing of the next model's people.
    """
    place = {
        "tenant": tenant_id,
        "subjects": list(ids),
        "generations": [each.generation_id for each in searched],
        "models": [each.model_id for each in searched],
    }
    known: dict[str, frozenset[str | None]] = {}
    for subject, model_id in session.execute(_EXACT, place):
        known[subject] = known.get(subject, frozenset()) | {model_id}
    return known


def _alike(rows: Iterable[Any], written: Mapping[str, Written]) -> dict[str, list[str]]:
    """Return in what the ids of these rows differ that are written nearly as one of ``written``, by digest.

    ``rows``: digests, with how each is written.
    """
    kinds = {number: _BY[kind] for known in written.values() for kind, number in known.forms.items()}
    alike: dict[str, list[str]] = {}
    for subject, spelling in rows:
        by = [kinds[number] for number in Written.from_json(spelling).forms.values() if number in kinds]
        if by:
            alike[subject] = by
    return alike


def _unusual(written: Iterable[Written], notes: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether no id of the models looks like any of these. Where a model's looks tell nothing, none is."""
    looks = [note["looks"] for note in notes]
    if not looks or any(each is None for each in looks):
        return False
    common = frozenset(number for each in looks for number in each)
    return all(common.isdisjoint(known.looks) for known in written)


def _about(cause: Cause, *found: Mapping[int, Iterable[str]]) -> Question:
    people = sorted({person for each in found for person in each})[:MOST_NEAR]
    by = sorted({differs for each in found for kinds in each.values() for differs in kinds})
    return Question(cause, tuple(people), tuple(by))
