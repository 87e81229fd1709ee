"""The letter to the person about an ended or extended request: one page, at most 250 words.

It says no more than the certificate. ``[ ]`` is filled in by hand: the service knows no names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from expunge.service.certificates.plain_words import guarantee_of, listed, odds, rests_on_word, together
from expunge.service.requests import Reason, Status, Suppress, Term
from unlearning.accounting.certificate import Guarantee

BLANK = "[ ]"
_NAMED = 2
"""models that a sentence names; of more it gives the number"""
_ANSWER = Term(months=1)
"""within which the person has to know of a refusal (GDPR, Article 12(4))"""
_RIGHTS = (
    "Your rights",
    f"You can ask us to look again, complain to the data protection authority {BLANK}, or go to court.",
)
_ASSUMES = "This assumes that parts which we did not train hold no data of yours; the certificate lists them."
_BRIEFLY = "We assume that parts which we did not train hold no data of yours."
LONGEST = 250
"""words of a letter: one that would have more says some of it in shorter sentences"""


class Kind(StrEnum):
    DELETED = "deleted"
    NOT_IN_OUR_DATA = "not in our data"
    HOLDOUT = "holdout"
    REJECTED = "rejected"
    EXTENDED = "extended"
    ENDED = "ended"


@dataclass(frozen=True)
class ModelOutcome:
    """What one model did: ``version`` is the first without the person, ``samples`` how many it lost."""

    model: str
    reason: Reason | None
    version: int | None
    samples: int


@dataclass(frozen=True)
class Facts:
    """What a letter is made from.

    Args:
        case: the last known status and reason; ``parts``: the models that had work.
        limited_to: the models that the request names; None: all.
        of_samples: the request names single samples, so that nothing is said of other data of the person.
        kept_out: where later trainings leave out what it names; None: that was lifted.
        searched: how many models were searched where none had work; None: not known.
        preparing: a model is being prepared or trained again, so that its people are not known yet.
        holdouts: the models with records of the person in their holdout; ``overwritten``: each of their trainings had
            overwritten it.
        statement: of the verified certificate; None: none is signed yet, or there is none.
    """

    status: Status
    reason: Reason | None
    regulation: str | None
    received: datetime
    due: datetime | None
    first_due: datetime | None
    completed: datetime | None
    extended: bool
    rejection: str | None
    limited_to: Sequence[str] | None
    of_samples: bool
    kept_out: Suppress | None
    parts: Sequence[ModelOutcome]
    searched: int | None
    preparing: bool
    holdouts: Sequence[str]
    overwritten: bool
    statement: Mapping[str, Any] | None


@dataclass(frozen=True)
class PersonalLetter:
    """``paragraphs``: a lead, empty for most, and the text. ``send_by``: the day by which it has to be sent, if any."""

    kind: Kind
    headline: str
    paragraphs: tuple[tuple[str, str], ...]
    send_by: datetime | None = None

    @property
    def words(self) -> int:
        texts = (self.headline, *(f"{lead} {text}" for lead, text in self.paragraphs))
        return sum(len(text.split()) for text in texts)


def letter(facts: Facts) -> PersonalLetter | None:
    """Return the letter about the request as it is now; None: it has neither ended nor been extended."""
    match facts.status:
        case Status.REJECTED:
            return _rejected(facts)
        case Status.CANCELLED:
            text = f"{_asked(facts)} The request was withdrawn before anything was deleted. We deleted nothing."
            return PersonalLetter(Kind.ENDED, "Your request was withdrawn.", (("", text), _RIGHTS))
        case Status.COMPLETED:
            return _deleted(facts) if any(part.version for part in facts.parts) else _nothing(facts)
    return _extended(facts) if facts.extended else None


def day(at: datetime) -> str:
    """Write ``24 November 2026``."""
    return f"{at.day} {at:%B %Y}"


def _rejected(facts: Facts) -> PersonalLetter:
    why = (facts.rejection or BLANK).strip().rstrip(".")
    text = (
        f"You asked on {day(facts.received)}. We deleted nothing, because: {why}. You can send us {BLANK}, or ask "
        "again at any time."
    )
    return PersonalLetter(
        Kind.REJECTED, "We did not carry out your request.", (("", text), _RIGHTS), _ANSWER.after(facts.received)
    )


def _extended(facts: Facts) -> PersonalLetter:
    text = (
        f"You asked us on {day(facts.received)}. The law gives us until {_day(facts.first_due)}. Because {BLANK} your "
        f"request is complex {BLANK} we have many requests, we extend this once, to {_day(facts.due)}. You need not do "
        "anything."
    )
    return PersonalLetter(Kind.EXTENDED, "We need more time.", (("", text), _RIGHTS), facts.first_due)


def _nothing(facts: Facts) -> PersonalLetter:
    """Return the letter about a request for which no version was made: each model says why, or the request does."""
    reasons = {part.reason for part in facts.parts} or {facts.reason}
    unknown = reasons == {Reason.NO_MATCH} and not facts.parts
    if unknown and facts.searched and facts.limited_to is None and not (facts.preparing or facts.of_samples):
        return _not_in_our_data(facts, facts.searched)
    if reasons == {Reason.IN_HOLDOUT} and facts.overwritten:
        text = f"{_asked(facts)} {_measures(facts)} {_removed_there()}"
        return PersonalLetter(Kind.HOLDOUT, "No model was trained on your data.", (("", text), _RIGHTS))
    said = dict.fromkeys(_why(facts, each) for each in sorted(reasons, key=str))
    return PersonalLetter(
        Kind.ENDED,
        "We have finished your request.",
        (("", f"{_asked(facts)} {_finished(facts)}"), *(("", each) for each in said), _RIGHTS),
    )


def _why(facts: Facts, reason: Reason | None) -> str:
    theirs = [part.model for part in facts.parts if part.reason is reason]
    names = _models(theirs) if theirs else "a model"
    asked = f"the {'records that you named' if facts.of_samples else 'identifier you gave us'}, {BLANK},"
    match reason:
        case Reason.NOT_IN_NAMED_MODELS:
            lists, found = ("records", "them") if facts.of_samples else ("people", "it")
            return (
                f"We compared {asked} with the lists of {lists} behind {_models(facts.limited_to or ())} only, and did "
                f"not find {found} there. Other models were not searched."
            )
        case Reason.ALREADY_DELETED:
            return "We had deleted these data before, for an earlier request; that letter says what it means for you."
        case Reason.IN_HOLDOUT:
            checked = "We did not check whether they influenced a training."
            return f"{_measures(facts)} {'' if facts.overwritten else checked + ' '}{_removed_there()}"
        case Reason.MODEL_RETIRED:
            return f"We retired {names}; copies are not covered."
        case Reason.NOT_PUBLISHED:
            return f"We gave up {names} before it was published."
    return f"We did not find {asked} in the models that we searched."


def _not_in_our_data(facts: Facts, searched: int) -> PersonalLetter:
    kept = "We keep your identifier in coded form, so that data arriving later are left out. " if facts.kept_out else ""
    text = (
        f"On {_day(facts.completed)} we compared the identifier you gave us, {BLANK}, with the lists of people behind "
        f"the {_count(searched, 'model')} in our register that day. Models that we withdrew before {BLANK} and parts "
        f"that others trained are not included. {kept}If you used another name, e-mail address or customer number with "
        "us, tell us, and we will look again."
    )
    return PersonalLetter(
        Kind.NOT_IN_OUR_DATA, "We did not find your identifier in our trained models.", (("", text), _RIGHTS)
    )


def _measures(facts: Facts) -> str:
    only = "only " if facts.overwritten else ""
    of = f"{_models(facts.holdouts)} {'is' if len(facts.holdouts) == 1 else 'are'}" if facts.holdouts else "a model is"
    return f"We hold records about you that {only}measure how often {of} right."


def _removed_there() -> str:
    return f"{BLANK} We deleted them there on {BLANK}."


def _deleted(facts: Facts, brief: bool = False) -> PersonalLetter:
    done = [part for part in facts.parts if part.version]
    statement = facts.statement
    means = (
        (("What this means for you", _means(facts, statement["predicate"], brief)),) if statement is not None else ()
    )
    check = "The certificate is not signed yet. Ask us for it; it says what this means for you."
    if statement is not None:
        number = statement["predicate"].get("request", BLANK)[:8]
        check = f"Ask us for the signed certificate {number} and your personal code; anyone can then verify it"
        check += "." if brief else " without us."
    first = f"{_asked(facts)} {_finished(facts)} {_removed(facts, done, brief)}"
    if facts.kept_out and not facts.of_samples:
        later = "to leave you out later" if brief else "so that later training leaves your data out"
        these = " of these models" * (facts.kept_out is Suppress.NAMED_MODELS)
        first += f" We keep a coded form of your identifier, {later}{these}."
    whole = PersonalLetter(
        Kind.DELETED,
        f"We have deleted {'the records that you named' if facts.of_samples else 'your data'} from "
        f"{'our' if facts.limited_to is None else 'some of our'} trained models.",
        (("", first), *means, ("Not covered", _not_covered(facts, done)), _RIGHTS, ("Check it", check)),
    )
    return whole if brief or whole.words <= LONGEST else _deleted(facts, brief=True)


def _removed(facts: Facts, done: Sequence[ModelOutcome], brief: bool) -> str:
    count = sum(part.samples for part in done)
    records = _count(count, "record") + (" that you named" if facts.of_samples else " about you")
    if all(part.reason is Reason.LEFT_OUT for part in done):
        removed = f"We left {records} out of the training of {_models([part.model for part in done])}."
    else:
        removed = f"We removed {records} from {_models([part.model for part in done])}."
    if len(done) > (1 if brief else _NAMED):
        return f"{removed} The certificate lists the first versions without them."
    versions = [f"version {part.version}" + f' of "{part.model}"' * (len(done) > 1) for part in done]
    text = listed(versions)
    return f"{removed} {text[0].upper()}{text[1:]} {'is' if len(done) == 1 else 'are'} the first without them."


def _data(facts: Facts) -> str:
    """Return what was deleted; of other data than the named samples nothing is said."""
    return "these records" if facts.of_samples else "your data"


def _means(facts: Facts, predicate: Mapping[str, Any], brief: bool) -> str:
    """Return what the certificate claims, for a person: one number for all models, or the weakest models first."""
    parts, data = predicate["models"], _data(facts)
    if together(predicate):
        return _bounded(predicate, data, brief)
    unknown = [part for part in parts if guarantee_of(part) not in (Guarantee.EXACT, Guarantee.PROVED)]
    on_word = [part for part in parts if rests_on_word(part)]
    others = [part for part in parts if part not in unknown and part not in on_word]
    said = []
    if unknown:
        names = _models([part["model"] for part in unknown])
        said.append(
            f"We changed {names} with a method that is meant to remove {data}. We do not know how much is left, and we "
            f"make no promise about it. {BLANK} We will train again without {data} by {BLANK}."
        )
    if on_word:
        names = _models([part["model"] for part in on_word])
        said.append(f"We trained {names} again without {data}. That this training reads nothing else is our word.")
    if others:
        names = _models([part["model"] for part in others])
        said.append(f"For {names}, the certificate says how little a guess about {data} can gain.")
    return " ".join(said)


def _bounded(facts: Mapping[str, Any], data: str, brief: bool) -> str:
    assumes = _BRIEFLY if brief else _ASSUMES
    parts, numbers = facts["models"], odds(facts)
    assert numbers is not None  # noqa: S101 (for mypy: ``together`` holds)
    exact = all(guarantee_of(part) is Guarantee.EXACT for part in parts)
    one = len(parts) == 1
    trained = f"We trained the {'model' if one else 'models'} again without {data}."
    bits = "exactly " * all(part["claim"].get("deterministic", False) for part in parts)
    is_it = f"The new version is {bits}the model" if one else f"The new versions are {bits}the models"
    new = "the new version" if one else "the new versions"
    never = "without them" if brief else f"if {data} had never been used"
    same = f"{trained} {is_it} that we would have {never}."
    later = "" if numbers.ever is not None else " We set no limit for later trainings."
    if exact and numbers.now == 50 and numbers.ever in (50, None):
        say = "had no say in the deletions" if brief else "no say in which deletions we were asked for"
        return (
            f"{same} Someone who has only {'new versions' if numbers.ever else new}, and {say}, can do no better than "
            f"a coin toss to find out whether {data} were ever in {'it' if one else 'them'}.{later} {assumes}"
        )
    if exact:
        done = f"{trained} A mathematical proof limits what later versions can tell."
    elif any(guarantee_of(part) is Guarantee.EXACT for part in parts):
        done = "We trained some again and corrected the others. A mathematical proof limits what is left."
    else:
        models = "model instead of training it" if one else "models instead of training them"
        done = f"We corrected the {models} again. A mathematical proof limits what is left."
    influence = any(guarantee_of(part) is Guarantee.EXACT for part in parts)
    someone = "someone who has all new versions" + ", had no say in the deletions," * influence
    ever = "" if numbers.ever is None else f", and at most {numbers.ever:g} however much we delete later"
    if brief:
        return (
            f"A mathematical proof limits what is left. {someone.capitalize()} and guesses whether {data} were ever in "
            f"the {'model' if one else 'models'} is right at most {numbers.now:g} times in 100 with {new}{ever}. A "
            f"coin toss is right 50 times in 100.{later} {assumes}"
        )
    return (
        f"{done} Imagine {someone} and tries to find out whether {data} were ever in the "
        f"{'model' if one else 'models'}. A coin toss is right 50 times in 100. That guess can be right at most "
        f"{numbers.now:g} times in 100 with {new}{ever}.{later} {assumes}"
    )


def _not_covered(facts: Facts, done: Sequence[ModelOutcome]) -> str:
    earlier = f"Versions before version {done[0].version}" if len(done) == 1 else "Earlier versions"
    left = "these records" if facts.of_samples else "you"
    said = [
        f"{earlier} may have been made with {_data(facts)}. We withdrew them, but cannot reach copies that others "
        f"kept. With an old and a new version, one can probably tell that {left} left."
    ]
    if facts.of_samples:
        said.append("Other records about you may still be in the models.")
    predicate = facts.statement["predicate"] if facts.statement is not None else {"models": ()}
    standing = Counter(each["status"] for part in predicate["models"] for each in part["consumers"])
    if standing["behind"]:
        said.append(f"{_count(standing['behind'], 'system')} still used an older version at the signature.")
    if standing["unknown"]:
        said.append(f"{_count(standing['unknown'], 'system')} did not say which version.")
    said += [_why(facts, reason) for reason in (Reason.MODEL_RETIRED, Reason.NOT_PUBLISHED) if _has(facts, reason)]
    if facts.limited_to is not None:
        said.append("Other models were not searched.")
    return " ".join([*said, f"Our databases and backups: {BLANK}."])


def _has(facts: Facts, reason: Reason) -> bool:
    return any(part.reason is reason for part in facts.parts)


def _asked(facts: Facts) -> str:
    return f"You asked us on {day(facts.received)}."


def _finished(facts: Facts) -> str:
    done, due = facts.completed, facts.due
    if done is None:
        return ""
    when = "the same day" if day(done) == day(facts.received) else f"on {day(done)}"
    law = f" ({facts.regulation.upper().replace('-', ' ')})" if facts.regulation else ""
    until = "the law gave us until" if law else "the deadline was"
    return f"We finished {when}." if due is None else f"We finished {when}; {until} {day(due)}{law}."


def _day(at: datetime | None) -> str:
    return BLANK if at is None else day(at)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _models(names: Sequence[str]) -> str:
    quoted = [f'"{name}"' for name in names[:_NAMED]]
    if len(names) > _NAMED:
        quoted.append(f"{len(names) - _NAMED} more")
    return ("the model " if len(names) == 1 else "the models ") + listed(quoted)
