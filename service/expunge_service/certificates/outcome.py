"""What became of a request, as one value that every face renders: from its tasks and, where signed, its certificate.

A pure rule. It counts each record once, accounts for each id or sample that the request named, and is as strong as the
weakest model that lost something. What the certificate says goes before what the tables say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any

from expunge_service.certificates.plain_words import guarantee_of, rests_on_word, world_of
from expunge_service.infra.time import instant, moment, rfc_3339
from expunge_service.requests import Account, Reason
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.declarations import has_plain, plain
from unlearning.accounting.world import WorldRecord, is_vouched


class Strength(IntEnum):
    """What may be said of a model that was changed, weakest first."""

    CHANGED = 0
    """it was changed, and no bound says how much is left"""
    ON_WORD = 1
    """it was trained without the data, and that the training reads nothing else is the operator's word"""
    DELETED = 2
    """exact or proved"""


@dataclass(frozen=True)
class ModelOutcome:
    """What one model did.

    Args:
        version: the one that was current when the model's part ended; None: there was none.
        samples: how many it lost.
        claim: of that version; None: not known.
    """

    model: str
    reason: Reason | None
    version: int | None
    samples: int
    claim: Mapping[str, Any] | None = None

    @property
    def lost(self) -> bool:
        return self.version is not None and self.samples > 0

    @property
    def left_out(self) -> bool:
        """Whether the model was never trained on what it is counted to have lost."""
        return self.reason is Reason.LEFT_OUT


@dataclass(frozen=True)
class Before:
    """What an earlier request had done: the version that was the first without ``names`` of those named now."""

    model: str
    version: int
    at: datetime
    strength: Strength
    names: int


@dataclass(frozen=True)
class NameCounts:
    """How many ids or samples the request names, and what became of them: each is counted in one of the last four."""

    count: int
    deleted: int
    deleted_before: int
    in_holdout: int
    not_found: int
    before: tuple[Before, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the certificate's ``named``."""
        before = [
            {
                "model": each.model,
                "version": each.version,
                "published_at": rfc_3339(moment(each.at)),
                "strength": each.strength.name.lower(),
                "names": each.names,
            }
            for each in self.before
        ]
        counts = {name: getattr(self, name) for name in _COUNTS}
        return {**counts, "before": before}

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> NameCounts:
        before = tuple(
            Before(
                each["model"],
                each["version"],
                datetime.fromisoformat(each["published_at"]),
                Strength[each["strength"].upper()],
                each["names"],
            )
            for each in said["before"]
        )
        return cls(**{name: said[name] for name in _COUNTS}, before=before)


_COUNTS = ("count", "deleted", "deleted_before", "in_holdout", "not_found")


@dataclass(frozen=True)
class WorldOutcome:
    """The worlds that made a model's version, and whether that is ``exact``."""

    model: str
    exact: bool
    record: WorldRecord


@dataclass(frozen=True)
class Outcome:
    """What became of a request.

    Args:
        strength: what may be said of all models that lost something; None: none did.
        lost: the models that lost something that they were trained on.
        left_out: the models that were trained without, and never with it.
        records: how many distinct records ``lost`` lost; None: not on record, so that only each model's is known.
        named: what became of each id or sample; None: not on record.
        again: the models that had lost it before, and for which ``named`` has no version.
        retired, unpublished: the models that ended before they carried the request out.
        worlds: of each model of the certificate that claims something and was made in worlds.
        declared: what the claims take from the operator's word, in plain sentences, but for what ``worlds`` says;
            ``assumed``: how many other assumptions the certificate lists.
    """

    strength: Strength | None
    lost: tuple[ModelOutcome, ...]
    left_out: tuple[ModelOutcome, ...]
    records: int | None
    named: NameCounts | None
    again: tuple[str, ...]
    retired: tuple[str, ...]
    unpublished: tuple[str, ...]
    worlds: tuple[WorldOutcome, ...]
    declared: tuple[str, ...]
    assumed: int

    @property
    def changed(self) -> tuple[ModelOutcome, ...]:
        return (*self.lost, *self.left_out)

    @property
    def concerned(self) -> frozenset[str]:
        """The models that the request changed; where it changed none, those that earlier requests had changed."""
        before = {each.model for each in self.named.before} if self.named else set()
        return frozenset(part.model for part in self.changed) or frozenset(before.union(self.again))


def outcome(
    parts: Sequence[ModelOutcome],
    accounts: Sequence[Account] | None,
    records: int | None,
    statement: Mapping[str, Any] | None,
    data: str,
) -> Outcome:
    """Return what became of a request.

    Args:
        parts: what each model did that had work.
        accounts: what became of each name, as the tables say; None: not on record.
        records: how many distinct records were deleted, as the tables say; None: not on record.
        statement: of the verified certificate; None: there is none.
        data: how the sentences call what was to be deleted, such as "your data".
    """
    predicate = {} if statement is None else statement["predicate"]
    certified = {part["model"]: part["claim"] for part in predicate.get("models", ())}
    changed = [part for part in parts if part.lost]
    named = named_in(accounts, {part.model for part in changed})
    if "named" in predicate:
        named = None if predicate["named"] is None else NameCounts.from_json(predicate["named"])
    lost = tuple(part for part in changed if not part.left_out)
    claims = [certified.get(part.model, part.claim) for part in changed]
    known = predicate.get("records", records)
    told = {each.model for each in named.before} if named else set()
    claiming = {
        model: claim
        for model, claim in certified.items()
        if Guarantee(claim.get("guarantee", "none")) is not Guarantee.NONE
    }
    declared = [line for claim in claiming.values() for line in claim.get("declared") or () if not is_vouched(line)]
    assumed = [line for claim in claiming.values() for line in claim.get("assumptions") or ()]
    worlds = [
        WorldOutcome(model, Guarantee(claim["guarantee"]) is Guarantee.EXACT, record)
        for model, claim in claiming.items()
        if (record := world_of(claim)) is not None
    ]
    return Outcome(
        strength=min(map(strength_of, claims), default=None),
        lost=lost,
        left_out=tuple(part for part in changed if part.left_out),
        records=lost[0].samples if len(lost) == 1 else known,
        named=named,
        again=tuple(part.model for part in parts if part.reason is Reason.ALREADY_DELETED and part.model not in told),
        retired=_ended(parts, Reason.MODEL_RETIRED),
        unpublished=_ended(parts, Reason.NOT_PUBLISHED),
        worlds=tuple(worlds),
        declared=plain(declared, assumed, data),
        assumed=len({line for line in assumed if not has_plain(line)}),
    )


def strength_of(claim: Mapping[str, Any] | None) -> Strength:
    """Return what may be said of a model by its version's claim; of one that is not known, the least."""
    if claim is None or guarantee_of({"claim": claim}) not in (Guarantee.EXACT, Guarantee.PROVED):
        return Strength.CHANGED
    return Strength.ON_WORD if rests_on_word({"claim": claim}) else Strength.DELETED


def named_in(accounts: Sequence[Account] | None, changed: set[str]) -> NameCounts | None:
    """Sum the accounts of the names up. ``changed``: the models that the request changed itself.

    What is not deleted now but was before is counted as that, whatever else is known of it.
    """
    if accounts is None:
        return None
    names: dict[tuple[str, int], int] = {}
    departures = {}
    for account in accounts:
        for each in account.before:
            if not (account.deleted and each.model in changed):
                names[each.model, each.number] = names.get((each.model, each.number), 0) + 1
                departures[each.model, each.number] = each
    before = tuple(
        Before(each.model, each.number, instant(each.published_at), strength_of(each.claim), names[place])
        for place, each in sorted(departures.items())
    )
    deleted = sum(account.deleted for account in accounts)
    earlier = sum(bool(account.before) and not account.deleted for account in accounts)
    held_out = sum(account.in_holdout and not (account.deleted or account.before) for account in accounts)
    return NameCounts(len(accounts), deleted, earlier, held_out, len(accounts) - deleted - earlier - held_out, before)


def _ended(parts: Sequence[ModelOutcome], reason: Reason) -> tuple[str, ...]:
    return tuple(part.model for part in parts if part.reason is reason and part.version is None)
