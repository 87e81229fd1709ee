"""Checking an exported audit log offline: the entries, signed heads and the public key are all it needs.

An edited, removed or reordered entry changes the root. A truncated log is shorter than its head. Heads kept from
earlier must be prefixes of the log: where one is not, the log was forked, or cut back together with its head.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from expunge_service.audit import merkle
from expunge_service.audit.signed_note import LogHead, NotAuthentic, Verifier
from expunge_service.audit.succession import TrustedKey, successions, trusted_keys


@dataclass(frozen=True)
class ExportedEntry:
    """An exported entry. ``body`` is the leaf's exact text; None: another tenant's, of which only the hash is
    exported.
    """

    index: int
    leaf: bytes
    body: str | None

    @classmethod
    def parse(cls, line: dict[str, Any]) -> ExportedEntry:
        """Read an entry as GET /v1/audit-log and ``expunge audit export`` write it. Raises NotAuthentic."""
        try:
            index, leaf, body = line["index"], bytes.fromhex(line["leaf_hash"]), line["body"]
            hashed = None if body is None else merkle.leaf_hash(body.encode())
        except (KeyError, TypeError, ValueError, AttributeError):
            raise NotAuthentic("An entry is malformed.") from None
        if type(index) is not int or len(leaf) != 32 or leaf.hex() != line["leaf_hash"]:
            raise NotAuthentic(f"An entry is malformed: its index is {index!r}.")
        if hashed not in (None, leaf):
            raise NotAuthentic(f"Entry {index} was edited: its text does not have its hash.")
        return cls(index, leaf, body)


def verify(entries: Iterable[dict[str, Any]], head: str, verifier: Verifier, earlier: Iterable[str] = ()) -> LogHead:
    """Check ``entries`` (exported lines, in order, from index 0) and return the tree head that they fit.

    ``head`` is the newest signed note, over all of them: a line behind it is not signed. ``earlier`` are notes
    kept from before, also under keys that the log has retired since. ``verifier`` is the key in use, or one before it.
    Raises NotAuthentic.
    """
    parsed = [ExportedEntry.parse(line) for line in entries]
    keys = _keys(parsed, verifier)
    newest = _open(keys[:1], head)
    wanted = {newest, *(_open(keys, note) for note in earlier)}
    if max(each.size for each in wanted) > newest.size:
        raise NotAuthentic(
            "The log was truncated, or this is an earlier export: a head that was seen before covers more entries."
        )
    roots = _roots(parsed, newest.size, {each.size for each in wanted})
    for each in sorted(wanted, key=lambda each: each.size):
        if roots[each.size] != each.root:
            raise NotAuthentic(_what(each, newest))
    return newest


def open_head(keys: Iterable[TrustedKey], note: str) -> LogHead:
    """Return the head that one of these keys signed. Raises NotAuthentic, also where the key was retired before it."""
    why = NotAuthentic("The note is not signed by a key of this log.")
    for each in keys:
        try:
            found = each.key.checkpoint(note)
        except NotAuthentic as error:
            why = error
            continue
        if each.most is not None and found.size > each.most:
            retired = each.most - 1
            raise NotAuthentic(
                f"A head over {found.size} entries was signed with a key that entry {retired} had retired."
            )
        return found
    raise why


def _keys(entries: Iterable[ExportedEntry], verifier: Verifier) -> list[TrustedKey]:
    return trusted_keys(verifier, successions((each.index, each.body) for each in entries))


def _roots(entries: Sequence[ExportedEntry], size: int, wanted: set[int]) -> dict[int, bytes]:
    frontier: list[bytes] = []
    roots = {0: merkle.EMPTY_ROOT}
    for place, entry in enumerate(entries):
        if entry.index != place:
            raise NotAuthentic(f"Entry {place} is missing or out of order: entry {entry.index} is in its place.")
        merkle.append(frontier, place, entry.leaf)
        if place + 1 in wanted:
            roots[place + 1] = merkle.root(frontier)
    if len(entries) < size:
        raise NotAuthentic(f"The log was truncated: {len(entries)} entries, and its head was signed over {size}.")
    if len(entries) > size:
        behind = len(entries) - size
        raise NotAuthentic(f"{behind} entries are behind the {size} that the head was signed over: they are unsigned.")
    return roots


def _open(keys: Sequence[TrustedKey], note: str) -> LogHead:
    try:
        return open_head(keys, note)
    except NotAuthentic as error:
        raise NotAuthentic(f"A tree head is not authentic: {error}") from None


def _what(head: LogHead, newest: LogHead) -> str:
    if head == newest:
        return "The entries do not have the signed root: one was edited, removed or reordered."
    return f"The log was forked or rewritten: it does not continue the head that was signed over {head.size} entries."
