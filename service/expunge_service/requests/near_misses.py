"""Near misses: whether an id that no model knows may be the id of somebody whom a model knows.

Four questions, in this order: is somebody's id written nearly so, is a legal hold on one, is the text no id at all,
does no id of the models look so? One yes, and a person decides (``spelling_decisions``). What is kept of an id's text
are numbers under the pepper: those of its reduced forms and of its look. The rules about text are the client's
(``expunge_client.spelling``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import (
    BindParameter,
    CompoundSelect,
    String,
    bindparam,
    cast,
    func,
    literal_column,
    null,
    select,
    union_all,
)
from sqlalchemy.orm import Session

from expunge_client.spelling import PLAIN, damage, forms, usual_looks
from expunge_service.infra.db import batches
from expunge_service.infra.pseudonyms import Pepper, look_number, person_number, spelling_number
from expunge_service.infra.tables import (
    DeletionRequest,
    Generation,
    Hold,
    HoldoutPerson,
    Membership,
    Spelling,
    SuppressionEntry,
    Task,
)
from expunge_service.requests.reasons import Cause, Reason
from expunge_service.requests.states import Status
from expunge_service.requests.suppression import MEMBERS_FROZEN

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
_GENERATIONS: BindParameter[Any] = bindparam("generations", expanding=True)
_SUBJECTS: BindParameter[Any] = bindparam("subjects", expanding=True)
_NAMES: BindParameter[Any] = bindparam("names", expanding=True)
_TENANT: BindParameter[Any] = bindparam("tenant")
_PEOPLE, _HELD_OUT, _HOLDS = Membership.__table__.c, HoldoutPerson.__table__.c, Hold.__table__.c
_GENERATION, _FORMS, _TASKS = Generation.__table__.c, Spelling.__table__.c, Task.__table__.c
_REQUESTS, _ENTRIES = DeletionRequest.__table__.c, SuppressionEntry.__table__.c


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


@dataclass(frozen=True)
class Matches:
    """What the tables know of ids and samples, of one order or of many. Digests name people and samples."""

    frozen: Collection[int]
    """the generations in preparation whose people are known"""
    looks: Mapping[int, Mapping[str, Any]]
    """by generation, the note ``SPELLINGS``"""
    holds: Mapping[int, Collection[str]]
    """by form, the people under a hold whose ids have it"""
    decided: Mapping[str, Sequence[Collection[int]]]
    """by person, those who were said to be others, by request in which that was said"""
    samples: Counter[tuple[str, int | None]]
    """by person (or sample) and generation: how many of its samples the generation was trained on, forgotten or not"""
    places: Mapping[str, Collection[int | str]]
    """by person: the generations that were trained on them or hold them out, and the models that deleted them"""
    near: Mapping[int, Collection[tuple[int, int]]]
    """by form, (generation, person) of those whose ids have it"""

    def known_in(self, subject: str, searched: Sequence[Searched]) -> frozenset[str | None]:
        """Return in which of these models the person is known: those that deleted them; None: some model's data.

        That a model has deleted an id, maybe under its right spelling, says nothing of the next model's people.
        """
        places = self.places.get(subject, ())
        known = {model.model_id for model in searched if model.model_id in places}
        in_data = any(model.generation_id in places for model in searched)
        return frozenset({*known, None} if in_data else known)

    def with_forms(self, forms: Iterable[int], generations: Collection[int]) -> Iterator[tuple[int, int, int]]:
        """Yield (form, generation, person) of the people of these generations that have one of these forms."""
        for form in forms:
            for generation, person in self.near.get(form, ()):
                if generation in generations:
                    yield form, generation, person


_DECIDED = (
    select(literal_column("'decided'").label("kind"), _ENTRIES.subject_digest, _REQUESTS.others)
    .join_from(SuppressionEntry.__table__, DeletionRequest.__table__, _REQUESTS.id == _ENTRIES.request_id)
    .where(_ENTRIES.tenant_id == _TENANT, _ENTRIES.subject_digest.in_(_SUBJECTS), _REQUESTS.others.is_not(None))
)
_NOTED: CompoundSelect[Any] = union_all(
    _DECIDED,
    select(literal_column("'hold'"), _HOLDS.subject_digest, _HOLDS.spelling).where(
        _HOLDS.tenant_id == _TENANT,
        _HOLDS.lifted_at.is_(None),
        _HOLDS.subject_digest.is_not(None),
        _HOLDS.spelling.is_not(None),
    ),
    *(
        select(literal_column(f"'{note}'"), cast(_GENERATION.id, String), _GENERATION.manifest[note]).where(
            _GENERATION.id.in_(_GENERATIONS)
        )
        for note in (SPELLINGS, MEMBERS_FROZEN)
    ),
)
"""(kind, key, JSON): what was decided about these ids, the holds, and the notes of these generations"""


def look_up(
    session: Session,
    tenant_id: str,
    ids: Mapping[str, Written | None],
    models: Mapping[int, str],
    samples: Collection[str] = (),
) -> Matches:
    """Look up the ids of people, and samples, of one order or of many.

    The same statements are sent for every id, so that an answer's time says little.

    Args:
        ids: by digest; None: the text was never kept.
        models: by generation, the models that may know them.
        samples: digests of samples that are named themselves.
    """
    notes: dict[str, dict[int, Any]] = {SPELLINGS: {}, MEMBERS_FROZEN: {}}
    holds: dict[int, set[str]] = {}
    decided: dict[str, list[Collection[int]]] = {}
    place = {"tenant": tenant_id, "generations": [*models], "models": [*models.values()]}
    for subjects in [*batches(ids)] or [[]]:
        for kind, key, note in session.execute(_NOTED, place | {"subjects": subjects}):
            if kind == "decided":
                decided.setdefault(key, []).append(note)
            elif kind == "hold":
                for number in Written.from_json(note).forms.values():
                    holds.setdefault(number, set()).add(key)
            elif note is not None:
                notes[kind][int(key)] = note
    sought = {number for known in ids.values() if known is not None for number in known.forms.values()}
    held = {subject for number in sought for subject in holds.get(number, ())}
    counts, places = _known(session, place, {*ids, *held, *samples})
    near: dict[int, list[tuple[int, int]]] = {}
    for form, generation, person in near_rows(session, sought, [*models]):
        near.setdefault(form, []).append((generation, person))
    return Matches(notes[MEMBERS_FROZEN].keys(), notes[SPELLINGS], holds, decided, counts, places, near)


def ask(
    matches: Matches,
    ids: Mapping[str, Written | None],
    searched: Sequence[Searched],
    *,
    unknown: bool = False,
    waits: bool = False,
    decided: Collection[int] | None = None,
) -> Asked:
    """Ask the four questions about the ids of one person.

    Args:
        matches: what was looked up of these ids, and maybe of others.
        ids: by digest; None: the text was never kept, so the id is compared exactly only.
        searched: the models whose people are known.
        unknown: there are other models, with people not known yet: no shape is unusual, and any id may be known.
        waits: the request waits for one of those, and is asked about again when its people are known, or when it ends
            without a version. Until then a prefix or a part in which ids differ is no question: of two models with ids
            of their own, customer-17 of one is no misspelled order-17 of the other.
        decided: people who were said to be others than this one; None: no person has decided about this request yet.
            What was decided about the same ids in other requests counts too.
    """
    models = {each.generation_id: each.model_id for each in searched}
    written = {subject: known for subject, known in ids.items() if known is not None}
    near_holds = _under_hold(matches.holds, written)
    held = {subject: by for subject, by in near_holds.items() if subject not in ids}
    places = {subject: matches.known_in(subject, searched) for subject in (*ids, *held)}
    anybody = {subject: known for subject, known in places.items() if known}
    exact = anybody.keys() & ids.keys()
    notes = [matches.looks[generation] for generation in models if generation in matches.looks]
    before = [people for subject in ids for people in matches.decided.get(subject, ())]
    before += [] if decided is None else [decided]
    apart = {person_number(subject) for subject in ids}.union(*before)
    twins_asked = {each.generation_id for each in searched if each.twins}
    near: dict[int, set[str]] = {}
    twins: dict[int, set[str]] = {}
    for subject, known in written.items():
        kinds = {number: kind for kind, number in known.forms.items() if not waits or kind in _WHOLE}
        for form, generation, person in matches.with_forms(kinds, models):
            if person in apart:
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
    compared = len(notes) == len(models) and len(written) == len(ids) and bool(ids)
    damaged = any(known.damage is not None for subject, known in written.items() if subject not in exact)
    odd = not unknown and compared and _unusual(written.values(), notes)
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
    return [people for *_, people in session.execute(_DECIDED, {"tenant": tenant_id, "subjects": list(ids)})]


_NEAR = select(_FORMS.form, _FORMS.generation_id, _FORMS.person).where(
    _FORMS.form.in_(bindparam("forms", expanding=True)), _FORMS.generation_id.in_(_GENERATIONS)
)


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
    place = {
        "tenant": tenant_id,
        "generations": [each.generation_id for each in searched],
        "models": [each.model_id for each in searched],
    }
    return frozenset(_known(session, place, ids)[1])


_KNOWN: CompoundSelect[Any] = union_all(
    *(
        select(name, _PEOPLE.generation_id, null().label("model_id"), func.count().label("samples"))
        .where(_PEOPLE.generation_id.in_(_GENERATIONS), name.in_(_NAMES))
        .group_by(name, _PEOPLE.generation_id)
        for name in (_PEOPLE.subject_digest, _PEOPLE.sample_digest)
    ),
    select(_HELD_OUT.subject_digest, _HELD_OUT.generation_id, null(), literal_column("0")).where(
        _HELD_OUT.generation_id.in_(_GENERATIONS), _HELD_OUT.subject_digest.in_(_NAMES)
    ),
    select(_ENTRIES.subject_digest, null(), _TASKS.model_id, literal_column("0"))
    .join_from(SuppressionEntry.__table__, Task.__table__, _TASKS.request_id == _ENTRIES.request_id)
    .where(
        _ENTRIES.tenant_id == _TENANT,
        _ENTRIES.subject_digest.in_(_NAMES),
        _ENTRIES.lifted_at.is_(None),
        _TASKS.model_id.in_(bindparam("models", expanding=True)),
        _TASKS.samples > 0,
    ),
)
"""(digest, generation, model, samples): a generation that was trained on samples of it, or holds the person out; or a
model that deleted the person"""


def _known(
    session: Session, place: Mapping[str, Any], names: Iterable[str]
) -> tuple[Counter[tuple[str, int | None]], dict[str, set[int | str]]]:
    """Return ``Matches.samples`` and ``Matches.places`` of people and samples in one place of the tables."""
    samples = Counter[tuple[str, int | None]]()
    places: dict[str, set[int | str]] = {}
    for part in [*batches(names)] or [[]]:
        for name, generation_id, model_id, count in session.execute(_KNOWN, {**place, "names": part}):
            samples[name, generation_id] += count
            places.setdefault(name, set()).add(model_id if generation_id is None else generation_id)
    return samples, places


def _under_hold(holds: Mapping[int, Collection[str]], written: Mapping[str, Written]) -> dict[str, list[str]]:
    """Return in what the ids of people under a hold differ that are written nearly as one of ``written``."""
    kinds = {number: _BY[kind] for known in written.values() for kind, number in known.forms.items()}
    alike: dict[str, list[str]] = {}
    for number, by in kinds.items():
        for subject in holds.get(number, ()):
            alike.setdefault(subject, []).append(by)
    return alike


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
