"""Whether a recipe is sound, and which guarantee each method can have: ``python -m expunge.workers.check``.

With --measure the package expunge-lab measures what each method costs: it trains, prepares and forgets.
"""

from __future__ import annotations

import argparse
import json
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from expunge.service.cli.checks import Finding
from expunge.service.infra.pseudonyms import Pepper
from expunge.service.infra.settings import Settings, SettingsError
from expunge.service.infra.tenants import DEFAULT_TENANT
from expunge.workers.check.checks import Possible, Subject, counts, inspect, read, strongest_first
from expunge.workers.check.rows import check_rows
from expunge.workers.guarantee.terms import guarantee_of, require_needs
from expunge.workers.runtime.device import device_of
from expunge.workers.runtime.failures import refusal_of
from expunge.workers.runtime.model import opened, set_up, takes_rows
from expunge.workers.storage.manifest import entries
from expunge.workers.training.trial import tried
from unlearning.accounting.policy import Fallback, Granularity, Policy
from unlearning.methods import NAMES
from unlearning.model.parts import parts_of, require_declared, trains_by_own_code
from unlearning.types import RecipeError, Refused

LABORATORY = "expunge_lab"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 where a check failed, or the recipe does not run; 2: no method was measured."""
    parser = _parser()
    given, more = parser.parse_known_args(arguments)
    if more and not given.measure:
        parser.error(f"unrecognized arguments: {' '.join(more)}. Options of what is measured need --measure.")
    if given.measure and find_spec(LABORATORY) is None:
        parser.error("--measure is part of expunge-lab, which is not installed. Run: pip install expunge-lab")
    place = Path(given.recipe).resolve()
    folder, name = place.parent, place.stem if place.suffix == ".py" else place.name
    try:
        with redirect_stdout(sys.stderr):  # a recipe may print
            found = checked(folder, name)
    except SettingsError as error:
        parser.error(str(error))
    well = all(each["well"] for each in found["findings"])
    if not given.json:
        _show(found, name, measuring=given.measure)
    if given.measure and well:
        try:
            with redirect_stdout(sys.stderr):
                costs = import_module(f"{LABORATORY}.costs").measured(place, more)
        except Refused as error:
            Console(stderr=True, markup=False, emoji=False, highlight=False).print(str(error), style="red")
            return 2
        found["measured"] = costs.to_json()
        if not given.json:
            costs.show()
    if given.json:
        sys.stdout.write(json.dumps(found, indent=2, allow_nan=False) + "\n")
    return 0 if well else 1


def checked(folder: Path, name: str) -> dict[str, Any]:
    """Return findings and counts, and each method's guarantee where no check failed, as JSON."""
    if takes_rows(Settings().model_copy(update={"recipes": folder}), DEFAULT_TENANT, name):
        return check_rows(folder, name)
    found: dict[str, Any] = {"findings": [], "counts": None, "methods": []}
    try:
        subject = read(folder, name)
    except (Refused, RecipeError) as error:
        found["findings"].append(asdict(Finding("the recipe runs", False, error.what, error.hint)))
        return found
    found["findings"].append(asdict(Finding("the recipe runs", True, f"In {subject.seconds:.1f} s.")))
    found["counts"] = counts(subject.recipe)
    found["findings"] += [asdict(each) for each in inspect(subject)]
    if all(each["well"] for each in found["findings"]) and trains_by_own_code(subject.recipe):
        found["findings"].append(asdict(_trial(subject)))
    if all(each["well"] for each in found["findings"]):
        found["findings"].append(asdict(_declared(subject)))
    if all(each["well"] for each in found["findings"]):
        found["methods"] = [asdict(each) for each in possible(subject)]
    return found


def _trial(subject: Subject) -> Finding:
    """Try the recipe's own training as a registration does, on a few samples."""
    settings = Settings().model_copy(update={"recipes": subject.folder})
    pepper = Pepper.of(secrets.token_bytes(32))
    try:
        bench = set_up(settings, DEFAULT_TENANT, subject.name, subject.loaded, Policy("retrain"))
        kept = entries(pepper, DEFAULT_TENANT, subject.recipe.samples, Granularity.SUBJECT)
        trial = tried(settings, bench, kept)
    except Refused as error:
        return Finding("the training, tried", False, error.what, error.hint)
    place = (f"They first differ at {trial.differs_at}.",) if trial.differs_at else ()
    return Finding("the training, tried", True, " ".join((*trial.sentences, *place)))


def _declared(subject: Subject) -> Finding:
    """Look for numbers that the recipe brings along and does not declare public, with the line to paste."""
    try:
        require_declared(subject.recipe, parts_of(subject.recipe))
    except (Refused, RecipeError) as error:
        return Finding("numbers it brings along", False, error.what, error.hint)
    return Finding("numbers it brings along", True, "None, or all of them are declared public.")


def possible(subject: Subject) -> list[Possible]:
    """Return what each method can have on the recipe, the strongest guarantee first."""
    device = device_of(Settings().device)
    return strongest_first(_possible(subject, name, device) for name in NAMES)


def _possible(subject: Subject, name: str, device: Any) -> Possible:
    policy = Policy(name, fallback=Fallback.HOLD)
    try:
        bench = opened(subject.loaded, policy, device)
        require_needs(policy, bench.method, bench.recipe)
        return Possible(name, guarantee_of(policy, bench.problem, bench.method))
    except (Refused, RecipeError) as error:
        return Possible(name, None, f"{error.what} {error.hint}".strip())
    except Exception as error:  # the recipe's code
        refused = refusal_of(error, subject.folder)
        if refused is None:
            raise
        return Possible(name, None, refused.what)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="expunge check", description=__doc__)
    parser.add_argument("recipe", help="a recipe's file or folder")
    parser.add_argument("--measure", action="store_true", help="measure what each method costs (expunge-lab), minutes")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


def _show(found: Mapping[str, Any], name: str, *, measuring: bool) -> None:
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 160)
    for each in found["findings"]:
        console.print("ok  " if each["well"] else "FAIL", style="green" if each["well"] else "bold red", end=" ")
        console.print(f"{each['name']}: {each['what']}", soft_wrap=True)
        if each["hint"]:
            console.print(f"     {each['hint']}", style="yellow", soft_wrap=True)
    if found["counts"]:
        told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found["counts"].items())
        console.print(f"\n{told}")
    if not found["methods"]:
        return
    table = Table(title="what each method can have")
    for column in ("method", "guarantee", "refused because"):
        table.add_column(column)
    for each in found["methods"]:
        table.add_row(each["method"], each["guarantee"] or "-", each["refused"] or "")
    console.print(table)
    costs = "" if measuring else " What each method costs: --measure."
    console.print(f"Register it: expunge models add NAME --recipe {name}.{costs}")


if __name__ == "__main__":
    raise SystemExit(main())
