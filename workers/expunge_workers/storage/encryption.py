"""Authenticated encryption of everything that is secret: the rows of people, the state files, the journal, notes.

One form for all of them: a random nonce of 12 bytes, the AES-256-GCM ciphertext, and its tag of 16 bytes
(NIST SP 800-38D). Cut, reordered or changed bytes do not open.
"""

from __future__ import annotations

import os
import secrets

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM

from expunge_service.infra.stores import Damaged

KEY_BYTES = 32
NONCE_BYTES = 12
TAG_BYTES = 16


def new_key() -> bytes:
    """Return a fresh 256-bit key."""
    return secrets.token_bytes(KEY_BYTES)


class Sealer:
    """Encrypts under one key of 32 bytes. A random nonce may be drawn 2^32 times under it.

    Raises Damaged for a key of another length.
    """

    def __init__(self, key: bytes) -> None:
        if len(key) != KEY_BYTES:
            raise Damaged(f"A key has {len(key)} bytes in place of {KEY_BYTES}: it was changed in the key store.")
        self._algorithm = AES(key)

    def seal(self, place: str, data: bytes | memoryview) -> bytes:
        """Encrypt ``data``, at most 64 GiB. It opens only for the same ``place``, which is authenticated, not stored.

        Raises ValueError for more data.
        """
        nonce = os.urandom(NONCE_BYTES)
        encryptor = Cipher(self._algorithm, GCM(nonce)).encryptor()
        encryptor.authenticate_additional_data(place.encode())
        return b"".join((nonce, encryptor.update(data), encryptor.finalize(), encryptor.tag))

    def open(self, place: str, sealed: bytes) -> bytes:
        """Return the data of ``seal``. Raises Damaged for other bytes, another place or another key."""
        view = memoryview(sealed)
        nonce, body, tag = view[:NONCE_BYTES], view[NONCE_BYTES:-TAG_BYTES], view[-TAG_BYTES:]
        try:
            decryptor = Cipher(self._algorithm, GCM(bytes(nonce), bytes(tag))).decryptor()
            decryptor.authenticate_additional_data(place.encode())
            return decryptor.update(body) + decryptor.finalize()
        except (InvalidTag, ValueError):
            raise Damaged(
                f"The sealed data of {place} do not open: they were changed, cut or moved, or sealed under another "
                "key. For files and notes, restore sealing.key in the folder EXPUNGE_SECRETS, or the data."
            ) from None
