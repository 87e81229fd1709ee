"""AES-256-GCM, twice: one row under its holder's key, and one file in chunks under the sealing key."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import BytesIO
from typing import BinaryIO

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import GCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

MAGIC = b"expunge-sealed-1"
SALT_BYTES = 32
KEY_ID_BYTES = 8
CHUNK = 1 << 20
TAG_BYTES = 16
AES_BLOCK = 16


class Unsealable(RuntimeError):
    """Sealed bytes were changed, cut, or sealed under another key."""


@dataclass(frozen=True)
class SealedRow:
    """``nonce`` is fresh for every row; ``sealed`` is the ciphertext with its tag."""

    nonce: bytes
    sealed: bytes


def new_key() -> bytes:
    """A fresh 256-bit key."""
    return secrets.token_bytes(32)


def seal_row(key: bytes, place: str, data: bytes | memoryview) -> SealedRow:
    """Seal ``data``; it opens only at the same ``place`` (authenticated, not stored)."""
    nonce = os.urandom(12)
    return SealedRow(nonce, AESGCM(key).encrypt(nonce, data, place.encode()))


def open_row(key: bytes, place: str, row: SealedRow) -> bytearray:
    """The data of ``seal_row``, decrypted into one buffer that is the caller's own. Raises Unsealable."""
    sealed = memoryview(row.sealed)
    size = len(sealed) - TAG_BYTES
    try:
        opener = Cipher(AES(key), GCM(row.nonce, bytes(sealed[size:]))).decryptor()
        opener.authenticate_additional_data(place.encode())
        data = bytearray(size + AES_BLOCK)  # as much as update_into asks for
        opener.update_into(sealed[:size], data)
        opener.finalize()
    except (InvalidTag, ValueError):
        raise Unsealable(f"the sealed row of {place} does not open under its key") from None
    del data[size:]
    return data


def open_row_in_pieces(key: bytes, place: str, nonce: bytes, size: int, sealed: Iterable[bytes]) -> Iterator[bytes]:
    """The data of a sealed row of ``size`` bytes that comes in pieces, opened piece by piece.

    What was yielded is authentic once the last piece was taken: until then nothing may be made of it that cannot be
    thrown away. Raises Unsealable.
    """
    left, tag = size - TAG_BYTES, b""
    try:
        opener = Cipher(AES(key), GCM(nonce)).decryptor()
        opener.authenticate_additional_data(place.encode())
        for piece in sealed:
            body = piece[: max(0, left)]
            left -= len(body)
            tag += piece[len(body) :]
            yield opener.update(body)
        opener.finalize_with_tag(tag)
    except (InvalidTag, ValueError):
        raise Unsealable(f"the sealed row of {place} does not open under its key") from None


class Sealer:
    """Seals whole files under one key.

    Each file has its own key (HKDF of the sealing key and a random salt), so the nonces may count its chunks. A
    last chunk is marked as such, which makes a file that was cut at a chunk's end fail to open.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.key_id = hashlib.sha256(b"expunge/sealing-key-id" + key).digest()[:KEY_ID_BYTES]

    def seal(self, chunks: Iterable[bytes | memoryview]) -> Iterator[bytes]:
        """The sealed file, in chunks of about 1 MiB."""
        header = MAGIC + self.key_id + os.urandom(SALT_BYTES)
        cipher = self._cipher(header)
        yield header
        held: bytes | memoryview | None = None
        count = 0
        for block in _regular(chunks):
            if held is not None:
                yield cipher.encrypt(_nonce(count, last=0), held, header)
                count += 1
            held = block
        yield cipher.encrypt(_nonce(count, last=1), held or b"", header)

    def unseal(self, data: bytes) -> bytearray:
        """The content. Raises Unsealable."""
        return self.unseal_file(BytesIO(data))

    def unseal_file(self, file: BinaryIO) -> bytearray:
        """The content, read and opened a chunk at a time: the sealed bytes are never held together. Raises Unsealable.

        ``file`` stands at its beginning.
        """
        header = file.read(len(MAGIC) + KEY_ID_BYTES + SALT_BYTES)
        if len(header) < len(MAGIC) + KEY_ID_BYTES + SALT_BYTES or not header.startswith(MAGIC):
            raise Unsealable("not a sealed file of this service")
        if header[len(MAGIC) : len(MAGIC) + KEY_ID_BYTES] != self.key_id:
            raise Unsealable("the file was sealed under another EXPUNGE_SEALING_KEY_FILE")
        cipher = self._cipher(header)
        size = file.seek(0, os.SEEK_END) - len(header)
        file.seek(len(header))
        chunks = max(1, -(-size // (CHUNK + TAG_BYTES)))
        content = bytearray(max(0, size - TAG_BYTES * chunks))
        try:
            for count in range(chunks):
                nonce = _nonce(count, int(count == chunks - 1))
                block = cipher.decrypt(nonce, file.read(CHUNK + TAG_BYTES), header)
                content[count * CHUNK : count * CHUNK + len(block)] = block
        except InvalidTag:
            raise Unsealable("the sealed file was changed or cut") from None
        return content

    def _cipher(self, header: bytes) -> AESGCM:
        salt = header[-SALT_BYTES:]
        return AESGCM(HKDF(algorithm=SHA256(), length=32, salt=salt, info=MAGIC).derive(self._key))


def _nonce(count: int, last: int) -> bytes:
    return count.to_bytes(11, "big") + bytes([last])


def _regular(chunks: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The same bytes in blocks of exactly CHUNK, the last one shorter. Whole blocks are not copied."""
    buffer = bytearray()
    for chunk in chunks:
        view = memoryview(chunk).cast("B")
        while view:
            if not buffer and len(view) >= CHUNK:
                yield view[:CHUNK]
                view = view[CHUNK:]
                continue
            taken = view[: CHUNK - len(buffer)]
            buffer += taken
            view = view[len(taken) :]
            if len(buffer) == CHUNK:
                yield bytes(buffer)
                buffer.clear()
    if buffer:
        yield bytes(buffer)
