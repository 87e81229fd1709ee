"""What a certificate says, in words for people who are no specialists.

Every sentence follows from the signed statement alone, and none says more than it. Where the statement has no bound,
the words have none; what it lists as not claimed is repeated in plain words.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from unlearning.accounting.certificate import Guarantee

_HOW = {
    Guarantee.EXACT: "{model}: version {version} is exactly what a training from the start without {whom} gives.",
    Guarantee.PROVED: "{model}: it was changed to forget {whom}. A mathematical proof limits how far version {version} "
    "can differ from a model that was trained without them.",
    Guarantee.CALIBRATED: "{model}: it was changed to forget {whom}. How far version {version} differs from a model "
    "trained without them was measured on other deletions, and not proved for this one.",
    Guarantee.ESTIMATED: "{model}: it was changed to forget {whom}. How far version {version} differs from a model "
    "trained without them is an estimate. Nobody has proved it.",
    Guarantee.NONE: "{model}: it was changed by a method that is meant to forget {whom}. Nothing is claimed about how "
    "much of them is left in version {version}.",
}
_LIMIT = {
    Guarantee.CALIBRATED: "The measurement holds with the confidence that the formal text states, and for requests "
    "that are like those it was made with.",
    Guarantee.ESTIMATED: "The formal text says what would follow if the estimates were true.",
    Guarantee.NONE: "There is no limit on what the new version still tells about them.",
}
_UNBOUNDED = "The certificate states no limit for all later versions together."
_LATER = "This counts all later versions, and every training of the model that may have held the data."
_NOT_SAID = (
    "Copies and older versions. A version from before the deletion still holds the data, and so does every copy of it "
    "that somebody kept.",
    "That nobody can notice the deletion. Who compares the old version with the new one can probably tell who left.",
    "Other people. Nothing is said about what the models tell about those who were not deleted.",
    "Other places. The data may be in databases, backups or other systems; this is about the models named here.",
    "That the right person was named. The organisation that sent the request says who it was for.",
)


@dataclass(frozen=True)
class PlainWords:
    """A certificate for everyone: what happened, what that means, what it depends on, and what it does not say."""

    happened: tuple[str, ...]
    means: tuple[str, ...]
    relies_on: tuple[str, ...]
    not_said: tuple[str, ...]


def in_words(statement: Mapping[str, Any]) -> PlainWords:
    """Return the plain words of a verified statement (``envelope.verify``)."""
    facts = statement["predicate"]
    parts, ended = facts["models"], facts.get("without_version") or ()
    of = _whose(facts)
    return PlainWords(
        happened=(
            _when(facts),
            *(_happened(part, of) for part in parts),
            *(f"{each['model']}: {each['statement']}" for each in ended),
        ),
        means=_means(facts),
        relies_on=_relies_on(parts),
        not_said=(*(sentence for part in parts for sentence in _still_served(part)), *_NOT_SAID),
    )


def day(text: str) -> str:
    """Write a moment of the statement (RFC 3339, UTC) as ``21 November 2026``."""
    at = datetime.fromisoformat(text)
    return f"{at.day} {at:%B %Y}"


def weakest(facts: Mapping[str, Any]) -> Guarantee:
    """Return the weakest guarantee of a statement's predicate; none where it names no model."""
    found = [_guarantee(part) for part in facts["models"]]
    return min(found, key=lambda each: each.rank, default=Guarantee.NONE)


def _guarantee(part: Mapping[str, Any]) -> Guarantee:
    return Guarantee(part["claim"].get("guarantee", Guarantee.NONE))


def _whose(facts: Mapping[str, Any]) -> str:
    """Return whose samples they are: the log's entry says whether the request named a person or samples."""
    entries = facts["audit"]["entries"]
    bodies = (json.loads(entry["body"]) for entry in entries if entry["kind"] == "request.accepted" and entry["body"])
    named = next((body.get("samples_named") for body in bodies), None)
    return "of this person" if named is None else "that the request named"


def _when(facts: Mapping[str, Any]) -> str:
    done, due = facts["completed_at"], facts["due_at"]
    opening = f"The request of {day(facts['received_at'])} was completed on {day(done)}"
    if due is None:
        return f"{opening}. No legal deadline was named."
    extended = f", extended on {day(facts['extended_at'])}" if facts["extended_at"] else ""
    kept = datetime.fromisoformat(done) <= datetime.fromisoformat(due)
    law = f" of the {facts['regulation'].upper().replace('-', ' ')}" if facts["regulation"] else ""
    return f"{opening}, {'within' if kept else 'after'} the deadline{law} ({day(due)}{extended})."


def _happened(part: Mapping[str, Any], of: str) -> str:
    count = part["samples"]
    if not count:
        return f"{part['model']}: no training sample {of} was left in it. Version {part['version']} was made without."
    whom = f"{count:,} training {'sample' if count == 1 else 'samples'} {of}"
    return _HOW[_guarantee(part)].format(model=part["model"], whom=whom, version=part["version"])


def _means(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return what the statement bounds for an observer of these versions and all later ones.

    The bound of several models is that of all together. One of them without a bound leaves none, and so does a model
    that ended with the person in it.
    """
    parts = facts["models"]
    guarantee = weakest(facts)
    if guarantee in _LIMIT:
        return (_LIMIT[guarantee],)
    alone = len(parts) == 1 and not facts.get("without_version")
    bound = parts[0]["from_this_version_on"] if alone else (facts["together"] or {}).get("from_these_versions_on")
    words = (bound or {}).get("in_plain_words")
    return (_UNBOUNDED,) if words is None else (words, _LATER)


def _relies_on(parts: list[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return, of the sentences that the claims list, how many were checked, tried and taken on trust."""
    said = []
    for name, what in (
        ("checked", "Checked by the service: {count}."),
        ("tried", "Only tried on a few samples: {count}."),
        (
            "declared",
            "Taken from the organisation's word, and checked by nobody: {count}. If one of them is wrong, "
            "this certificate is wrong.",
        ),
        ("assumptions", "Assumed: {count}."),
    ):
        lines = {line for part in parts for line in part["claim"].get(name) or ()}
        if lines:
            count = f"{len(lines)} {'statement' if len(lines) == 1 else 'statements'} of the formal text"
            said.append(what.format(count=count))
    return tuple(said)


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
