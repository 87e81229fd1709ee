"""What is missing or misconfigured, in plain words. Each check looks at one thing and changes nothing."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import make_url, select
from sqlalchemy.exc import SQLAlchemyError

from service.db import Busy, Database, now
from service.records import Heartbeat
from service.schema import SchemaState, schema_state
from service.settings import Settings, SettingsError, read_secret

LOW_DISK_BYTES = 1_000_000_000
SECOND = 1_000_000


@dataclass(frozen=True)
class Finding:
    """One look. ``hint`` says what to do, empty where all is well."""

    name: str
    well: bool
    what: str
    hint: str = ""


def examine(settings: Settings) -> Iterator[Finding]:
    """Every check in order; later ones are left out where an earlier one makes them pointless."""
    yield from _secrets(settings)
    yield _recipes(settings.recipes)
    for name in ("store", "private_store"):
        yield _folder(name, getattr(settings, name))
    yield _disk(settings.home)
    yield _broker(settings.broker_url)
    yield from _database(settings)


def _secrets(settings: Settings) -> Iterator[Finding]:
    for name in ("sealing_key_file", "pepper_file", "signing_key_file"):
        variable, path = f"EXPUNGE_{name.upper()}", getattr(settings, name)
        try:
            read_secret(variable, path)
        except (SettingsError, OSError) as error:
            yield Finding(name, False, str(error), "`expunge migrate` creates it in development.")
            continue
        if path.stat().st_mode & 0o077:
            yield Finding(name, False, f"{path} can be read by others.", f"chmod 600 {path}")
        else:
            yield Finding(name, True, f"{path} is there and private.")


def _recipes(folder: Path) -> Finding:
    if not folder.is_dir():
        return Finding("recipes", False, f"There is no folder {folder.absolute()}.", "Set EXPUNGE_RECIPES.")
    found = [path.stem for path in folder.glob("*.py")] + [path.parent.name for path in folder.glob("*/recipe.py")]
    if not found:
        return Finding(
            "recipes", False, f"{folder.absolute()} holds no recipe.", "Put NAME.py or NAME/recipe.py there."
        )
    return Finding("recipes", True, f"{folder.absolute()}: {', '.join(sorted(found))}")


def _folder(name: str, path: Path) -> Finding:
    nearest = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        return Finding(
            name, False, f"{path} cannot be written.", f"Let this user write there, or set EXPUNGE_{name.upper()}."
        )
    return Finding(name, True, f"{path} can be written.")


def _disk(home: Path) -> Finding:
    nearest = next(parent for parent in (home, *home.parents) if parent.exists())
    free = shutil.disk_usage(nearest).free
    if free < LOW_DISK_BYTES:
        return Finding(
            "disk", False, f"{free / 1e9:.1f} GB are free under {nearest}.", "Make room: checkpoints need it."
        )
    return Finding("disk", True, f"{free / 1e9:.1f} GB are free.")


def _broker(url: str) -> Finding:
    address = urlsplit(url)
    if address.scheme == "filesystem":
        return _folder("broker", Path(address.path))
    try:
        with socket.create_connection((address.hostname or "localhost", address.port or 6379), timeout=2):
            return Finding("broker", True, f"{address.hostname}:{address.port or 6379} accepts connections.")
    except OSError as error:
        what = f"{address.hostname}:{address.port or 6379} does not answer: {error.strerror or error}."
        return Finding("broker", False, what, "Requests are kept and worked off by the sweep, later. Start the broker.")


def _database(settings: Settings) -> Iterator[Finding]:
    url = make_url(settings.database_url)
    shown = url.render_as_string(hide_password=True)
    if url.get_backend_name() == "sqlite" and not Path(url.database or "").is_file():
        yield Finding("database", False, f"There is no file {url.database}.", "Run `expunge migrate`.")
        return
    try:
        database = Database(settings.database_url)
        state = schema_state(database)
    except (Busy, SQLAlchemyError, ValueError, OSError) as error:
        yield Finding(
            "database", False, f"{shown} cannot be used ({type(error).__name__}).", "Set EXPUNGE_DATABASE_URL."
        )
        return
    try:
        yield Finding("database", True, f"{shown} answers.")
        yield _schema(state)
        if state is SchemaState.CURRENT:
            yield _heartbeat(database, "worker", settings)
            yield _heartbeat(database, "keeper", settings)
    finally:
        database.close()


def _schema(state: SchemaState) -> Finding:
    hints = {
        SchemaState.CURRENT: "",
        SchemaState.BEHIND: "Run `expunge migrate`.",
        SchemaState.AHEAD: "Install the newer release that migrated it.",
    }
    return Finding("schema", state is SchemaState.CURRENT, f"The schema is {state}.", hints[state])


def _heartbeat(database: Database, kind: str, settings: Settings) -> Finding:
    with database.read() as session:
        beats = select(Heartbeat.beat_at).where(Heartbeat.kind == kind).order_by(Heartbeat.beat_at.desc()).limit(1)
        last = session.scalar(beats)
        seconds = None if last is None else (now(session) - last) / SECOND
    if seconds is None:
        return Finding(
            kind, False, f"No {kind} has ever run.", f"Start `expunge {kind}`, or everything with `expunge up`."
        )
    if seconds > settings.lease_seconds:
        return Finding(kind, False, f"The last {kind} was seen {seconds:.0f} s ago.", f"Start `expunge {kind}`.")
    return Finding(kind, True, f"A {kind} was seen {seconds:.0f} s ago.")
