"""A claim: what an update says about itself, and with what guarantee. The curve behind it is in ``gaussian``.

Standard library only: the API reads and shows claims without loading torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from unlearning.accounting.budget import (
    LEAST_DELTA,
    ROUNDING,
    charge_of,
    check_delta,
    check_number,
    delta_at,
    epsilon_at,
    log_delta_at,
    mu_at,
    mu_of,
    updates_left,
)
from unlearning.accounting.world import BOUNDED, MADE, Enclosure, WorldRecord

__all__ = [
    "NOT_CLAIMED",
    "Claim",
    "Constant",
    "Guarantee",
    "Reference",
    "delta_at",
    "epsilon_at",
    "guess",
    "log_delta_at",
    "mu_at",
    "together",
]

NOT_CLAIMED: tuple[str, ...] = (
    "With an old and a new version, one can probably tell who left. Nothing here prevents it.",
    "Difference exposure: what two versions tell about the people deleted between them is not bounded. "
    "Old versions must be retired and their consumers moved.",
    "People who were not deleted: nothing is claimed about what the model reveals of them.",
    "Earlier releases: versions published before a deletion still contain that person.",
    "The request pattern: when deletions happened, and how many, is not hidden.",
)
"""what no certificate of ours claims; every claim carries at least these"""
DIFFERED = "Two runs on the same samples gave different results"
"""how the sentence begins that a claim lists where a training could not be repeated"""


_FORMERLY = {NOT_CLAIMED[0]: "Whoever keeps two versions can probably tell who left. Nothing here prevents it."}
"""how claims of earlier versions say it"""
OLDER: Mapping[str, Any] = {"tried": [], "deterministic": False, "operators_word": False, "world": None}
"""what a claim from before there were trials, from before trainings had processes of their own, and of a recipe without
a world lacks"""
DERIVED = frozenset({"statement", "mu_limit", "epsilon_limit"})
"""what ``Claim.to_json`` adds for readers: it follows from the fields"""
_FORMERLY_DERIVED = frozenset({"in_plain_words"})
"""what claims of earlier versions hold besides; a certificate has the words of all its models together"""


class Guarantee(StrEnum):
    """How the distance to retraining is known, strongest first. Never upgraded silently."""

    EXACT = "exact"
    PROVED = "proved"
    CALIBRATED = "calibrated"
    ESTIMATED = "estimated"
    NONE = "none"

    @property
    def rank(self) -> int:
        """Return 4 for exact down to 0 for none."""
        return len(Guarantee) - 1 - list(Guarantee).index(self)

    def satisfies(self, required: Guarantee) -> bool:
        """Tell whether this guarantee is at least as strong as the required one."""
        return self.rank >= required.rank


class Reference(StrEnum):
    """Which retraining an update is compared with."""

    RENORMALISED = "renormalised"
    """the mean over the samples that stay"""
    FIXED_DENOMINATOR = "fixed-denominator"
    """the sum over the samples that stay, divided by the first count (arXiv 2404.01712, eq. 5)"""


@dataclass(frozen=True)
class Constant:
    """A number that a claim depends on, and where it comes from ("closed form", "measured on 3 seeds", ...)."""

    name: str
    value: float
    origin: str

    def __post_init__(self) -> None:
        check_number(f"constant {self.name!r}", self.value)
        if not self.origin.strip():
            raise ValueError(f"The constant {self.name!r} has no origin. State where its value comes from.")


@dataclass(frozen=True)
class Part:
    """A tensor that the model brings along and that no retraining changes.

    ``kind`` is ``frozen``, ``buffer``, ``attribute`` (a tensor outside the state_dict), ``state`` (an entry that a hook
    adds to the state_dict) or ``start`` (of a trained parameter). ``size`` counts its numbers. ``digest`` is what
    ``parts.digest_of`` gives. ``public``: the recipe declares that no deletable person is in it.
    """

    name: str
    kind: str
    size: int
    digest: str
    public: bool


@dataclass(frozen=True)
class Claim:
    """What one version of a generation claims. Constructing one that says more than its guarantee allows raises
    ValueError.

    ``max_distance`` and ``noise_std`` are in units of the weights (Euclidean norm; standard deviation of one
    coordinate). ``updates`` counts updates that were charged, ``spent`` and ``limit`` are whole units of
    1e-12 mu^2, and ``spent`` includes draws that were charged and blocked. ``epsilon`` is at ``delta``.
    ``updates_left`` is None where no limit applies. ``checked`` says what the service has verified, ``tried``
    what it has tried on a few samples, ``declared`` what the operator says unverified, ``parts`` what the
    model brings along. ``deterministic``: every training behind an exact version used deterministic algorithms alone.
    ``operators_word``: that the recipe's code trains on its samples alone could not be tried. ``world``: how the
    processes that made the version were walled in; None: the recipe opens its data itself. No field here may be
    computed from the data of the deleted: two forget sets of one size give the same claim.
    """

    method: str
    guarantee: Guarantee
    reference: Reference
    max_distance: float | None
    noise_std: float | None
    updates: int
    mu: float | None
    epsilon: float | None
    delta: float | None
    spent: int
    limit: int | None
    updates_left: int | None
    samples: int
    people: int
    assumptions: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    tried: tuple[str, ...] = ()
    declared: tuple[str, ...] = ()
    parts: tuple[Part, ...] = ()
    constants: tuple[Constant, ...] = ()
    secret_state: tuple[str, ...] = ()
    not_claimed: tuple[str, ...] = NOT_CLAIMED
    deterministic: bool = False
    operators_word: bool = False
    world: WorldRecord | None = None

    def __post_init__(self) -> None:
        _check_counts(self)
        _check_words(self)
        if self.world is not None:
            _check_world(self, self.world)
        if self.guarantee is Guarantee.NONE:
            _check_claims_nothing(self)
        elif self.guarantee is Guarantee.EXACT:
            _check_exact(self)
        else:
            _check_bounded(self)

    @classmethod
    def of(
        cls,
        *,
        method: str,
        guarantee: Guarantee,
        reference: Reference,
        noise_std: float | None,
        max_distance: float | None,
        delta: float | None,
        updates: int,
        spent: int,
        limit: int | None,
        samples: int,
        people: int,
        assumptions: Iterable[str] = (),
        checked: Iterable[str] = (),
        tried: Iterable[str] = (),
        declared: Iterable[str] = (),
        parts: Iterable[Part] = (),
        constants: Iterable[Constant] = (),
        secret_state: Iterable[str] = (),
        deterministic: bool = False,
        operators_word: bool = False,
        world: WorldRecord | None = None,
    ) -> Claim:
        """Return the claim that follows from a guarantee, a greatest distance and what was spent.

        With a world, ``exact`` is on the operator's word where the kernel did not show what came in, and
        ``deterministic`` only where two worlds made the same bytes.
        """
        silent = guarantee is Guarantee.NONE
        mu = None if silent else mu_of(spent)
        exact = guarantee is Guarantee.EXACT
        cap = None if silent else 0.0 if exact else max_distance
        return cls(
            method=method,
            guarantee=guarantee,
            # A registration without the deleted has a mean over those who are there, whatever the policy asks.
            reference=Reference.RENORMALISED if exact else reference,
            max_distance=cap,
            noise_std=noise_std,
            updates=updates,
            mu=mu,
            epsilon=None if mu is None or delta is None else epsilon_at(mu, delta),
            delta=None if silent else delta,
            spent=spent,
            limit=None if silent else limit,
            updates_left=None if silent else updates_left(spent, limit, _charge(cap, noise_std)),
            samples=samples,
            people=people,
            assumptions=tuple(assumptions),
            checked=tuple(checked),
            tried=tuple(tried),
            declared=tuple(declared),
            parts=tuple(parts),
            constants=tuple(constants),
            secret_state=tuple(secret_state),
            deterministic=deterministic and exact and (world is None or world.repeats is True),
            operators_word=operators_word or (exact and world is not None and not world.shown),
            world=world,
        )

    @property
    def statement(self) -> str:
        """Return the claim in one sentence."""
        return _STATEMENTS[self.guarantee].format(
            reference=self.reference.value,
            epsilon=self.epsilon,
            delta=self.delta,
            cap=self.max_distance,
            noise_std=self.noise_std,
            limit=self.epsilon_limit,
        )

    @property
    def mu_limit(self) -> float | None:
        """Return mu of all updates that the generation can ever make; 0 under exact; None without a limit."""
        if self.guarantee is Guarantee.EXACT:
            return 0.0
        return None if self.limit is None else mu_of(self.limit)

    @property
    def epsilon_limit(self) -> float | None:
        """Return epsilon at ``delta`` of all updates that the generation can ever make; None without a limit."""
        return None if self.mu_limit is None or self.delta is None else epsilon_at(self.mu_limit, self.delta)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; what is DERIVED is added for readers and not read back.

        Without a world there is no field ``world``: the digests of such claims stay those of before.
        """
        record = asdict(self)
        for name in (*_WORDS, "constants", "parts"):
            record[name] = list(record[name])
        if self.world is None:
            del record["world"]
        else:
            record["world"] = self.world.to_json()
        derived = {name: getattr(self, name) for name in DERIVED}
        return {**record, "guarantee": self.guarantee.value, "reference": self.reference.value, **derived}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Claim:
        """Read the claim of ``to_json`` and check it again. Raises ValueError on a missing or unknown field."""
        names = {field.name for field in fields(cls)}
        record = {**OLDER, **record}
        given = set(record) - DERIVED - _FORMERLY_DERIVED
        if given != names:
            raise ValueError(
                f"A claim has the wrong fields: missing {sorted(names - given)}, unknown {sorted(given - names)}. "
                "It was written by another version or edited."
            )
        values = {name: record[name] for name in names}
        values |= {name: tuple(values[name]) for name in _WORDS}
        values["parts"] = tuple(Part(**part) for part in values["parts"])
        values["constants"] = tuple(Constant(**constant) for constant in values["constants"])
        values |= {"guarantee": Guarantee(values["guarantee"]), "reference": Reference(values["reference"])}
        values["world"] = None if values["world"] is None else WorldRecord.from_json(values["world"])
        return cls(**values)


def guess(mu: float) -> float:
    """Return how many times in 100 the best guess whether a person's data were ever used is right, from even odds.

    ``100 Phi(mu)``, rounded up to a tenth; 50 at mu = 0, at most 100. Both worlds are run by us: the version may lie as
    far from "a retraining plus noise" on the one side as the version of a world without the person on the other. So
    the two are ``2 mu`` apart, not ``mu``. Raises ValueError unless mu >= 0.
    """
    check_number("mu", mu, least=0.0)
    above = math.ceil(500 * math.erf(mu / math.sqrt(2)) * (1 + ROUNDING))
    return (500 + min(500, above)) / 10


def together(claims: Iterable[Claim], delta: float) -> tuple[float, float] | None:
    """Return (mu, epsilon at delta) for one person over several models; None as soon as one of them makes no claim.

    mu^2 adds over models as it does over updates; epsilons do not add.
    """
    mus = [claim.mu for claim in claims]
    if any(mu is None for mu in mus):
        return None
    mu = math.sqrt(math.fsum(mu * mu for mu in mus if mu is not None))
    return mu, epsilon_at(mu, delta)


_WORDS = ("assumptions", "checked", "tried", "declared", "secret_state", "not_claimed")
"""the fields of a claim that are lists of sentences"""

_STATEMENTS = {
    Guarantee.EXACT: "Retrained from scratch without the deleted people; reference: {reference} retraining.",
    Guarantee.PROVED: "The weights before noise are proved to lie within {cap:g} of {reference} retraining; with "
    "noise of "
    "standard deviation {noise_std:g} the generation's updates up to this version are ({epsilon:.4g}, {delta:g})-"
    "indistinguishable from it, and all that it can ever make ({limit:.4g}, {delta:g}).",
    Guarantee.CALIBRATED: "With the stated confidence over calibration and request order, the weights before noise lie "
    "within {cap:g} of {reference} retraining; with noise of standard deviation {noise_std:g} the generation's "
    "updates up to "
    "this version are then ({epsilon:.4g}, {delta:g})-indistinguishable from it, and all that it can ever make "
    "({limit:.4g}, {delta:g}).",
    Guarantee.ESTIMATED: "If the listed estimates were true, the generation's updates up to this version would be "
    "({epsilon:.4g}, {delta:g})-indistinguishable from {reference} retraining (cap {cap:g}, noise {noise_std:g}), and "
    "all "
    "that it can ever make ({limit:.4g}, {delta:g}). They are not proved.",
    Guarantee.NONE: "No claim: the distance to {reference} retraining is not bounded.",
}


def _charge(max_distance: float | None, noise_std: float | None) -> int:
    return charge_of(max_distance, noise_std) if max_distance and noise_std else 0


def _check_counts(claim: Claim) -> None:
    for name in ("updates", "spent", "samples", "people"):
        value = getattr(claim, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ValueError(f"{name} is {value!r} in a claim. It must be a whole number of at least 0.")
    if claim.noise_std is not None:
        check_number("noise_std", claim.noise_std, least=0.0)
    if claim.limit is not None and claim.spent > claim.limit:
        raise ValueError(f"The claim has spent {claim.spent} units of a limit of {claim.limit}. It may not be issued.")


def _check_words(claim: Claim) -> None:
    said = set(claim.not_claimed)
    missing = [sentence for sentence in NOT_CLAIMED if not said & {sentence, _FORMERLY.get(sentence)}]
    if missing:
        raise ValueError(f"The claim leaves out what it does not claim: {missing[0]!r}. Keep every sentence.")
    hidden = [part.name for part in claim.parts if not part.public]
    if hidden and claim.guarantee in (Guarantee.EXACT, Guarantee.PROVED):
        raise ValueError(
            f"The guarantee is {claim.guarantee.value} and {hidden[0]!r} is not declared public. Declare it, or claim "
            f"less."
        )


def _check_world(claim: Claim, world: WorldRecord) -> None:
    exact = claim.guarantee is Guarantee.EXACT
    if exact and not world.shown and not claim.operators_word:
        raise ValueError(
            f"The guarantee is exact, the walls were {world.walls.value!r}, the operator's own program read "
            f"{world.own_readers} sources, and operators_word is false. Set it: the kernel did not show what came in."
        )
    if claim.deterministic and world.repeats is not True:
        raise ValueError(
            f"The claim is deterministic and repeats is {world.repeats!r} in its world. Make two worlds, and compare."
        )
    if world.walls is not Enclosure.NEW_ROOT and {MADE, BOUNDED} & {*claim.checked, *claim.tried}:
        raise ValueError(
            f"The walls were {world.walls.value!r}, and the claim says that the kernel opened nothing else. List what "
            "statements.of_world gives: behind such walls that is declared."
        )
    missing = [line for line in world.declared if line not in claim.declared]
    if missing and (exact or claim.guarantee is Guarantee.PROVED):
        raise ValueError(
            f"The claim leaves out what its world takes from the operator's word: {missing[0]!r}. List it."
        )


def _check_claims_nothing(claim: Claim) -> None:
    for name in ("max_distance", "mu", "epsilon", "delta", "limit", "updates_left"):
        if getattr(claim, name) is not None:
            raise ValueError(
                f"The guarantee is none and {name} is {getattr(claim, name)!r}. Such a claim has no {name}."
            )
    if claim.spent:
        raise ValueError(
            f"The guarantee is none and {claim.spent} units are spent. Without a bound nothing is charged."
        )


def _check_exact(claim: Claim) -> None:
    for name in ("max_distance", "mu", "epsilon", "spent"):
        if getattr(claim, name) != 0:
            raise ValueError(f"The guarantee is exact and {name} is {getattr(claim, name)!r}. It must be 0.")


def _check_bounded(claim: Claim) -> None:
    check_number("max_distance", claim.max_distance, above=0.0)
    check_number("noise_std", claim.noise_std, above=0.0)
    check_number("mu", claim.mu, least=0.0)
    check_number("epsilon", claim.epsilon, least=0.0)
    assert claim.mu is not None and claim.epsilon is not None and claim.delta is not None  # noqa: S101 (for mypy)
    check_number("delta", claim.delta, least=LEAST_DELTA)
    check_delta(claim.delta)
    if claim.limit is None:
        raise ValueError(
            f"The guarantee is {claim.guarantee.value} and there is no limit. Such a generation has a budget."
        )
    owed = claim.updates * _charge(claim.max_distance, claim.noise_std)
    if claim.spent < owed:
        raise ValueError(f"{claim.updates} updates cost {owed} units and the claim says {claim.spent}.")
    if claim.mu < mu_of(claim.spent):
        raise ValueError(f"mu is {claim.mu} and {claim.spent} units are spent: mu is too small for them.")
    if claim.epsilon < epsilon_at(claim.mu, claim.delta) * (1 - 1e-9):  # another libm may differ in the last digits
        raise ValueError(f"epsilon is {claim.epsilon} at mu {claim.mu}: the Gaussian curve gives more.")
    left = updates_left(claim.spent, claim.limit, _charge(claim.max_distance, claim.noise_std))
    if claim.updates_left != left:
        raise ValueError(f"updates_left is {claim.updates_left!r}. With these amounts {left} are left.")
    if not claim.assumptions:
        raise ValueError(
            f"The guarantee is {claim.guarantee.value} and no assumption is stated. State every one in words."
        )
    if claim.guarantee is Guarantee.ESTIMATED and not claim.constants:
        raise ValueError("The guarantee is estimated and no constant is listed. List each estimate with its origin.")
