"""Every sentence of 2,000 drawn letters is true of the world that was drawn, and what has to be said is said.

The world is drawn first: which record each model held, under which name, when it left and under which claim, and
behind which walls its version was made. What the letter is made from, and what each sentence is compared with, follow
from it by code that shares nothing with the renderer. A sentence that no rule here knows fails.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, TypeAlias

from expunge_service.certificates.letters import Facts, letter
from expunge_service.certificates.outcome import ModelOutcome
from expunge_service.requests.accounts import Account, Departure
from expunge_service.requests.deadlines import Regulation
from expunge_service.requests.near_misses import how_compared
from expunge_service.requests.reasons import Cause, Reason
from expunge_service.requests.states import Status, Suppress
from tests.service.certificates.test_plain_words import claim_of, statement
from unlearning.accounting.certificate import Claim, Guarantee, guess
from unlearning.accounting.declarations import ARGUMENTS, CHOSEN, FITTED, PUBLIC
from unlearning.accounting.world import COLUMNS, DeclaredFile, Enclosure, WorldRecord

LETTERS = 2_000
NO_TERM = {"lgpd", "pipeda"}
"""laws that give no term for a deletion"""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
STRONG = (Guarantee.EXACT, Guarantee.PROVED)
SAID = {
    FITTED: "Features, scaling and settings were not made from {data}.",
    ARGUMENTS: "Training used nothing computed from {data} but the records themselves.",
    PUBLIC: "Parts that are marked public hold nothing of {data}.",
    CHOSEN: "The method was chosen by counts that include {data}.",
    COLUMNS: "No column of the tables mixes several people.",
    "The house rule was kept.": "The house rule was kept.",
}
Match: TypeAlias = "re.Match[str]"


@dataclass
class Place:
    """A model of the world."""

    name: str
    version: int
    guarantee: Guarantee
    on_word: bool
    deterministic: bool
    declared: tuple[str, ...]
    assumptions: tuple[str, ...]
    now: float
    ever: float | None
    state: str = "live"
    left_out: bool = False
    gone: dict[str, set[str]] = field(default_factory=dict)
    """by name: the records that this request took out"""
    before: dict[str, tuple[int, datetime, str]] = field(default_factory=dict)
    """by name: version, day and strength of what took it out before"""
    tests_on: set[str] = field(default_factory=set)
    """the names in its holdout"""
    unnamed: bool = False
    consumers: list[dict[str, Any]] = field(default_factory=list)
    walled: WorldRecord | None = None
    """the walls behind which it was made; None: it was made without"""

    @property
    def rooted(self) -> bool:
        return self.walled is not None and self.walled.walls is Enclosure.NEW_ROOT

    @property
    def differs(self) -> bool:
        return self.walled is not None and self.walled.repeats is False

    @property
    def changed(self) -> bool:
        return self.state == "live" and bool(self.gone)

    @property
    def records(self) -> set[str]:
        return {record for records in self.gone.values() for record in records}

    @property
    def strength(self) -> str:
        if self.guarantee not in STRONG:
            return "changed"
        return "on_word" if self.guarantee is Guarantee.EXACT and self.on_word else "deleted"

    @property
    def numbers(self) -> tuple[float, float | None] | None:
        if self.strength != "deleted":
            return None
        return guess(self.now), None if self.ever is None else guess(self.ever)


@dataclass(eq=False)
class World:
    names: list[str]
    of_samples: bool
    models: list[Place]
    status: Status
    regulation: str | None
    due: bool
    limited: bool
    certificate: str
    """none, old (without ``named`` and ``records``), or new"""
    on_record: bool
    listed: bool
    together: float | None
    together_ever: float | None
    spellings: str
    """unrecorded; old: a model was compared exactly only; none was found; or others: those found are other people's"""
    preparing: bool
    overwritten: bool
    kept_out: bool
    received: datetime
    completed: datetime
    late: bool

    @property
    def changed(self) -> list[Place]:
        return [each for each in self.models if each.changed]

    @property
    def lost(self) -> list[Place]:
        return [each for each in self.changed if not each.left_out]

    @property
    def records(self) -> set[str]:
        return {record for each in self.lost for record in each.records}

    @property
    def weakest(self) -> str:
        order = ["changed", "on_word", "deleted"]
        return min((each.strength for each in self.changed), key=order.index)

    @property
    def data(self) -> str:
        return "these records" if self.of_samples else "your data"

    def fate(self, name: str) -> str:
        if any(each.changed and name in each.gone for each in self.models):
            return "deleted"
        if any(name in each.before for each in self.models):
            return "deleted_before"
        return "in_holdout" if any(name in each.tests_on for each in self.models) else "not_found"

    @property
    def departures(self) -> dict[tuple[str, int], tuple[datetime, str, int]]:
        """By model and version: the day, the strength, and of how many names it has to be told."""
        found: dict[tuple[str, int], tuple[datetime, str, int]] = {}
        for each in self.models:
            for name, (version, at, strength) in each.before.items():
                if each.changed and self.fate(name) == "deleted":
                    continue
                _, _, names = found.get((each.name, version), (at, strength, 0))
                found[each.name, version] = at, strength, names + 1
        return found

    @property
    def concerned(self) -> list[Place]:
        """The certificate's models that it has to be told of."""
        names = {each.name for each in self.changed} or {model for model, _ in self.departures}
        if not self.on_record:
            names = {each.name for each in self.changed or self.models if each.changed or each.before}
        return [each for each in self.models if each.name in names]


def drawn(seed: int) -> World:
    draw = random.Random(seed)

    def one_in(count: int) -> bool:
        return draw.randrange(count) == 0

    of_samples = one_in(3)
    names = [f"n{at}" for at in range(draw.choice((1, 1, 1, 2, 3, 5)))]
    received = datetime(2026, draw.randint(1, 9), draw.randint(1, 28), 12, tzinfo=UTC)
    kinds = draw.choice((list(Guarantee), list(Guarantee), STRONG, STRONG[:1], STRONG[1:]))
    models = []
    for at in range(draw.choice((1, 1, 2, 2, 3, 5))):
        guarantee = draw.choice(kinds)
        exact = guarantee is Guarantee.EXACT
        some = tuple(line for line in SAID if line not in (CHOSEN, COLUMNS) and one_in(2))
        lines = tuple(line for line in (CHOSEN, "The objective is convex.", "The noise is fresh.") if one_in(2))
        place = Place(
            name=f"m{at}",
            version=draw.randint(6, 9),
            guarantee=guarantee,
            on_word=one_in(4),
            deterministic=one_in(2),
            declared=() if guarantee is Guarantee.NONE else some,
            assumptions=() if guarantee is Guarantee.NONE else lines,
            now=0.0 if exact else draw.uniform(0, 1),
            ever=None if one_in(4) else 0.0 if exact and one_in(2) else draw.uniform(1, 2),
            state=draw.choice(("live",) * 8 + ("retired", "unpublished")),
            left_out=one_in(6),
            unnamed=one_in(5),
            consumers=[{"name": "web", "version": 1, "status": draw.choice(("current", "behind", "unknown"))}]
            * one_in(4),
        )
        for name in names:
            records = {name} if of_samples else {f"{name}-{draw.randint(0, 3)}" for _ in range(draw.randint(1, 4))}
            where = draw.choice(("now", "now", "before", "never", "never", "both"))
            if where in ("now", "both") and not (of_samples and where == "both"):
                place.gone[name] = records
            if where in ("before", "both") and place.state == "live" and not place.left_out:
                version = draw.randint(2, 5)
                at_day = received - timedelta(days=20 * (6 - version))
                place.before[name] = version, at_day, draw.choice(("changed", "on_word", "deleted"))
            if not of_samples and not place.unnamed and one_in(5):
                place.tests_on.add(name)
        kind_of: dict[int, str] = {}
        for name, (version, at_day, strength) in place.before.items():
            place.before[name] = version, at_day, kind_of.setdefault(version, strength)
        if one_in(3):
            wall_in(place, draw)
        models.append(place)
    certificate = draw.choice(("none", "old", "new", "new"))
    sure = all(each.numbers is not None for each in models) and all(each.state == "live" for each in models)
    ended = draw.choice((Status.COMPLETED,) * 12 + (Status.CANCELLED, Status.REJECTED, Status.QUEUED, Status.BLOCKED))
    return World(
        names=names,
        of_samples=of_samples,
        models=models,
        status=ended,
        regulation=draw.choice((None, *(each.value for each in Regulation))),
        due=one_in(2),
        limited=one_in(5),
        certificate=certificate,
        on_record=len(names) == 1 or not one_in(5),
        listed=not one_in(5),
        together=draw.uniform(1, 2) if sure and one_in(2) else None,
        together_ever=None if one_in(3) else draw.uniform(2, 3),
        preparing=one_in(5),
        overwritten=one_in(2),
        kept_out=not one_in(4),
        received=received,
        completed=received + timedelta(days=draw.choice((0, 1, 40))),
        late=one_in(2),
        spellings=draw.choice(("unrecorded", "old", "none", "others")),
    )


def wall_in(place: Place, draw: random.Random) -> None:
    """Let the model be made behind walls: what these did not show is the operator's word."""
    files = tuple(DeclaredFile(f"f{at}", str(at) * 64) for at in range(10) if draw.randrange(6) == 0)
    place.walled = WorldRecord(
        walls=draw.choice((Enclosure.NEW_ROOT, *Enclosure)),
        code="c" * 64,
        public_files=files,
        sources=("table", "reader", "reader"),
        own_readers=draw.choice((0, 0, 0, 0, 1, 2)),
        repeats=draw.choice((True, True, False, None)),
    )
    place.on_word = not (place.rooted and not place.walled.own_readers) or draw.randrange(8) == 0
    place.deterministic &= place.walled.repeats is True
    if place.guarantee is not Guarantee.NONE:
        fitted = (FITTED, ARGUMENTS)  # in a world, on the others' rows
        place.declared = (*(line for line in place.declared if line not in fitted), *place.walled.declared)


# ---- what the product is given: from the world, by its own records


def part_of(place: Place) -> ModelOutcome | None:
    if place.state != "live":
        reason = Reason.MODEL_RETIRED if place.state == "retired" else Reason.NOT_PUBLISHED
        return ModelOutcome(place.name, reason, None, 0, None) if place.gone else None
    if place.changed:
        reason = Reason.LEFT_OUT if place.left_out else None
        return ModelOutcome(place.name, reason, place.version, len(place.records), claim(place))
    if place.before:  # the version that is current now, which is not the first without
        return ModelOutcome(place.name, Reason.ALREADY_DELETED, place.version, 0, claim(place))
    return None


def claim(place: Place) -> dict[str, Any]:
    lines = {"declared": list(place.declared), "assumptions": list(place.assumptions)}
    words = {"operators_word": place.on_word, "deterministic": place.deterministic}
    said = claim_of(place.guarantee) | lines | (words if place.guarantee is Guarantee.EXACT else {})
    if place.walled is not None:
        said |= {"world": place.walled.to_json()}
        assert place.guarantee is not Guarantee.EXACT or Claim.from_json(said).world == place.walled
    return said


@cache
def facts_of(world: World) -> Facts:
    parts = [part for part in map(part_of, world.models) if part is not None]
    reason = None
    if not parts:
        found = {world.fate(name) for name in world.names}
        reason = Reason.NOT_IN_NAMED_MODELS if world.limited else Reason.NO_MATCH
        if "in_holdout" in found:
            reason = Reason.IN_HOLDOUT
    due = world.received + timedelta(days=30) if world.regulation or world.due else None
    extended = world.status is Status.QUEUED and world.regulation is not None
    return Facts(
        status=world.status,
        reason=reason,
        regulation=world.regulation,
        received=world.received,
        due=due and due + timedelta(days=60 * extended),
        first_due=due if extended else None,
        completed=world.completed if world.status is Status.COMPLETED else None,
        extended=extended,
        rejection="another person asked" if world.status is Status.REJECTED else None,
        limited_to=[each.name for each in world.models] if world.limited else None,
        of_samples=world.of_samples,
        kept_out=Suppress.EVERYWHERE if world.kept_out else None,
        parts=parts,
        accounts=accounts(world) if world.on_record else None,
        records=len(world.records) if world.listed else None,
        searched=len(world.models),
        compared=how_compared(reason, how(world, reason)),
        preparing=world.preparing,
        holdouts=[each.name for each in world.models if each.tests_on],
        overwritten=world.overwritten,
        unnamed_holdouts=[each.name for each in world.models if each.unnamed],
        statement=certificate(world, parts),
    )


def how(world: World, reason: Reason | None) -> dict[str, Any]:
    """The facts that a request keeps under its reason, of how its ids were compared."""
    causes = {"old": Cause.EXACTLY, "none": Cause.COMPARED, "others": Cause.OTHER_PEOPLE}
    known = {"searched": len(world.models)}
    return {str(reason): known | ({} if world.spellings not in causes else {"cause": causes[world.spellings]})}


def accounts(world: World) -> list[Account]:
    said = []
    for name in world.names:
        before = []
        for each in world.models:
            if name in each.before:
                version, at, strength = each.before[name]
                kind = Guarantee.NONE if strength == "changed" else Guarantee.EXACT
                of = claim_of(kind) | ({"operators_word": True} if strength == "on_word" else {})
                moment = (at - EPOCH) // timedelta(microseconds=1)
                before.append(Departure(each.name, version, moment, f"{each.name}/{version}", of))
        deleted = any(each.changed and name in each.gone for each in world.models)
        said.append(Account(deleted, tuple(before), any(name in each.tests_on for each in world.models)))
    return said


def certificate(world: World, parts: list[ModelOutcome]) -> dict[str, Any] | None:
    published = [part.model for part in parts if part.version is not None]
    if world.certificate == "none" or not published:
        return None
    shown = []
    for each in world.models:
        if each.name in published:
            later = None if each.ever is None else {"guarantee": each.guarantee.value, "mu": each.ever}
            shown.append(
                {
                    "model": each.name,
                    "version": each.version,
                    "samples": len(each.records) if each.changed else 0,
                    "claim": claim(each),
                    "as_of_version": {"mu": each.now if each.guarantee in STRONG else None},
                    "from_this_version_on": later,
                    "consumers": each.consumers,
                }
            )
    ever = None if world.together_ever is None else {"guarantee": "proved", "mu": world.together_ever}
    facts: dict[str, Any] = {"together": None}
    if world.together is not None and len(shown) > 1:
        facts["together"] = {"mu": world.together, "from_these_versions_on": ever}
    if world.certificate == "new":
        fates = Counter(world.fate(name) for name in world.names)
        before = [
            {"model": model, "version": version, "published_at": at.isoformat(), "strength": strength, "names": names}
            for (model, version), (at, strength, names) in world.departures.items()
        ]
        counts = {fate: fates[fate] for fate in ("deleted", "deleted_before", "in_holdout", "not_found")}
        facts["named"] = {"count": len(world.names), **counts, "before": before} if world.on_record else None
        facts["records"] = len(world.records) if world.listed else None
    return statement(*shown, **facts)


# ---- what may be said: each sentence, and whether it is true


def day(at: datetime) -> str:
    return f"{at.day} {at:%B %Y}"


def names_in(text: str) -> list[str]:
    return re.findall(r'"(m\d+)"', text)


def are(text: str, expected: list[str] | set[str]) -> bool:
    """Whether the text names these models: some of them, and the number of the others."""
    shown, more = names_in(text), re.search(r"(\d+) more", text)
    return len(shown) + int(more[1] if more else 0) == len(set(expected)) and set(shown) <= set(expected)


def where(world: World, text: str) -> bool:
    if any(each.state == "retired" and each.gone for each in world.models):
        return "that we still use" in text
    return ("some of our" in text) == world.limited


def what(world: World, text: str) -> bool:
    if not world.of_samples:
        return text == "your data"
    every = world.on_record and all(world.fate(name) == "deleted" for name in world.names)
    return text == ("the records that you named" if every else "some of the records that you named")


def count_is_true(world: World, text: str, places: list[Place]) -> bool:
    """Whether the text has how many records these models lost, each once, or what each lost."""
    about = "that you named" if world.of_samples else "about you"
    number = re.fullmatch(rf"([\d,]+) records? {about}", text)
    distinct = {record for each in places for record in each.records}
    if number:
        return int(number[1]) == len(distinct) and (len(places) == 1 or (world.listed and places == world.lost))
    each_one = re.fullmatch(rf"records {about} \((.*), some of them perhaps the same\)", text)
    counts = re.findall(r'([\d,]+) in "(m\d+)"', each_one[1]) if each_one else []
    lost = {each.name: len(each.records) for each in places}
    return len(places) > 1 and bool(counts) and all(lost[model] == int(count) for count, model in counts)


def versions_are(world: World, text: str) -> bool:
    pairs = re.findall(r'version (\d+)(?: of "(m\d+)")?', text)
    by_name = {each.name: each.version for each in world.changed}
    if len(by_name) == 1:
        return [int(number) for number, _ in pairs] == list(by_name.values())
    return {name: int(number) for number, name in pairs} == by_name


def weak(world: World) -> list[str]:
    return [each.name for each in world.changed if each.strength == "changed"]


def before_is_true(world: World, text: str, strength: str) -> bool:
    told: dict[str, dict[int, datetime]] = {}
    for (model, version), (at, how, _) in world.departures.items():
        if how == strength:
            told.setdefault(model, {})[version] = at
    shown = re.findall(r'"(m\d+)" \((versions? [^)]*)\)', text)
    for model, versions in shown:
        first, last = min(told[model]), max(told[model])
        wanted = f"version {first} of {day(told[model][first])}"
        if first != last:
            wanted = f"versions {first} to {last}, {day(told[model][first])} to {day(told[model][last])}"
        if versions != wanted:
            return False
    return are(text, set(told))


def certified(world: World) -> list[Place]:
    """The models of the certificate that are told of."""
    return [] if facts_of(world).statement is None else world.concerned


def numbers_of(world: World) -> tuple[float, float | None] | None:
    """The odds that the letter has to give: over all, or the greatest of each; None: none may be given."""
    found = facts_of(world).statement
    if found is None:
        return None
    shown = [each for each in world.models if each.name in {part["model"] for part in found["predicate"]["models"]}]
    bounded = [each.numbers for each in certified(world) if each.numbers is not None]
    if not bounded:
        return None
    both = found["predicate"]["together"]
    if len(shown) > 1 and both is not None and all(each.numbers for each in shown):
        ever = both["from_these_versions_on"]
        return guess(both["mu"]), None if ever is None else guess(ever["mu"])
    later = [ever for _, ever in bounded if ever is not None]
    return max(now for now, _ in bounded), max(later) if len(later) == len(bounded) else None


def is_most(world: World, now: str, ever: str | None) -> bool:
    wanted = numbers_of(world)
    assert wanted is not None
    return float(now) == float(f"{wanted[0]:g}") and (None if ever is None else float(ever)) == (
        None if wanted[1] is None else float(f"{wanted[1]:g}")
    )


def coin(world: World) -> bool:
    exact = all(each.guarantee is Guarantee.EXACT for each in certified(world) if each.numbers)
    return exact and numbers_of(world) in ((50.0, 50.0), (50.0, None))


def fate_is(world: World, text: str) -> bool:
    fates = Counter(world.fate(name) for name in world.names)
    ended = any(each.state != "live" and each.gone for each in world.models)
    nowhere = "none of the models that you named" if world.limited else "no model that we searched"
    nowhere = "no model that we still use" if ended else nowhere
    said = {
        fate: int(found[1]) if (found := re.search(rf"(\d+) (?:was|were) {how}", text)) else 0
        for fate, how in (
            ("deleted", "found in these models now"),
            ("deleted_before", "dealt with for an earlier request"),
            ("in_holdout", "found only among the records that measure a model"),
            ("not_found", f"found in {nowhere}"),
        )
    }
    return said == {fate: fates[fate] for fate in said}


def held(world: World, *strengths: str) -> list[str]:
    return [each.name for each in certified(world) if each.strength in strengths and each.changed]


def consumers(world: World, status: str) -> int:
    found = facts_of(world).statement
    shown = [] if found is None else found["predicate"]["models"]
    return sum(each["status"] == status for part in shown for each in part["consumers"])


MODELS = r'the models? (?:"m\d+"(?:, | and )?)+(?:\d+ more)?'
DATA = r"(your data|these records|(?:the|some of the) records that you named)"
WHERE = r"(our (?:trained )?models|some of our (?:trained )?models|the (?:trained )?models that we still use)"
RULES: dict[str, Callable[[World, Match], bool]] = {
    # headlines
    rf"We have deleted {DATA} from {WHERE}\.": lambda w, m: (
        w.weakest == "deleted" and bool(w.lost) and what(w, m[1]) and where(w, m[2])
    ),
    rf"We trained {WHERE} again(, or corrected them,)? without {DATA}\.": lambda w, m: (
        w.weakest == "on_word"
        and bool(m[2]) == any(each.guarantee is not Guarantee.EXACT for each in w.changed)
        and what(w, m[3])
        and where(w, m[1])
    ),
    rf"We changed {WHERE} to remove {DATA}\.": lambda w, m: (
        w.weakest == "changed" and bool(w.lost) and what(w, m[2]) and where(w, m[1])
    ),
    rf"We left {DATA} out of the training of {WHERE}\.": lambda w, m: (
        bool(w.changed) and not w.lost and what(w, m[1]) and where(w, m[2])
    ),
    r"We had already acted on (your data|these records), for an earlier request\.": lambda w, m: (
        not w.changed and any(each.before for each in w.models)
    ),
    r"We did not find your identifier(s)? in our trained models\.": lambda w, m: (
        not w.of_samples and not w.limited and not w.preparing and all(w.fate(n) == "not_found" for n in w.names)
    ),
    r"No model was trained on your data\.": lambda w, m: (
        w.overwritten and {w.fate(n) for n in w.names} <= {"in_holdout", "not_found"} and not w.changed
    ),
    r"We have finished your request\.": lambda w, m: not w.changed,
    r"Your request was withdrawn\.|The request was withdrawn before anything was deleted\.": lambda w, m: (
        w.status is Status.CANCELLED
    ),
    r"We did not carry out your request\.": lambda w, m: w.status is Status.REJECTED,
    r"We need more time\.": lambda w, m: w.status is Status.QUEUED,
    r"We deleted nothing\.": lambda w, m: w.status is Status.CANCELLED,
    r"We deleted nothing, because: another person asked\.": lambda w, m: w.status is Status.REJECTED,
    r"You can send us \[ \], or ask again at any time\.": lambda w, m: w.status is Status.REJECTED,
    # dates
    r"You asked (?:us )?on (.*)\.": lambda w, m: m[1] == day(w.received),
    r"We finished (on .*?|the same day)(?:; (the law gave us until|our own deadline was) "
    r"(.*?)(?: \(([A-Z ]+)\))?)?\.": (
        lambda w, m: (
            (m[1] == "the same day") == (w.completed == w.received)
            and (m[1] == "the same day" or m[1] == f"on {day(w.completed)}")
            and (m[2] is None) == (not (w.regulation or w.due))
            and (m[2] is None or ("law" in m[2]) == (w.regulation is not None and w.regulation not in NO_TERM))
            and (m[2] is None or m[3] == day(w.received + timedelta(days=30)))
            and (m[4] or "").replace(" ", "-").lower() in ("", w.regulation)
        )
    ),
    r"(The law gives us until|Our own deadline was) (.*)\.": lambda w, m: (
        ("law" in m[1]) == (w.regulation not in NO_TERM) and m[2] == day(w.received + timedelta(days=30))
    ),
    r"Because \[ \] your request is complex \[ \] we have many requests, we extend this once, to (.*)\.": lambda w, m: (
        m[1] == day(w.received + timedelta(days=90))
    ),
    r"You need not do anything\.": lambda w, m: w.status is Status.QUEUED,
    # what left which model
    rf"We removed (.*) from ({MODELS})\.": lambda w, m: (
        w.weakest != "changed" and are(m[2], [each.name for each in w.lost]) and count_is_true(w, m[1], w.lost)
    ),
    rf"We changed ({MODELS}) to remove (.*)\.": lambda w, m: (
        w.weakest == "changed" and are(m[1], [each.name for each in w.lost]) and count_is_true(w, m[2], w.lost)
    ),
    rf"We left (.*) out of the training of ({MODELS})\.": lambda w, m: (
        are(m[2], [each.name for each in w.changed if each.left_out])
        and count_is_true(w, m[1], [each for each in w.changed if each.left_out])
    ),
    r"(Version.*) (?:is|are) the first (without them|after that)\.": lambda w, m: (
        versions_are(w, m[1].lower()) and (m[2] == "after that") == (w.weakest == "changed")
    ),
    r"The certificate lists the first versions after that\.": lambda w, m: len(w.changed) > 1,
    rf"We do not know how much of {DATA} is left in ({MODELS}), and we make no promise about it\.": lambda w, m: are(
        m[2], weak(w) or [each.name for each in certified(w) if each.strength == "changed"]
    ),
    # what earlier requests did
    r"For an earlier request we had removed .* from (.*)\.": lambda w, m: before_is_true(w, m[1], "deleted"),
    r"That version was the first without\.": lambda w, m: (
        len([1 for _, strength, _ in w.departures.values() if strength == "deleted"]) == 1
    ),
    r"For an earlier request we had trained (.*) without .*; that it read nothing else is our word\.": lambda w, m: (
        before_is_true(w, m[1], "on_word")
    ),
    r"For an earlier request we had changed (.*) to remove .*\.": lambda w, m: before_is_true(w, m[1], "changed"),
    r"We make no promise about how much is left\.": lambda w, m: any(
        strength == "changed" for _, strength, _ in w.departures.values()
    ),
    rf"On ({MODELS}) an earlier letter says what was done\.": lambda w, m: (
        not w.on_record and are(m[1], [each.name for each in w.models if each.before and not each.changed])
    ),
    # each name
    r"Of the (\d+) (records|identifiers) that you gave us, (.*)\.": lambda w, m: (
        int(m[1]) == len(w.names) and (m[2] == "records") == w.of_samples and fate_is(w, m[3])
    ),
    r"Which of the (?:records|identifiers) that you gave us they were found under is not on record any more\.": (
        lambda w, m: not w.on_record
    ),
    r"We (?:keep a coded form of your identifier|keep your identifier in coded form), .*\.": lambda w, m: (
        w.kept_out and not w.of_samples
    ),
    r"On (.*) we compared the identifiers? you gave us, \[ \], with .* behind the (\d+) models? in our .*\.": (
        lambda w, m: m[1] == day(w.completed) and int(m[2]) == len(w.models)
    ),
    r"Models that we withdrew before \[ \] and parts that others trained are not included\.": lambda w, m: True,
    r"If you used another name, e-mail address or customer number with us, tell us, .*\.": lambda w, m: True,
    r"We did not find the (?:records that you named|identifier you gave us), \[ \], in the models that we searched\.": (
        lambda w, m: not w.changed
    ),
    rf"We compared the .*, \[ \], with the lists of (records|people) behind ({MODELS}) only, .*\.": lambda w, m: (
        w.limited and (m[1] == "records") == w.of_samples and are(m[2], [each.name for each in w.models])
    ),
    r"We looked for other spellings, too\.": lambda w, m: w.spellings == "none" and not w.changed,
    r"We looked for no other spellings\.": lambda w, m: w.spellings == "old" and not w.changed,
    r"We looked for other spellings, too; those that we found belong to other people\.": lambda w, m: (
        w.spellings == "others" and not w.changed
    ),
    r"Other models were not searched\.": lambda w, m: w.limited,
    rf"We hold records about you that (only )?measure how often ({MODELS}) (?:is|are) right\.": lambda w, m: (
        bool(m[1]) == w.overwritten and are(m[2], [each.name for each in w.models if each.tests_on])
    ),
    r"We did not check whether they influenced a training\.": lambda w, m: not w.overwritten,
    r"\[ \] We deleted them there on \[ \]\.": lambda w, m: any(each.tests_on for each in w.models),
    rf"Whose records measure ({MODELS}) is not known to us; (?:yours|they) may be\.": lambda w, m: are(
        m[1], [each.name for each in w.models if each.unnamed]
    ),
    rf"We retired ({MODELS}); copies are not covered\.": lambda w, m: are(
        m[1], [each.name for each in w.models if each.state == "retired" and each.gone]
    ),
    rf"We gave up ({MODELS}) before it was published\.": lambda w, m: are(
        m[1], [each.name for each in w.models if each.state == "unpublished" and each.gone]
    ),
    # what it means
    rf"\[ \] We will train ({MODELS}) again without {DATA} by \[ \]\.": lambda w, m: are(m[1], held(w, "changed")),
    rf"We trained (the models?|{MODELS}) (again )?without (?:your data|these records)\.": lambda w, m: (
        bool(m[2]) == bool(w.lost)
        and (
            are(m[1], held(w, "on_word"))
            or all(each.guarantee is Guarantee.EXACT for each in w.concerned if each.numbers)
        )
    ),
    rf"That (?:this training|the training of ({MODELS})) reads nothing else is our word, so we give no number\.": (
        lambda w, m: (
            bool(unwalled := [each.name for each in certified(w) if each.strength == "on_word" and not by_reader(each)])
            and (m[1] is None or are(m[1], unwalled))
        )
    ),
    rf"Our own program reads a source of ({MODELS}), so we give no number\.": lambda w, m: are(
        m[1], [each.name for each in certified(w) if each.strength == "on_word" and by_reader(each)]
    ),
    # the worlds that made it
    rf"The (?:new versions?|versions? of the certificate)(?: of ({MODELS}))? (was|were) made from the data of the "
    r"others alone; (nothing else could be opened|that nothing else was opened is our word)\.": (
        lambda w, m: made_is_true(w, m[1], m[2] == "was", rooted=m[3].startswith("nothing"))
    ),
    rf"That the training of ({MODELS}) opened nothing else is our word\.": lambda w, m: are(
        m[1], [each.name for each in claiming(w) if each.walled and not each.rooted and each not in made_alone(w)]
    ),
    r"(One source is|(\d+) sources are) read by our own program (?:with all rows|before (your rows|these records) are "
    r"left out); that it mixes no people is our word\.": lambda w, m: (
        int(m[2] or 1) == readers(w) and m[3] != ("your rows" if w.of_samples else "these records")
    ),
    r"We vouch for (the program itself|the programs themselves)(?: and for (\d+) further files?)?\.": lambda w, m: (
        int(m[2] or 0) == len({file.sha256 for each in walled(w) for file in each.walled.public_files})
        and (m[1] == "the program itself") == (len(walled(w)) == 1)
    ),
    r"Your data were found by the identifiers that you and we know\.|(These records) were found by the ids that you "
    r"gave us\.": lambda w, m: bool(walled(w)) and bool(m[1]) == w.of_samples,
    r"The new versions? (?:is a model that this training gives|are models that these trainings give) without "
    r"(?:your data|these records); two runs of (it|them|some of them) differ\.": lambda w, m: (
        coin(w)
        and m[1]
        == (
            "it"
            if len(bounded := [each for each in w.concerned if each.numbers]) == 1
            else ("them" if all(each.differs for each in bounded) else "some of them")
        )
        and any(each.differs for each in bounded)
    ),
    r"(?:The|Its|Their) new versions? (?:is|are) (exactly )?the models? that we would have if .* had never been "
    r"used\.": (
        lambda w, m: (
            coin(w)
            and bool(m[1]) == all(each.deterministic for each in w.concerned if each.numbers)
            and all(each.guarantee is Guarantee.EXACT for each in w.concerned if each.numbers)
            and not any(each.differs for each in w.concerned if each.numbers)
        )
    ),
    r"Someone who has only .* can do no better than a coin toss to find out whether .*\.": lambda w, m: coin(w),
    r"A mathematical proof limits what (?:is left|later versions can tell)\.": lambda w, m: numbers_of(w) is not None,
    r"We trained some again and corrected the others\.": lambda w, m: (
        {each.guarantee for each in w.concerned if each.numbers} == {*STRONG}
    ),
    rf"We corrected (the models?|{MODELS}) instead of training (?:it|them) again\.": lambda w, m: (
        {each.guarantee for each in w.concerned if each.numbers} == {Guarantee.PROVED}
        and (not names_in(m[1]) or are(m[1], held(w, "deleted")))
    ),
    r"Imagine someone who has all new versions(, had no say in the deletions,)? and tries to find out whether .*\.": (
        lambda w, m: bool(m[1]) == any(each.guarantee is Guarantee.EXACT for each in certified(w) if each.numbers)
    ),
    r"A coin toss is right 50 times in 100\.": lambda w, m: True,
    r"That guess can be right at most ([\d.]+) times in 100 with .*?(?:, and at most ([\d.]+) however .*?)?\.": (
        lambda w, m: is_most(w, m[1], m[2])
    ),
    r"Someone who has all new versions(, had no say in the deletions,)? and guesses whether .* is right at most "
    r"([\d.]+) times in 100 with .*?(?:, and at most ([\d.]+) however .*?)?\.": lambda w, m: is_most(w, m[2], m[3]),
    r"We set no limit for later trainings\.": lambda w, m: (numbers_of(w) or (0, 0))[1] is None,
    # what it rests on
    r"The certificate lists (\d+) further assumptions?\.": lambda w, m: int(m[1]) == len(further(w)),
    # what is not covered, and the rest
    r"(?:Versions before version (\d+)|Earlier versions) may have been made with .*\.": lambda w, m: (
        m[1] is None or [int(m[1])] == [each.version for each in w.changed]
    ),
    r"We withdrew them, but cannot reach copies that others kept\.": lambda w, m: bool(w.lost),
    r"With an old and a new version, one can probably tell that (?:you|these records) left\.": lambda w, m: bool(
        w.lost
    ),
    r"Other records about you may still be in the models\.": lambda w, m: w.of_samples,
    r"(\d+) systems? still used an older version at the signature\.": lambda w, m: int(m[1]) == consumers(w, "behind"),
    r"(\d+) systems? did not say which version\.": lambda w, m: int(m[1]) == consumers(w, "unknown"),
    r"Our databases and backups: \[ \]\.": lambda w, m: True,
    r"You can ask us to look again, complain to the data protection authority \[ \], or go to court\.": lambda w, m: (
        True
    ),
    r"Ask us for the signed certificate 00000000 and .*\.": lambda w, m: facts_of(w).statement is not None,
    r"The certificate is not signed yet\.|Ask us for it; it says what this means for you\.": lambda w, m: (
        facts_of(w).statement is None
    ),
}
_RULES = [(re.compile(pattern), rule) for pattern, rule in RULES.items()]


def claiming(world: World) -> list[Place]:
    """The models of the certificate with a claim: what it declares, it declares of all of them."""
    found = facts_of(world).statement
    shown = set() if found is None else {part["model"] for part in found["predicate"]["models"]}
    return [each for each in world.models if each.name in shown and each.guarantee is not Guarantee.NONE]


def walled(world: World) -> list[Place]:
    return [each for each in claiming(world) if each.walled is not None]


def made_alone(world: World) -> list[Place]:
    """The versions of which it has to be told that the others' data alone made them."""
    return [each for each in walled(world) if each.guarantee is Guarantee.EXACT and each in world.concerned]


def made_is_true(world: World, names: str | None, one: bool, *, rooted: bool) -> bool:
    """Whether the sentence is of every such version behind these walls, and of no other."""
    found = facts_of(world).statement
    assert found is not None
    made = [each.name for each in made_alone(world) if each.rooted is rooted]
    if names is None:
        return bool(made) and len(made) == len(found["predicate"]["models"]) and one == (len(made) == 1)
    return are(names, made) and one == (len(made) == 1)


def readers(world: World) -> int:
    return sum(each.walled.own_readers for each in walled(world) if each.walled)


def by_reader(place: Place) -> bool:
    """Whether nothing but a reader of the operator's own leaves it to a word."""
    return place.walled is not None and place.rooted and place.walled.own_readers > 0


def further(world: World) -> set[str]:
    return {line for each in claiming(world) for line in each.assumptions} - {CHOSEN}


def declared(world: World) -> set[str]:
    lines = {line for each in claiming(world) for line in each.declared if line in SAID}
    lines |= {line for each in claiming(world) for line in each.assumptions if line == CHOSEN}
    return {SAID[line].format(data=world.data) for line in lines}


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=\.) (?=[A-Z0-9\[])", text.replace("Our word, not checked: ", ""))


def says_what_is_vouched_for(world: World, whole: str) -> bool:
    opened = re.search("(?:reads|opened) nothing else is our word|nothing else was opened is our word", whole)
    return (
        bool(walled(world)) == ("We vouch for" in whole) == ("were found by the id" in whole)
        and (bool(opened) or all(each.rooted for each in walled(world)))
        and bool(readers(world)) == ("mixes no people is our word" in whole)
    )


def check(world: World) -> set[str]:
    """Compare the letter about this world with it; return the rules that its sentences followed."""
    said = letter(facts_of(world))
    open_one = world.status is Status.BLOCKED or (world.status is Status.QUEUED and world.regulation is None)
    assert (said is None) == open_one
    if said is None:
        return set()
    texts = [said.headline, *(text for _, text in said.paragraphs)]
    whole = " ".join(texts)
    followed: list[str] = []
    rest = declared(world) if world.status is Status.COMPLETED else set()
    for sentence in (each for text in texts for each in sentences(text)):
        if sentence in rest:
            rest.discard(sentence)
            continue
        known = [(pattern, rule, found) for pattern, rule in _RULES if (found := pattern.fullmatch(sentence))]
        assert known, f"no rule for: {sentence}"
        pattern, rule, found = known[0]
        assert rule(world, found), f"untrue: {sentence}"
        followed.append(pattern.pattern)
    if world.status is not Status.COMPLETED:
        return set(followed)
    unmatched = facts_of(world).reason in (Reason.NO_MATCH, Reason.NOT_IN_NAMED_MODELS)
    assert ("other spellings" in whole) == (unmatched and world.spellings != "unrecorded"), "how it was compared"
    told = bool(world.changed) or any(each.before for each in world.models)
    assert not (rest and told), f"declared and not said: {rest}"
    if world.changed and world.weakest == "changed":
        assert "We have deleted" not in whole and "We removed" not in whole
        assert re.search("We do not know how much of .* is left", texts[1]), "what that does not promise comes first"
    for places in (world.lost, [each for each in world.changed if each.left_out]):
        if places:
            counted = [each for each in followed if each.startswith("We removed") or "to remove (.*)" in each]
            counted += [each for each in followed if each.startswith("We left (.*)")]
            assert counted, "how many records"
    if len(world.names) > 1 and world.on_record:
        accounted = [each for each in followed if each.startswith((r"Of the (\d+)", "We did not find your identifier"))]
        assert accounted, "each name is accounted for"
    assert not told or says_what_is_vouched_for(world, whole)
    if numbers_of(world) is not None:
        assert "times in 100" in whole or "coin toss" in whole, "the proved number is said"
    else:
        assert "times in 100" not in whole and "coin toss" not in whole
    told_before = {model for model, _ in world.departures} if world.on_record else set()
    shown = set(names_in(whole))
    assert len(told_before) > 4 or len(told_before - shown) == 0 or " more" in whole, "what was deleted before"
    unnamed = [each.name for each in world.models if each.unnamed]
    assert not unnamed or "is not known to us" in whole, "whose holdout it is, is not known"
    assert said.words <= 550, "a sheet, of two sides"
    return set(followed)


def test_every_sentence_of_a_letter_is_true_and_what_must_be_said_is() -> None:
    followed: Counter[str] = Counter()
    for seed in range(LETTERS):
        world = drawn(seed)
        try:
            followed.update(check(world))
        except AssertionError as error:
            found = letter(facts_of(world))
            raise AssertionError(f"letter {seed}: {error}\n{world}\n{found}") from error
    unused = {pattern.pattern for pattern, _ in _RULES} - set(followed)
    assert not unused, f"never drawn: {unused}"
