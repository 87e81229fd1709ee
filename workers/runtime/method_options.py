"""The options of a policy as fields of its method, checked by name and by type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from types import MappingProxyType, NoneType, UnionType
from typing import Any, cast, get_args, get_type_hints

from unlearning.accounting.policy import Policy
from unlearning.methods import NAMES, load
from unlearning.model.method import Method
from unlearning.types import Refused

SKETCHED = ("rank", "probes", "tolerance", "updates", "oversampling", "stability")
SKETCH = "It is one of the method recollection_sketch, which the package expunge-lab brings."
GONE = {
    **{f"recollection {each}": SKETCH for each in SKETCHED},
    "late core": "Set early_share.",
    "late passes": "Set phase_shares.",
    "shards core": "Set early_share.",
    "shards passes": "Set phase_shares.",
    "newton ball": "Leave it out: the ball is enforced where the recipe's Training(radius=C) holds the weights in it.",
    "newton residual": "Leave it out: it is 0.1 under the guarantee proved, and 1e-6 elsewhere.",
    "rewind precision": "Leave it out: under the guarantee proved the steps are repeated in float64.",
    "threshold": "Leave it out: every method is measured alike at registration.",
    "calibration_count": "Leave it out: registration really retrains without three sets of people.",
    "calibration_share": "Leave it out: registration really retrains without three sets of 5 % of the people.",
}
"""what to do in place of an option that is gone, of one method or of all"""
HINTS = {
    "internal": "Leave it out: only programs that use the method from Python set it.",
    "policy": "It is a field of the policy: set it there.",
}
"""what to do in place of an option, by the metadata of its field"""
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", NoneType: "null"}


def method_of(policy: Policy) -> Method:
    """Return the policy's method with its options.

    Raises Refused for an unknown method, an option that it lacks, and a value that it rejects.
    """
    if policy.method not in NAMES:
        raise Refused(f"There is no method {policy.method!r}.", f"The methods are: {', '.join(NAMES)}.")
    kind, record = load(policy.method), policy.to_json()
    shared = {each.name: record[each.name] for each in fields(kind) if each.metadata.get("policy")}
    given = {name: value for name, value in shared.items() if value is not None}
    return with_options(kind, policy.method, policy.options, given)


def with_options(
    kind: Any, name: str, options: Mapping[str, Any], shared: Mapping[str, Any] = MappingProxyType({})
) -> Method:
    """Return an instance of a method's class with ``options``, and with the values ``shared`` of the policy's fields.

    Raises Refused as above.
    """
    types = get_type_hints(kind)
    instead = {each.name: HINTS[mark] for each in fields(kind) for mark in each.metadata if mark in HINTS}
    names = [each.name for each in fields(kind) if each.name not in instead]
    unknown = sorted(options.keys() - set(names))
    if unknown:
        gone = GONE.get(f"{name} {unknown[0]}") or GONE.get(unknown[0]) or instead.get(unknown[0])
        raise Refused(f"{name} has no option {unknown[0]!r}.", gone or f"Its options are: {', '.join(sorted(names))}.")
    given = {each: _fitting(name, each, value, types[each]) for each, value in options.items()}
    try:
        return cast(Method, kind(**given, **shared))
    except (ValueError, TypeError) as error:
        raise Refused(f"{name} refused its options: {error}", "Correct them and register again.") from None


def _fitting(method: str, name: str, value: object, wanted: Any) -> object:
    """Return the value; a whole number becomes a float where a number is wanted. ``True`` is not a number.

    A single number is taken for a list of one. Raises Refused for a value of another type.
    """
    if wanted == tuple[float, ...]:
        return tuple(_fitting(method, name, each, float) for each in (value if isinstance(value, list) else [value]))
    allowed = get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
    if type(value) in allowed:
        return value
    if type(value) is int and float in allowed:
        return float(value)
    kinds = " or ".join(KINDS.get(each, each.__name__) for each in allowed)
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    raise Refused(f"The option {name} of {method} is {shown}.", f"It must be {kinds}.")
