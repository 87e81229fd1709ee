"""Errors of the settings and of the database, as a command shows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from expunge_client.cli.output import USAGE, CommandError
from expunge_service.infra.db import Busy
from expunge_service.infra.settings import SettingsError


@contextmanager
def told() -> Iterator[None]:
    """Turn a wrong setting, or a database that does not answer, into what happened and what to do."""
    try:
        yield
    except SettingsError as error:
        raise CommandError(str(error), "", USAGE) from None
    except Busy as error:
        raise CommandError(str(error), "Is EXPUNGE_DATABASE_URL right, and the database running?") from None
