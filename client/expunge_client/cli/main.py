"""``expunge``: the command line.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not reachable, 4 blocked: the request waits for somebody.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from expunge_client.cli.completion import server_names
from expunge_client.cli.output import FAILED, USAGE, CommandError, show_error

TITLES = ("Look", "Delete", "Models", "Prove", "Connect", "Operate")
"""the groups that come first in the help"""
PACKAGES = dict.fromkeys(("drop", "opendsr", "registry"), "expunge-connect")
"""commands of packages that need not be installed"""


def grouped() -> dict[str, dict[str, EntryPoint]]:
    """Return the commands of all packages that are installed, by group: entry points named Group.command."""
    found: dict[str, dict[str, EntryPoint]] = {title: {} for title in TITLES}
    for each in sorted(entry_points(group="expunge.commands")):
        title, _, name = each.name.partition(".")
        found.setdefault(title, {})[name] = each
    return found


class Commands(TyperGroup):
    """Imports the module of the one command that is called: all of them together take a second."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return [name for commands in grouped().values() for name in commands]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        """Load a command: a function, or a Typer with more commands. Raises CommandError where a package is missing."""
        place = next((commands[cmd_name] for commands in grouped().values() if cmd_name in commands), None)
        if place is None and cmd_name in PACKAGES:
            package = PACKAGES[cmd_name]
            what = f"`expunge {cmd_name}` is part of {package}, which is not installed."
            raise CommandError(what, f"pip install {package}", USAGE)
        if place is None:
            return None
        found = place.load()
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command()(found)
            found = alone
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands in groups, each by what it is for."""
        for title, places in grouped().items():
            commands = [(name, self.get_command(ctx, name)) for name in places]
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
    except OSError as error:
        if error.filename is None:
            raise
        what = f"{error.filename} cannot be used: {error.strerror}."
        show_error(CommandError(what, "Let this user read and write there, or set EXPUNGE_HOME to another folder."))
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
