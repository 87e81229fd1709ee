"""``expunge models``, ``versions`` and ``budget``: what is served, and what it may still cost."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any

import typer

from expunge_client.cli.client import Client, connect
from expunge_client.cli.completion import ModelArgument
from expunge_client.cli.output import (
    USAGE,
    AsCsv,
    AsJson,
    CommandError,
    commands_of,
    errors,
    meter,
    nested,
    output,
    show_facts,
    show_hint,
    show_json,
    show_list,
    show_rows,
)

commands = typer.Typer(no_args_is_help=True, help="Models: register, list, show, retrain, policy, cancel, retire.")
POLL_SECONDS = 0.3
SETTLED = {"live", "refused", "cancelled", "exhausted", "retired"}

Name = Annotated[str, typer.Argument(help="The model's name.")]
Fallback = Annotated[str | None, typer.Option(help="Where the method cannot go on: retrain, or hold.")]
Batch = Annotated[int | None, typer.Option(help="Least seconds between updates.")]
RetrainEvery = Annotated[
    int | None, typer.Option(help="Seconds between two trainings on the recipe's present data; 0: none is planned.")
]
CompleteWhen = Annotated[str | None, typer.Option(help="published, or served: every consumer has moved on.")]


@commands.command("add")
def add(
    name: Name,
    recipe: Annotated[str, typer.Option(help="Name of a recipe in EXPUNGE_RECIPES, e.g. digits.")],
    method: Annotated[
        str | None, typer.Option(help="How people are forgotten: retrain, newton, ...; left out: chosen by counts.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help="A field of the method, NAME=VALUE; repeatable.")] = None,
    fallback: Fallback = None,
    guarantee: Annotated[
        str | None, typer.Option(help="The least that may be published: exact, proved, calibrated, estimated, none.")
    ] = None,
    calibration: Annotated[
        list[str] | None,
        typer.Option(help="How calibrated is measured: alpha=0.05, orders=19, sizes=1,2,4; repeatable."),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Budget of the generation.")] = None,
    delta: Annotated[float | None, typer.Option(help="Budget of the generation; at least 1e-12.")] = None,
    noise_std: Annotated[float | None, typer.Option(help="Noise of each update, in units of the weights.")] = None,
    max_distance: Annotated[
        float | None, typer.Option(help="Greatest distance to retraining an update may have.")
    ] = None,
    granularity: Annotated[str | None, typer.Option(help="subject or sample.")] = None,
    reference: Annotated[str | None, typer.Option(help="renormalised or fixed-denominator.")] = None,
    threshold: Annotated[
        float | None, typer.Option(help="Greatest distance left ratio that counts as working.")
    ] = None,
    batch: Batch = None,
    retrain_every: RetrainEvery = None,
    complete_when: CompleteWhen = None,
    leave_out_forgotten: Annotated[
        bool, typer.Option("--leave-out-forgotten", help="Leave out people who asked before and are in the recipe.")
    ] = False,
    max_accuracy_drop: Annotated[
        str | None, typer.Option(help="Greatest fall of holdout accuracy in a release, 0 to 1; none: no gate.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Stay until the model is live or refused.")] = True,
    as_json: AsJson = False,
) -> None:
    """Register a model: it is trained (or imported), its first version published, and a dry run shown."""
    body = {
        "name": name,
        "recipe": recipe.removeprefix("recipes/").removeprefix("examples/"),
        "method": method,
        "options": _options(option),
        "fallback": fallback,
        "guarantee": guarantee,
        "calibration": _calibration(calibration),
        "epsilon": epsilon,
        "delta": delta,
        "noise_std": noise_std,
        "max_distance": max_distance,
        "granularity": granularity,
        "reference": reference,
        "threshold": threshold,
        "batch": batch,
        "retrain_every": retrain_every,
        "complete_when": complete_when,
        "leave_out_forgotten": leave_out_forgotten or None,
    }
    given: dict[str, Any] = {field: value for field, value in body.items() if value is not None}
    if max_accuracy_drop is not None:
        given["max_accuracy_drop"] = _tolerance(max_accuracy_drop)
    with connect() as client:
        answer = client.post("/v1/models", given)
        if wait:
            answer = await_prepared(client, name)
    show_json(answer) if as_json else _show(answer)


@commands.command("list")
def list_models(as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """List all models."""
    with connect() as client:
        rows = list(client.pages("/v1/models"))
    show_list(rows, ("name", "status", "method", "guarantee", "recipe", "current"), as_json, as_csv)


@commands.command("show")
def show(name: ModelArgument, as_json: AsJson = False) -> None:
    """Show one model: status, policy, current version, what preparation measured, and the dry run."""
    with connect() as client:
        record = client.get(f"/v1/models/{name}")
    show_json(record) if as_json else _show(record)


@commands.command("retrain")
def retrain(
    name: ModelArgument,
    new_data: Annotated[
        bool, typer.Option("--new-data", help="Train on what the recipe gives now, without who asked to be forgotten.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what changed in the data, and stop.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask after the dry run.")] = False,
    wait: Annotated[bool, typer.Option(help="Stay until the new version is published or refused.")] = True,
    as_json: AsJson = False,
) -> None:
    """Train a model again under its name: a dry run first, then a new generation, and the switch to it."""
    if not new_data:
        raise CommandError(
            "A retrain reads what the recipe gives now, and that may have changed.", "Say --new-data.", USAGE
        )
    path = f"/v1/models/{name}/retrains"
    with connect() as client:
        found = _await_retrain(client, name, client.post(path, {"dry_run": True})["generation"])
        if not as_json or not dry_run:
            _show_changes(found["changes"])
            _show_cost(found["expected_seconds"])
        if not dry_run:
            try:
                agreed = yes or typer.confirm("Train on these data?", err=True)
            except typer.Abort:
                hint = "Say --yes where nobody is at a terminal."
                raise CommandError("Nothing was trained: the question was not answered.", hint, USAGE) from None
            if not agreed:
                raise CommandError("Nothing was trained.", "")
            found = client.post(path, {})
            if wait:
                found = _await_retrain(client, name, found["generation"])
    if as_json:
        show_json(found)
    elif not dry_run:
        errors.print(f"generation {found['generation']} of {name} is {found['status']}.")


@commands.command("policy")
def policy(
    name: ModelArgument,
    fallback: Fallback = None,
    batch: Batch = None,
    retrain_every: RetrainEvery = None,
    complete_when: CompleteWhen = None,
    threshold: Annotated[float | None, typer.Option(help="Greatest distance left that counts as working.")] = None,
    max_accuracy_drop: Annotated[
        str | None, typer.Option(help="Greatest fall of holdout accuracy in an update, 0 to 1; none: no gate.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Change what may change of a model's policy, or show it. Noise, bound and method are fixed at registration."""
    body: dict[str, Any] = {
        "fallback": fallback,
        "batch": batch,
        "retrain_every": retrain_every,
        "complete_when": complete_when,
        "threshold": threshold,
    }
    changes = {field: value for field, value in body.items() if value is not None}
    if max_accuracy_drop is not None:
        changes["max_accuracy_drop"] = _tolerance(max_accuracy_drop)
    with connect() as client:
        path = f"/v1/models/{name}"
        record = client.patch(f"{path}/policy", changes) if changes else client.get(path)
    show_json(record) if as_json else show_facts(record["policy"])


@commands.command("cancel")
def cancel(name: ModelArgument, as_json: AsJson = False) -> None:
    """Cancel the preparation of a model: what was built is destroyed, and its name is free."""
    with connect() as client:
        status = client.get(f"/v1/models/{name}")["status"]
        if status != "preparing":
            raise CommandError(f"{name} is {status}: nothing is prepared.", f"Run `expunge models retire {name}`.")
        record = client.post(f"/v1/models/{name}/retire", {})
    show_json(record) if as_json else _show(record)


@commands.command("retire")
def retire(
    name: ModelArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Stop serving a model permanently: its requests end with it, its state and keys are destroyed."""
    if not (yes or typer.confirm(f"Retire {name}? It cannot be served or updated again.", err=True)):
        raise CommandError("Nothing was retired.", "")
    with connect() as client:
        record = client.post(f"/v1/models/{name}/retire", {})
    show_json(record) if as_json else _show(record)


def _await_retrain(client: Client, name: str, generation: int) -> dict[str, Any]:
    """Return the retrain when it is over. Raises CommandError where it is refused."""
    with meter(f"retraining {name}") as progress:
        while True:
            retrains = client.get(f"/v1/models/{name}")["retrains"]
            found: dict[str, Any] = next(each for each in retrains if each["generation"] == generation)
            progress.show(found["progress"], found["phase"] or found["status"])
            if found["status"] != "candidate":
                break
            time.sleep(POLL_SECONDS)
    if found["refused"] is not None:
        raise CommandError(found["refused"]["what"], found["refused"]["hint"])
    return found


def _show_changes(found: dict[str, int]) -> None:
    """Print what changed, one sentence a line, on standard error."""
    errors.print(f"{found['gone']:,} of {found['served']:,} samples are missing from the recipe's data.")
    errors.print(f"{found['changed']:,} samples have another content.")
    errors.print(f"{found['new']:,} samples and {found['people_new']:,} people are new.")
    people = f"{found['people_left_out']:,} people"
    errors.print(f"{found['left_out']:,} samples ({people}) are left out: those people asked to be forgotten.")
    errors.print(f"A retrain trains on {found['samples']:,} samples.")


def _show_cost(seconds: float | None) -> None:
    """Print what a retrain will take, by the last one, on standard error."""
    told = "Nobody has timed a training of this model" if seconds is None else f"The last training took {seconds:.3g} s"
    errors.print(f"{told}. The current version is served until the new one is ready.")


def versions(name: ModelArgument, as_json: AsJson = False, as_csv: AsCsv = False) -> None:
    """List the published versions of a model, with what each one claims."""
    columns = ("number", "status", "method", "samples", "people", "holdout_accuracy", "claim.guarantee", "published_at")
    with connect() as client:
        rows = list(client.pages(f"/v1/models/{name}/versions"))
    show_list(rows, columns, as_json, as_csv)


def budget(name: ModelArgument, as_json: AsJson = False) -> None:
    """Show what is spent, the limit, what remains, and how many updates are left."""
    with connect() as client:
        record = client.get(f"/v1/models/{name}/budget")
    show_json(record) if as_json else show_facts(record)


def await_prepared(client: Client, name: str) -> dict[str, Any]:
    """Show preparation until the model is live. Raises CommandError where it is refused."""
    with meter(f"preparing {name}") as progress:
        while True:
            state: dict[str, Any] = client.get(f"/v1/models/{name}")
            progress.show(state["preparation"]["progress"], _doing(state))
            if state["status"] in SETTLED:
                break
            time.sleep(POLL_SECONDS)
    if state["status"] != "live":
        raise CommandError(
            f"{name} is {state['status']}: {state.get('reason') or 'no reason given'}", "Nothing was published."
        )
    errors.print(f"{name} is live.")
    return state


def _show(record: dict[str, Any]) -> None:
    """Print the facts, then what other values of noise_std and max_distance would cost, one a line."""
    steps = record.get("actions") or []
    record = {field: value for field, value in record.items() if field != "actions"}
    report = dict(nested(record, "preparation.report") or {})
    rows = report.pop("dry_run", None)
    repeats = report.pop("expected_repeats", None)
    if record.get("preparation"):
        record = {**record, "preparation": {**record["preparation"], "report": report}}
    show_facts(record)
    if rows:
        output.print("\ndry run: the holdout accuracy that noise_std costs, and how many releases the budget allows")
        show_rows(rows, ("noise_std", "max_distance", "accuracy", "updates"))
    if repeats:
        whole = report.get("seconds") or 0.0
        output.print("\nupdates: the share of a training that one repeats on average, by how many people it forgets")
        show_rows([each | {"seconds": each["share"] * whole} for each in repeats], ("requests", "share", "seconds"))
    show_hint(commands_of(steps).strip())


def _options(given: list[str] | None) -> dict[str, Any] | None:
    """Return the method's fields, given as NAME=VALUE."""
    return dict(_option(each) for each in given or []) or None


def _calibration(given: list[str] | None) -> dict[str, Any] | None:
    """Read alpha=0.05, orders=19 and sizes=1,2,4."""
    found = dict(_option(each) for each in given or [])
    if "sizes" in found:
        found["sizes"] = [_option(f"size={part}")[1] for part in str(found["sizes"]).split(",")]
    return found or None


def _tolerance(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is neither a number nor none") from None


def _doing(state: dict[str, Any]) -> str:
    """Return the phase, and where workers share the preparation how far they are."""
    work_units = state["preparation"]["work_units"]
    told = f", {work_units['done']} of {work_units['count']} work units" if work_units else ""
    return f"{state['preparation']['phase'] or state['status']}{told}"


def _option(text: str) -> tuple[str, Any]:
    field, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
    try:
        return field, json.loads(value)
    except ValueError:
        return field, value
