"""All settings, read from ``EXPUNGE_*`` variables. docs/settings.md explains each; a test compares."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args
from urllib.parse import urlsplit

from pydantic import (
    BeforeValidator,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from expunge_service.infra.files import Files
from expunge_service.infra.tenants import listed
from expunge_service.infra.time import HOUR_SECONDS, time_zone
from unlearning.accounting.policy import places_of

ACTS = frozenset({"verify", "decide", "lift", "retire"})
"""as in ``expunge_service.access.four_eyes.TwoPersonAct``"""
LARGEST_PORT = 65_535
DATABASES = ("sqlite", "postgresql", "postgres", "postgresql+psycopg")
BROKERS = ("filesystem", "redis", "rediss", "amqp", "amqps")


class SettingsError(Exception):
    """A setting is missing or wrong; the message names the variable and says what to do.

    No ValueError: pydantic would put its own words around it.
    """


def _variable(info: ValidationInfo) -> str:
    return f"EXPUNGE_{str(info.field_name).upper()}"


def _folder(value: Any, info: ValidationInfo) -> Path:
    """Return the path of a folder, which need not be there. Raises SettingsError."""
    path = Path(value)
    if not str(value) or any(os.path.isfile(each) for each in (path, *path.parents)):  # noqa: PTH113 (it never raises)
        raise SettingsError(f"{_variable(info)}: {str(value)!r} is no folder. Write the path of one, as /srv/expunge.")
    return path


def _place(value: Any, info: ValidationInfo) -> Path | str:
    """Return a folder's path, or the URL of a place in a bucket. Raises SettingsError."""
    if "://" not in str(value):
        return _folder(value, info)
    if not re.fullmatch(r"s3://[^/@\s]+(/\S*)?", str(value)):
        raise SettingsError(
            f"{_variable(info)}: it is no place in a bucket. Write a folder, or s3://bucket/prefix, which other object "
            "stores offer too; credentials go into AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
        )
    return str(value).rstrip("/")


def _is_url(value: str, schemes: Sequence[str]) -> bool:
    """Return whether it is a URL of one of these schemes, with a port that can be one."""
    try:
        return urlsplit(value).scheme in schemes and urlsplit(value).port != 0
    except ValueError:
        return False


FolderPath: TypeAlias = Annotated[Path, BeforeValidator(_folder)]
Place: TypeAlias = Annotated[Path | str, BeforeValidator(_place)]
"""a folder, or ``s3://bucket/prefix``"""


def _duration(value: Any) -> Any:
    """Return the seconds of ``90s``, ``15m``, ``12h`` or ``7d``; anything else is left to pydantic."""
    found = re.fullmatch(r"(\d+)([smhd])", str(value))
    return int(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]] if found else value


Duration: TypeAlias = Annotated[
    float,
    BeforeValidator(_duration),
    Field(ge=0, allow_inf_nan=False, description="seconds, or a number with its unit: 90s, 15m, 12h, 7d"),
]
"""seconds"""


RegulationName = Literal[
    "gdpr", "uk-gdpr", "ccpa", "cpa", "ctdpa", "delete-act", "lgpd", "pipeda", "tdpsa", "ucpa", "vcdpa"
]
"""as in ``expunge_service.requests.deadlines.Regulation``"""
REGULATION_FILE = "regulation"
"""in the home folder: what the first ``expunge up`` was answered, a regulation or ``none``"""
_FIXED = "It is fixed now: unset the variable. docs/settings.md has the value."
_MOVED = "Name the folder of the secret files, EXPUNGE_SECRETS; in it the file is called {}."
GONE: Mapping[str, str] = {
    "SEALING_KEY_FILE": _MOVED.format("sealing.key"),
    "PEPPER_FILE": _MOVED.format("pepper"),
    "SIGNING_KEY_FILE": _MOVED.format("signing.key"),
    "SESSION_KEY_FILE": _MOVED.format("session.key"),
    "ACTOR_HEADER": "Set EXPUNGE_ACTOR_PROXY, as X-Auth-Request-User@10.0.0.5.",
    "ACTOR_PEERS": "Set EXPUNGE_ACTOR_PROXY, as X-Auth-Request-User@10.0.0.5.",
    "HOST": "Set EXPUNGE_LISTEN, as 127.0.0.1:8750.",
    "PORT": "Set EXPUNGE_LISTEN, as 127.0.0.1:8750.",
    "DEFAULT_REGULATION": "Set EXPUNGE_REGULATION.",
    "CANCEL_WINDOW_SECONDS": "Set EXPUNGE_CANCEL_WINDOW, as 1h.",
    "GRACE_SECONDS": "Set EXPUNGE_GRACE, as 1h.",
    "LARGE_REQUEST_SAMPLES": "Set EXPUNGE_LARGE_REQUEST.",
    "RATE_PER_SECOND": "Set EXPUNGE_RATE.",
    "WEBHOOK_LOOPBACK": "Unset it: webhooks may go to this machine where EXPUNGE_MODE is development.",
    "LARGE_REQUEST_SECONDS": _FIXED,
    "LEASE_SECONDS": _FIXED,
    "SWEEP_SECONDS": _FIXED,
    "DISK_RESERVE_BYTES": _FIXED,
    "IDEMPOTENCY_SECONDS": _FIXED,
    "MAX_BODY_BYTES": _FIXED,
    "MAX_SAMPLE_IDS": _FIXED,
    "RATE_BURST": _FIXED,
    "SEARCHES_PER_MINUTE": _FIXED,
    "WORK_UNITS": _FIXED,
    "VECTOR_BYTES": _FIXED,
}
"""settings that there were: what to do in place of each"""


def _refusal(fault: ErrorDetails) -> str:
    """Return what is wrong with a setting that has a ``description``, which says what to write."""
    name = str(fault["loc"][0])
    return f"EXPUNGE_{name.upper()}: {fault['input']!r} is refused. Write {Settings.model_fields[name].description}."


class Settings(BaseSettings):
    """Raises SettingsError, whose one line names each variable with a wrong value, and what to write there."""

    model_config = SettingsConfigDict(env_prefix="EXPUNGE_", frozen=True)

    mode: Literal["development", "production"] = Field("development", description="development or production")
    home: FolderPath = Path(".expunge")
    database_url: str = Field(repr=False)
    broker_url: str = Field(repr=False)
    store: Place
    private_store: Place
    key_store_url: str = Field(repr=False)
    key_folder: Place
    secrets: FolderPath
    recipes: FolderPath = Path("recipes")
    data: FolderPath = Path("data")
    sources: str = Field("", repr=False)
    device: str = "auto"
    listen: str = "127.0.0.1:8750"
    url: str = "http://127.0.0.1:8750"
    regulation: RegulationName | None = Field(None, description=f"none, {', '.join(get_args(RegulationName))}")
    time_zone: str = ""
    cancel_window: Duration = 0
    large_request: int = Field(default=1000, ge=0, description="a whole number of samples; 0 blocks no request")
    grace: Duration = HOUR_SECONDS
    four_eyes: str = ""
    console: bool = Field(True, description="true or false")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field("INFO", description="DEBUG, INFO, WARNING or ERROR")
    heartbeat_file: Path | None = None
    tenants: str = ""
    places: str = ""
    actor_proxy: str = ""
    log_origin: str = Field(
        default="expunge.local/log", pattern=r"^[^\s+]+$", description="a name without blanks and +, as example.com/log"
    )
    trial_seconds: float = Field(default=300, ge=0, allow_inf_nan=False, description="seconds, as 300; 0 leaves it out")
    sample_bytes: int = Field(default=2 * 2**30, gt=0, description="a whole number of bytes above 0, as 2147483648")
    rate: float = Field(default=100, gt=0, allow_inf_nan=False, description="calls a second, above 0, as 100")
    admission: str = ""
    runner: str = ""
    verify_url: str = ""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],  # noqa: ARG003
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read arguments and the environment. Raises SettingsError for a variable that is a setting no more."""
        for name, instead in GONE.items():
            if f"EXPUNGE_{name}" in os.environ:
                raise SettingsError(f"EXPUNGE_{name} is no setting any more. {instead}")
        return init_settings, env_settings

    @model_validator(mode="wrap")
    @classmethod
    def _refuse(cls, values: Any, validate: ModelWrapValidatorHandler[Settings]) -> Settings:
        try:
            return validate(values)
        except ValidationError as error:
            raise SettingsError(" ".join(_refusal(each) for each in error.errors())) from None

    @model_validator(mode="before")
    @classmethod
    def _fill_from_home(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Put what was not set into the home folder, by absolute path: processes may differ in their cwd."""
        try:
            home = Path(values.get("home") or ".expunge").expanduser().resolve()
        except RuntimeError:
            raise SettingsError(
                "EXPUNGE_HOME: no user has this ~. Write the path of a folder, as /srv/expunge."
            ) from None
        from_home: dict[str, Any] = {
            "database_url": f"sqlite:///{home / 'expunge.db'}",
            "broker_url": f"filesystem://{home / 'broker'}",
            "store": home / "store",
            "private_store": home / "private",
            "key_store_url": f"sqlite:///{home / 'keys.db'}",
            "key_folder": home / "keys",
            "secrets": home / "secrets",
        }
        answered = home / REGULATION_FILE
        if answered.exists():
            from_home["regulation"] = answered.read_text().strip()
        return from_home | values | {"home": home}

    @field_validator("regulation", mode="before")
    @classmethod
    def _none_is_an_answer(cls, value: Any) -> Any:
        return None if value == "none" else value

    @property
    def sealing_key_file(self) -> Path:
        return self.secrets / "sealing.key"

    @property
    def pepper_file(self) -> Path:
        return self.secrets / "pepper"

    @property
    def signing_key_file(self) -> Path:
        return self.secrets / "signing.key"

    @property
    def session_key_file(self) -> Path:
        return self.secrets / "session.key"

    @property
    def address(self) -> tuple[str, int]:
        """Return the host and the port on which the API listens."""
        host, _, port = self.listen.rpartition(":")
        return host.strip("[]"), int(port)

    @field_validator("verify_url")
    @classmethod
    def _names_a_page(cls, value: str) -> str:
        if value and (not _is_url(value, ("https", "http")) or not urlsplit(value).netloc or "#" in value):
            raise SettingsError(
                "EXPUNGE_VERIFY_URL: it is no address of a page. Write it as https://example.com/verify."
            )
        return value

    @field_validator("url")
    @classmethod
    def _names_the_api(cls, value: str) -> str:
        if not _is_url(value, ("https", "http")) or not urlsplit(value).netloc:
            raise SettingsError("EXPUNGE_URL: it is no address of an API. Write it as https://expunge.example.com.")
        return value

    @property
    def source_addresses(self) -> dict[str, str]:
        """Return the addresses of the databases that recipes name, by name."""
        return dict(json.loads(self.sources or "{}"))

    @field_validator("sources")
    @classmethod
    def _names_databases(cls, value: str) -> str:
        try:
            addresses = json.loads(value or "{}")
        except ValueError:
            addresses = None
        if not isinstance(addresses, dict) or not all(isinstance(address, str) for address in addresses.values()):
            # the value is not repeated: addresses hold passwords
            raise SettingsError('EXPUNGE_SOURCES: Write a JSON object, as {"crm": "postgresql://reader@db/crm"}.')
        return value

    @field_validator("device")
    @classmethod
    def _names_a_device(cls, value: str) -> str:
        if not re.fullmatch(r"[a-z]+(:[0-9]+)?", value):
            raise SettingsError(f"EXPUNGE_DEVICE: {value!r} is no device. Write auto, cpu, cuda or cuda:N.")
        return value

    @field_validator("heartbeat_file", mode="before")
    @classmethod
    def _lies_in_a_folder(cls, value: Any) -> Any:
        if value and not os.path.isdir(Path(value).absolute().parent):  # noqa: PTH112 (it never raises)
            raise SettingsError(
                f"EXPUNGE_HEARTBEAT_FILE: {str(value)!r} lies in no folder. Write it as /tmp/worker.heartbeat."
            )
        return value or None

    @field_validator("listen")
    @classmethod
    def _names_an_address(cls, value: str) -> str:
        host, _, port = value.rpartition(":")
        if not host or not port.isdecimal() or int(port) > LARGEST_PORT:
            raise SettingsError(f"EXPUNGE_LISTEN: {value!r} is no host:port. Write it as 127.0.0.1:8750 or [::1]:8750.")
        return value

    @field_validator("time_zone")
    @classmethod
    def _names_a_time_zone(cls, value: str) -> str:
        try:
            time_zone(value or "UTC")
        except ValueError as error:
            raise SettingsError(f"EXPUNGE_TIME_ZONE: {error}.") from None
        return value

    @property
    def loopback(self) -> bool:
        """Return whether webhooks may go to this machine, over plain http too."""
        return self.mode == "development"

    @property
    def folders(self) -> list[Path]:
        """Return the folders on this machine's disks: home, the stores and the key folder, where they are no bucket."""
        places = (self.home, self.store, self.private_store, self.key_folder)
        return [place for place in places if isinstance(place, Path)]

    @property
    def served_tenants(self) -> frozenset[str] | None:
        """Return the tenants that ``tenants`` lists, separated by commas; None: every tenant."""
        return listed(self.tenants)

    @property
    def groups(self) -> frozenset[str]:
        """Return the groups that ``places`` lists, separated by commas."""
        return places_of(self.places)

    @field_validator("places")
    @classmethod
    def _names_groups(cls, value: str) -> str:
        try:
            places_of(value)
        except ValueError as error:
            raise SettingsError(f"EXPUNGE_PLACES: {error}") from None
        return value

    @field_validator("tenants")
    @classmethod
    def _names_tenants(cls, value: str) -> str:
        try:
            listed(value)
        except ValueError as error:
            raise SettingsError(f"EXPUNGE_TENANTS: {value!r} lists no tenants. {error}") from None
        return value

    @field_validator("runner")
    @classmethod
    def _names_a_runner(cls, value: str) -> str:
        if not re.fullmatch(r"([\w-]+(@[^@\s]+)?)?", value):
            raise SettingsError(
                "EXPUNGE_RUNNER: it names no runner. Write one, as ray, and where the files of parts are to be, as "
                "ray@/srv/parts or ray@s3://bucket/parts; credentials go into the AWS_* variables."
            )
        return value

    @field_validator("admission")
    @classmethod
    def _lists_names(cls, value: str, info: ValidationInfo) -> str:
        if any(re.search(r"[\s=]", name.strip()) for name in value.split(",")):
            raise SettingsError(
                f"{_variable(info)}: a blank or = is part of no name. Write names alone, separated by commas."
            )
        return value

    @property
    def acts_of_two(self) -> frozenset[str]:
        """Return the acts that take two people."""
        return frozenset(name.strip() for name in self.four_eyes.split(",") if name.strip())

    @property
    def actor_header(self) -> str:
        """Return the header in which the proxy names the caller; empty: there is no such proxy."""
        return self.actor_proxy.partition("@")[0]

    @property
    def peers(self) -> list[IPv4Network | IPv6Network]:
        """Return the addresses from which ``actor_header`` counts."""
        networks = self.actor_proxy.partition("@")[2]
        return [ip_network(each.strip()) for each in networks.split(",") if each.strip()]

    @field_validator("four_eyes")
    @classmethod
    def _names_acts(cls, value: str) -> str:
        unknown = {name.strip() for name in value.split(",") if name.strip()} - ACTS
        if unknown:
            raise SettingsError(f"EXPUNGE_FOUR_EYES: {min(unknown)!r} is none of {', '.join(sorted(ACTS))}.")
        return value

    @field_validator("actor_proxy")
    @classmethod
    def _names_header_and_networks(cls, value: str) -> str:
        if value and not re.fullmatch(r"[A-Za-z0-9-]+@[^@]*[^@\s,][^@]*", value):
            raise SettingsError(
                f"EXPUNGE_ACTOR_PROXY: {value!r} is no HEADER@NETWORKS. Write it as X-Auth-Request-User@10.0.0.5."
            )
        for each in filter(None, (part.strip() for part in value.partition("@")[2].split(","))):
            try:
                whole = ip_network(each).prefixlen == 0
            except ValueError as error:
                raise SettingsError(
                    f"EXPUNGE_ACTOR_PROXY: {error}. Write addresses like 10.0.0.5 or 10.0.0.0/24."
                ) from None
            if whole:
                raise SettingsError(f"EXPUNGE_ACTOR_PROXY: {each} matches every address; give the proxy's.")
        return value

    @field_validator("broker_url")
    @classmethod
    def _supports_broker(cls, value: str) -> str:
        folder = value.startswith("filesystem:")
        if not _is_url(value, BROKERS) or (folder and not value.startswith("filesystem:///")):
            raise SettingsError(
                "EXPUNGE_BROKER_URL: it is no address of a broker that Expunge can use. "
                "Write filesystem:///folder, redis://host or amqp://host (TLS: rediss, amqps)."
            )
        return value

    @field_validator("database_url", "key_store_url")
    @classmethod
    def _supports_database(cls, value: str, info: ValidationInfo) -> str:
        """Refuse what no driver opens, and SQLite in memory. The value may hold a password: it is not repeated."""
        with suppress(ArgumentError, ValueError):
            url = make_url(value)
            if url.drivername in DATABASES and (
                url.get_backend_name() != "sqlite" or url.database not in (None, "", ":memory:")
            ):
                return value
        raise SettingsError(
            f"{_variable(info)}: it is no address of a database that Expunge can use. "
            "Write sqlite:////folder/file.db or postgresql://user:password@host/database."
        )

    @model_validator(mode="after")
    def _keys_apart(self) -> Settings:
        if self.key_store_url == self.database_url:
            raise SettingsError(
                "EXPUNGE_KEY_STORE_URL: name another database than EXPUNGE_DATABASE_URL, so that a backup of the one "
                "cannot open what the keys of the other sealed."
            )
        return self


SECRETS = ("sealing_key_file", "pepper_file", "signing_key_file", "session_key_file")
LEAST_DIFFERENT_BYTES = 20
"""of the 32 bytes of a secret: random secrets have fewer once in 10^9"""
API_SECRETS = ("pepper_file", "signing_key_file", "session_key_file")
"""what the API and the scheduler may hold: they can open neither states nor vectors"""


def ensure_secrets(settings: Settings, names: Sequence[str] = SECRETS) -> None:
    """Create missing secret files in development (mode 0600); in production refuse, naming the file.

    ``names`` are the files that the calling process needs.

    Raises:
        SettingsError: production, and a file is missing or holds a pattern; or a file is malformed.
    """
    for name in names:
        path: Path = getattr(settings, name)
        if path.exists():
            _refuse_default(settings, path)
            continue
        if settings.mode == "production":
            raise SettingsError(
                f"EXPUNGE_SECRETS: there is no file {path}. Put it back, mode 0600; "
                "for a new installation write 64 random hex digits."
            )
        _create_secret(path)


def _refuse_default(settings: Settings, path: Path) -> None:
    """Refuse a secret that was typed (zeros, a pattern, a phrase in hex) instead of 32 random bytes."""
    secret = read_secret(path)
    if settings.mode == "production" and len(set(secret)) < LEAST_DIFFERENT_BYTES:
        raise SettingsError(
            f"EXPUNGE_SECRETS: {path} holds a pattern. Write 64 random hex digits there: openssl rand -hex 32"
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
    return read_secret(settings.session_key_file)


def read_secret(path: Path) -> bytes:
    """Read the 32 bytes of a secret file (64 hex digits).

    Raises:
        SettingsError: the file is missing, or is not 64 hex digits.
    """
    try:
        secret = bytes.fromhex(path.read_text().strip())
    except FileNotFoundError:
        remedy = "Put it there, mode 0600. In development `expunge migrate` creates it."
        raise SettingsError(f"EXPUNGE_SECRETS: there is no file {path}. {remedy}") from None
    except ValueError:
        secret = b""
    if len(secret) != 32:
        raise SettingsError(f"EXPUNGE_SECRETS: {path} must hold 64 hex digits.")
    return secret
