"""To which installation a place belongs: the stores, the key folder and the key store each carry its id.

A worker with an empty folder, or another bucket or key store, would block every update, or report keys as destroyed
that another key store holds. So the database remembers the places that it claimed, each place has a mark, and a
process that meets others than its own does not start.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Protocol

from sqlalchemy import select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from expunge_service.infra.db import Busy, Database
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.settings import SettingsError
from expunge_service.infra.tables import ClaimedPlace

DATABASE = "database"
"""the row of the installation's own id"""
_LOCK = 7204


class Markable(Protocol):
    """A place that carries a mark: a folder, a bucket or a key store."""

    def mark(self) -> str | None: ...
    def set_mark(self, mark: str) -> None: ...
    def blank(self) -> bool: ...
    def check(self) -> None: ...


def place_name(setting: str, tenants: Collection[str] | None) -> str:
    """Return the name under which a place for these tenants alone is claimed; None: for all tenants."""
    return setting if tenants is None else f"{setting} {','.join(sorted(tenants))}"


def claim_places(database: Database, places: Mapping[str, Markable]) -> None:
    """Claim each place that is new, and check all of them, at the start of a process that writes to them.

    ``places`` has the ``place_name`` of each one's setting: ``store``, ``key_folder``.
    Raises SettingsError for a place that is another's or unfit, and Busy where the database or a place does not answer.
    """
    try:
        with _alone(database) as session:
            installation = _installation(session)
        # committed before any mark is made of it: a process that dies here leaves a mark that the next one knows
        for name, place in places.items():
            with _alone(database) as session:
                _claim(session, installation, name, place)
            place.check()
    except OSError as error:
        raise Busy(f"A store does not answer: {error}") from error
    except ValueError as error:
        raise SettingsError(str(error)) from error


def check_places(database: Database, places: Mapping[str, Markable]) -> None:
    """Check that places are those that the database claimed, without writing. Raises SettingsError, Busy."""
    try:
        with suppress(SQLAlchemyError), database.read() as session:  # before the first migration nothing was claimed
            known = {row.name: row.installation for row in session.scalars(select(ClaimedPlace))}
            for name, place in places.items():
                _agree(known, name, place.mark())
    except OSError as error:
        raise Busy(f"A store does not answer: {error}") from error


@contextmanager
def _alone(database: Database) -> Iterator[Session]:
    """Open a transaction in which no other process claims: a lock on rows would not show one that was just added."""
    with database.write() as session:
        if database.dialect == "postgresql":  # SQLite has one writer
            session.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
        yield session


def _installation(session: Session) -> str:
    row = session.get(ClaimedPlace, DATABASE)
    if row is None:
        row = ClaimedPlace(name=DATABASE, installation=new_id())
        session.add(row)
    return row.installation


def _claim(session: Session, installation: str, name: str, place: Markable) -> None:
    """Mark a place that neither the database nor the place knows of; raise SettingsError where they disagree."""
    known = {row.name: row.installation for row in session.scalars(select(ClaimedPlace))}
    found = place.mark()
    _agree(known, name, found)
    if found is None:
        if not place.blank():
            raise SettingsError(
                f"{_variable(name)}: {place} holds files and no mark of an installation. Name an empty place: what "
                "does not belong to this installation would be deleted there."
            )
        place.set_mark(_mark(name, installation))
    if name not in known:
        session.add(ClaimedPlace(name=name, installation=installation))


def _agree(known: Mapping[str, str], name: str, found: str | None) -> None:
    """Compare a place's mark with what the database claimed. Raises SettingsError."""
    if found is None and name in known:
        raise SettingsError(
            f"{_variable(name)}: this is not the place that installation {known[name]} has used: it carries no mark. "
            "A disk that is not mounted, or another host's folder? Every host must reach the same one: a shared "
            "folder, or s3://bucket/prefix."
        )
    if found is not None and found != _mark(name, known.get(DATABASE, "")):
        raise SettingsError(
            f"{_variable(name)}: this place is marked {found.strip()!r}, and the database is that of installation "
            f"{known.get(DATABASE, 'none')}. Set {_variable(name)}, or EXPUNGE_DATABASE_URL, to what belongs together."
        )


def _mark(name: str, installation: str) -> str:
    return f"Expunge {_kind(name)} of installation {installation}\n"


def _variable(name: str) -> str:
    return f"EXPUNGE_{_kind(name).upper()}"


def _kind(name: str) -> str:
    """Return the name without the tenants that a key store is for."""
    return name.partition(" ")[0]
