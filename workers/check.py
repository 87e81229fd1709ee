"""Whether a recipe is sound, and which guarantee each method can have: ``python -m expunge.workers.check``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from expunge.service.cli.checks import Finding
from expunge.service.infra.settings import Settings
from expunge.workers.guarantee.choose import guarantee_of, require_needs
from expunge.workers.runtime.failures import refusal_of
from expunge.workers.runtime.model import device_of, opened
from expunge.workers.soundness.checks import Subject, counts, inspect, read
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import Fallback, Policy
from unlearning.methods import NAMES
from unlearning.types import RecipeError, Refused

STRONGEST = (Guarantee.EXACT, Guarantee.PROVED, Guarantee.CALIBRATED, Guarantee.ESTIMATED, Guarantee.NONE)


@dataclass(frozen=True)
class Possible:
    """A method's guarantee on a recipe; or why the method is refused."""

    method: str
    guarantee: Guarantee | None
    refused: str | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 where a check failed, or the recipe does not run."""
    given = _parser().parse_args(arguments)
    place = Path(given.recipe).resolve()
    folder, name = place.parent, place.stem if place.suffix == ".py" else place.name
    with redirect_stdout(sys.stderr):  # a recipe may print
        found = _checked(folder, name)
    if given.json:
        sys.stdout.write(json.dumps(found, indent=2, allow_nan=False) + "\n")
    else:
        _show(found, name)
    return 0 if all(each["well"] for each in found["findings"]) else 1


def _checked(folder: Path, name: str) -> dict[str, Any]:
    """Return findings and counts, and each method's guarantee where nothing failed, as JSON."""
    found: dict[str, Any] = {"findings": [], "counts": None, "methods": []}
    try:
        subject = read(folder, name)
    except (Refused, RecipeError) as error:
        found["findings"].append(asdict(Finding("the recipe runs", False, error.what, error.hint)))
        return found
    found["findings"].append(asdict(Finding("the recipe runs", True, f"In {subject.seconds:.1f} s.")))
    found["counts"] = counts(subject.recipe)
    found["findings"] += [asdict(each) for each in inspect(subject)]
    if all(each["well"] for each in found["findings"]):
        found["methods"] = [asdict(each) for each in possible(subject)]
    return found


def possible(subject: Subject) -> list[Possible]:
    """Return what each method can have on the recipe, the strongest guarantee first. Nothing is trained."""
    device = device_of(Settings().device)
    found = [_possible(subject, name, device) for name in NAMES]
    return sorted(found, key=lambda each: len(STRONGEST) if each.guarantee is None else STRONGEST.index(each.guarantee))


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
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


def _show(found: Mapping[str, Any], name: str) -> None:
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
    console.print(f"Register it: expunge models add NAME --recipe {name}. What each method costs: expunge advise.")


if __name__ == "__main__":
    raise SystemExit(main())
