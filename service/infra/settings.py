"""All settings, read from ``EXPUNGE_*`` variables. docs/operations/settings.md explains each; a test compares."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from expunge.service.infra.files import Files
from expunge.service.infra.tenants import listed
from expunge.service.infra.time import DAY_SECONDS, HOUR_SECONDS

ACTS = frozenset({"verify", "lift", "retire"})
"""as in ``expunge.service.access.four_eyes.Act``"""
BROKERS = ("filesystem", "redis", "rediss", "amqp", "amqps")


class SettingsError(ValueError):
    """A setting is missing or wrong; the message names the variable and says what to do."""


def _place(value: Any) -> Any:
    """Return a folder's path, or the URL of a place in a bucket. Raises SettingsError."""
    if "://" not in str(value):
        return Path(value)
    if urlsplit(value).scheme != "s3" or not urlsplit(value).netloc:
        raise SettingsError("Name a folder, or a place in a bucket: s3://bucket/prefix. Other object stores offer s3.")
    return str(value).rstrip("/")


Place: TypeAlias = Annotated[Path | str, BeforeValidator(_place)]
"""a folder, or ``s3://bucket/prefix``"""


RegulationName = Literal[
    "gdpr", "uk-gdpr", "ccpa", "cpa", "ctdpa", "delete-act", "lgpd", "pipeda", "tdpsa", "ucpa", "vcdpa"
]
"""as in ``expunge.service.requests.states.Regulation``"""
REGULATION_FILE = "regulation"
"""in the home folder: what the first ``expunge up`` was answered, a regulation or ``none``"""


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="EXPUNGE_", frozen=True)

    mode: Literal["development", "production"] = "development"
    home: Path = Path(".expunge")
    database_url: str = Field(repr=False)
    broker_url: str = Field(repr=False)
    store: Place
    private_store: Place
    key_store_url: str = Field(repr=False)
    key_folder: Place
    sealing_key_file: Path
    pepper_file: Path
    signing_key_file: Path
    session_key_file: Path
    four_eyes: str = ""
    actor_header: str = Field(default="", pattern=r"^[A-Za-z0-9-]*$")
    actor_peers: str = ""
    tenants: str = ""
    recipes: Path = Path("recipes")
    device: str = "auto"
    host: str = "127.0.0.1"
    port: int = Field(default=8750, ge=0, le=65535)
    url: str = "http://127.0.0.1:8750"
    api_key: str | None = Field(default=None, repr=False)
    default_regulation: RegulationName | None = None
    cancel_window_seconds: float = Field(default=0, ge=0)
    large_request_samples: int = Field(default=1000, ge=0)
    large_request_seconds: float = Field(default=DAY_SECONDS, gt=0)
    lease_seconds: float = Field(default=30, gt=0)
    sweep_seconds: float = Field(default=1, gt=0)
    grace_seconds: float = Field(default=HOUR_SECONDS, ge=0)
    disk_reserve_bytes: int = Field(default=1_000_000_000, ge=0)
    webhook_loopback: bool = False
    idempotency_seconds: float = Field(default=DAY_SECONDS, gt=0)
    max_body_bytes: int = Field(default=1_048_576, gt=0)
    max_sample_ids: int = Field(default=10_000, gt=0)
    rate_per_second: float = Field(default=100, gt=0)
    rate_burst: int = Field(default=2000, ge=1)
    searches_per_minute: int = Field(default=60, ge=1)
    work_units: int = Field(default=8, ge=1, le=10_000)
    trial_seconds: float = Field(default=300, ge=0)
    recipe_variables: str = ""
    admission: str = ""
    vector_bytes: int = Field(default=64 * 2**30, gt=0)
    sample_bytes: int = Field(default=2 * 2**30, gt=0)
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = "INFO"
    log_origin: str = Field(default="expunge.local/log", pattern=r"^[^\s+]+$")

    @model_validator(mode="before")
    @classmethod
    def _fill_from_home(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Put what was not set into the home folder, by absolute path: processes may differ in their cwd."""
        home = Path(values.get("home") or ".expunge").expanduser().resolve()
        from_home: dict[str, Any] = {
            "database_url": f"sqlite:///{home / 'expunge.db'}",
            "broker_url": f"filesystem://{home / 'broker'}",
            "store": home / "store",
            "private_store": home / "private",
            "key_store_url": f"sqlite:///{home / 'keys.db'}",
            "key_folder": home / "keys",
            "sealing_key_file": home / "secrets" / "sealing.key",
            "pepper_file": home / "secrets" / "pepper",
            "signing_key_file": home / "secrets" / "signing.key",
            "session_key_file": home / "secrets" / "session.key",
        }
        answered = home / REGULATION_FILE
        if answered.exists():
            from_home["default_regulation"] = answered.read_text().strip()
        return from_home | values | {"home": home}

    @field_validator("default_regulation", mode="before")
    @classmethod
    def _none_is_an_answer(cls, value: Any) -> Any:
        return None if value == "none" else value

    @property
    def folders(self) -> list[Path]:
        """Return the folders on this machine's disks: home, the stores and the key folder, where they are no bucket."""
        places = (self.home, self.store, self.private_store, self.key_folder)
        return [place for place in places if isinstance(place, Path)]

    @property
    def served_tenants(self) -> frozenset[str] | None:
        """Return the tenants that ``tenants`` lists, separated by commas; None: every tenant."""
        return listed(self.tenants)

    def serves(self, tenant_id: str) -> bool:
        """Return whether this process works for the tenant. For another it does no work and destroys no key."""
        return self.served_tenants is None or tenant_id in self.served_tenants

    @field_validator("tenants")
    @classmethod
    def _names_tenants(cls, value: str) -> str:
        listed(value)
        return value

    @property
    def acts_of_two(self) -> frozenset[str]:
        """Return the acts that take two people."""
        return frozenset(name.strip() for name in self.four_eyes.split(",") if name.strip())

    @property
    def peers(self) -> list[IPv4Network | IPv6Network]:
        """Return the addresses from which ``actor_header`` counts."""
        return [ip_network(each.strip()) for each in self.actor_peers.split(",") if each.strip()]

    @field_validator("four_eyes")
    @classmethod
    def _names_acts(cls, value: str) -> str:
        unknown = {name.strip() for name in value.split(",") if name.strip()} - ACTS
        if unknown:
            raise SettingsError(f"EXPUNGE_FOUR_EYES: {min(unknown)!r} is none of {', '.join(sorted(ACTS))}.")
        return value

    @field_validator("actor_peers")
    @classmethod
    def _names_networks(cls, value: str) -> str:
        for each in filter(None, (part.strip() for part in value.split(","))):
            try:
                whole = ip_network(each).prefixlen == 0
            except ValueError as error:
                raise SettingsError(
                    f"EXPUNGE_ACTOR_PEERS: {error}. Write addresses like 10.0.0.5 or 10.0.0.0/24."
                ) from None
            if whole:
                raise SettingsError(f"EXPUNGE_ACTOR_PEERS: {each} is everybody. Name the proxy's own address.")
        return value

    @model_validator(mode="after")
    def _header_and_peers(self) -> Settings:
        if bool(self.actor_header) != bool(self.peers):
            raise SettingsError("EXPUNGE_ACTOR_HEADER and EXPUNGE_ACTOR_PEERS go together: set both, or neither.")
        return self

    @field_validator("broker_url")
    @classmethod
    def _supports_broker(cls, value: str) -> str:
        if urlsplit(value).scheme not in BROKERS:
            raise SettingsError(
                "EXPUNGE_BROKER_URL: use filesystem:///folder, redis://host or amqp://host (TLS: rediss, amqps)."
            )
        return value

    @model_validator(mode="after")
    def _keys_apart(self) -> Settings:
        if self.key_store_url == self.database_url:
            raise SettingsError(
                "EXPUNGE_KEY_STORE_URL: name another database than EXPUNGE_DATABASE_URL, so that a backup of the one "
                "cannot open what the keys of the other sealed."
            )
        return self

    @model_validator(mode="after")
    def _no_loopback_in_production(self) -> Settings:
        if self.mode == "production" and self.webhook_loopback:
            raise SettingsError("EXPUNGE_WEBHOOK_LOOPBACK is for development. Unset it in production.")
        return self


SECRETS = ("sealing_key_file", "pepper_file", "signing_key_file", "session_key_file")
LEAST_DIFFERENT_BYTES = 20
"""of the 32 bytes of a secret: random secrets have fewer once in 10^9"""
API_SECRETS = ("pepper_file", "signing_key_file", "session_key_file")
"""what the API and the scheduler may hold: they can open neither states nor vectors"""


def ensure_secrets(settings: Settings, names: Sequence[str] = SECRETS) -> None:
    """Create missing secret files in development (mode 0600); in production refuse, naming the variable.

    ``names`` are the files that the calling process needs.

    Raises:
        SettingsError: production, and a file is missing or holds a pattern; or a file is malformed.
    """
    for name in names:
        path: Path = getattr(settings, name)
        if path.exists():
            _refuse_default(settings, name, path)
            continue
        if settings.mode == "production":
            raise SettingsError(
                f"EXPUNGE_{name.upper()}: there is no file {path}. Write 64 random hex digits there, mode 0600."
            )
        _create_secret(path)


def _refuse_default(settings: Settings, name: str, path: Path) -> None:
    """Refuse a secret that somebody typed (zeros, a pattern, a phrase in hex) instead of 32 random bytes."""
    secret = read_secret(f"EXPUNGE_{name.upper()}", path)
    if settings.mode == "production" and len(set(secret)) < LEAST_DIFFERENT_BYTES:
        raise SettingsError(
            f"EXPUNGE_{name.upper()}: {path} holds a pattern. Write 64 random hex digits there: openssl rand -hex 32"
        )


def _create_secret(path: Path) -> None:
    """Write a new secret. Its file appears whole, because processes of one installation start at the same time."""
    files = Files()
    if not path.parent.is_dir():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        files.sync_folder(path.parent.parent)
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    with files.create(part) as file:
        files.write(file, f"{secrets.token_hex(32)}\n".encode())
        files.sync(file)
    with suppress(FileExistsError):  # another process was first
        files.link(part, path)
    files.unlink(part)
    files.sync_folder(path.parent)


def next_secret(path: Path) -> Path:
    """Return the file next to ``path`` that holds its successor; make it where there is none yet."""
    successor = path.with_name(path.name + ".next")
    if not successor.exists():
        _create_secret(successor)
    return successor


def adopt_secret(path: Path) -> None:
    """Replace the secret by its successor, durably."""
    files = Files()
    files.rename(next_secret(path), path)
    files.sync_folder(path.parent)


def session_key(settings: Settings) -> bytes:
    """Read the 32 bytes that sign session cookies and webhooks. Raises SettingsError."""
    return read_secret("EXPUNGE_SESSION_KEY_FILE", settings.session_key_file)


def read_secret(variable: str, path: Path) -> bytes:
    """Read the 32 bytes of a secret file (64 hex digits).

    Raises:
        SettingsError: the file is missing, or is not 64 hex digits.
    """
    try:
        secret = bytes.fromhex(path.read_text().strip())
    except FileNotFoundError:
        raise SettingsError(f"{variable}: there is no file {path}. Run `expunge migrate` or create it.") from None
    except ValueError:
        secret = b""
    if len(secret) != 32:
        raise SettingsError(f"{variable}: {path} must hold 64 hex digits.")
    return secret
