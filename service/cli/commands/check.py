"""``expunge check``: a recipe, looked at by separate processes (torch)."""

from __future__ import annotations

import subprocess
from importlib.util import find_spec

import typer

from expunge.service.infra.python import PYTHON
from expunge_client.cli.output import USAGE, CommandError

check = typer.Typer(add_completion=False, rich_markup_mode=None)


@check.command(
    add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)  # every option, --help too, is that of the module that is run
def check_recipe(context: typer.Context) -> None:
    """Check a recipe (PATH) in seconds; --measure: what each method costs on it, in minutes."""
    words = [word for word in context.args if word != "--measure"]
    if "--measure" not in context.args:
        raise typer.Exit(_run("expunge.workers.check", words))
    if find_spec("expunge_lab") is None:
        what = "`expunge check --measure` is part of expunge-lab, which is not installed."
        raise CommandError(what, "pip install expunge-lab", USAGE)
    recipe = next((word for word in words if not word.startswith("-")), None)
    if recipe is None:
        raise typer.Exit(_run("expunge_lab.advise", words))
    words.remove(recipe)
    if "--json" not in words and (failed := _run("expunge.workers.check", [recipe])):
        raise typer.Exit(failed)
    raise typer.Exit(_run("expunge_lab.advise", ["--recipe", recipe, *words]))


def _run(module: str, words: list[str]) -> int:
    return subprocess.run([*PYTHON, "-m", module, *words], check=False).returncode  # noqa: S603
