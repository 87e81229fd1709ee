"""Who asked to be forgotten, and is left out: attacks are measured on drawn people, never on them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from sqlalchemy.exc import SQLAlchemyError

from expunge_service.access import require_pepper
from expunge_service.cli.checks import lacks_file
from expunge_service.infra.db import Database
from expunge_service.infra.migrate import SchemaState, schema_state
from expunge_service.infra.pseudonyms import Pepper, sample_digest, subject_digest
from expunge_service.infra.settings import Settings, SettingsError
from expunge_service.requests import names_with_requests
from unlearning.recipe import Samples
from unlearning.types import Refused

HERE = "Run it where a worker runs: its database and its pepper say who must not be drawn."


def asks_to_leave(samples: Samples, tenant_id: str, settings: Settings) -> Callable[[str], bool]:
    """Return what tells of a person's id whether the tenant's requests and suppression list name the person.

    A request for samples counts for the people of these ``samples``. Raises Refused where the record cannot be read.
    """
    pepper, names = _record(tenant_id, settings)
    named = [sample_digest(pepper, tenant_id, id) in names for id in samples.ids]
    owners = {person for people in samples.people.take(torch.tensor(named).nonzero().squeeze(1)) for person in people}

    @cache
    def asks(person: str) -> bool:
        return person in owners or subject_digest(pepper, tenant_id, person) in names

    return asks


def _record(tenant_id: str, settings: Settings) -> tuple[Pepper, frozenset[str]]:
    """Return the pepper, and the digests of whom the tenant's requests name."""
    database = None if lacks_file(settings.database_url) else Database(settings.database_url)
    try:
        pepper = Pepper.load(settings.pepper_file)
        if database is None or schema_state(database) is not SchemaState.CURRENT:
            raise Refused("There is no record of requests here.", HERE)
        with database.read() as session:
            require_pepper(session, pepper)
            return pepper, names_with_requests(session, tenant_id)
    except (SettingsError, SQLAlchemyError, OSError) as error:
        raise Refused(f"The record of requests cannot be read ({type(error).__name__}).", HERE) from None
    finally:
        if database is not None:
            database.close()
