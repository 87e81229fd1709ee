"""Who answers by OpenDSR: the processor's domain, its certificate, and the key that signs answers and callbacks."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from expunge_connect.places import folder_of

VARIABLE = "EXPUNGE_OPENDSR_"
LEAST_TOKEN = 32
"""characters of a token"""


class Unusable(ValueError):
    """A setting, or a file that it names, does not fit. The message says which one."""


@dataclass(frozen=True)
class Processor:
    """What the connector says of itself to OpenDSR's callers, and which of them it knows."""

    url: str
    """the mount's public address, without a slash at its end"""
    certificate: bytes
    """PEM: the certificate of ``key``, and those that lead to a known issuer"""
    identities: tuple[str, ...]
    """identity types whose raw values are the ids of people in the recipes"""
    callback_hosts: frozenset[str]
    key: RSAPrivateKey = field(repr=False)
    tokens: frozenset[bytes] = field(repr=False)
    """SHA-256 of the tokens that callers may show"""
    controller: str = "default"
    """the tenant whose requests these are, and whose the API key is"""
    loopback: bool = False
    """callbacks may go to this machine by plain http too, for tests"""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Processor:
        """Read the settings, the key, the certificate and the tokens. Raises Unusable where they do not fit."""
        said = {name.removeprefix(VARIABLE): value for name, value in environment.items() if name.startswith(VARIABLE)}
        url, controller = said.get("URL", ""), said.get("CONTROLLER", "default")
        if not re.fullmatch(r"https?://[^\s?#@]+", url):
            raise Unusable(f"EXPUNGE_OPENDSR_URL is {url!r}. Give the public address, as https://dsr.example.com.")
        folder = folder_of(controller, environment)
        key = _key(Path(said.get("KEY_FILE") or folder / "opendsr.key"))
        return cls(
            url=url.rstrip("/"),
            certificate=_certificate(Path(said.get("CERTIFICATE_FILE") or folder / "opendsr.pem"), key),
            identities=_listed(said.get("IDENTITIES", "controller_customer_id")),
            callback_hosts=frozenset(_listed(said.get("CALLBACK_HOSTS", "").lower())),
            key=key,
            tokens=_tokens(Path(said.get("TOKENS_FILE") or folder / "opendsr.tokens")),
            controller=controller,
        )

    def knows(self, token: str) -> bool:
        """Return whether a caller may show this token."""
        shown = sha256(token.encode()).digest()
        return any([compare_digest(shown, each) for each in self.tokens])

    @property
    def domain(self) -> str:
        """Return the host of ``url``, which the certificate is to name."""
        return urlsplit(self.url).hostname or ""

    def headers(self, body: bytes) -> dict[str, str]:
        """Return the headers that go with these bytes: the domain, and RSA-SHA-256 (PKCS #1 v1.5) in base64."""
        signed = self.key.sign(body, PKCS1v15(), SHA256())
        return {
            "X-OpenDSR-Processor-Domain": self.domain,
            "X-OpenDSR-Signature": base64.b64encode(signed).decode(),
        }


def _listed(text: str) -> tuple[str, ...]:
    return tuple(each.strip() for each in text.split(",") if each.strip())


def _tokens(path: Path) -> frozenset[bytes]:
    try:
        found = path.read_text().split()
    except (OSError, ValueError) as error:
        raise Unusable(f"EXPUNGE_OPENDSR_TOKENS_FILE: {path} cannot be read.") from error
    if not found or any(len(each) < LEAST_TOKEN for each in found):
        what = f"{path} must hold tokens of {LEAST_TOKEN} characters or more, one a line."
        raise Unusable(f"EXPUNGE_OPENDSR_TOKENS_FILE: {what} `openssl rand -hex 32` makes one.")
    return frozenset(sha256(each.encode()).digest() for each in found)


def _key(path: Path) -> RSAPrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        what = f"EXPUNGE_OPENDSR_KEY_FILE: {path} holds no PEM private key without a password."
        raise Unusable(what) from error
    if not isinstance(key, RSAPrivateKey) or key.key_size < 2048:
        raise Unusable(f"EXPUNGE_OPENDSR_KEY_FILE: {path} must hold an RSA key of 2048 bits or more.")
    return key


def _certificate(path: Path, key: RSAPrivateKey) -> bytes:
    try:
        pem = path.read_bytes()
        first = x509.load_pem_x509_certificates(pem)[0]
    except (OSError, ValueError) as error:
        raise Unusable(f"EXPUNGE_OPENDSR_CERTIFICATE_FILE: {path} holds no PEM certificate.") from error
    if first.public_key() != key.public_key():
        raise Unusable(f"EXPUNGE_OPENDSR_CERTIFICATE_FILE: {path} is not the certificate of the key.")
    return pem
