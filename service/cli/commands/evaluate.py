"""``expunge check`` and ``evaluate``: a recipe, looked at by a separate process (torch)."""

from __future__ import annotations

import json
import subprocess
from importlib.util import find_spec

import typer

from expunge.service.cli.errors import told
from expunge.service.infra.python import PYTHON
from expunge.service.infra.settings import Settings
from expunge.service.infra.tenants import recipes_of
from expunge_client.cli.client import connect
from expunge_client.cli.output import USAGE, CommandError

FORWARDED = {"allow_extra_args": True, "ignore_unknown_options": True}
"""every option, --help too, is that of the module that is run"""
evaluate, check = (typer.Typer(add_completion=False, rich_markup_mode=None) for _ in range(2))


@evaluate.command(add_help_option=False, context_settings=FORWARDED)
@told()
def evaluate_model(context: typer.Context) -> None:
    """Measure all methods on a model (NAME) or a recipe (--recipe PATH), next to retraining and doing nothing."""
    arguments = list(context.args)
    if arguments and not arguments[0].startswith("-"):
        arguments = [*_of_model(arguments[0]), *arguments[1:]]
    run_module("expunge_lab.evaluate", arguments)


@check.command(add_help_option=False, context_settings=FORWARDED)
def check_recipe(context: typer.Context) -> None:
    """Check a recipe (PATH): that it runs, repeats and may grow, and which guarantee each method can have."""
    run_module("expunge.workers.check", context.args)


def run_module(module: str, arguments: list[str]) -> None:
    """Run a module that needs torch in another process, and end as it does. Raises CommandError: not installed."""
    package = module.partition(".")[0]
    if find_spec(package) is None:
        name = package.replace("_", "-")
        raise CommandError(f"This command is part of {name}, which is not installed.", f"pip install {name}", USAGE)
    done = subprocess.run([*PYTHON, "-m", module, *arguments], check=False)  # noqa: S603
    raise typer.Exit(done.returncode)


def _of_model(name: str) -> list[str]:
    """Return a registered model's recipe, tenant and policy as options. Options that follow on the command line
    override them.
    """
    with connect() as client:
        model = client.get(f"/v1/models/{name}")
    policy = model["policy"]
    options = {policy["method"]: policy.get("options") or {}}
    numbers = [
        f"--{field.replace('_', '-')}={policy[field]}" for field in ("epsilon", "delta", "noise_std", "max_distance")
    ]
    folder = recipes_of(Settings().recipes, model["tenant"])
    place = [f"--recipe={folder / model['recipe']}", f"--tenant={model['tenant']}"]
    return [*place, *numbers, f"--options={json.dumps(options)}"]
