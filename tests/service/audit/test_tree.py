"""RFC 6962 trees against the definition, written here from the RFC alone."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge_service.audit import merkle
from tests.harness import log_tree

# https://www.rfc-editor.org/rfc/rfc6962 section 2.1, as the certificate-transparency project publishes the values
KNOWN = {
    0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}
INPUTS = [
    bytes.fromhex(text)
    for text in ("", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f")
]


def mth(data: list[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1, word for word."""
    if not data:
        return hashlib.sha256(b"").digest()
    if len(data) == 1:
        return hashlib.sha256(b"\x00" + data[0]).digest()
    k = max(2**e for e in range(20) if 2**e < len(data))
    return hashlib.sha256(b"\x01" + mth(data[:k]) + mth(data[k:])).digest()


def path(index: int, data: list[bytes]) -> list[bytes]:
    """PATH of RFC 6962, section 2.1.1, word for word."""
    if len(data) == 1:
        return []
    k = max(2**e for e in range(20) if 2**e < len(data))
    if index < k:
        return [*path(index, data[:k]), mth(data[k:])]
    return [*path(index - k, data[k:]), mth(data[:k])]


def subproof(old: int, data: list[bytes], known: bool = True) -> list[bytes]:
    """SUBPROOF of RFC 6962, section 2.1.2, word for word."""
    if old == len(data):
        return [] if known else [mth(data)]
    k = max(2**e for e in range(20) if 2**e < len(data))
    if old <= k:
        return [*subproof(old, data[:k], known), mth(data[k:])]
    return [*subproof(old - k, data[k:], False), mth(data[:k])]


def leaves(count: int) -> tuple[list[bytes], list[bytes]]:
    data = [f"entry {n}".encode() for n in range(count)]
    return data, [merkle.leaf_hash(each) for each in data]


@pytest.mark.parametrize("size", sorted(KNOWN))
def test_roots_are_the_published_ones(size: int) -> None:
    assert log_tree.root_of([merkle.leaf_hash(each) for each in INPUTS[:size]]).hex() == KNOWN[size]


@pytest.mark.parametrize("size", range(70))
def test_appending_one_by_one_gives_the_root_of_the_definition(size: int) -> None:
    data, hashes = leaves(size)
    frontier: list[bytes] = []
    for place, leaf in enumerate(hashes):
        merkle.append(frontier, place, leaf)
        assert len(frontier) == (place + 1).bit_count()
    assert merkle.root(frontier) == mth(data)


def test_proofs_are_those_of_the_definition() -> None:
    for size in range(1, 40):
        data, hashes = leaves(size)
        node = log_tree.in_memory(hashes)
        for index in range(size):
            assert merkle.inclusion_proof(node, size, index) == path(index, data)
            assert merkle.consistency_proof(node, size, index + 1) == subproof(index + 1, data)


def test_every_inclusion_proof_verifies_and_no_other_leaf_does() -> None:
    for size in range(1, 34):
        _, hashes = leaves(size)
        root = log_tree.root_of(hashes)
        for index in range(size):
            proof = merkle.inclusion_proof(log_tree.in_memory(hashes), len(hashes), index)
            assert merkle.verify_inclusion(hashes[index], index, size, proof, root)
            assert not merkle.verify_inclusion(hashes[index], (index + 1) % size, size, proof, root) or size == 1
            assert not merkle.verify_inclusion(merkle.leaf_hash(b"other"), index, size, proof, root)
            assert not merkle.verify_inclusion(hashes[index], index, size, [*proof, root], root)
            if proof:
                assert not merkle.verify_inclusion(hashes[index], index, size, proof[:-1], root)


def test_every_consistency_proof_verifies_and_a_rewritten_prefix_does_not() -> None:
    for size in range(1, 34):
        _, hashes = leaves(size)
        root = log_tree.root_of(hashes)
        for old in range(1, size + 1):
            proof = merkle.consistency_proof(log_tree.in_memory(hashes), len(hashes), old)
            old_root = log_tree.root_of(hashes[:old])
            assert log_tree.verify_consistency(old, size, old_root, root, proof)
            forged = log_tree.root_of([merkle.leaf_hash(b"other"), *hashes[1:old]])
            assert not log_tree.verify_consistency(old, size, forged, root, proof)
            assert not log_tree.verify_consistency(old, size, old_root, forged, proof)


def test_a_proof_that_ends_below_the_root_or_above_it_shows_nothing() -> None:
    """A verifier that only compares hashes would take an inner node for a leaf, and a root's parent for the root."""
    for size in range(1, 34):
        _, hashes = leaves(size)
        root, stranger = log_tree.root_of(hashes), merkle.leaf_hash(b"stranger")
        for index in range(size):
            proof = merkle.inclusion_proof(log_tree.in_memory(hashes), size, index)
            for cut in range(
                1, len(proof) + 1
            ):  # the node that stands `cut` levels above the leaf, as if it were a leaf
                inner = _climbed(hashes[index], index, size, proof[:cut])
                assert not merkle.verify_inclusion(inner, index, size, proof[cut:], root)
            longer = [*proof, stranger]
            for above in (merkle.node_hash(root, stranger), merkle.node_hash(stranger, root)):
                assert not merkle.verify_inclusion(hashes[index], index, size, longer, above)
        for old in range(1, size):
            proof = merkle.consistency_proof(log_tree.in_memory(hashes), size, old)
            old_root = log_tree.root_of(hashes[:old])
            for above in (merkle.node_hash(root, stranger), merkle.node_hash(stranger, root)):
                for below in (old_root, merkle.node_hash(stranger, old_root)):
                    assert not log_tree.verify_consistency(old, size, below, above, [*proof, stranger])
            for cut in range(len(proof)):
                for new_root in {*_partial(old, size, old_root, proof[:cut])}:
                    assert not log_tree.verify_consistency(old, size, old_root, new_root, proof[:cut])


def _climbed(leaf: bytes, index: int, size: int, path: list[bytes]) -> bytes:
    """The node to which the first hashes of a proof lead (RFC 9162, 2.1.3.2, without its last step)."""
    place, last = index, size - 1
    for sibling in path:
        if place & 1 or place == last:
            leaf = merkle.node_hash(sibling, leaf)
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        else:
            leaf = merkle.node_hash(leaf, sibling)
        place, last = place >> 1, last >> 1
    return leaf


def _partial(old: int, size: int, old_root: bytes, proof: list[bytes]) -> list[bytes]:
    """The roots of the new tree that a shortened proof would show to who does not ask whether it is complete."""
    path = [old_root, *proof] if old & (old - 1) == 0 else proof
    if not path:
        return []
    place, last = old - 1, size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    return [_climbed(path[0], place, last + 1, path[1:])]


@given(st.integers(1, 300), st.data())
def test_proofs_are_as_long_as_the_rfc_says(size: int, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, size - 1))
    _, hashes = leaves(size)
    assert len(merkle.inclusion_proof(log_tree.in_memory(hashes), len(hashes), index)) <= (size - 1).bit_length()


def test_proofs_outside_the_tree_are_refused() -> None:
    _, hashes = leaves(5)
    for index in (-1, 5):
        with pytest.raises(IndexError):
            merkle.inclusion_proof(log_tree.in_memory(hashes), len(hashes), index)
        assert not merkle.verify_inclusion(hashes[0], index, 5, [], hashes[0])
    for old in (0, 6):
        with pytest.raises(IndexError):
            merkle.consistency_proof(log_tree.in_memory(hashes), len(hashes), old)
