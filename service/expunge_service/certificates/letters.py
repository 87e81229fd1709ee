"""The letter to the person about an ended or extended request: one page.

It renders an ``Outcome`` and says no more than it. ``[ ]`` is filled in by hand: the service knows no names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, tzinfo
from enum import StrEnum
from typing import Any

from expunge_service.certificates.outcome import (
    Before,
    ModelOutcome,
    NameCounts,
    Outcome,
    Strength,
    WorldOutcome,
    outcome,
)
from expunge_service.certificates.plain_words import (
    Odds,
    differed,
    guarantee_of,
    is_read_by_operator,
    listed,
    odds,
    odds_of,
    rests_on_word,
)
from expunge_service.requests import Account, Cause, Reason, Regulation, Status, Suppress, Term, gives_term
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.world import Enclosure

BLANK = "[ ]"
_NAMED = 2
"""models that a sentence names; of more it gives the number"""
_ANSWER = Term(months=1)
"""within which the person has to know of a refusal (GDPR, Article 12(4))"""
_EUROPEAN = (Regulation.GDPR, Regulation.UK_GDPR)
_RIGHTS = (
    "Your rights",
    f"You can ask us to look again, complain to the data protection authority {BLANK}, or go to court.",
)
LONGEST = 300
"""words of a letter, a page: one that would have more says some of it in shorter sentences"""


class Kind(StrEnum):
    DELETED = "deleted"
    CHANGED = "changed"
    BEFORE = "before"
    NOT_IN_OUR_DATA = "not in our data"
    HOLDOUT = "holdout"
    REJECTED = "rejected"
    EXTENDED = "extended"
    ENDED = "ended"


@dataclass(frozen=True)
class Facts:
    """What a letter is made from.

    Args:
        case: the last known status and reason; ``parts``: the models that had work.
        limited_to: the models that the request names; None: all.
        of_samples: the request names single samples, so that nothing is said of other data of the person.
        kept_out: where later trainings leave out what it names; None: that was lifted.
        accounts: what became of each name; None: not on record.
        records: how many distinct records left the models that were trained on them; None: not on record.
        searched: how many models were searched where none had work; None: not known.
        compared: how an id that no model knows was compared; None: not on record.
        preparing: a model is being prepared or trained again, so that its people are not known yet.
        holdouts: the models with records of the person in their holdout; ``overwritten``: each of their trainings had
            overwritten it.
        unnamed_holdouts: the models with a holdout whose people their recipe does not name.
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
    accounts: Sequence[Account] | None
    records: int | None
    searched: int | None
    compared: Cause | None
    preparing: bool
    holdouts: Sequence[str]
    overwritten: bool
    unnamed_holdouts: Sequence[str]
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
            became = outcome(facts.parts, facts.accounts, facts.records, facts.statement, _data(facts))
            whole = _completed(facts, became, brief=False)
            return whole if whole.words <= LONGEST else _completed(facts, became, brief=True)
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
    send_by = _ANSWER.after(facts.received) if facts.regulation in _EUROPEAN else facts.due
    return PersonalLetter(Kind.REJECTED, "We did not carry out your request.", (("", text), _RIGHTS), send_by)


def _extended(facts: Facts) -> PersonalLetter:
    first = _day(facts.first_due)
    until = f"The law gives us until {first}." if gives_term(facts.regulation) else f"Our own deadline was {first}."
    text = (
        f"You asked us on {day(facts.received)}. {until} Because {BLANK} your request is complex {BLANK} we have many "
        f"requests, we extend this once, to {_day(facts.due)}. You need not do anything."
    )
    return PersonalLetter(Kind.EXTENDED, "We need more time.", (("", text), _RIGHTS), facts.first_due)


def _completed(facts: Facts, became: Outcome, *, brief: bool) -> PersonalLetter:
    if became.changed:
        return _changed(facts, became, brief)
    if became.again or (became.named and became.named.before):
        return _before(facts, became, brief)
    return _nothing(facts, became)


def _changed(facts: Facts, became: Outcome, brief: bool) -> PersonalLetter:
    """Return the letter about a request that took something out of a model, or kept it out of its training."""
    first = [_asked(facts), _finished(facts), *_removed(facts, became, brief)]
    if became.strength is Strength.CHANGED:
        first.append(_no_promise(facts, became))
    first += [*_earlier(facts, became), *_accounted(facts, became)]
    if facts.kept_out and not facts.of_samples:
        later = "to leave you out later" if brief else "so that later training leaves your data out"
        these = " of these models" * (facts.kept_out is Suppress.NAMED_MODELS)
        first.append(f"We keep a coded form of your identifier, {later}{these}.")
    return PersonalLetter(
        Kind.CHANGED if became.strength is Strength.CHANGED else Kind.DELETED,
        _headline(facts, became),
        (
            ("", _joined(first)),
            *_means(facts, became, brief),
            *_rests_on(facts, became, brief),
            ("Not covered", _not_covered(facts, became)),
            _RIGHTS,
            _check(facts, brief),
        ),
    )


def _headline(facts: Facts, became: Outcome) -> str:
    """Return the first sentence, which is as strong as the weakest model that it covers."""
    every, named = _every_one(became.named), _data(facts)
    if facts.of_samples:
        named = "the records that you named" if every else "some of the records that you named"
    if became.retired:
        where = "the trained models that we still use"
    else:
        where = "our trained models" if facts.limited_to is None else "some of our trained models"
    if not became.lost:
        return f"We left {named} out of the training of {where}."
    match became.strength:
        case Strength.DELETED:
            return f"We have deleted {named} from {where}."
        case Strength.ON_WORD:
            claims = _claims(facts)
            exact = all(_is_exact(claims.get(part.model, part.claim)) for part in became.changed)
            models = where.replace("trained models", "models")
            return f"We trained {models} again{'' if exact else ', or corrected them,'} without {named}."
    return f"We changed {where} to remove {named}."


def _every_one(named: NameCounts | None) -> bool:
    return named is not None and named.deleted == named.count


def _removed(facts: Facts, became: Outcome, brief: bool) -> list[str]:
    """Return what left which model, each record once, and the first versions without it."""
    said = []
    about = " that you named" if facts.of_samples else " about you"
    for parts, distinct in ((became.lost, became.records), (became.left_out, None)):
        if not parts:
            continue
        models = _models([part.model for part in parts])
        records = _records(parts, distinct, about)
        if parts is became.left_out:
            said.append(f"We left {records} out of the training of {models}.")
        elif became.strength is Strength.CHANGED:
            said.append(f"We changed {models} to remove {records}.")
        else:
            said.append(f"We removed {records} from {models}.")
    done = became.changed
    if len(done) > (1 if brief else _NAMED):
        return [*said, "The certificate lists the first versions after that."]
    versions = listed(f"version {part.version}" + f' of "{part.model}"' * (len(done) > 1) for part in done)
    which = "after that" if became.strength is Strength.CHANGED else "without them"
    return [*said, f"{_capital(versions)} {'is' if len(done) == 1 else 'are'} the first {which}."]


def _records(parts: Sequence[ModelOutcome], distinct: int | None, about: str) -> str:
    """Return how many records these models lost, each once; by model where it is not on record which are the same."""
    count = parts[0].samples if len(parts) == 1 else distinct
    if count is not None:
        return _count(count, "record") + about
    counts = ", ".join(f'{part.samples:,} in "{part.model}"' for part in parts[:_NAMED])
    more = ", more in others" * (len(parts) > _NAMED)
    return f"records{about} ({counts}{more}, some of them perhaps the same)"


def _no_promise(facts: Facts, became: Outcome) -> str:
    return (
        f"We do not know how much of {_data(facts)} is left in {_models(_weak(facts, became))}, and we make no promise "
        "about it."
    )


def _weak(facts: Facts, became: Outcome) -> list[str]:
    """Return the changed models of which no bound says how much is left."""
    claims = _claims(facts)
    return [part.model for part in became.changed if not _is_bounded(claims.get(part.model, part.claim))]


def _before(facts: Facts, became: Outcome, brief: bool) -> PersonalLetter:
    """Return the letter about a request for what earlier requests had named already."""
    reasons = {part.reason for part in facts.parts} - {Reason.ALREADY_DELETED}
    others = dict.fromkeys(_why(facts, each) for each in sorted(filter(None, reasons), key=str) if each in _BESIDE)
    first = [_asked(facts), _finished(facts), *_earlier(facts, became), *_accounted(facts, became)]
    return PersonalLetter(
        Kind.BEFORE,
        f"We had already acted on {'these records' if facts.of_samples else 'your data'}, for an earlier request.",
        (
            ("", _joined(first)),
            *(("", each) for each in others),
            *_means(facts, became, brief),
            *_rests_on(facts, became, brief),
            *((("", _joined(_unnamed(facts))),) if facts.unnamed_holdouts else ()),
            _RIGHTS,
            *((_check(facts, brief),) if facts.statement is not None else ()),
        ),
    )


_BESIDE = (Reason.IN_HOLDOUT, Reason.MODEL_RETIRED, Reason.NOT_PUBLISHED)
"""what is said of a model beside others that changed"""


def _earlier(facts: Facts, became: Outcome) -> list[str]:
    """Return with which versions earlier requests had been carried out: a sentence for each strength, then the rest."""
    named = became.named
    by_strength: dict[Strength, dict[str, list[Before]]] = {}
    for each in named.before if named else ():
        by_strength.setdefault(each.strength, {}).setdefault(each.model, []).append(each)
    data = "data that you named" if named and named.count > 1 else _data(facts)
    said = []
    for strength, models in sorted(by_strength.items()):
        where, more = list(models.items())[:_NAMED], len(models) - _NAMED
        names = [f'"{name}" ({_versions(each, facts.received.tzinfo)})' for name, each in where]
        places = listed([*names, f"{more} more"] if more > 0 else names)
        which = f"the model{'s' if len(models) > 1 else ''} {places}"
        one = len(models) == 1 and len(next(iter(models.values()))) == 1
        match strength:
            case Strength.DELETED:
                first = " That version was the first without." if one else ""
                said.append(f"For an earlier request we had removed {data} from {which}.{first}")
            case Strength.ON_WORD:
                said.append(
                    f"For an earlier request we had trained {which} without {data}; that it read nothing else is our "
                    "word."
                )
            case _:
                said.append(
                    f"For an earlier request we had changed {which} to remove {data}. We make no promise about how "
                    "much is left."
                )
    if became.again:
        said.append(f"On {_models(became.again)} an earlier letter says what was done.")
    return said


def _versions(before: Sequence[Before], zone: tzinfo | None) -> str:
    first, last = min(before, key=lambda each: each.version), max(before, key=lambda each: each.version)
    begun, ended = (day(each.at.astimezone(zone)) for each in (first, last))
    if first is last:
        return f"version {first.version} of {begun}"
    return f"versions {first.version} to {last.version}, {begun} to {ended}"


def _accounted(facts: Facts, became: Outcome) -> list[str]:
    """Return what became of each of several names."""
    named = became.named
    kind = "records" if facts.of_samples else "identifiers"
    if named is None:
        return [f"Which of the {kind} that you gave us they were found under is not on record any more."]
    if named.count == 1:
        return []
    searched = "none of the models that you named" if facts.limited_to is not None else "no model that we searched"
    if became.retired or became.unpublished:  # where they may have been
        searched = "no model that we still use"
    ways = (
        (named.deleted, "found in these models now"),
        (named.deleted_before, "dealt with for an earlier request"),
        (named.in_holdout, "found only among the records that measure a model"),
        (named.not_found, f"found in {searched}"),
    )
    counts = listed(f"{count:,} {'was' if count == 1 else 'were'} {how}" for count, how in ways if count)
    return [f"Of the {named.count:,} {kind} that you gave us, {counts}."]


def _nothing(facts: Facts, became: Outcome) -> PersonalLetter:
    """Return the letter about a request that found nothing to delete: each model says why, or the request does."""
    reasons = {part.reason for part in facts.parts} or {facts.reason}
    unknown = reasons == {Reason.NO_MATCH} and not facts.parts
    if unknown and facts.searched and facts.limited_to is None and not (facts.preparing or facts.of_samples):
        return _not_in_our_data(facts, became, facts.searched)
    unnamed = _unnamed(facts)
    if reasons == {Reason.IN_HOLDOUT} and facts.overwritten and not unnamed:
        text = _joined([_asked(facts), _measures(facts), _removed_there(), *_accounted(facts, became)])
        return PersonalLetter(Kind.HOLDOUT, "No model was trained on your data.", (("", text), _RIGHTS))
    said = dict.fromkeys(_why(facts, each) for each in sorted(reasons, key=str))
    first = _joined([_asked(facts), _finished(facts), *_accounted(facts, became)])
    return PersonalLetter(
        Kind.ENDED,
        "We have finished your request.",
        (("", first), *(("", each) for each in (*said, *unnamed)), _RIGHTS),
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
                f"not find {found} there. {_then(_compared(facts))}Other models were not searched."
            )
        case Reason.ALREADY_DELETED:
            return "We had acted on these data before, for an earlier request; that letter says what it means for you."
        case Reason.IN_HOLDOUT:
            checked = "We did not check whether they influenced a training."
            return f"{_measures(facts)} {'' if facts.overwritten else checked + ' '}{_removed_there()}"
        case Reason.MODEL_RETIRED:
            return f"We retired {names}; copies are not covered."
        case Reason.NOT_PUBLISHED:
            return f"We gave up {names} before it was published."
    return _joined([f"We did not find {asked} in the models that we searched.", _compared(facts)])


def _not_in_our_data(facts: Facts, became: Outcome, searched: int) -> PersonalLetter:
    kept = "We keep your identifier in coded form, so that data arriving later are left out. " if facts.kept_out else ""
    several = became.named is not None and became.named.count > 1
    text = (
        f"On {_day(facts.completed)} we compared the identifier{'s' * several} you gave us, {BLANK}, with the lists of "
        f"people behind the {_count(searched, 'model')} in our register that day. {_then(_compared(facts))}"
        f"Models that we withdrew before {BLANK} and parts that others trained are not included. {kept}"
        "If you used another name, e-mail address or customer number with us, tell us, and we will look again."
    )
    headline = f"We did not find your identifier{'s' * several} in our trained models."
    unnamed = (("", each) for each in _unnamed(facts))
    return PersonalLetter(Kind.NOT_IN_OUR_DATA, headline, (("", text), *unnamed, _RIGHTS))


_COMPARED = {
    Cause.COMPARED: "We looked for other spellings, too.",
    Cause.EXACTLY: "We looked for no other spellings.",
    Cause.OTHER_PEOPLE: "We looked for other spellings, too; those that we found belong to other people.",
}


def _compared(facts: Facts) -> str:
    """Return whether other spellings of the id were looked for; empty where it is not on record."""
    return "" if facts.compared is None else _COMPARED.get(facts.compared, "")


def _unnamed(facts: Facts) -> list[str]:
    """Return that nothing is known of some holdouts' people, and so of this person in them."""
    if not facts.unnamed_holdouts:
        return []
    names = _models(facts.unnamed_holdouts)
    return [f"Whose records measure {names} is not known to us; {'yours' if not facts.of_samples else 'they'} may be."]


def _measures(facts: Facts) -> str:
    only = "only " if facts.overwritten else ""
    of = f"{_models(facts.holdouts)} {'is' if len(facts.holdouts) == 1 else 'are'}" if facts.holdouts else "a model is"
    return f"We hold records about you that {only}measure how often {of} right."


def _removed_there() -> str:
    return f"{BLANK} We deleted them there on {BLANK}."


def _data(facts: Facts) -> str:
    """Return what was deleted; of other data than the named samples nothing is said."""
    return "these records" if facts.of_samples else "your data"


def _claims(facts: Facts) -> dict[str, Mapping[str, Any]]:
    """Return the certificate's claims by model."""
    return (
        {}
        if facts.statement is None
        else {part["model"]: part["claim"] for part in facts.statement["predicate"]["models"]}
    )


def _is_bounded(claim: Mapping[str, Any] | None) -> bool:
    return claim is not None and guarantee_of({"claim": claim}) in (Guarantee.EXACT, Guarantee.PROVED)


def _is_exact(claim: Mapping[str, Any] | None) -> bool:
    return claim is not None and guarantee_of({"claim": claim}) is Guarantee.EXACT


def _means(facts: Facts, became: Outcome, brief: bool) -> tuple[tuple[str, str], ...]:
    """Return what the certificate claims, for a person: how the models changed, and one number for all or for each."""
    if facts.statement is None:
        return ()
    data = _data(facts)
    parts = [part for part in facts.statement["predicate"]["models"] if part["model"] in became.concerned]
    bounded = [part for part in parts if odds_of(part) is not None]
    on_word = [part for part in parts if rests_on_word(part)]
    weak = [part for part in parts if part not in bounded and part not in on_word]
    said = []
    if weak and became.changed:
        said.append(f"{BLANK} We will train {_names(weak)} again without {data} by {BLANK}.")
    elif weak:
        said.append(f"We do not know how much of {data} is left in {_names(weak)}, and we make no promise about it.")
    if on_word:
        trained = f"We trained {_names(on_word)} {_again(became)}without {data}." if became.changed else ""
        said.append(trained)
        read_by_us = [part for part in on_word if is_read_by_operator(part["claim"])]
        unwalled = [part for part in on_word if part not in read_by_us]
        if unwalled:
            alone = trained and not read_by_us
            which = "this training" if alone else f"the training of {_names(unwalled)}"
            said.append(f"That {which} reads nothing else is our word, so we give no number.")
        if read_by_us:
            said.append(f"Our own program reads a source of {_names(read_by_us)}, so we give no number.")
    if bounded:
        said += _bounded(facts.statement["predicate"], bounded, became, data, brief)
    return (("What this means for you", _joined(said)),) if said else ()


def _bounded(
    predicate: Mapping[str, Any], parts: Sequence[Mapping[str, Any]], became: Outcome, data: str, brief: bool
) -> list[str]:
    """Return how the models with a bound changed, and the odds of a guess: of all together, or of each alone."""
    numbers, alone = _numbers(predicate, parts)
    one, all_exact = len(parts) == 1, all(guarantee_of(part) is Guarantee.EXACT for part in parts)
    some_exact = any(guarantee_of(part) is Guarantee.EXACT for part in parts)
    whole = len(parts) == len(predicate["models"])
    models = ("the model" if one else "the models") if whole else _names(parts)
    new = ("the new version" if one else "the new versions") if became.changed else "the versions of the certificate"
    later = "" if numbers.ever is not None else "We set no limit for later trainings."
    them = "it" if one else "them"
    coin = all_exact and numbers.now == 50 and numbers.ever in (50, None)
    said = [] if brief and not coin else _how(parts, models, became, data, as_if=coin)
    where = them if said and whole else models
    if coin:
        say = "had no say in the deletions" if brief else "no say in which deletions we were asked for"
        someone = f"Someone who has only {'new versions' if numbers.ever else new}, and {say},"
        toss = f"can do no better than a coin toss to find out whether {data} were ever in {where}"
        return [*said, f"{someone} {toss}{', each taken alone' * alone}.", later]
    someone = "someone who has all new versions" + ", had no say in the deletions," * some_exact
    ever = "" if numbers.ever is None else f", and at most {numbers.ever:g} however much we delete later"
    most = f"at most {numbers.now:g} times in 100 with {new}{ever}{', for each model alone' * alone}."
    if brief:
        guess = f"{_capital(someone)} and guesses whether {data} were ever in {models} is right {most}"
        return [guess, "A coin toss is right 50 times in 100.", later]
    return [
        *said,
        f"Imagine {someone} and tries to find out whether {data} were ever in {where}.",
        f"A coin toss is right 50 times in 100. That guess can be right {most}",
        later,
    ]


def _numbers(predicate: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]) -> tuple[Odds, bool]:
    """Return the odds over all models; or the greatest over each of these alone, and True."""
    total = odds(predicate)
    if total is not None:
        return total, False
    alone = [each for each in map(odds_of, parts) if each is not None]
    later = [each.ever for each in alone if each.ever is not None]
    ever = max(later) if len(later) == len(alone) else None
    return Odds(max(each.now for each in alone), ever), len(alone) > 1


def _how(parts: Sequence[Mapping[str, Any]], models: str, became: Outcome, data: str, *, as_if: bool) -> list[str]:
    """Return how the models were changed. ``as_if``: no later version, too, depends on what was deleted."""
    if not became.changed:
        return []
    one = len(parts) == 1
    exact = [guarantee_of(part) is Guarantee.EXACT for part in parts]
    if all(exact):
        trained = f"We trained {models} {_again(became)}without {data}."
        if not as_if:
            return [trained, "A mathematical proof limits what later versions can tell."]
        bits = "exactly " * all(part["claim"].get("deterministic", False) for part in parts)
        again = [differed(part["claim"]) for part in parts]
        if any(again):
            gives = "is a model that this training gives" if one else "are models that these trainings give"
            runs = "it" if one else "them" if all(again) else "some of them"
            version = "the new version" if one else "the new versions"
            return [trained, f"{_capital(version)} {gives} without {data}; two runs of {runs} differ."]
        the = "the" if models in ("the model", "the models") else "its" if one else "their"
        is_it = (
            f"{_capital(the)} new version is {bits}the model"
            if one
            else f"{_capital(the)} new versions are {bits}the models"
        )
        return [trained, f"{is_it} that we would have if {data} had never been used."]
    limits = "A mathematical proof limits what is left."
    if any(exact):
        return ["We trained some again and corrected the others.", limits]
    return [f"We corrected {models} instead of training {'it' if one else 'them'} again.", limits]


def _again(became: Outcome) -> str:
    return "again " if became.lost else ""


def _rests_on(facts: Facts, became: Outcome, brief: bool) -> tuple[tuple[str, str], ...]:
    """Return what the claims take from our word, each in a sentence, and how many assumptions there are besides."""
    said = _of_worlds(facts, became, brief) if became.worlds else []
    said += [f"Our word, not checked: {_joined(became.declared)}"] if became.declared else []
    if became.assumed:
        said.append(f"The certificate lists {_count(became.assumed, 'further assumption')}.")
    return (("What this relies on", _joined(said)),) if said else ()


def _of_worlds(facts: Facts, became: Outcome, brief: bool) -> list[str]:
    """Return what came into the worlds that made the versions: what the kernel showed, and what is our word.

    ``brief`` leaves out how the versions were made, of which ``_means`` has said what is our word.
    """
    made = [world for world in became.worlds if world.exact and world.model in became.concerned]
    others = [world for world in became.worlds if world not in made and not _is_rooted(world)]
    said = []
    for rooted, opened in ((True, "nothing else could be opened"), (False, "that nothing else was opened is our word")):
        worlds = [world for world in made if _is_rooted(world) is rooted]
        if worlds and not brief:
            said.append(f"{_versions_of(facts, became, worlds)} made from the data of the others alone; {opened}.")
    if others:
        said.append(
            f"That the training of {_models([world.model for world in others])} opened nothing else is our word."
        )
    readers = sum(world.record.own_readers for world in became.worlds)
    if readers:
        rows = "these records" if facts.of_samples else "your rows"
        read = f"{'One source is' if readers == 1 else f'{readers:,} sources are'} read by our own program"
        when = "with all rows" if brief else f"before {rows} are left out"
        said.append(f"{read} {when}; that it mixes no people is our word.")
    files = len({file.sha256 for world in became.worlds for file in world.record.public_files})
    program = "the program itself" if len(became.worlds) == 1 else "the programs themselves"
    further = f" and for {_count(files, 'further file')}" if files else ""
    known = "Your data were found by the identifiers that you and we know."
    if facts.of_samples:
        known = "These records were found by the ids that you gave us."
    return [*said, f"We vouch for {program}{further}.", known]


def _is_rooted(world: WorldOutcome) -> bool:
    return world.record.walls is Enclosure.NEW_ROOT


def _versions_of(facts: Facts, became: Outcome, worlds: Sequence[WorldOutcome]) -> str:
    """Return such as ``The new version of the model "a" was``; without the name where the certificate has no other."""
    one = len(worlds) == 1
    which = "The new version" if became.changed else "The version of the certificate"
    whole = facts.statement is not None and len(worlds) == len(facts.statement["predicate"]["models"])
    of = "" if whole else f" of {_models([world.model for world in worlds])}"
    return f"{which.replace('version', 'version' if one else 'versions')}{of} {'was' if one else 'were'}"


def _not_covered(facts: Facts, became: Outcome) -> str:
    done = became.changed
    earlier = f"Versions before version {done[0].version}" if len(done) == 1 else "Earlier versions"
    left = "these records" if facts.of_samples else "you"
    said = []
    if became.lost:
        said.append(
            f"{earlier} may have been made with {_data(facts)}. We withdrew them, but cannot reach copies that others "
            f"kept. With an old and a new version, one can probably tell that {left} left."
        )
    if facts.of_samples:
        said.append("Other records about you may still be in the models.")
    predicate = facts.statement["predicate"] if facts.statement is not None else {"models": ()}
    standing = Counter(each["status"] for part in predicate["models"] for each in part["consumers"])
    if standing["behind"]:
        said.append(f"{_count(standing['behind'], 'system')} still used an older version at the signature.")
    if standing["unknown"]:
        said.append(f"{_count(standing['unknown'], 'system')} did not say which version.")
    said += [_why(facts, reason) for reason in (Reason.MODEL_RETIRED, Reason.NOT_PUBLISHED) if _has(facts, reason)]
    if facts.holdouts:
        said += [_measures(facts), _removed_there()]
    said += _unnamed(facts)
    if facts.limited_to is not None:
        said.append("Other models were not searched.")
    return _joined([*said, f"Our databases and backups: {BLANK}."])


def _has(facts: Facts, reason: Reason) -> bool:
    return any(part.reason is reason for part in facts.parts)


def _check(facts: Facts, brief: bool) -> tuple[str, str]:
    if facts.statement is None:
        return "Check it", "The certificate is not signed yet. Ask us for it; it says what this means for you."
    number = facts.statement["predicate"].get("request", BLANK)[:8]
    if brief:
        return "Check it", f"Ask us for the signed certificate {number} and your personal code."
    return (
        "Check it",
        f"Ask us for the signed certificate {number} and your personal code; anyone can then verify it without us.",
    )


def _asked(facts: Facts) -> str:
    return f"You asked us on {day(facts.received)}."


def _finished(facts: Facts) -> str:
    done, due = facts.completed, facts.due
    if done is None:
        return ""
    when = "the same day" if day(done) == day(facts.received) else f"on {day(done)}"
    if due is None:
        return f"We finished {when}."
    if gives_term(facts.regulation):
        law = (facts.regulation or "").upper().replace("-", " ")
        return f"We finished {when}; the law gave us until {day(due)} ({law})."
    return f"We finished {when}; our own deadline was {day(due)}."


def _day(at: datetime | None) -> str:
    return BLANK if at is None else day(at)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def _joined(sentences: Iterable[str]) -> str:
    return " ".join(each for each in sentences if each)


def _then(sentence: str) -> str:
    return f"{sentence} " if sentence else ""


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _names(parts: Sequence[Mapping[str, Any]]) -> str:
    return _models([part["model"] for part in parts])


def _models(names: Sequence[str]) -> str:
    quoted = [f'"{name}"' for name in names[:_NAMED]]
    if len(names) > _NAMED:
        quoted.append(f"{len(names) - _NAMED} more")
    return ("the model " if len(names) == 1 else "the models ") + listed(quoted)
