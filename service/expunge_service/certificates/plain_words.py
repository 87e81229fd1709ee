"""What a certificate says, in words for laypeople.

Every sentence follows from the statement alone, and none says more than it. Where the statement has no bound, the words
have none; what it lists as not claimed is repeated in plain words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from expunge_service.requests import gives_term
from unlearning.accounting.certificate import DIFFERED, Guarantee, guess
from unlearning.accounting.declarations import has_plain, plain
from unlearning.accounting.world import Enclosure, WorldRecord

_BOUNDED = (Guarantee.EXACT, Guarantee.PROVED)
_HOW = {
    Guarantee.EXACT: "{model}: version {version} is what this training gives without {whom}.",
    Guarantee.PROVED: "{model}: it was changed to forget {whom}. A mathematical proof limits how far version {version} "
    "can differ from a model that was trained without them.",
    Guarantee.CALIBRATED: "{model}: it was changed to forget {whom}. How far version {version} differs from a model "
    "trained without them was measured on other deletions, and not proved for this one.",
    Guarantee.ESTIMATED: "{model}: it was changed to forget {whom}. How far version {version} differs from a model "
    "trained without them is an estimate, which is not proved.",
    Guarantee.NONE: "{model}: it was changed by a method that is meant to forget {whom}. How much of them is left in "
    "version {version} is not known.",
}
_UNKNOWN = (
    "{versions} was changed by a method that is meant to remove {data}. How much is left is not known, and no limit is "
    "claimed."
)
_MEASURED = {
    Guarantee.CALIBRATED: " The formal text has a measurement, which is no proof.",
    Guarantee.ESTIMATED: " The formal text has an estimate, which is no proof.",
}
_RETRAINED = "{versions} what {training} without {whom}{bytes}."
_WORD = " That the training reads nothing else is the operator's word, so no number is given."
_READER = " A source is read by the operator's own program before rows are left out, so no number is given."
_WALLED = " {they} made from the rows of the others alone; the kernel opened nothing else."
_DIFFERED = f" {DIFFERED}."
_BLIND = (
    " Someone who has {them} and none from before, and who had no influence on which deletions were requested, can "
    "only guess blindly whether {data} were ever used: from even odds, right 50 times in 100."
)
_LIMITED = (
    "Suppose someone has every version {since} on and none from before,{influence} and guesses whether {data} were "
    "ever used. From even odds, a blind guess is right 50 times in 100. The versions so far, up to {upto} on {day}, "
    "allow at most {now}{ever}. {proof}"
)
_NO_LATER_LIMIT = "No limit is claimed for later trainings."
_NOT_SAID = (
    "Copies and older versions. A version from before the deletion still holds the data, and so does every copy of it.",
    "That the deletion is hidden. With an old and a new version, one can probably tell that the person left.",
    "Other people. What the models tell about people who were not deleted is not limited.",
    "Other places. The data may be in databases, backups or other systems; this is about the models named here.",
    "That the right person was named. The organisation that sent the request says who it was for.",
)


@dataclass(frozen=True)
class PlainWords:
    """A certificate in plain words: what happened, what that means, what it depends on, and what it does not say."""

    happened: tuple[str, ...]
    means: tuple[str, ...]
    relies_on: tuple[str, ...]
    not_said: tuple[str, ...]


@dataclass(frozen=True)
class Odds:
    """How many times in 100 a guess whether the data were ever used is right at most, from even odds.

    Args:
        now: for a holder of the versions up to those of the certificate.
        ever: for a holder of all that may follow, too; None: there is no limit.
    """

    now: float
    ever: float | None


def in_words(statement: Mapping[str, Any]) -> PlainWords:
    """Return the plain words of a verified statement (``envelope.verify``)."""
    facts = statement["predicate"]
    parts, ended = facts["models"], facts.get("without_version") or ()
    of = "that the request named" if names_samples(facts) else "of this person"
    return PlainWords(
        happened=(
            _when(facts),
            *(_happened(part, of) for part in parts),
            *(f"{each['model']}: {each['statement']}" for each in ended),
        ),
        means=tuple(facts.get("in_plain_words") or meaning(facts)),
        relies_on=_relies_on(parts, "these samples" if names_samples(facts) else "this person's data"),
        not_said=(*(sentence for part in parts for sentence in _still_served(part)), *_NOT_SAID),
    )


def meaning(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the statement's predicate bounds for a holder of these versions and later ones: ``in_plain_words``.

    There is one number for several models where all are exact or proved. Else each has a paragraph, the weakest first.
    """
    parts = facts["models"]
    if not parts:
        return ()
    if together(facts):
        return (_paragraph(facts, parts, odds(facts)),)
    weakest_first = sorted(parts, key=lambda part: (guarantee_of(part).rank, not rests_on_word(part)))
    return tuple(_paragraph(facts, [part], odds_of(part)) for part in weakest_first)


def together(facts: Mapping[str, Any]) -> bool:
    """Return whether one number covers all models: each is exact or proved, and none was retired with the person."""
    numbered = all(guarantee_of(part) in _BOUNDED and not rests_on_word(part) for part in facts["models"])
    return numbered and (len(facts["models"]) == 1 or facts["together"] is not None)


def odds(facts: Mapping[str, Any]) -> Odds | None:
    """Return the odds over all models of the statement; None: no number may be given."""
    if len(facts["models"]) == 1:
        return odds_of(facts["models"][0])
    if not together(facts):
        return None
    return Odds(guess(facts["together"]["mu"]), _ever(facts["together"]["from_these_versions_on"]))


def odds_of(part: Mapping[str, Any]) -> Odds | None:
    """Return the odds over one model's versions; None: no number may be given."""
    if guarantee_of(part) not in _BOUNDED or rests_on_word(part):
        return None
    return Odds(guess(part["as_of_version"]["mu"]), _ever(part["from_this_version_on"]))


def rests_on_word(part: Mapping[str, Any]) -> bool:
    """Return whether what the part's exact training reads was not tried, so that the operator vouches for it."""
    claim = part["claim"]
    untried = any(line.startswith("Not tried:") for line in claim.get("tried") or ())
    return guarantee_of(part) is Guarantee.EXACT and bool(claim.get("operators_word", untried))


def world_of(claim: Mapping[str, Any]) -> WorldRecord | None:
    """Return the record of the worlds that made the claim's version; None: its recipe opens its data itself."""
    record = claim.get("world")
    return None if record is None else WorldRecord.from_json(record)


def is_walled(claim: Mapping[str, Any]) -> bool:
    """Return whether the kernel showed that the version's processes opened nothing but the rows that they got."""
    world = world_of(claim)
    return world is not None and world.walls is Enclosure.NEW_ROOT


def is_read_by_operator(claim: Mapping[str, Any]) -> bool:
    """Return whether walls stood, and a program of the operator's own read a source: so the exactness is its word."""
    world = world_of(claim)
    return world is not None and is_walled(claim) and world.own_readers > 0


def note(claim: Mapping[str, Any]) -> str | None:
    """Return in few words why an exact claim depends on the operator's word; None: it does not, or is none."""
    if claim.get("guarantee") != Guarantee.EXACT or not rests_on_word({"claim": claim}):
        return None
    world = world_of(claim)
    if world is not None and not world.shown:
        return f"on your word: {'your own reader' if is_walled(claim) else f'walls: {world.walls.value}'}"
    return f"on your word: {'two runs differed' if differed(claim) else 'not tried'}"


def differed(claim: Mapping[str, Any]) -> bool:
    """Return whether two runs of the training were seen to differ."""
    world = world_of(claim)
    if world is not None:
        return world.repeats is False
    return any(line.startswith(f"Not tried: {DIFFERED}") for line in claim.get("tried") or ())


def names_samples(facts: Mapping[str, Any]) -> bool:
    """Return whether the request named samples instead of a person: the log's entry says so."""
    return _accepted(facts).get("samples_named") is not None


def _accepted(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of the request's acceptance; empty where the statement has none."""
    entries = facts["audit"]["entries"]
    bodies = (json.loads(entry["body"]) for entry in entries if entry["kind"] == "request.accepted" and entry["body"])
    return next(bodies, {})


def day(text: str) -> str:
    """Write a moment of the statement (RFC 3339, UTC) as ``21 November 2026``."""
    at = datetime.fromisoformat(text)
    return f"{at.day} {at:%B %Y}"


def weakest(facts: Mapping[str, Any]) -> Guarantee:
    """Return the weakest guarantee of a statement's predicate; none where it names no model."""
    found = [guarantee_of(part) for part in facts["models"]]
    return min(found, key=lambda each: each.rank, default=Guarantee.NONE)


def guarantee_of(part: Mapping[str, Any]) -> Guarantee:
    return Guarantee(part["claim"].get("guarantee", Guarantee.NONE))


def _ever(limit: Mapping[str, Any] | None) -> float | None:
    """Return the odds at the limit of what may still come; None without one, or where it is not proved."""
    if limit is None or Guarantee(limit["guarantee"]) not in _BOUNDED:
        return None
    return guess(limit["mu"])


def _paragraph(facts: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], odds: Odds | None) -> str:
    """Return what is claimed of these parts together, each of which ``odds`` counts."""
    several = len(facts["models"]) + len(facts.get("without_version") or ()) > 1
    samples = names_samples(facts)
    data, whom = ("these samples", "these samples") if samples else ("this person's data", "this person")
    versions = listed(f"version {part['version']}" + f" of {part['model']}" * several for part in parts)
    guarantees = {guarantee_of(part) for part in parts}
    if not guarantees <= set(_BOUNDED):
        (guarantee,) = guarantees
        return _UNKNOWN.format(versions=_capital(versions), data=data) + _MEASURED.get(guarantee, "")
    one = len(parts) == 1
    exact = _RETRAINED.format(
        versions=_capital(versions) + (" is" if one else " are"),
        training="this training gives" if one else "these trainings give",
        whom=whom,
        bytes=", bit for bit" * (odds is not None and all(part["claim"].get("deterministic", False) for part in parts)),
    )
    walled = all(is_walled(part["claim"]) for part in parts)
    exact += _DIFFERED * any(differed(part["claim"]) for part in parts)
    exact += _WALLED.format(they="It was" if one else "They were") if walled else ""
    if odds is None:
        return exact + (_READER if all(is_read_by_operator(part["claim"]) for part in parts) else _WORD)
    if guarantees == {Guarantee.EXACT} and odds.now == 50 and odds.ever in (50, None):
        them = "it" if one else "them"
        them += "" if odds.ever is None else " and later versions"
        return exact + _BLIND.format(them=them, data=data) + (f" {_NO_LATER_LIMIT}" if odds.ever is None else "")
    return _LIMITED.format(
        since=listed((f"of {part['model']} " * several) + f"from {part['version']}" for part in parts),
        influence=" had no influence on which deletions were requested," * (Guarantee.EXACT in guarantees),
        data=data,
        upto=versions if one else "these",
        day=day(facts["completed_at"]),
        now=f"{odds.now:g}",
        ever=f". {_NO_LATER_LIMIT[:-1]}"
        if odds.ever is None
        else f", and all that may ever follow at most {odds.ever:g}",
        proof="This is proved, under the assumptions listed below.",
    )


def listed(names: Iterable[str]) -> str:
    """Join names as ``a``, ``a and b`` or ``a, b and c``."""
    *some, last = names
    return f"{', '.join(some)} and {last}" if some else last


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _when(facts: Mapping[str, Any]) -> str:
    done, due = facts["completed_at"], facts["due_at"]
    named = ", for the models that it named only," if _accepted(facts).get("suppress") is not None else ""
    opening = f"The request of {day(facts['received_at'])}{named} was completed on {day(done)}"
    if due is None:
        return f"{opening}. No legal deadline was named."
    extended = f", extended on {day(facts['extended_at'])}" if facts["extended_at"] else ""
    kept = datetime.fromisoformat(done) <= datetime.fromisoformat(due)
    law = (
        f"the deadline of the {facts['regulation'].upper().replace('-', ' ')}"
        if facts["regulation"]
        else "the deadline"
    )
    if facts["regulation"] and not gives_term(facts["regulation"]):
        law = "the organisation's own deadline"
    return f"{opening}, {'within' if kept else 'after'} {law} ({day(due)}{extended})."


def _happened(part: Mapping[str, Any], of: str) -> str:
    count = part["samples"]
    if not count:
        return f"{part['model']}: no training sample {of} was left in it. Version {part['version']} was made without."
    whom = f"{count:,} training {'sample' if count == 1 else 'samples'} {of}"
    return _HOW[guarantee_of(part)].format(model=part["model"], whom=whom, version=part["version"])


def _relies_on(parts: list[Mapping[str, Any]], data: str) -> tuple[str, ...]:
    """Return what the claims declare, each in a sentence, and how many were checked, tried and assumed besides."""
    lines = {
        name: list(dict.fromkeys(line for part in parts for line in part["claim"].get(name) or ()))
        for name in ("checked", "tried", "declared", "assumptions")
    }
    said = []
    for name, what in (("checked", "Checked by the service"), ("tried", "Only tried on a few samples")):
        if lines[name]:
            said.append(f"{what}: {_statements(len(lines[name]))}.")
    declared = plain(lines["declared"], lines["assumptions"], data)
    if declared:
        wrong = "If one of these is wrong, this certificate is wrong."
        said.append(f"Taken from the organisation's word, and not checked: {' '.join(declared)} {wrong}")
    further = [line for line in lines["assumptions"] if not has_plain(line)]
    if further:
        said.append(f"Assumed: {_statements(len(further))}.")
    return tuple(said)


def _statements(count: int) -> str:
    return f"{count} {'statement' if count == 1 else 'statements'} of the formal text"


def _still_served(part: Mapping[str, Any]) -> list[str]:
    """Return a sentence about the systems that did not serve this version when the certificate was signed."""
    late = sum(each["status"] == "behind" for each in part["consumers"])
    silent = sum(each["status"] == "unknown" for each in part["consumers"])
    said = []
    if late:
        said.append(f"{part['model']}: {_systems(late)} still served an older version when this was signed.")
    if silent:
        said.append(f"{part['model']}: {_systems(silent)} had not said lately which version it serves.")
    return said


def _systems(count: int) -> str:
    return "1 system" if count == 1 else f"{count} systems"
