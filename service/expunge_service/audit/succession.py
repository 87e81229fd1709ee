"""Which signing keys to believe, from one that is known: rotations, as the log tells them. Pure.

A rotation carries two signatures. The retired key signs for its successor, so trust moves forward. The new key signs
for the one that it retires, so trust moves back. Neither is worth anything in the other direction: a forger owns the
key that a forged rotation retires.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from expunge_service.audit.signed_note import NotAuthentic, Signer, Verifier

ROTATED = "log.key_rotated"
"""the kind of the entry that retires a signing key"""


@dataclass(frozen=True)
class Succession:
    """One rotation: the entry at ``index`` of the log, with its exact text ``body``."""

    index: int
    body: str
    retired: Verifier
    key: Verifier
    endorsement: str
    acknowledgement: str

    @classmethod
    def parse(cls, index: int, body: str) -> Succession:
        """Read the entry's text. Raises NotAuthentic."""
        try:
            facts = json.loads(body)
            retired, key = Verifier.parse(facts["retired"]), Verifier.parse(facts["key"])
            # entries of before had no acknowledgement
            return cls(index, body, retired, key, str(facts["endorsement"]), str(facts.get("acknowledgement")))
        except (NotAuthentic, KeyError, TypeError, ValueError, AttributeError, RecursionError):
            raise NotAuthentic("An entry that retires a signing key is malformed.") from None

    @property
    def endorsed(self) -> bool:
        """Return whether the retired key signed for its successor."""
        return _signed(self.retired, self.endorsement, _successor(self.key))

    @property
    def acknowledged(self) -> bool:
        """Return whether the new key signed for the one that it retires."""
        return _signed(self.key, self.acknowledgement, _predecessor(self.retired))


@dataclass(frozen=True)
class TrustedKey:
    """A key, and how many entries a head covers at most that it signed; None: it is the key in use."""

    key: Verifier
    most: int | None


def signatures(old: Signer, new: Signer) -> dict[str, str]:
    """Return what a rotation writes into its entry."""
    return {
        "retired": str(old.verifier),
        "key": str(new.verifier),
        "endorsement": old.sign(_successor(new.verifier)),
        "acknowledgement": new.sign(_predecessor(old.verifier)),
    }


def successions(entries: Iterable[tuple[int, str | None]]) -> list[Succession]:
    """Return the rotations among entries (index, text), in their order. Raises NotAuthentic for a malformed one."""
    return [Succession.parse(index, body) for index, body in entries if body is not None and _retires(body)]


def predecessors(key: Verifier, history: Sequence[Succession]) -> list[Succession]:
    """Return the rotations that lead back from ``key``, newest first: each new key acknowledges the one before it."""
    found: list[Succession] = []
    for each in reversed(history):
        if each.key == key and each.acknowledged:
            found.append(each)
            key = each.retired
    return found


def trusted_keys(configured: Verifier, history: Sequence[Succession]) -> list[TrustedKey]:
    """Return the key in use, and then those that were retired, the youngest first.

    From the configured key the rotations lead on where it and each after it endorsed its successor.
    """
    current, endorsed = configured, []
    for each in history:
        if each.retired == current and each.endorsed:
            endorsed.append(each)
            current = each.key
    believed = [*reversed(endorsed), *predecessors(configured, history)]
    return [TrustedKey(current, None), *(TrustedKey(each.retired, each.index + 1) for each in believed)]


def _retires(body: str) -> bool:
    if ROTATED not in body:
        return False
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return False
    return isinstance(said, dict) and said.get("kind") == ROTATED


def _signed(key: Verifier, note: str, text: str) -> bool:
    try:
        return key.open(note) == text
    except NotAuthentic:
        return False


def _successor(key: Verifier) -> str:
    return f"expunge: this key's successor\n{key}\n"


def _predecessor(key: Verifier) -> str:
    return f"expunge: this key's predecessor\n{key}\n"
