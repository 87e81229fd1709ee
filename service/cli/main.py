"""``expunge``: the command line. Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not reachable."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from service.cli.output import FAILED, USAGE, CommandError, show_error
from service.infra.settings import SettingsError

COMMANDS = {
    "up": "processes:up",
    "api": "processes:api",
    "worker": "processes:worker",
    "updater": "processes:updater",
    "scheduler": "processes:scheduler",
    "migrate": "processes:migrate",
    "backup": "backups:backup",
    "restore": "backups:restore",
    "doctor": "doctor:doctor",
    "delete": "deletions:delete",
    "versions": "models:versions",
    "budget": "models:budget",
    "check": "evaluate:check",
    "advise": "evaluate:advise",
    "evaluate": "evaluate:evaluate",
    "models": "models:commands",
    "requests": "deletions:commands",
    "suppressions": "suppression:commands",
    "holds": "holds:commands",
    "webhooks": "webhooks:commands",
    "consumers": "consumers:commands",
    "certificate": "certificate:commands",
    "audit": "audit:commands",
    "keys": "keys:commands",
    "drop": "connect.drop:commands",
    "registry": "connect.registry:commands",
}
"""module and name in ``service.cli.commands``: a function, or a Typer with more commands"""
FORWARDED: dict[str, Any] = {
    "add_help_option": False,
    "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
}
"""every option, --help too, is that of ``python -m workers.NAME``"""


class Commands(TyperGroup):
    """Imports the module of the one command that is called: all of them together take a second."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module, name = COMMANDS[cmd_name].split(":")
        found = getattr(import_module(f"service.cli.commands.{module}"), name)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(**(FORWARDED if module == "evaluate" else {}))(found)
            found = alone
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command


app = typer.Typer(
    name="expunge",
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def expunge() -> None:
    """Forget people in trained models, publish new versions, and prove what was done."""


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
    except RuntimeError as error:
        from service.infra.db import Busy  # noqa: PLC0415  (here alone: most commands need no database)

        if not isinstance(error, Busy):
            raise
        show_error(CommandError(str(error), "Is EXPUNGE_DATABASE_URL right, and the database running?"))
        sys.exit(FAILED)


def _settings(error: ValidationError) -> str:
    faults = (f"EXPUNGE_{'_'.join(map(str, fault['loc'])).upper()}: {fault['msg']}" for fault in error.errors())
    return "; ".join(faults)


if __name__ == "__main__":
    main()
