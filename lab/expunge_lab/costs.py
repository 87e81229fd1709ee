"""Which method suits a recipe, and whether any does: what ``expunge check RECIPE --measure`` measures."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from expunge_lab.advice.alarm import alarmed
from expunge_lab.advice.choice import Demand, Offer, break_even, closing, trainings_a_year
from expunge_lab.advice.measure import Findings, OutOfTime
from expunge_lab.advice.with_rows import RowsScene, measure_with_rows
from expunge_service.infra.limits import LIMITS
from expunge_service.infra.time import duration
from expunge_workers.runtime.device import device_of
from expunge_workers.runtime.failures import refusal_of
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import Policy, PolicyError
from unlearning.methods import NAMES
from unlearning.types import RecipeError, Refused

CAPTION = (
    "accuracy: on the holdout, of what is published; first version: until it is there, a training included; update: "
    "one person, on average; retrainings: the same in units of one retraining; break-even: so many deletions, one "
    "update each, cost no more than one retraining for all of them; trainings a year: whole or in part, at the "
    "default batch and so many requests a month"
)


@dataclass(frozen=True)
class Measured:
    """What was found, for one demand."""

    found: Findings
    demand: Demand

    def to_json(self) -> dict[str, Any]:
        return _json(self.found, self.demand)

    def show(self) -> None:
        """Print the table and the advice."""
        _show(self.found, self.demand)


def measured(recipe: Path, arguments: Sequence[str]) -> Measured:
    """Really train and forget on a recipe; ``arguments`` are the options of ``expunge check --measure``.

    Raises:
        Refused: the recipe cannot be trained at all, or not in the time that is given; or a wrong argument.
    """
    given = _parser().parse_args(arguments)
    console = Console(stderr=True, markup=False, emoji=False)
    try:
        demand = Demand(Guarantee(given.min_guarantee), given.requests_per_month)
        console.print(f"This takes at most about {duration(given.seconds)}, and the time that the recipe loads.")
        with _bar(console, given.seconds) as tell:
            return Measured(_findings(recipe, given, tell), demand)
    except OutOfTime as slow:
        raise Refused(str(slow), "Give more time with --seconds.") from None
    except (RecipeError, PolicyError) as error:
        raise Refused(error.what, error.hint) from None
    except ValueError as error:
        raise Refused(str(error), "") from None
    except Exception as error:  # the recipe's code
        refused = refusal_of(error, recipe.parent)
        if refused is None:
            raise
        raise refused from None


def _findings(recipe: Path, given: argparse.Namespace, tell: Callable[[str], None]) -> Findings:
    names = ("epsilon", "delta", "noise_std", "max_distance", "guarantee")
    policy = Policy.from_json({"method": "retrain", **{name: getattr(given, name) for name in names}}, NAMES)
    device, methods, options = device_of(given.device), _methods(given.methods), _options(given.options)
    scene = RowsScene(recipe, policy, device, LIMITS.vector_bytes, options)
    return measure_with_rows(scene, given.seconds, alarmed, tell, methods)


def _methods(text: str) -> tuple[str, ...]:
    names = NAMES if text == "all" else tuple(text.split(","))
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise ValueError(f"There is no method {unknown[0]!r}. The methods are: {', '.join(NAMES)}.")
    return names


def _options(text: str) -> Mapping[str, Mapping[str, Any]]:
    try:
        options = json.loads(text)
    except json.JSONDecodeError:
        options = None
    if not isinstance(options, dict) or not all(isinstance(each, dict) for each in options.values()):
        raise ValueError(
            f'--options is {text!r}. It must be a JSON object by method: {{"late": {{"early_share": [0.3]}}}}.'
        )
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="expunge check RECIPE --measure", description=__doc__)
    parser.add_argument("--methods", default="all", help=f"all, or some of {','.join(NAMES)}")
    parser.add_argument("--seconds", type=_positive, default=120.0, help="how long it may take; default: 120")
    parser.add_argument("--requests-per-month", type=_positive, default=10.0, help="how many people will ask")
    parser.add_argument(
        "--min-guarantee", default="proved", choices=[each.value for each in Guarantee], help="default: proved"
    )
    parser.add_argument("--options", default="{}", help='fields by method, as JSON: {"late": {"early_share": [0.3]}}')
    parser.add_argument("--guarantee", default=None, help="as in a policy: calibrated and estimated are asked for")
    for name in ("epsilon", "delta", "noise-std", "max-distance"):
        parser.add_argument(f"--{name}", type=float, default=None, help="as in a policy")
    parser.add_argument("--device", default="auto")
    return parser


def _positive(text: str) -> float:
    value = float(text)
    if not 0.0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not positive and finite")
    return value


@contextmanager
def _bar(console: Console, seconds: float) -> Iterator[Callable[[str], None]]:
    columns = (TextColumn("trying {task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task, start = progress.add_task("the recipe", total=seconds), time.monotonic()
        yield lambda name: progress.update(task, completed=time.monotonic() - start, description=name)


def _json(found: Findings, demand: Demand) -> dict[str, Any]:
    rows = [
        asdict(offer)
        | {
            "preparation_retrainings": _ratio(offer.preparation, found.retraining),
            "update_retrainings": _ratio(offer.update, found.retraining),
            "break_even": break_even(offer, found.retraining),
            "trainings_a_year": trainings_a_year(offer, demand, found.retraining),
        }
        for offer in found.offers
    ]
    return {
        "retraining_seconds": found.retraining,
        "requests_per_month": demand.requests_per_month,
        "min_guarantee": demand.min_guarantee.value,
        "methods": rows,
        "advice": closing(found.offers, demand, found.retraining),
    }


def _show(found: Findings, demand: Demand) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160, markup=False, emoji=False)
    table = Table(title=f"a retraining takes {duration(found.retraining)}", caption=CAPTION)
    for name in ("method", "guarantee", "accuracy", "first version", "retrainings", "update", "retrainings", "kept"):
        table.add_column(name, justify="left" if name in ("method", "guarantee") else "right", no_wrap=True)
    table.add_column("break-even", justify="right")
    table.add_column("trainings a year", justify="right")
    for offer in found.offers:
        if offer.refused is None:
            table.add_row(*_cells(offer, demand, found.retraining))
    console.print(table)
    parts = [offer for offer in found.offers if offer.refused is None and offer.share < 1.0]
    if parts:
        told = ", ".join(f"{offer.method} on {offer.share:.0%}" for offer in parts)
        console.print(f"Measured on a part of the people and scaled up: {told}. Their accuracy is that of the part.")
    refusals: dict[str, list[str]] = {}
    for offer in found.offers:
        if offer.refused is not None:
            refusals.setdefault(offer.refused, []).append(offer.method)
    for why, methods in refusals.items():
        console.print(f"{', '.join(methods)}: {why}", highlight=False)
    console.print(closing(found.offers, demand, found.retraining), style="bold", highlight=False)


def _cells(offer: Offer, demand: Demand, retraining: float) -> tuple[str, ...]:
    yearly = trainings_a_year(offer, demand, retraining)
    even = break_even(offer, retraining)
    return (
        offer.method,
        "-" if offer.guarantee is None else offer.guarantee.value,
        "not measured" if offer.accuracy is None else f"{offer.accuracy:.3f}{'*' if offer.share < 1.0 else ''}",
        duration(offer.preparation or 0.0),
        _digits(_ratio(offer.preparation, retraining)),
        duration(offer.update or 0.0),
        _digits(_ratio(offer.update, retraining)),
        _bytes(offer.state_bytes or 0),
        "-" if even is None else f"{even:,}",
        "-" if yearly is None else f"{yearly:,}",
    )


def _ratio(seconds: float | None, retraining: float) -> float | None:
    return None if seconds is None or not retraining else seconds / retraining


def _digits(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}" if value < 100 else f"{value:,.0f}"


def _bytes(size: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
