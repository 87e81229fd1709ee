"""What an operator asks of a model, and the planner: (policy, budget, queue, clock) -> the next action.

Standard library only. The planner is pure: the same four values give the same action, and none of them is
computed from the data of the deleted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Literal

from unlearning.accounting.budget import LEAST_DELTA, UNITS, Budget, charge_of, limit_of
from unlearning.accounting.certificate import Guarantee, Reference

SECOND = 1_000_000
"""moments and durations of the planner are whole microseconds"""
DAY_SECONDS = 86_400
REPAIR = 3 * DAY_SECONDS * SECOND
"""before a deadline, in which a failure can be repaired"""
WEEK_SECONDS = 7 * DAY_SECONDS
SHORT_TRAINING_SECONDS = 64
"""about a minute: a measured duration is kept as the next power of two"""
LARGEST_ORDERS = 10_000
"""deletion orders of a calibration"""
ANYWHERE = "any"
"""the place of a model that every worker takes"""
DEVICES = ("cpu", "cuda")
"""places that a worker is by its device"""
_PLACE = re.compile(r"[a-z0-9][a-z0-9_-]{0,30}")
AUTO = "auto"
"""in the place of a method that was not named: preparation chooses one by ``method_by_rule``"""
RETRAIN = "retrain"
"""the method that trains again without the deleted"""
RULE = (
    "One rule then chooses it: retrain where samples x features are at most 600,000, else newton where its guarantee "
    "is proved, else retrain. `expunge check RECIPE --measure` says what each method costs."
)
SMALL = 600_000
"""numbers (samples times features): training again on so few takes less time than an update"""


class Granularity(StrEnum):
    """What is forgotten at once: all samples of a person, or single samples too."""

    SUBJECT = "subject"
    SAMPLE = "sample"


class Fallback(StrEnum):
    """What happens where the method cannot go on: the model is trained again, or requests wait for a person."""

    RETRAIN = "retrain"
    HOLD = "hold"


class Twins(StrEnum):
    """What happens with a deletion of a person whose id another person has in another spelling, as aB3 and Ab3."""

    ASK = "ask"
    IGNORE = "ignore"


class CompleteWhen(StrEnum):
    """When a model's part in a request is over: with the version, or when all consumers serve it."""

    PUBLISHED = "published"
    SERVED = "served"


class PolicyError(ValueError):
    """A policy says something that is not allowed. ``field`` is the field's name."""

    def __init__(self, name: str, what: str, hint: str) -> None:
        super().__init__(f"{what} {hint}")
        self.field = name
        self.what = what
        self.hint = hint


@dataclass(frozen=True)
class Calibration:
    """How the guarantee ``calibrated`` is measured.

    Args:
        alpha: the share of request streams that may leave the bound, above 0 and below 1.
        orders: deletion orders that are run and retrained, 1 to 10,000.
        sizes: increasing counts of people, after each of which the distance is measured; empty: 1, 2, 4, ... up to a
            twentieth of the people.

    Raises:
        PolicyError: a value outside its range. ``field`` is its name, as ``calibration/alpha``.
    """

    alpha: float = 0.05
    orders: int = 19
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        _number("calibration/alpha", self.alpha, above=0, below=1)
        if not _whole(self.orders) or not 1 <= self.orders <= LARGEST_ORDERS:
            what = f"calibration/orders is {_shown(self.orders)}."
            raise PolicyError("calibration/orders", what, f"It must be a whole number from 1 to {LARGEST_ORDERS}.")
        whole = all(_whole(size) and size >= 1 for size in self.sizes)
        if not whole or list(self.sizes) != sorted({*self.sizes}):
            what = f"calibration/sizes is {_shown(self.sizes)}."
            raise PolicyError("calibration/sizes", what, "It must be increasing whole numbers, from 1 on.")


@dataclass(frozen=True)
class Policy:
    """How one model forgets; fixed at registration.

    The defaults belong together: at epsilon 1 and delta 1e-5, an update of max_distance 1e-5 under noise_std 0.01
    costs mu^2 = 1e-6, which leaves about 70,000 updates.

    Args:
        method: one of ``unlearning.methods.NAMES``; or ``auto``, where none was named: ``method_by_rule`` chooses.
        fallback: what happens at each dead end of the method. With ``retrain`` a request that it cannot serve waits for
            a cold retrain while the current version is served; so do requests once the budget is used up; and the
            generation is a retrain where the method does not help on the model. With ``hold`` requests are blocked
            instead, and such a model is refused.
        guarantee: the least that may be published. None takes ``exact`` or ``proved`` where the method has it on this
            model, and ``none`` elsewhere: what is measured or estimated is asked for by name.
        calibration: how ``calibrated`` is measured.
        epsilon, delta: the generation's budget; delta is at least 1e-12.
        noise_std, max_distance: in units of the weights.
        reference: the retraining that the method approximates; None: the method's own.
        complete_when: with ``served`` a request waits until every known consumer reports a version without the person.
        batch: the least time between updates, in seconds; a deadline comes first. None: as ``batch_by_rule`` says.
        retrain_every: seconds after which the model is trained again on the recipe's present data; 0: on request alone.
        place: which workers take the model: ``any``, ``cpu``, ``cuda``, or those of a group (EXPUNGE_PLACES).
        max_accuracy_drop: the greatest fall of holdout accuracy (a fraction) in one update; None: no gate.
        twins: with ``ask`` a person decides about a deletion whose id is written nearly as another person's.
        options: the method's own fields.

    Raises:
        PolicyError: a value outside its range, or an update that costs more than the whole budget.
    """

    method: str
    fallback: Fallback = Fallback.RETRAIN
    guarantee: Guarantee | None = None
    calibration: Calibration = field(default_factory=Calibration)
    epsilon: float = 1.0
    delta: float = 1e-5
    noise_std: float = 0.01
    max_distance: float = 1e-5
    granularity: Granularity = Granularity.SUBJECT
    reference: Reference | None = None
    complete_when: CompleteWhen = CompleteWhen.PUBLISHED
    batch: int | None = None
    retrain_every: int = 0
    place: str = ANYWHERE
    max_accuracy_drop: float | None = 0.1
    twins: Twins = Twins.ASK
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _number("epsilon", self.epsilon, above=0, most=1e4)
        _number("delta", self.delta, least=LEAST_DELTA, below=1)
        _number("noise_std", self.noise_std, above=0, most=1e6)
        _number("max_distance", self.max_distance, above=0, most=1e6)
        if self.max_accuracy_drop is not None:
            _number("max_accuracy_drop", self.max_accuracy_drop, least=0, most=1)
        if self.batch is not None:
            _seconds("batch", self.batch)
        if self.method == AUTO and self.options:
            raise PolicyError("options", "options are given without their method.", "Name the method that has them.")
        _seconds("retrain_every", self.retrain_every)
        if not isinstance(self.place, str) or not _PLACE.fullmatch(self.place):
            hint = "It must be any, cpu, cuda, or a group's name: 1 to 31 of a-z, 0-9, _ and -."
            raise PolicyError("place", f"place is {_shown(self.place)}.", hint)
        if self.budget_cost > self.limit:
            raise PolicyError("noise_std", *self._nothing_fits())

    @property
    def falls_back(self) -> bool:
        """Return whether a retrain takes the method's place where it cannot go on."""
        return self.fallback is Fallback.RETRAIN and self.method != RETRAIN

    def withholds(self, before: float | None, after: float | None) -> bool:
        """Return whether the holdout's figure fell by more than the policy allows; not where one is not measured."""
        if self.max_accuracy_drop is None or before is None or after is None:
            return False
        return before - after > self.max_accuracy_drop

    def in_force(self, method: str) -> Policy:
        """Return the policy of a generation of ``method``: this one, or with its fallback or its choice in place."""
        return self if method == self.method else replace(self, method=method, options={})

    @property
    def budget_cost(self) -> int:
        """Return the units that one update costs."""
        return charge_of(self.max_distance, self.noise_std)

    @property
    def limit(self) -> int:
        """Return the units that the policy allows in all."""
        return limit_of(self.epsilon, self.delta)

    def budget(self, guarantee: Guarantee, spent: int = 0) -> Budget:
        """Return the budget of a generation of this policy: constant charges under a bound, none elsewhere."""
        if guarantee is Guarantee.NONE:
            return Budget(spent=0, limit=None, budget_cost=0)
        return Budget(
            spent=spent, limit=self.limit, budget_cost=0 if guarantee is Guarantee.EXACT else self.budget_cost
        )

    def _nothing_fits(self) -> tuple[str, str]:
        cost = f"{self.budget_cost} units (max_distance {self.max_distance:g}, noise_std {self.noise_std:g})"
        what = f"One update costs {cost}; epsilon {self.epsilon:g} at delta {self.delta:g} allows {self.limit}."
        if self.limit == 0:
            return what, "Raise epsilon or delta."
        enough = 1.01 * self.max_distance * math.sqrt(UNITS / self.limit)
        return what, f"Raise noise_std to at least {enough:.3g}, or lower max_distance."

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, all fields."""
        record = asdict(self)
        record["calibration"]["sizes"] = list(self.calibration.sizes)
        return {name: value.value if isinstance(value, StrEnum) else value for name, value in record.items()}

    @classmethod
    def from_json(cls, record: object, methods: Collection[str] | None = None) -> Policy:
        """Read the policy in a JSON object; fields left out, or null, take their defaults.

        ``methods`` are the names that are offered. None takes any name: that of a policy that was checked before.

        Raises:
            PolicyError: it names the field, its value and what is allowed.
        """
        if not isinstance(record, Mapping):
            raise PolicyError("policy", f"The policy is {_shown(record)}.", "It must be a JSON object.")
        _known(record, cls, "A policy")
        nullable = {"max_accuracy_drop"}
        given = {name: value for name, value in record.items() if value is not None or name in nullable}
        read = {name: _read(name, value, methods) for name, value in given.items()}
        return cls(**{"method": AUTO, **read})


def method_by_rule(samples: int, features: int, provable: bool) -> tuple[str, str]:
    """Return the method of a policy that names none, and why: by counts, so that the same data give the same method.

    ``provable``: ``newton`` has the guarantee ``proved`` on the model. ``features``: of its linear head; 0 without one.
    """
    if not provable:
        return "retrain", "On this model newton has no proof, so it is trained again."
    if samples * features <= SMALL:
        return "retrain", f"{samples:,} samples of {features:,} numbers: training again takes no longer than an update."
    return "newton", "On this model a theorem limits how far an update is from a training without the person."


def place_by_rule(asked: str, bound_to: str | None) -> str:
    """Return the place of a generation's updates: the policy's, else the device that a recorded path binds them to."""
    return bound_to if asked == ANYWHERE and bound_to is not None else asked


def places_of(text: str) -> frozenset[str]:
    """Read the groups that a setting lists, separated by commas. Raises ValueError for a name that is no group's."""
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    wrong = sorted(name for name in names if name in (ANYWHERE, *DEVICES) or not _PLACE.fullmatch(name))
    if wrong:
        raise ValueError(f"{wrong[0]!r} is no group's name: 1 to 31 of a-z, 0-9, _ and -, but not any, cpu or cuda.")
    return names


def batch_by_rule(repeats: bool, training: float | None) -> int:
    """Return the batch of a policy that sets none, in seconds: a week where an update repeats training, else 0.

    A training that takes about a minute is repeated at once. ``training``: its measured seconds of work, which other
    load of the machine does not lengthen; None: not timed.
    """
    short = training is not None and training <= SHORT_TRAINING_SECONDS
    return WEEK_SECONDS if repeats and not short else 0


GONE: Mapping[str, str] = {
    "cadence_seconds": "Set batch, in seconds.",
    "collect_seconds": "Set batch: all deletions of a model share its next update.",
    "min_guarantee": "Set guarantee: it is the least that may be published.",
    "on_exhausted": "Set fallback, to retrain or hold: it holds for an exhausted budget too.",
    "on_suppressed": "Set leave_out_forgotten in the registration, to true or false.",
    "on_unchecked_feed": "Leave it out: the admission check drop of expunge-connect refuses what it cannot compare.",
    "requests_per_month": "Leave it out: a method that is not named is chosen by the counts of samples and features.",
    "retrain_every_seconds": "Set retrain_every, in seconds.",
    "threshold": "Leave it out: a method helps where it leaves less than 0.7 of the distance to retraining.",
    "utility_tolerance": "Set max_accuracy_drop.",
}
"""fields of former releases, and what takes their place"""


def _known(record: Mapping[Any, Any], kind: type[Policy | Calibration], what: str) -> None:
    names = [each.name for each in fields(kind)]
    unknown = sorted(str(name) for name in record if name not in names)
    gone = next((name for name in unknown if name in GONE), None)
    if gone is not None:
        raise PolicyError(gone, f"{gone} is no field of a policy any more.", GONE[gone])
    if unknown:
        raise PolicyError(unknown[0], f"{what} has no field {unknown[0]!r}.", f"Its fields: {', '.join(names)}.")


def _read(name: str, value: object, methods: Collection[str] | None) -> Any:
    if name in _CHOICES:
        choice = _CHOICES[name]
        return choice(_one_of(name, value, [member.value for member in choice]))
    if name == "method":
        if value == AUTO and methods is not None:
            hint = f"Leave the method out. {RULE}"
            raise PolicyError(name, "method is 'auto', which is no method.", hint)
        return value if methods is None else _one_of(name, value, methods)
    if name == "options":
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise PolicyError(name, f"{name} is {_shown(value)}.", "It must be a JSON object of the method's fields.")
        return dict(value)
    if name == "calibration":
        return _calibration(value)
    return value


def _calibration(value: object) -> Calibration:
    if not isinstance(value, Mapping):
        what = f"calibration is {_shown(value)}."
        raise PolicyError("calibration", what, "It must be an object: alpha, orders, sizes.")
    _known(value, Calibration, "A calibration")
    given = {name: each for name, each in value.items() if each is not None}
    sizes = given.get("sizes", ())
    if not isinstance(sizes, list | tuple):
        what = f"calibration/sizes is {_shown(sizes)}."
        raise PolicyError("calibration/sizes", what, "It must be a list of whole numbers.")
    return Calibration(**{**given, "sizes": tuple(sizes)})


_CHOICES: dict[str, type[StrEnum]] = {
    "guarantee": Guarantee,
    "granularity": Granularity,
    "reference": Reference,
    "fallback": Fallback,
    "complete_when": CompleteWhen,
    "twins": Twins,
}


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _one_of(name: str, value: object, allowed: Collection[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        raise PolicyError(name, f"{name} is {_shown(value)}.", f"Allowed: {', '.join(allowed)}.")
    return value


def _number(
    name: str,
    value: object,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> None:
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    inside = (
        number
        and isinstance(value, int | float)
        and (least is None or value >= least)
        and (above is None or value > above)
        and (most is None or value <= most)
        and (below is None or value < below)
    )
    if inside:
        return
    bounds = (("at least", least), ("above", above), ("at most", most), ("below", below))
    allowed = " and ".join(f"{word} {bound:g}" for word, bound in bounds if bound is not None)
    raise PolicyError(name, f"{name} is {_shown(value)}.", f"It must be a number {allowed}.")


def _seconds(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise PolicyError(name, f"{name} is {_shown(value)}.", "It must be a whole number of seconds, at least 0.")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class Queue:
    """What waits for one model: counts and moments alone, in microseconds since 1970.

    ``waiting``: tasks that may be claimed now. ``next_at``: when the earliest task of those still in their
    cancel window may be claimed. ``due_at``: the earliest deadline of any waiting task. ``released_at``: when
    the generation last published. ``retraining``: a candidate generation is being trained. ``waits_since``: when the
    first task that waits could be claimed; None: now.
    """

    waiting: int = 0
    next_at: int | None = None
    due_at: int | None = None
    released_at: int | None = None
    retraining: bool = False
    waits_since: int | None = None


@dataclass(frozen=True)
class Clock:
    """``now`` in microseconds since 1970, and how long a retrain was measured to take (microseconds)."""

    now: int
    retrain_takes: int = 0


@dataclass(frozen=True)
class Action:
    """What to do with a model now.

    ``update``: carry out all that wait, in one update. ``wait``: do not start before ``until`` (microseconds since
    1970). ``retrain``: build a candidate generation without the people who wait, because the budget is used up.
    ``hold``: block all that wait, for the same reason. ``nothing``: no work is left, or it is being done.
    """

    kind: Literal["update", "wait", "retrain", "hold", "nothing"]
    until: int | None = None


def next_action(policy: Policy, budget: Budget, queue: Queue, clock: Clock) -> Action:
    """Choose the next action of a live model. One action covers the whole queue, however long it is.

    Where the next update does not fit: ``hold`` blocks what waits; ``retrain`` starts as soon as the forecast
    is zero, waiting requests or not, so that the next request finds a budget.
    """
    if budget.exhausted:
        return _at_exhaustion(policy, queue)
    if not queue.waiting:
        return Action("nothing") if queue.next_at is None else Action("wait", max(queue.next_at, clock.now))
    opens = _opens_at(policy, queue, clock)
    return Action("update") if opens <= clock.now else Action("wait", opens)


def _at_exhaustion(policy: Policy, queue: Queue) -> Action:
    if policy.fallback is Fallback.HOLD:
        return Action("hold" if queue.waiting else "nothing")
    return Action("nothing" if queue.retraining else "retrain")


def _opens_at(policy: Policy, queue: Queue, clock: Clock) -> int:
    """Return when the batch allows the next update; a deadline opens it earlier, three days and two retrains ahead.

    That is time enough to retrain, to retrain once more should the update be refused, and to repair what failed.
    A publication later than now was written by a clock that had jumped ahead: the batch then begins with the first
    task that waits, and so ends, however far the clock had jumped.
    """
    if queue.released_at is None:
        return clock.now
    begins = queue.released_at
    if begins > clock.now:
        begins = clock.now if queue.waits_since is None else min(queue.waits_since, clock.now)
    opens = begins + (policy.batch or 0) * SECOND
    return opens if queue.due_at is None else min(opens, queue.due_at - REPAIR - 2 * clock.retrain_takes)
