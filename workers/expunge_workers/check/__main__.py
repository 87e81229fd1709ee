"""Whether a recipe is sound, and which guarantee each method can have: ``python -m expunge_workers.check``.

With --measure the package expunge-lab measures what each method costs: it trains, prepares and forgets.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from expunge_service.infra.settings import Settings, SettingsError
from expunge_workers.check.checks import check
from unlearning.types import Refused

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
            found = check(folder, name)
    except SettingsError as error:
        parser.error(str(error))
    well = all(each["well"] for each in found["findings"])
    if not given.json:
        _show(found, _registering(place), measuring=given.measure)
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="expunge check", description=__doc__)
    parser.add_argument("recipe", help="a recipe's file or folder")
    parser.add_argument("--measure", action="store_true", help="measure what each method costs (expunge-lab), minutes")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


def _registering(place: Path) -> str:
    """Return the sentence that says how a recipe is registered; a service finds it in the folder of recipes alone."""
    path = place.parent if place.name == "recipe.py" else place.with_suffix("") if place.suffix == ".py" else place
    recipes = Settings().recipes.resolve()
    if path.is_relative_to(recipes):
        return f"Register it: expunge models add NAME --recipe {path.relative_to(recipes)}."
    what = path.name if path == place or place.name == "recipe.py" else place.name
    return f"Copy {what} into {recipes}, and register it: expunge models add NAME --recipe {path.name}."


def _show(found: Mapping[str, Any], registering: str, *, measuring: bool) -> None:
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
    console.print(f"{registering}{costs}", soft_wrap=True)


if __name__ == "__main__":
    raise SystemExit(main())
