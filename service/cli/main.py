"""``expunge``: the command line. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not reachable."""

from __future__ import annotations

import sys

import typer
from pydantic import ValidationError

from service.cli.commands import (
    audit,
    backups,
    certificate,
    consumers,
    deletions,
    evaluate,
    holds,
    keys,
    models,
    processes,
    webhooks,
)
from service.cli.commands import suppression as suppressions
from service.cli.commands.doctor import doctor
from service.cli.output import FAILED, USAGE, CommandError, show_error
from service.infra.db import Busy
from service.infra.settings import SettingsError

app = typer.Typer(
    name="expunge",
    help="Deletion requests for trained models: forget a person, publish a new version, prove what was done.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

app.command()(processes.up)
app.command()(processes.api)
app.command()(processes.worker)
app.command()(processes.updater)
app.command()(processes.scheduler)
app.command()(processes.migrate)
app.command()(backups.backup)
app.command()(backups.restore)
app.command()(doctor)
app.command()(deletions.delete)
app.command()(models.versions)
app.command()(models.budget)
app.command(**evaluate.FORWARDED)(evaluate.evaluate)
app.add_typer(models.commands, name="models")
app.add_typer(deletions.commands, name="requests")
app.add_typer(suppressions.commands, name="suppressions")
app.add_typer(holds.commands, name="holds")
app.add_typer(webhooks.commands, name="webhooks")
app.add_typer(consumers.commands, name="consumers")
app.add_typer(certificate.commands, name="certificate")
app.add_typer(audit.commands, name="audit")
app.add_typer(keys.commands, name="keys")


def main() -> None:
    try:
        app()
    except CommandError as error:
        show_error(error)
        sys.exit(error.code)
    except SettingsError as error:
        show_error(CommandError(str(error), ""))
        sys.exit(USAGE)
    except ValidationError as error:
        show_error(CommandError(_settings(error), "Every setting is explained in docs/operations.md."))
        sys.exit(USAGE)
    except OSError as error:
        if error.filename is None:
            raise
        what = f"{error.filename} cannot be used: {error.strerror}."
        show_error(CommandError(what, "Let this user read and write there, or set EXPUNGE_HOME to another folder."))
        sys.exit(FAILED)
    except Busy as error:
        show_error(CommandError(str(error), "Is EXPUNGE_DATABASE_URL right, and the database running?"))
        sys.exit(FAILED)


def _settings(error: ValidationError) -> str:
    faults = (f"EXPUNGE_{'_'.join(map(str, fault['loc'])).upper()}: {fault['msg']}" for fault in error.errors())
    return "; ".join(faults)


if __name__ == "__main__":
    main()
