"""Merkle trees as RFC 6962 section 2.1 defines them. Pure; hashes are 32 bytes.

The frontier of a tree is the list of the roots of its complete subtrees, largest first: one for each bit set in
its size. It is all that appending and the root need.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

EMPTY_ROOT = hashlib.sha256(b"").digest()


def leaf_hash(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


def append(frontier: list[bytes], size: int, leaf: bytes) -> None:
    """Add a leaf's hash to the tree of ``size`` leaves, changing ``frontier`` in place."""
    frontier.append(leaf)
    while size & 1:
        right, left = frontier.pop(), frontier.pop()
        frontier.append(node_hash(left, right))
        size >>= 1


def root(frontier: Sequence[bytes]) -> bytes:
    """The tree's hash: the frontier folded from the smallest subtree up."""
    if not frontier:
        return EMPTY_ROOT
    *rest, folded = frontier
    for left in reversed(rest):
        folded = node_hash(left, folded)
    return folded


def root_of(leaves: Sequence[bytes]) -> bytes:
    """The hash of the tree over these leaf hashes."""
    frontier: list[bytes] = []
    for size, leaf in enumerate(leaves):
        append(frontier, size, leaf)
    return root(frontier)


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """The audit path of the leaf at ``index``, from the leaf up. Raises IndexError."""
    if not 0 <= index < len(leaves):
        raise IndexError(f"leaf {index} of a tree of {len(leaves)}")
    if len(leaves) == 1:
        return []
    split = _split(len(leaves))
    if index < split:
        return [*inclusion_proof(leaves[:split], index), root_of(leaves[split:])]
    return [*inclusion_proof(leaves[split:], index - split), root_of(leaves[:split])]


def consistency_proof(leaves: Sequence[bytes], old_size: int) -> list[bytes]:
    """The proof that the tree of the first ``old_size`` leaves is a prefix of this one. Raises IndexError."""
    if not 0 < old_size <= len(leaves):
        raise IndexError(f"a prefix of {old_size} leaves of a tree of {len(leaves)}")
    return _subproof(leaves, old_size, True)


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], expected_root: bytes) -> bool:
    """Whether ``proof`` shows the leaf at ``index`` of the tree with this size and root (RFC 9162, 2.1.3.2)."""
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


def verify_consistency(old_size: int, new_size: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """Whether ``proof`` shows that the old tree is a prefix of the new one (RFC 9162, 2.1.4.2)."""
    if not 0 < old_size <= new_size:
        return False
    if old_size == new_size:
        return not proof and old_root == new_root
    path = [old_root, *proof] if old_size & (old_size - 1) == 0 else list(proof)
    if not path:
        return False
    place, last = old_size - 1, new_size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    old, new = path[0], path[0]
    for sibling in path[1:]:
        if last == 0:
            return False
        if place & 1 or place == last:
            old, new = node_hash(sibling, old), node_hash(sibling, new)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            new = node_hash(new, sibling)
        place, last = place >> 1, last >> 1
    return last == 0 and old == old_root and new == new_root


def _subproof(leaves: Sequence[bytes], old_size: int, known: bool) -> list[bytes]:
    """RFC 6962's SUBPROOF; ``known``: the client holds the old subtree's root already."""
    if old_size == len(leaves):
        return [] if known else [root_of(leaves)]
    split = _split(len(leaves))
    if old_size <= split:
        return [*_subproof(leaves[:split], old_size, known), root_of(leaves[split:])]
    return [*_subproof(leaves[split:], old_size - split, False), root_of(leaves[:split])]


def _split(size: int) -> int:
    """The largest power of two below ``size``."""
    return 1 << (size - 1).bit_length() - 1
