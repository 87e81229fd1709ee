"""Checking an exported audit log offline: the entries, signed heads and the public key are all it needs.

An edited, removed or reordered entry changes the root. A truncated log is shorter than its head. Heads kept from
earlier must be prefixes of the log: where one is not, the log was forked, or cut back together with its head.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from service.audit import merkle as tree
from service.audit.key_rotation import Succession, succeed, successions
from service.audit.signed_note import LogHead, NotAuthentic, Verifier


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
            entry = cls(int(line["index"]), bytes.fromhex(line["leaf_hash"]), line["body"])
        except (KeyError, TypeError, ValueError):
            raise NotAuthentic("An entry is malformed.") from None
        if entry.body is not None and tree.leaf_hash(entry.body.encode()) != entry.leaf:
            raise NotAuthentic(f"Entry {entry.index} was edited: its text does not have its hash.")
        return entry


def verify(entries: Iterable[dict[str, Any]], head: str, verifier: Verifier, earlier: Iterable[str] = ()) -> LogHead:
    """Check ``entries`` (exported lines, in order, from index 0) and return the tree head that they fit.

    ``head`` is the newest signed note. ``earlier`` are notes kept from before, also under keys that the log has retired
    since. ``verifier`` is the key in use, or one before it. Raises NotAuthentic.
    """
    entries = list(entries)
    history = _successions(entries)
    current = succeed(verifier, history)
    newest = _open(current, head)
    wanted = {newest, *(_open_earlier(current, history, note) for note in earlier)}
    if max(each.size for each in wanted) > newest.size:
        raise NotAuthentic("The log was truncated: an earlier signed head is longer than this one.")
    roots = _roots(entries, newest.size, {each.size for each in wanted})
    for each in sorted(wanted, key=lambda each: each.size):
        if roots[each.size] != each.root:
            raise NotAuthentic(_what(each, newest))
    return newest


def retired_keys(entries: Iterable[dict[str, Any]]) -> list[Verifier]:
    """Return the keys that signed before, from entries that ``verify`` has accepted. Raises NotAuthentic."""
    return [each.retired for each in _successions(entries)]


def _successions(entries: Iterable[dict[str, Any]]) -> list[Succession]:
    try:
        return successions(entries)
    except (NotAuthentic, KeyError, TypeError, ValueError):
        raise NotAuthentic("An entry that retires a signing key is malformed.") from None


def _open_earlier(current: Verifier, history: Iterable[Succession], note: str) -> LogHead:
    """Open a head kept from before, signed by the key in use or by one that was not retired yet."""
    for each in history:
        try:
            found = each.retired.checkpoint(note)
        except NotAuthentic:
            continue
        if found.size <= each.index + 1:
            return found
        raise NotAuthentic(
            f"A head over {found.size} entries was signed with a key that entry {each.index} had retired."
        )
    return _open(current, note)


def body(entry: dict[str, Any]) -> dict[str, Any]:
    """Return what an entry says."""
    parsed: dict[str, Any] = json.loads(entry["body"])
    return parsed


def _roots(entries: Iterable[dict[str, Any]], size: int, wanted: set[int]) -> dict[int, bytes]:
    frontier: list[bytes] = []
    roots = {0: tree.EMPTY_ROOT}
    place = 0
    for line in entries:
        entry = ExportedEntry.parse(line)
        if entry.index != place:
            raise NotAuthentic(f"Entry {place} is missing or out of order: entry {entry.index} is in its place.")
        if place < size:
            tree.append(frontier, place, entry.leaf)
        place += 1
        if place in wanted:
            roots[place] = tree.root(frontier)
    if place < size:
        raise NotAuthentic(f"The log was truncated: {place} entries, and its head was signed over {size}.")
    return roots


def _open(verifier: Verifier, note: str) -> LogHead:
    try:
        return verifier.checkpoint(note)
    except NotAuthentic as error:
        raise NotAuthentic(f"A tree head is not authentic: {error}") from None


def _what(head: LogHead, newest: LogHead) -> str:
    if head == newest:
        return "The entries do not have the signed root: one was edited, removed or reordered."
    return f"The log was forked or rewritten: it does not continue the head that was signed over {head.size} entries."
