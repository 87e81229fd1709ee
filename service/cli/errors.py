"""Errors of the settings and of the database, as a command shows them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from pydantic import ValidationError

from expunge.service.infra.db import Busy
from expunge.service.infra.settings import SettingsError
from expunge_client.cli.output import USAGE, CommandError


@contextmanager
def told() -> Iterator[None]:
    """Turn a wrong setting, or a database that does not answer, into what happened and what to do."""
    try:
        yield
    except ValidationError as error:
        faults = (f"EXPUNGE_{'_'.join(map(str, fault['loc'])).upper()}: {fault['msg']}" for fault in error.errors())
        hint = "Every setting is explained in docs/settings.md."
        raise CommandError("; ".join(faults), hint, USAGE) from None
    except SettingsError as error:
        raise CommandError(str(error), "", USAGE) from None
    except Busy as error:
        raise CommandError(str(error), "Is EXPUNGE_DATABASE_URL right, and the database running?") from None
