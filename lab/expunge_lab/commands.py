"""``expunge lab``: methods measured, and claims attacked, on a recipe."""

from __future__ import annotations

import json

import typer

from expunge_client.cli.client import connect
from expunge_service.cli.errors import told
from expunge_service.infra.settings import Settings
from expunge_service.infra.tenants import recipes_of

commands = typer.Typer(no_args_is_help=True, help="Measure methods on a recipe, and attack claims: evaluate, attack.")
FORWARDED = {"allow_extra_args": True, "ignore_unknown_options": True}
"""every option, --help too, is that of the module that is called; each loads torch, and so only when it is called"""


@commands.command("evaluate", add_help_option=False, context_settings=FORWARDED)
def evaluate(context: typer.Context) -> None:
    """Measure all methods on a model (NAME) or a recipe (--recipe PATH), next to retraining and doing nothing."""
    from expunge_lab.evaluate import main  # noqa: PLC0415

    words = list(context.args)
    if words and not words[0].startswith("-"):
        words = [*_of_model(words[0]), *words[1:]]
    raise typer.Exit(main(words))


@commands.command("attack", add_help_option=False, context_settings=FORWARDED)
def attack(context: typer.Context) -> None:
    """Try to refute the claims of a recipe (--recipe PATH): canaries, thousands of guesses; fail if one is exceeded."""
    from expunge_lab.audit_epsilon import main  # noqa: PLC0415

    raise typer.Exit(main(context.args))


@told()
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
