"""Merkle trees as RFC 6962 section 2.1 defines them. Pure; hashes are 32 bytes.

The frontier of a tree is the list of the roots of its complete subtrees, largest first: one for each bit set in
its size. It is all that appending and the root need. Proofs need the roots of complete subtrees further down:
``node(level, index)`` is the root over the leaves from ``index << level`` up to ``(index + 1) << level``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeAlias

Node: TypeAlias = Callable[[int, int], bytes]
EMPTY_ROOT = hashlib.sha256(b"").digest()


def leaf_hash(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def append(frontier: list[bytes], size: int, leaf: bytes) -> list[tuple[int, int, bytes]]:
    """Add a leaf's hash to the tree of ``size`` leaves, changing ``frontier`` in place.

    Returns the (level, index, hash) of every subtree above the leaf that it completed.
    """
    frontier.append(leaf)
    completed = []
    level = 0
    while size >> level & 1:
        right, left = frontier.pop(), frontier.pop()
        frontier.append(node_hash(left, right))
        level += 1
        completed.append((level, size >> level, frontier[-1]))
    return completed


def root(frontier: Sequence[bytes]) -> bytes:
    """Return the tree's hash: the frontier folded from the smallest subtree up."""
    if not frontier:
        return EMPTY_ROOT
    *rest, folded = frontier
    for left in reversed(rest):
        folded = node_hash(left, folded)
    return folded


def inclusion_proof(node: Node, size: int, index: int) -> list[bytes]:
    """Return the audit path of the leaf at ``index``, from the leaf up (RFC 6962, PATH). Raises IndexError."""
    if not 0 <= index < size:
        raise IndexError(f"leaf {index} of a tree of {size}")
    start, end = 0, size
    path: list[bytes] = []
    while end - start > 1:
        split = start + _split(end - start)
        if index < split:
            path.append(_span(node, split, end))
            end = split
        else:
            path.append(_span(node, start, split))
            start = split
    return path[::-1]


def consistency_proof(node: Node, size: int, old_size: int) -> list[bytes]:
    """Return the proof that the tree of the first ``old_size`` leaves is a prefix of this one (RFC 6962, SUBPROOF).

    Raises IndexError.
    """
    if not 0 < old_size <= size:
        raise IndexError(f"a prefix of {old_size} leaves of a tree of {size}")
    start, end = 0, size
    path: list[bytes] = []
    while end != old_size:
        split = start + _split(end - start)
        if old_size <= split:
            path.append(_span(node, split, end))
            end = split
        else:
            path.append(_span(node, start, split))
            start = split
    # the client holds the old root; where the descent ended in it, sending it again would say nothing
    return path[::-1] if start == 0 else [_span(node, start, end), *path[::-1]]


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], expected_root: bytes) -> bool:
    """Return whether ``proof`` shows the leaf at ``index`` of the tree with this size and root (RFC 9162, 2.1.3.2)."""
    if not 0 <= index < size:
        return False
    place, last, computed = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            return False
        if place & 1 or place == last:
            computed = node_hash(sibling, computed)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            computed = node_hash(computed, sibling)
        place, last = place >> 1, last >> 1
    return last == 0 and computed == expected_root


def _span(node: Node, start: int, end: int) -> bytes:
    """Return the root over the leaves from ``start`` up to ``end``, where ``start`` is where RFC 6962 splits a tree."""
    parts = []
    while start < end:
        level = (end - start).bit_length() - 1
        parts.append(node(level, start >> level))
        start += 1 << level
    return root(parts)


def _split(size: int) -> int:
    """Return the largest power of two below ``size``."""
    return 1 << (size - 1).bit_length() - 1
