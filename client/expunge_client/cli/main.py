"""``expunge``: the command line.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not reachable, 4 blocked: the request waits for a person.
"""

from __future__ import annotations

import os
import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from expunge_client.cli.completion import server_names
from expunge_client.cli.output import FAILED, FORMS, USAGE, CommandError, show_error
from expunge_client.cli.summaries import ADMINISTER, EVERYDAY, SUMMARIES

PACKAGES = (
    dict.fromkeys(("drop", "opendsr", "registry"), "expunge-connect")
    | dict.fromkeys(
        ("up", "check", "audit", "keys", "doctor", "drain", "migrate", "backup", "restore", "run", "init"), "expunge"
    )
    | {"lab": "expunge-lab"}
)
"""which package has a command; not every package is installed"""
_ON_THE_PAGE = "The page and the API have it"
GONE = {
    "open": "It is `expunge status --open`.",
    "budget": "`expunge models show NAME` shows it.",
    "requests find": "It is `expunge find`.",
    "requests certificate": "It is `expunge certificate show REQUEST`.",
    "certificate fetch": "It is `expunge certificate show REQUEST --out FILE`.",
    "holds show": "It is `expunge holds list HOLD`.",
    "suppressions": f"{_ON_THE_PAGE}: POST /v1/deletion-requests/REQUEST/lift.",
    "models cancel": "It is `expunge models retire NAME`.",
    "models publish": "It is `expunge models retrain NAME`, which asks.",
    "consumers list": "`expunge models show NAME` lists them.",
    "consumers remove": "It is `expunge models remove-consumer NAME CONSUMER`.",
    "consumers report": f"{_ON_THE_PAGE}: PUT /v1/models/NAME/consumers/CONSUMER.",
    "webhooks test": f"`expunge webhooks add` sends one. {_ON_THE_PAGE}: POST /v1/webhooks/ENDPOINT/test.",
    "webhooks disable": "It is `expunge webhooks remove ENDPOINT`.",
    "webhooks deliveries": "It is `expunge webhooks list ENDPOINT`.",
    "webhooks replay": f"{_ON_THE_PAGE}: POST /v1/webhooks/ENDPOINT/deliveries/DELIVERY/replay.",
    "servers add": "It is `expunge login NAME URL`.",
    "servers list": "`expunge status` names them.",
    "servers remove": "It is `expunge logout NAME`.",
    "keys actors": "`expunge keys list` shows them.",
    "keys rename": f"{_ON_THE_PAGE}: PUT /v1/actors/ACTOR.",
    "keys erase": f"{_ON_THE_PAGE}: PUT /v1/actors/ACTOR.",
    "keys rotate-signing": "It is `expunge audit rotate-key`.",
    "keys --days": "It is --expires, as 90d.",
    "keys --overlap-hours": "It is --overlap, as 12h.",
    "advise": "It is `expunge check RECIPE --measure`.",
    "evaluate": "It is `expunge lab evaluate`.",
    "audit epsilon": "It is `expunge lab attack`.",
    "api": "It is `expunge run api`.",
    "worker": "It is `expunge run worker`.",
    "updater": "It is `expunge run updater`.",
    "scheduler": "It is `expunge run scheduler`.",
    "models --min-guarantee": "It is --guarantee.",
    "models --on-exhausted": "It is --fallback.",
    "models --cadence": "It is --batch, as 12h.",
    "models --collect": "It is --batch, as 12h.",
    "models --on-suppressed": "It is --leave-out-forgotten.",
    "models --utility-tolerance": "It is --set max_accuracy_drop=VALUE.",
    "models --threshold": "It is fixed: 0.7 of the distance to retraining.",
    "models --requests-per-month": "Leave it out: a method that is not named is chosen by counts.",
    "models --new-data": "Leave it out: a retrain always reads what the recipe gives now.",
    "models --on-unchecked-feed": "expunge-connect decides at registration; docs/connectors.md says how.",
} | {
    f"models --{field.replace('_', '-')}": f"It is --set {field}=VALUE."
    for field in (
        "delta", "noise_std", "max_distance", "granularity", "reference", "calibration", "complete_when",
    )
} | {f"models --{field}": f"It is --option {field}=VALUE." for field in ("rank", "probes")}  # fmt: skip
"""what commands and options of before became"""


def grouped() -> dict[str, dict[str, EntryPoint]]:
    """Return the commands of all packages that are installed, by group: entry points named Group.command."""
    found: dict[str, dict[str, EntryPoint]] = {EVERYDAY: {}, ADMINISTER: {}}
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
        try:
            found = place.load()
        except ImportError as error:
            package = place.dist.name if place.dist else "expunge"
            what = f"`expunge {cmd_name}` cannot be loaded: {error}."
            raise CommandError(what, f"pip install {package}", USAGE) from None
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command()(found)
            found = alone
        command = typer.main.get_command(found)
        command.name = cmd_name
        for each in [command, *getattr(command, "commands", {}).values()]:
            if not (hasattr(each, "commands") or each.context_settings.get("ignore_unknown_options")):
                each.params.extend(FORMS)  # a command that hands its options on takes no other
        return command

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Refuse a command of before with its new name, and find any other."""
        options = (f"{args[0]} {each.partition('=')[0]}" for each in args[2:])
        for words in (" ".join(args[:2]), args[0], *options):
            if words in GONE:
                raise CommandError(f"There is no `expunge {words}` any more.", GONE[words], USAGE)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the everyday commands one by one, and of all others a line for each group."""
        places = {name: title for title, commands in grouped().items() for name in commands}
        sections: dict[str, list[tuple[str, str]]] = {}
        for title, summaries in SUMMARIES.items():
            sections[title] = [(words, text) for words, text in summaries.items() if words.split()[0] in places]
        known = {words.split()[0] for summaries in SUMMARIES.values() for words in summaries}
        for name in places.keys() - known:
            for title, words, text in self.summaries(ctx, places[name], name):
                sections.setdefault(title, []).append((words, text))
        for title, lines in sections.items():
            if lines:
                with formatter.section(title):
                    formatter.write_dl(lines)

    def summaries(self, ctx: Any, title: str, name: str) -> list[tuple[str, str, str]]:
        """Load a command, and return its lines of the help: section, words and text."""
        try:
            found = self.get_command(ctx, name)
        except CommandError as error:  # of a package that is half installed
            return [(title, name, error.what)]
        parts = getattr(found, "commands", {}) if title == EVERYDAY else {}
        lines = [
            (each.rich_help_panel or title, f"{name} {part}", each.get_short_help_str(90))
            for part, each in parts.items()
        ]
        return lines or [(title, name, found.get_short_help_str(90))]


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

        typer.echo(f"expunge {version('expunge-client')}")
        raise typer.Exit


@app.callback()
def expunge(
    server: Annotated[
        str | None,
        typer.Option(help="A server of `expunge login`, instead of the configured one.", autocompletion=server_names),
    ] = None,
    version: Annotated[  # noqa: ARG001
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Delete people from trained models, publish new versions, and prove what was done."""
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
        folder = Path(str(error.filename)).absolute().parent
        if isinstance(error, FileNotFoundError) and not folder.exists():
            lacking = CommandError(f"There is no folder {folder}.", "Make it, or name another.")
        else:
            what = f"{error.filename} cannot be used: {error.strerror}."
            lacking = CommandError(what, "Let this user read and write there, or set EXPUNGE_HOME to another folder.")
        show_error(lacking)
        sys.exit(FAILED)


if __name__ == "__main__":
    main()
