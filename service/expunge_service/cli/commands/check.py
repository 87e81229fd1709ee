"""``expunge check``: a recipe, looked at by a separate process (torch)."""

from __future__ import annotations

import subprocess

import typer

from expunge_service.infra.python import PYTHON

FORWARDED = {"allow_extra_args": True, "ignore_unknown_options": True}
"""every option, --help too, is that of the module that is run"""
check = typer.Typer(add_completion=False, rich_markup_mode=None)


@check.command(add_help_option=False, context_settings=FORWARDED)
def check_recipe(context: typer.Context) -> None:
    """Check a recipe (PATH) in seconds; --measure: what each method costs on it, in minutes."""
    done = subprocess.run([*PYTHON, "-m", "expunge_workers.check", *context.args], check=False)  # noqa: S603
    raise typer.Exit(done.returncode)
