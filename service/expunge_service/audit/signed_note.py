"""Signed notes (C2SP signed-note) and log checkpoints (C2SP tlog-checkpoint), Ed25519."""

from __future__ import annotations

import hashlib
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from expunge_service.infra.settings import Settings, read_secret

_ED25519 = b"\x01"
_SIZE = re.compile(r"0|[1-9][0-9]{0,18}")


class NotAuthentic(ValueError):
    """What was signed does not verify: a note, a log, an export or a certificate is malformed, edited or contradicted.

    The message says what does not fit.
    """


@dataclass(frozen=True)
class LogHead:
    """A tree head: the log's name, its number of leaves, and its root (32 bytes)."""

    origin: str
    size: int
    root: bytes

    @property
    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{b64encode(self.root).decode()}\n"


class Signer:
    """An Ed25519 key under the name of a log."""

    def __init__(self, name: str, seed: bytes) -> None:
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self.verifier = Verifier(name, self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    @classmethod
    def of(cls, settings: Settings) -> Signer:
        """Return the installation's signer. Raises SettingsError where the key file is missing or malformed."""
        return cls.at(settings, settings.signing_key_file)

    @classmethod
    def at(cls, settings: Settings, path: Path) -> Signer:
        """Return the signer of the installation's log with the key in this file. Raises SettingsError."""
        return cls(settings.log_origin, read_secret(path))

    def sign(self, text: str) -> str:
        """Return the note: the text, an empty line, and one signature line."""
        if not text.endswith("\n"):
            raise NotAuthentic("A note's text ends with a newline.")
        signature = b64encode(self.verifier.key_id + self.sign_bytes(text.encode())).decode()
        return f"{text}\n\u2014 {self.verifier.name} {signature}\n"

    def sign_bytes(self, data: bytes) -> bytes:
        """Return the bare Ed25519 signature, 64 bytes."""
        return self._key.sign(data)

    def checkpoint(self, size: int, root: bytes) -> str:
        """Return the signed head of the log that has this signer's name."""
        return self.sign(LogHead(self.verifier.name, size, root).text)


class Handover(Signer):
    """Signs heads with the retired key and with its successor. A holder of either can read them."""

    def __init__(self, old: Signer, new: Signer) -> None:
        self._old, self._new, self.verifier = old, new, new.verifier

    def sign(self, text: str) -> str:
        return self._old.sign(text) + self._new.sign(text).rpartition("\n\n")[2]

    def sign_bytes(self, data: bytes) -> bytes:
        return self._new.sign_bytes(data)


@dataclass(frozen=True)
class Verifier:
    """A public key (32 bytes) under a name. As text: ``name+hash+base64``, the verifier key of C2SP."""

    name: str
    public_key: bytes

    @property
    def key_id(self) -> bytes:
        """Return the first four bytes of SHA-256(name, newline, type, key)."""
        return hashlib.sha256(self.name.encode() + b"\n" + _ED25519 + self.public_key).digest()[:4]

    @property
    def fingerprint(self) -> str:
        """Return 32 hex digits to compare on paper: the first half of the SHA-256 of the key's text."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:32]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{b64encode(_ED25519 + self.public_key).decode()}"

    @classmethod
    def parse(cls, text: str) -> Verifier:
        """Read ``name+hash+base64``. Raises NotAuthentic."""
        name, _, rest = text.strip(" \t\r\n").partition("+")
        key_hash, _, encoded = rest.partition("+")
        raw = decoded(encoded)
        if not name or len(raw) != 33 or raw[:1] != _ED25519:
            raise NotAuthentic("A verifier key has the form name+hash+base64, of an Ed25519 key.")
        verifier = cls(name, raw[1:])
        if verifier.key_id.hex() != key_hash:
            raise NotAuthentic("The verifier key's hash does not fit its name and key.")
        return verifier

    @classmethod
    def load(cls, path: Path) -> Verifier:
        return cls.parse(path.read_bytes().decode())

    def open(self, note: str) -> str:
        """Return the note's text, if this key signed it. Raises NotAuthentic."""
        text, found, lines = note.rpartition("\n\n")
        if not found:
            raise NotAuthentic("The note has no signature.")
        text += "\n"
        for line in lines.split("\n")[:-1]:
            dash, name, signature, *_ = [*line.split(" "), "", ""]
            raw = decoded(signature)
            if dash == "\u2014" and name == self.name and raw[:4] == self.key_id:
                self.verify(text.encode(errors="surrogatepass"), raw[4:])
                return text
        raise NotAuthentic("The note is not signed by this key.")

    def verify(self, data: bytes, signature: bytes) -> None:
        """Check that the signature is this key's over ``data``. Raises NotAuthentic."""
        try:
            Ed25519PublicKey.from_public_bytes(self.public_key).verify(signature, data)
        except InvalidSignature:
            raise NotAuthentic("The signature is not valid.") from None

    def checkpoint(self, note: str) -> LogHead:
        """Return the signed tree head in ``note``. Raises NotAuthentic."""
        origin, size, root, *_ = [*self.open(note).split("\n"), "", ""]
        raw = decoded(root)
        if origin != self.name or not _SIZE.fullmatch(size) or len(raw) != 32:
            raise NotAuthentic("The note is not a tree head of this log.")
        return LogHead(origin, int(size), raw)


def decoded(text: str) -> bytes:
    """Return the bytes; none where the text is no base64, or not the one that these bytes have.

    The last letter may hold bits that belong to no byte: with others, an edited text would pass for the signed one.
    """
    try:
        raw = b64decode(text, validate=True)
    except ValueError:
        return b""
    return raw if b64encode(raw).decode() == text else b""
