"""``expunge``: the command line.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not reachable, 4 blocked: the request waits for somebody.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from expunge.service.cli.completion import server_names
from expunge.service.cli.output import FAILED, USAGE, CommandError, show_error

GROUPS = {
    "Look": {
        "status": "overview:status",
        "open": "overview:open_page",
        "versions": "models:versions",
        "budget": "models:budget",
    },
    "Delete": {
        "delete": "deletions:delete",
        "requests": "deletions:commands",
        "holds": "holds:commands",
        "suppressions": "suppression:commands",
    },
    "Models": {
        "check": "evaluate:check",
        "models": "models:commands",
        "evaluate": "evaluate:evaluate",
    },
    "Prove": {
        "certificate": "certificate:commands",
        "audit": "audit:commands",
    },
    "Connect": {
        "servers": "connect.servers:commands",
        "keys": "keys:commands",
        "webhooks": "connect.webhooks:commands",
        "consumers": "connect.consumers:commands",
        "drop": "connect.drop:commands",
        "registry": "connect.registry:commands",
    },
    "Operate": {
        "up": "processes:up",
        "doctor": "doctor:doctor",
        "migrate": "processes:migrate",
        "backup": "backups:backup",
        "restore": "backups:restore",
        "api": "processes:api",
        "worker": "processes:worker",
        "updater": "processes:updater",
        "scheduler": "processes:scheduler",
    },
}
COMMANDS = {name: place for group in GROUPS.values() for name, place in group.items()}
"""module and name in ``expunge.service.cli.commands``: a function, or a Typer with more commands"""
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
        found = getattr(import_module(f"expunge.service.cli.commands.{module}"), name)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(**(FORWARDED if module == "evaluate" else {}))(found)
            found = alone
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in groups, each by what it is for."""
        for title, names in GROUPS.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl([(name, command.get_short_help_str(90)) for name, command in commands])


app = typer.Typer(
    name="expunge",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415  (reads the disk)

        typer.echo(f"expunge {version('expunge')}")
        raise typer.Exit


@app.callback()
def expunge(
    server: Annotated[
        str | None,
        typer.Option(help="A server of `expunge servers`, instead of the configured one.", autocompletion=server_names),
    ] = None,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the release, and end.")
    ] = False,
) -> None:
    """Forget people in trained models, publish new versions, and prove what was done."""
    if server is not None:
        os.environ["EXPUNGE_SERVER"] = server


def main() -> None:
    try:
        app(prog_name="expunge")
    except CommandError as error:
        show_error(error)
        sys.exit(error.code)
    except ValueError as error:
        show_error(_wrong_setting(error))
        sys.exit(USAGE)
    except OSError as error:
        if error.filename is None:
            raise
        what = f"{error.filename} cannot be used: {error.strerror}."
        show_error(CommandError(what, "Let this user read and write there, or set EXPUNGE_HOME to another folder."))
        sys.exit(FAILED)
    except RuntimeError as error:
        from expunge.service.infra.db import Busy  # noqa: PLC0415  (here alone: most commands need no database)

        if not isinstance(error, Busy):
            raise
        show_error(CommandError(str(error), "Is EXPUNGE_DATABASE_URL right, and the database running?"))
        sys.exit(FAILED)


def _wrong_setting(error: ValueError) -> CommandError:
    """Return the error of a setting that is missing or wrong. Raises the given error where it is another."""
    from pydantic import ValidationError  # noqa: PLC0415  (who gets here has imported them already)

    from expunge.service.infra.settings import SettingsError  # noqa: PLC0415

    if isinstance(error, ValidationError):
        faults = (f"EXPUNGE_{'_'.join(map(str, fault['loc'])).upper()}: {fault['msg']}" for fault in error.errors())
        return CommandError("; ".join(faults), "Every setting is explained in docs/operations/settings.md.")
    if isinstance(error, SettingsError):
        return CommandError(str(error), "")
    raise error


if __name__ == "__main__":
    main()
