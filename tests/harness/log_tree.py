"""Trees of the audit log in memory, and the reader's side of a consistency proof: what a monitor of the log runs."""

from __future__ import annotations

from collections.abc import Sequence

from expunge_service.audit import merkle


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Return the hash of the tree over these leaf hashes."""
    frontier: list[bytes] = []
    for size, leaf in enumerate(leaves):
        merkle.append(frontier, size, leaf)
    return merkle.root(frontier)


def in_memory(leaves: Sequence[bytes]) -> merkle.Node:
    """Return the nodes of the tree over these leaf hashes."""
    nodes = {(0, index): leaf for index, leaf in enumerate(leaves)}
    frontier: list[bytes] = []
    for size, leaf in enumerate(leaves):
        nodes |= {(level, index): found for level, index, found in merkle.append(frontier, size, leaf)}
    return lambda level, index: nodes[level, index]


def verify_consistency(old_size: int, new_size: int, old_root: bytes, new_root: bytes, proof: Sequence[bytes]) -> bool:
    """Return whether ``proof`` shows that the old tree is a prefix of the new one (RFC 9162, 2.1.4.2)."""
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
            old, new = merkle.node_hash(sibling, old), merkle.node_hash(sibling, new)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            new = merkle.node_hash(new, sibling)
        place, last = place >> 1, last >> 1
    return last == 0 and old == old_root and new == new_root
