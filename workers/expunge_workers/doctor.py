"""The checks of ``expunge doctor`` that need torch and the recipes' code: ``python -m expunge_workers.doctor``.

Each finding is a line of JSON on standard output; the output of recipes is sent to standard error. It only reads.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from sqlalchemy.exc import SQLAlchemyError

from expunge_service.cli.checks import Finding, by_reason, lacks_file
from expunge_service.infra.db import Busy, Database
from expunge_service.infra.migrate import SchemaState, schema_state
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.settings import Settings, SettingsError
from expunge_service.infra.stores import Store
from expunge_service.infra.tenants import DEFAULT_TENANT, recipes_of
from expunge_service.models import is_other_module, is_with_rows, locate, serving
from expunge_service.queue import forgotten, threads_of_workers
from expunge_service.requests import Reason
from expunge_workers.guarantee.machine_walls import Surroundings, explain, observe, try_walls
from expunge_workers.runtime import recipes
from expunge_workers.runtime.device import described, device_of, opened
from expunge_workers.runtime.engine import engine_of
from expunge_workers.runtime.failures import reason_of
from expunge_workers.runtime.model import method_of
from expunge_workers.runtime.rows_recipe import MOST_GONE, declared, salt_of, survey
from expunge_workers.runtime.walls import Probe
from expunge_workers.runtime.worlds import readers
from expunge_workers.storage import manifest
from expunge_workers.storage.environment import NAMED, Environment, moved
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import ANYWHERE, Policy
from unlearning.model.method import Method
from unlearning.types import Need, Refused


@dataclass(frozen=True)
class InspectedGeneration:
    """A generation that can still publish updates. ``gone`` are the positions that were forgotten."""

    name: str
    tenant_id: str
    recipe: str
    policy: Policy
    guarantee: Guarantee
    frozen: dict[str, object]
    state: str
    environment: dict[str, Any] | None
    place: str
    places: manifest.SampleIndex
    gone: frozenset[int]
    threads: frozenset[str]
    """how many threads the living workers take that take the model, as far as they say so"""


def examine(settings: Settings) -> Iterator[Finding]:
    """Check the device, the walls, every recipe in the folder, and every generation that serves a model."""
    yield device(settings.device)
    yield walls(try_walls(), observe([settings.recipes, *settings.folders]))
    yield runner(settings)
    serving = _served(settings)
    used = {served.recipe for served in serving}
    for name in recipes.names(settings.recipes):
        path = locate(settings.recipes, name)
        if path is not None and not is_other_module(path):
            yield recipe(settings, name, is_used=name in used)
    for served in serving:
        yield generation(settings, served)


def device(name: str) -> Finding:
    """Check that the device that ``EXPUNGE_DEVICE`` names computes on this machine, and say which card it is."""
    try:
        found = opened(name)
    except SettingsError as error:
        what, _, remedy = str(error).partition(". ")
        return Finding("device", False, f"{what}, by torch {torch.__version__}.", remedy)
    if found.type == "cpu":
        return Finding("device", True, "Workers compute on cpu.")
    free, whole = (size / 2**30 for size in torch.accelerator.get_memory_info(found))
    return Finding("device", True, f"Workers compute on {described(found)}; {free:.1f} of {whole:.1f} GiB are free.")


def walls(found: Probe, around: Surroundings) -> Finding:
    """Say which walls this machine gives the training of a recipe with rows. None is a fault: certificates say it."""
    return Finding("walls", True, *explain(found, around))


def runner(settings: Settings) -> Finding:
    """Say what trains the parts of models, and check that its package is there."""
    try:
        engine = engine_of(settings.runner, settings.home)
    except SettingsError as error:
        what, _, remedy = str(error).partition(". ")
        return Finding("runner", False, f"{what}.", remedy)
    if engine is None:
        return Finding("runner", True, "Workers train by themselves.")
    return Finding(
        "runner", True, f"{settings.runner.partition('@')[0]} trains; the files of parts are at {engine.place}."
    )


def recipe(settings: Settings, name: str, *, is_used: bool) -> Finding:
    """Check that the recipe's file can be imported behind walls, and declares sources; it is not run.

    It is no fault where no served model uses the recipe and a package that it imports is not installed: some of the
    examples need more than Expunge does.
    """
    try:
        declared(settings, DEFAULT_TENANT, name)
    except Refused as error:
        reason, facts = reason_of(error)
        if facts.get("error") == ModuleNotFoundError.__name__ and not is_used:
            where = f"{facts['file']}:{facts['line']}"
            what = f"It imports a package that is not installed here, at {where}. No served model uses it."
            return Finding(f"recipe {name}", True, what)
        return by_reason(f"recipe {name}", reason, facts)
    return Finding(f"recipe {name}", True, "It imports.")


def generation(settings: Settings, served: InspectedGeneration) -> Finding:
    """Check that the next update would find everything that it needs."""
    title = f"generation of {served.name}"
    if served.place not in settings.groups | {ANYWHERE, device_of(settings.device).type}:
        return Finding(title, True, f"Workers of the place {served.place} take it. Run the doctor there.")
    try:
        fault = _fault(settings, served)
        again = _trained_again(settings, served) if fault is None else ""
    except Refused as error:
        fault = reason_of(error)
    except (SettingsError, OSError) as error:
        return Finding(title, False, f"Without the pepper no sample is found again. {error}", "Restore its file.")
    if fault is None:
        return Finding(title, True, f"Its next update finds all it needs.{again}")
    return by_reason(title, *fault, served.name, " Deletions will be blocked.")


def _trained_again(settings: Settings, served: InspectedGeneration) -> str:
    """Return a sentence where the next update trains the whole model again, since this environment is another one."""
    if not method_of(served.policy).exact:
        return ""
    device, libraries = device_of(settings.device), cast("dict[str, str]", served.frozen["libraries"])
    recorded: dict[str, str] = libraries if served.environment is None else served.environment["machine"]
    for threads in sorted(served.threads) or [recorded.get("threads", "")]:  # of workers, never those of this shell
        change = moved(Environment.of(device, threads), served.environment, libraries)
        if change is not None:
            differ = "; ".join(change.differences[:NAMED])
            return f" It trains the whole model again, for the environment is another: {differ}."
    return ""


def _fault(settings: Settings, served: InspectedGeneration) -> tuple[Reason, dict[str, Any]] | None:
    """Return the reason that will block updates, and its facts; None if there is none.

    Sources are read only if updates read samples. Raises Refused; SettingsError and OSError without the pepper.
    """
    if not Store.at(settings.private_store).holds(served.state):
        return Reason.STATE_UNREADABLE, {"file": served.state}
    path = recipes.find(recipes_of(settings.recipes, served.tenant_id), served.recipe)
    if not is_with_rows(served.frozen):
        return Reason.RECIPE_FORM, {}
    if recipes.digest_of(path) != served.frozen["recipe_digest"]:
        return Reason.RECIPE_CHANGED, {"file": path.name}
    method = method_of(served.policy)
    libraries: dict[str, str] = served.frozen["libraries"]  # type: ignore[assignment]
    device = device_of(settings.device)
    if Need.TRAJECTORY in method.needs and not manifest.replayable(libraries, device):
        return Reason.ENVIRONMENT_CHANGED, manifest.difference(libraries, device)
    return _samples_fault(settings, served, method)


def _samples_fault(
    settings: Settings, served: InspectedGeneration, method: Method
) -> tuple[Reason, dict[str, Any]] | None:
    """Count the people, or rows, that the sources lack. Raises Refused."""
    pepper = Pepper.load(settings.pepper_file)
    recipe = declared(settings, served.tenant_id, served.recipe)
    salt = salt_of(pepper, served.tenant_id)
    with readers():
        units = survey(recipe, settings, served.tenant_id, served.policy.granularity, salt=salt)
        samples = units.samples
    retained = served.places.take(~torch.isin(served.places.at, torch.tensor(sorted(served.gone), dtype=torch.int64)))
    if method.exact:
        lacking = manifest.compared(manifest.given(pepper, served.tenant_id, samples), retained).missing
        count = len(retained)
    else:  # its samples are known once the recipe makes them
        present = {person for people in manifest.subjects_of(pepper, served.tenant_id, samples) for person in people}
        lacking, count = len(retained.people() - present), len(retained.people())
    return (Reason.SAMPLES_CHANGED, {"lacking": lacking}) if lacking > MOST_GONE * count else None


def _served(settings: Settings) -> list[InspectedGeneration]:
    """Return every generation that serves a model; none if the database cannot be read, which other checks report."""
    try:
        if lacks_file(settings.database_url):
            return []
        database = Database(settings.database_url)
        if schema_state(database) is not SchemaState.CURRENT:
            return []
        return _read(database)
    except (Busy, SQLAlchemyError, SettingsError, OSError):
        return []


def _read(database: Database) -> list[InspectedGeneration]:
    found = []
    with database.read() as session:
        for model, generation, current in serving(session):
            served = InspectedGeneration(
                name=model.name,
                tenant_id=model.tenant_id,
                recipe=model.recipe,
                policy=Policy.from_json(model.policy).in_force(generation.method),
                guarantee=Guarantee(generation.guarantee),
                frozen=dict(generation.manifest or {}),
                state=current.state,
                environment=current.environment,
                place=model.place,
                places=manifest.places(session, generation.id),
                gone=forgotten(session, generation.id),
                threads=threads_of_workers(session, model),
            )
            found.append(served)
    return found


def main() -> int:
    """Print every finding; return 0, or 1 where a setting is wrong."""
    try:
        settings = Settings()
    except SettingsError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    lines = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    with redirect_stdout(sys.stderr), lines:
        for finding in examine(settings):
            lines.write(json.dumps(asdict(finding)) + "\n")
            lines.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
