"""Who answers by OpenDSR: the processor's domain, its certificate, and the key that signs answers and callbacks."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from expunge.service.infra.settings import Settings, SettingsError


@dataclass(frozen=True)
class Processor:
    """What an installation says of itself to OpenDSR's callers."""

    url: str
    """the mount's public address, without a slash at its end"""
    certificate: bytes
    """PEM: the certificate of ``key``, and those that lead to a known issuer"""
    identities: tuple[str, ...]
    """identity types whose raw values are the ids of people in the recipes"""
    callback_hosts: frozenset[str]
    callback_schemes: frozenset[str]
    key: RSAPrivateKey = field(repr=False)

    @classmethod
    def of(cls, settings: Settings) -> Processor | None:
        """Read the key and the certificate. None: OpenDSR is off. Raises SettingsError where they do not fit."""
        if settings.opendsr_url is None:
            return None
        key = _key(settings.opendsr_key_file)
        return cls(
            url=settings.opendsr_url.rstrip("/"),
            certificate=_certificate(settings.opendsr_certificate_file, key),
            identities=_listed(settings.opendsr_identities),
            callback_hosts=frozenset(_listed(settings.opendsr_callback_hosts.lower())),
            callback_schemes=frozenset({"https", "http"} if settings.loopback else {"https"}),
            key=key,
        )

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


def _key(path: Path) -> RSAPrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        what = f"EXPUNGE_OPENDSR_KEY_FILE: {path} holds no PEM private key without a password."
        raise SettingsError(what) from error
    if not isinstance(key, RSAPrivateKey) or key.key_size < 2048:
        raise SettingsError(f"EXPUNGE_OPENDSR_KEY_FILE: {path} must hold an RSA key of 2048 bits or more.")
    return key


def _certificate(path: Path, key: RSAPrivateKey) -> bytes:
    try:
        pem = path.read_bytes()
        first = x509.load_pem_x509_certificates(pem)[0]
    except (OSError, ValueError) as error:
        raise SettingsError(f"EXPUNGE_OPENDSR_CERTIFICATE_FILE: {path} holds no PEM certificate.") from error
    if first.public_key() != key.public_key():
        raise SettingsError(f"EXPUNGE_OPENDSR_CERTIFICATE_FILE: {path} is not the certificate of the key.")
    return pem
