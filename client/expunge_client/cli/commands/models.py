"""``expunge models`` and ``versions``: what is served, and what it may still cost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from expunge_client.cli.brief import budget_words, model_lines, noted
from expunge_client.cli.client import Client, connect
from expunge_client.cli.completion import ModelArgument, consumer_names
from expunge_client.cli.durations import seconds
from expunge_client.cli.output import (
    USAGE,
    CommandError,
    as_json,
    briefly,
    commands_of,
    errors,
    meter,
    nested,
    output,
    show_facts,
    show_hint,
    show_json,
    show_lines,
    show_list,
    show_rows,
)

commands = typer.Typer(
    no_args_is_help=True, help="Models: add, list, show, retrain, port, policy, retire, remove-consumer."
)
SETTLED = {"live", "refused", "cancelled", "exhausted", "retired"}
FREED = {"refused", "cancelled"}
"""a model that never was live: its name is free"""
METHOD_OPTIONS = (
    "A field of the method, NAME=VALUE; repeatable. cns: damping, rank. late: early_share. mini: steps. newton: "
    "damping, radius. recollection: carried_by, repair_epochs. rewind: fraction, feature_norm. safe: "
    "allowed_loss, strength, ratio, features. shards: shards. docs/methods.md lists those of the papers."
)

Name = Annotated[str, typer.Argument(help="The model's name.")]
Fallback = Annotated[
    str | None, typer.Option(help="retrain or hold: what follows when the method cannot serve a request.")
]
Batch = Annotated[
    str | None, typer.Option(help="Least time between two updates, as 7d, 12h or 90s; 0: at once; or by-deadline.")
]
RetrainEvery = Annotated[
    str | None, typer.Option(help="Time between two trainings on the recipe's present data; 0: none is planned.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any field of the policy, NAME=VALUE; repeatable."),
]


@commands.command("add")
def add(
    name: Name,
    recipe: Annotated[str, typer.Option(help="Name of a recipe in EXPUNGE_RECIPES, e.g. digits.")],
    method: Annotated[
        str | None, typer.Option(help="How people are forgotten: retrain, newton, ...; left out: by counts.")
    ] = None,
    option: Annotated[list[str] | None, typer.Option(help=METHOD_OPTIONS)] = None,
    guarantee: Annotated[
        str | None, typer.Option(help="The least that may be published: exact, proved, calibrated, estimated, none.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="Budget of the generation.")] = None,
    fallback: Fallback = None,
    batch: Batch = None,
    retrain_every: RetrainEvery = None,
    leave_out_forgotten: Annotated[
        bool, typer.Option("--leave-out-forgotten", help="Leave out people of the recipe with a deletion request.")
    ] = False,
    fields: Set = None,
    wait: Annotated[bool, typer.Option("--wait/--no-wait", help="Stay until the model is live or refused.")] = True,
) -> None:
    """Register a model: train or import it, and publish its first version."""
    body = {"name": name, "recipe": recipe.removeprefix("recipes/").removeprefix("examples/")}
    named: dict[str, Any] = {
        "method": method,
        "options": dict(map(_field, option or [])) or None,
        "guarantee": guarantee,
    }
    named |= {"epsilon": epsilon, "fallback": fallback, "batch": batch, "retrain_every": retrain_every}
    if leave_out_forgotten:
        named["leave_out_forgotten"] = True
    with connect() as client:
        answer = client.post("/v1/models", body | _policy(named, fields))
        if wait:
            answer = await_prepared(client, name)
    _show_briefly(answer)


@commands.command("list")
def list_models() -> None:
    """List all models."""
    with connect() as client:
        rows = list(client.pages("/v1/models"))
    show_list(rows, ("name", "status", "method", "guarantee", "recipe", "current"))


@commands.command("show")
def show(name: ModelArgument) -> None:
    """Show one model: status, policy, version, measurements, budget and consumers."""
    with connect() as client:
        path = f"/v1/models/{name}"
        record = client.get(path)
        if record["current"] is not None:
            record["budget"] = client.get(f"{path}/budget")
        record["consumers"] = client.get(f"{path}/consumers")["data"]
    _show(record)


@commands.command("retrain")
def retrain(
    name: ModelArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count what changed in the data, and stop.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    wait: Annotated[bool, typer.Option(help="Stay until the new version is published or refused.")] = True,
) -> None:
    """Train a model again under its name, after a dry run. It reads what the recipe gives now.

    People with a deletion request are left out. A first version that was withheld for its accuracy is trained once
    more and published.
    """
    path = f"/v1/models/{name}/retrains"
    with connect() as client:
        state = client.get(f"/v1/models/{name}")
        if _is_withheld(state) and not dry_run:
            _publish_anyway(client, state, yes=yes)
            _show_briefly(await_prepared(client, name) if wait else client.get(f"/v1/models/{name}"))
            return
        _train_anew(
            client, name, path, _show_changes, "changes", "Train on these data?", dry_run=dry_run, yes=yes, wait=wait
        )


@commands.command("port")
def port(
    name: ModelArgument,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Count the people in the sources, and stop.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    wait: Annotated[bool, typer.Option(help="Stay until the new version is published or refused.")] = True,
) -> None:
    """Train a live model by the rows that its rewritten recipe now defines, after a dry run.

    People with a deletion request are left out, and requests that wait are completed.
    """
    path = f"/v1/models/{name}/port"
    with connect() as client:
        _train_anew(
            client, name, path, _show_people, "people", "Train on these people?", dry_run=dry_run, yes=yes, wait=wait
        )


def _train_anew(
    client: Client,
    name: str,
    path: str,
    show: Callable[[dict[str, int]], None],
    counts: str,
    question: str,
    *,
    dry_run: bool,
    yes: bool,
    wait: bool,
) -> None:
    """Post a dry run, ``show`` its ``counts``, ask, and post it in earnest."""
    retrain = _await_retrain(client, name, client.post(path, {"dry_run": True})["generation"])
    if not as_json() or not dry_run:
        show(retrain[counts])
        _show_cost(retrain["expected_seconds"])
    if not dry_run:
        _agree(question, yes=yes)
        retrain = client.post(path, {})
        if wait:
            retrain = _await_retrain(client, name, retrain["generation"])
    if as_json():
        show_json(retrain)
    elif not dry_run:
        errors.print(f"generation {retrain['generation']} of {name} is {retrain['status']}.")


@commands.command("policy")
def policy(
    name: ModelArgument,
    fallback: Fallback = None,
    batch: Batch = None,
    retrain_every: RetrainEvery = None,
    fields: Set = None,
) -> None:
    """Show or change a model's policy. Noise, bound and method are fixed at registration."""
    changes = _policy({"fallback": fallback, "batch": batch, "retrain_every": retrain_every}, fields)
    with connect() as client:
        path = f"/v1/models/{name}"
        record = client.patch(f"{path}/policy", changes) if changes else client.get(path)
    show_facts(record["policy"])


@commands.command("retire")
def retire(
    name: ModelArgument,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Stop serving a model permanently: its requests end with it, its state and keys are destroyed.

    The name of a model that was never published is free then.
    """
    if not (yes or typer.confirm(f"Retire {name}? It cannot be served or updated again.", err=True)):
        raise CommandError("Nothing was retired.", "")
    with connect() as client:
        record = client.post(f"/v1/models/{name}/retire", {})
    _show_briefly(record)


@commands.command("remove-consumer", rich_help_panel="Administer")
def remove_consumer(
    model: ModelArgument,
    consumer: Annotated[str, typer.Argument(help="Name of a consumer.", autocompletion=consumer_names)],
) -> None:
    """Remove a consumer that no longer serves the model."""
    with connect() as client:
        client.delete(f"/v1/models/{model}/consumers/{consumer}")
    errors.print("removed.")


def _agree(question: str, *, yes: bool, hint: str = "") -> None:
    """Ask, unless the answer was given by --yes. Raises CommandError where it is not yes."""
    try:
        agreed = yes or typer.confirm(question, err=True)
    except typer.Abort:
        hint = hint or "Say --yes where there is no terminal."
        raise CommandError("Nothing was trained: the question was not answered.", hint, USAGE) from None
    if not agreed:
        raise CommandError("Nothing was trained.", hint)


def _is_withheld(state: dict[str, Any]) -> bool:
    """Return whether the model's first version waits for a decision on its accuracy."""
    return state["status"] == "preparing" and (state["reason"] or "").startswith("accuracy_drop: ")


def _publish_anyway(client: Client, state: dict[str, Any], *, yes: bool = False) -> None:
    """Show both accuracies, ask, and let the first version be published. Raises CommandError where it is not."""
    name = state["name"]
    hint = f"`expunge models retrain {name}` publishes it, `expunge models retire {name}` cancels it."
    errors.print(f"{state['reason']}{_both(state['preparation'].get('report') or {})}", markup=False)
    _agree("Train it once more and publish it at any accuracy?", yes=yes, hint=hint)
    client.post(f"/v1/models/{name}/publish", {})


def _await_retrain(client: Client, name: str, generation: int) -> dict[str, Any]:
    """Return the retrain when it is over. Raises CommandError where it is refused."""
    with meter(f"retraining {name}") as progress:
        while True:
            state, pause = client.look(f"/v1/models/{name}")
            found: dict[str, Any] = next(each for each in state["retrains"] if each["generation"] == generation)
            progress.show(found["progress"], found["phase"] or found["status"])
            if found["status"] != "candidate":
                break
            time.sleep(pause)
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


def _show_people(found: dict[str, int]) -> None:
    """Print who is in the sources of a recipe with rows, one sentence a line, on standard error."""
    errors.print(f"The recipe's sources name {found['found']:,} people.")
    errors.print(f"{found['missing']:,} people of the current version are not among them.")
    errors.print(f"{found['left_out']:,} people of the sources stay out: they, or others of the same rows, asked.")


def _show_cost(taken: float | None) -> None:
    """Print what a retrain will take, by the last one, on standard error."""
    told = "No training of this model was timed yet" if taken is None else f"The last training took {taken:.3g} s"
    errors.print(f"{told}. The current version is served until the new one is ready.")


def versions(name: ModelArgument) -> None:
    """List the published versions of a model, with what each one claims."""
    of_holdout = ("metric", "holdout_accuracy")
    columns = ("number", "status", "method", "samples", "people", *of_holdout, "claim.guarantee", "published_at")
    with connect() as client:
        rows = list(client.pages(f"/v1/models/{name}/versions"))
    if briefly():
        rows = [row | {"claim": {"guarantee": noted(nested(row, "claim.guarantee"), row)}} for row in rows]
    show_list(rows, columns)


def await_prepared(client: Client, name: str) -> dict[str, Any]:
    """Show preparation until the model is live; ask where its first version is withheld for its accuracy.

    Raises CommandError where it is refused, or is not to be published.
    """
    with meter(f"preparing {name}") as progress:
        while True:
            state: dict[str, Any]
            state, pause = client.look(f"/v1/models/{name}")
            progress.show(state["preparation"]["progress"], _doing(state))
            if state["status"] in SETTLED or _is_withheld(state):
                break
            time.sleep(pause)
    if _is_withheld(state):
        _publish_anyway(client, state)
        return await_prepared(client, name)
    if state["status"] != "live":
        again = "Nothing was published, and the name is free for another try."
        raise CommandError(
            f"{name} is {state['status']}: {state.get('reason') or 'no reason given'}",
            again if state["status"] in FREED else "",
        )
    errors.print(f"{name} is live.")
    return state


def _both(report: dict[str, Any]) -> str:
    """Return both figures of a withheld version, while they are there."""
    plain, published = report.get("plain_accuracy"), report.get("accuracy")
    metric = report.get("metric") or "accuracy"
    return "" if plain is None or published is None else f" Plain {metric} {plain:.3f}, to publish {published:.3f}."


def _show_briefly(record: dict[str, Any]) -> None:
    if briefly():
        show_lines(model_lines(record))
    else:
        _show(record)


def _show(record: dict[str, Any]) -> None:
    """Print the facts, then what other values of noise_std and max_distance would cost, one a line."""
    if as_json():
        show_json(record)
        return
    steps, consumers = record.get("actions") or [], record.get("consumers") or []
    record = {field: value for field, value in record.items() if field not in ("actions", "consumers")}
    report = dict(nested(record, "preparation.report") or {})
    rows = report.pop("dry_run", None)
    repeats = report.pop("expected_repeats", None)
    if record.get("budgets"):  # none of a service of before 0.3
        record["budgets"] = budget_words(record["budgets"], report.get("metric"))
    if record.get("preparation"):
        record = {**record, "preparation": {**record["preparation"], "report": report}}
    show_facts(record)
    if consumers:
        output.print("\nwho serves it: current, behind, or unknown after five silent minutes")
        show_rows(consumers, ("name", "version", "status"))
    if rows:
        metric = report.get("metric") or "accuracy"
        output.print(f"\ndry run: the holdout {metric} that noise_std costs, and how many releases the budget allows")
        show_rows(rows, ("noise_std", "max_distance", "accuracy", "updates"))
    if repeats:
        whole = report.get("seconds") or 0.0
        output.print("\nupdates: the share of a training that one repeats on average, by how many people it forgets")
        show_rows([each | {"seconds": each["share"] * whole} for each in repeats], ("requests", "share", "seconds"))
    show_hint(commands_of(steps).strip())


def _policy(named: dict[str, Any], fields: list[str] | None) -> dict[str, Any]:
    """Return the fields of a policy: those of the options that were given, then --set."""
    given = {name: value for name, value in named.items() if value is not None} | dict(map(_field, fields or []))
    if given.get("batch") == "by-deadline":
        given["batch"] = "365d"  # the most that a policy takes: every deadline comes before
    for name in ("batch", "retrain_every"):
        if isinstance(given.get(name), str):
            given[name] = seconds(given[name])
    return given


def _doing(state: dict[str, Any]) -> str:
    """Return the phase, and where workers share the preparation how far they are."""
    work_units = state["preparation"]["work_units"]
    told = f", {work_units['done']} of {work_units['count']} work units" if work_units else ""
    return f"{state['preparation']['phase'] or state['status']}{told}"


def _field(text: str) -> tuple[str, Any]:
    """Read NAME=VALUE; the value is JSON where it is some, and a text otherwise."""
    field, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE")
    try:
        return field, json.loads(value)
    except ValueError:
        return field, value
