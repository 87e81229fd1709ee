"""People kept aside for measuring accuracy: by a hash of the person, so that no person moves when the data grow."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from unlearning.accounting.ids import nfc
from unlearning.types import RecipeError

SHARE = 0.2


def held_out(people: str | Sequence[str], share: float = SHARE) -> bool:
    """Return whether a sample belongs to the holdout: a person does by a hash of the id, in about ``share`` of cases.

    The answer depends on the ids alone: not on the row's position, nor on other people in the data. A sample of several
    people is held out only if all of them are. So a person of the holdout may also be trained on, in a sample that is
    shared with others.

    Args:
        people: the id of the sample's person, or of each of its people.
        share: 0 to 1. A person held out at one share is held out at every greater one.

    Raises:
        RecipeError: ``share`` is outside its range.
    """
    if not 0.0 <= share <= 1.0:
        raise RecipeError(f"share is {share!r}.", "It must be between 0 and 1.")
    names = (people,) if isinstance(people, str) else people
    return all(_place(name) < share for name in names)


def _place(name: str) -> float:
    """Return a number from 0 to 1 that depends on the name alone, uniform over names."""
    return int.from_bytes(hashlib.sha256(b"expunge holdout " + nfc(name).encode()).digest()[:8]) / 2**64
