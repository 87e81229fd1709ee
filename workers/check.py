"""Whether a recipe is sound, and what it can have, without a service: ``python -m expunge.workers.check``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from expunge.service.cli.checks import Finding
from expunge.service.infra.settings import Settings
from expunge.workers.advice.alarm import alarmed
from expunge.workers.advice.checks import Subject, counts, inspect, read
from expunge.workers.advice.measure import Findings, OutOfTime, Scene, measure
from expunge.workers.runtime.failures import refusal_of
from expunge.workers.runtime.model import device_of
from unlearning.accounting.advice import Offer, duration
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import Policy
from unlearning.methods import NAMES
from unlearning.types import RecipeError, Refused

STRONGEST = (Guarantee.EXACT, Guarantee.PROVED, Guarantee.CALIBRATED, Guarantee.ESTIMATED, Guarantee.NONE)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0; 1 where a check failed, or the recipe does not run."""
    given = _parser().parse_args(arguments)
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    place = Path(given.recipe).resolve()
    folder, name = place.parent, place.stem if place.suffix == ".py" else place.name
    console.print(f"This takes about {duration(given.seconds + 10.0)}, and three times the time that the recipe loads.")
    with redirect_stdout(sys.stderr):  # a recipe may print
        found = _checked(folder, name, given.seconds)
    if given.json:
        sys.stdout.write(json.dumps(found, indent=2, allow_nan=False) + "\n")
    else:
        _show(found)
    return 0 if all(each["well"] for each in found["findings"]) else 1


def _checked(folder: Path, name: str, seconds: float) -> dict[str, Any]:
    """Return findings, counts, what each method costs, and the strongest guarantee, as JSON."""
    found: dict[str, Any] = {"findings": [], "counts": None, "methods": [], "guarantee": None}

    def add(finding: Finding) -> bool:
        found["findings"].append(asdict(finding))
        return finding.well

    try:
        subject = read(folder, name)
    except (Refused, RecipeError) as error:
        add(Finding("the recipe runs", False, error.what, error.hint))
        return found
    add(Finding("the recipe runs", True, f"In {duration(subject.seconds)}."))
    found["counts"] = counts(subject.recipe)
    if not all([add(finding) for finding in inspect(subject)]) and not found["findings"][1]["well"]:
        return found  # the model does not fit the data: nothing can be measured
    try:
        measured = measure(_scene(subject), seconds, alarmed, lambda _: None)
    except OutOfTime as slow:
        add(Finding("training", True, f"Not measured. {slow}", "Give more time with --seconds."))
        return found
    except (Refused, RecipeError) as error:
        add(Finding("training", False, error.what, error.hint))
        return found
    except Exception as error:  # the recipe's code
        refused = refusal_of(error, folder)
        if refused is None:
            raise
        add(Finding("training", False, refused.what, refused.hint))
        return found
    return found | _methods(measured)


def _methods(measured: Findings) -> dict[str, Any]:
    """Return what each method costs, and the strongest guarantee with the methods that have it."""
    able = [offer for offer in measured.offers if offer.refused is None and offer.guarantee is not None]
    strongest = min((STRONGEST.index(offer.guarantee) for offer in able if offer.guarantee), default=None)
    best = None if strongest is None else STRONGEST[strongest]
    by = [offer.method for offer in able if offer.guarantee is best]
    return {
        "retraining_seconds": measured.retraining,
        "methods": [asdict(offer) for offer in measured.offers],
        "guarantee": None if best is None else {"guarantee": best.value, "methods": by},
    }


def _scene(subject: Subject) -> Scene:
    settings = Settings()
    device = device_of(settings.device)
    policy = Policy.from_json({"method": "retrain"}, NAMES)
    examples = subject.recipe.samples.examples(device=device)
    return Scene(subject.loaded, examples, policy, device, subject.seconds, settings.vector_bytes)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="expunge check", description=__doc__)
    parser.add_argument("recipe", help="a recipe's file or folder")
    parser.add_argument("--seconds", type=float, default=10.0, help="for trying the methods; default: 10")
    parser.add_argument("--json", action="store_true", help="print everything as JSON")
    return parser


def _show(found: Mapping[str, Any]) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160, markup=False, emoji=False)
    for each in found["findings"]:
        mark, style = ("ok  ", "green") if each["well"] else ("FAIL", "bold red")
        console.print(mark, style=style, end="")
        console.print(f" {each['name']}: {each['what']}", soft_wrap=True)
        if each["hint"]:
            console.print(f"     {each['hint']}", style="yellow", markup=False, soft_wrap=True)
    if found["counts"]:
        told = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in found["counts"].items())
        console.print(f"\n{told}")
    if found["methods"]:
        _show_methods(console, found)


def _show_methods(console: Console, found: Mapping[str, Any]) -> None:
    whole = found["retraining_seconds"]
    table = Table(title="cannot be trained again here" if whole is None else f"a retraining takes {duration(whole)}")
    for name in ("method", "guarantee", "first version", "one deletion", "kept"):
        table.add_column(name, justify="left" if name in ("method", "guarantee") else "right")
    offers = [Offer(**each) for each in found["methods"]]
    for offer in offers:
        if offer.refused is None:
            times = (duration(offer.preparation or 0.0), duration(offer.update or 0.0))
            table.add_row(offer.method, offer.guarantee, *times, f"{(offer.state_bytes or 0) / 2**20:,.3g} MiB")
    console.print(table)
    for offer in offers:
        if offer.refused is not None:
            console.print(f"{offer.method}: {offer.refused}", markup=False, soft_wrap=True)
    if found["guarantee"]:
        best = found["guarantee"]
        console.print(f"The strongest guarantee here is {best['guarantee']}, by {', '.join(best['methods'])}.")


if __name__ == "__main__":
    raise SystemExit(main())
