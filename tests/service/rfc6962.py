"""A verifier of exported logs that shares no line with the service: RFC 6962 section 2.1, C2SP notes and checkpoints.

It recomputes every root from the texts, recursively as the RFC defines it, and checks Ed25519 with ``cryptography``.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey


def accepts(entries: Sequence[dict[str, Any]], head: str, key: str, earlier: Sequence[str] = ()) -> bool:
    """Whether exported lines, in order, are the log whose head ``key`` (name+hash+base64) signed.

    Every note of ``earlier`` must be the head of a prefix of it.
    """
    hashes = []
    for place, line in enumerate(entries):
        told = bytes.fromhex(line["leaf_hash"])
        if line["index"] != place:
            return False
        if line["body"] is not None and hashlib.sha256(b"\x00" + line["body"].encode()).digest() != told:
            return False
        hashes.append(told)
    newest = signed(head, key)
    if newest is None or newest[0] != len(hashes):
        return False
    for note in (head, *earlier):
        found = signed(note, key)
        if found is None:
            return False
        size, root = found
        if size > newest[0] or size > len(hashes) or mth(hashes[:size]) != root:
            return False
    return True


def signed(note: str, key: str) -> tuple[int, bytes] | None:
    """The size and root that the note states, if the key's holder signed it."""
    name, key_hash, encoded = key.split("+", 2)
    public = base64.b64decode(encoded)[1:]
    text, _, signatures = note.rpartition("\n\n")
    text += "\n"
    for line in signatures.splitlines():
        dash, who, blob = line.split(" ")
        raw = base64.b64decode(blob)
        if (dash, who, raw[:4].hex()) != ("\N{EM DASH}", name, key_hash):
            continue
        try:
            Ed25519PublicKey.from_public_bytes(public).verify(raw[4:], text.encode())
        except InvalidSignature:
            return None
        origin, size, root = text.splitlines()[:3]
        return (int(size), base64.b64decode(root)) if origin == name else None
    return None


def mth(hashes: Sequence[bytes]) -> bytes:
    """MTH over the hashes of leaves."""
    if not hashes:
        return hashlib.sha256(b"").digest()
    if len(hashes) == 1:
        return hashes[0]
    k = 1
    while 2 * k < len(hashes):
        k *= 2
    return hashlib.sha256(b"\x01" + mth(hashes[:k]) + mth(hashes[k:])).digest()
