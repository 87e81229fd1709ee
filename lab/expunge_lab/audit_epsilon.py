"""Attack a recipe's claims: ``python -m expunge_lab.audit_epsilon --recipe PATH``, without a running service.

Exit status: 0 where no claim was exceeded, 1 where one was, 2 where nothing could be attacked.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from expunge_lab.attack.canaries import Cast, with_canaries
from expunge_lab.attack.rehearsal import prepare
from expunge_lab.attack.trials import AttackRow, TrialPlan, Trials, seconds_of
from expunge_lab.experiment.lower_bound import ALPHA, LARGEST_MU
from expunge_lab.in_process import open_model
from expunge_lab.recipe import load_recipe, place_of
from expunge_service.infra.settings import Settings, SettingsError
from expunge_service.infra.time import duration
from expunge_workers.runtime.device import device_of
from expunge_workers.runtime.failures import refusal_of
from unlearning.accounting.policy import Policy, PolicyError
from unlearning.methods import NAMES
from unlearning.types import RecipeError, Refused

EXCEEDED, NOTHING = 1, 2
Tell = Callable[[str, float], None]


@dataclass(frozen=True)
class AuditRequest:
    """What the command line asked for."""

    folder: Path
    cast: Cast
    policies: Mapping[str, Policy]
    plan: TrialPlan
    device: torch.device


@dataclass
class Audit:
    """What was found. ``distances``: by method, how far an update ended from its retraining, at most."""

    rows: list[AttackRow] = field(default_factory=list)
    distances: dict[str, float] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def main(arguments: Sequence[str] | None = None) -> int:
    """Attack every method's claims; see the module for the exit status."""
    given = _parser().parse_args(arguments)
    console = Console(stderr=True, highlight=False, markup=False, emoji=False)
    try:
        with redirect_stdout(sys.stderr):  # a recipe may print
            found = audit(_request(given), console)
    except (Refused, RecipeError, PolicyError) as error:
        console.print(f"{error.what} {error.hint}", style="red")
        return NOTHING
    except (ValueError, SettingsError) as error:
        console.print(str(error), style="red")
        return NOTHING
    if given.json:
        sys.stdout.write(json.dumps(_json(found), indent=2, allow_nan=False) + "\n")
    else:
        _show(found)
    if not found.rows:
        return NOTHING
    return EXCEEDED if any(row.exceeded for row in found.rows) else 0


def audit(request: AuditRequest, console: Console) -> Audit:
    """Attack each method's claims in turn; a method that is refused gets a reason and ends nothing else."""
    found = Audit()
    for name, policy in request.policies.items():
        with _bar(console, name) as tell:
            try:
                found.rows += _attacked(request, policy, found, tell, console)
            except (Refused, RecipeError) as error:
                found.refused[name] = f"{error.what} {error.hint}".strip()
            except Exception as error:  # the recipe's code
                refused = refusal_of(error, request.folder)
                if refused is None:
                    raise
                found.refused[name] = str(refused)
    return found


def _attacked(request: AuditRequest, policy: Policy, found: Audit, tell: Tell, console: Console) -> list[AttackRow]:
    tell("training", 0.0)
    start = time.perf_counter()
    bench = open_model(request.cast.recipe, policy, request.device)
    made = prepare(bench, policy)
    left = seconds_of(made, request.plan, time.perf_counter() - start)
    console.print(f"{policy.method}: {made.terms.guarantee.value}. This takes about {duration(left)}.")
    draws = torch.Generator().manual_seed(request.plan.seed)
    trials = Trials.of(made, request.cast, request.plan, draws, lambda share: tell("updates", share))
    found.distances[policy.method] = trials.greatest_distance
    return list(trials.rows(tell))


def _request(given: argparse.Namespace) -> AuditRequest:
    loaded = load_recipe(given.recipe, Settings(), given.tenant)
    plan = TrialPlan(given.trials, given.updates, given.canaries, given.seed)
    cast = with_canaries(loaded.recipe, plan.canaries, plan.updates, torch.Generator().manual_seed(plan.seed))
    shared = {name: getattr(given, name) for name in ("epsilon", "delta", "noise_std", "max_distance")}
    shared["guarantee"] = loaded.guarantee(None)
    names, options = NAMES if given.methods == "all" else tuple(given.methods.split(",")), _options(given.options)
    policies = {
        name: Policy.from_json({**shared, "method": name, "options": options.get(name)}, NAMES) for name in names
    }
    return AuditRequest(place_of(given.recipe)[0], cast, policies, plan, device_of(given.device))


def _options(text: str) -> Mapping[str, Any]:
    try:
        options = json.loads(text)
    except json.JSONDecodeError:
        options = None
    if not isinstance(options, dict):
        raise ValueError(f'--options is {text!r}. It must be a JSON object by method: {{"rewind": {{"steps": 10}}}}.')
    return options


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="expunge lab attack", description=__doc__)
    parser.add_argument("--recipe", required=True, help="a recipe's file or folder")
    parser.add_argument("--tenant", help="leave out everybody whom this tenant's requests name; reads the database")
    parser.add_argument("--methods", default="all", help=f"all, or some of {','.join(NAMES)}")
    parser.add_argument("--trials", type=_count, default=10_000, help="of each attack; default: 10000")
    parser.add_argument("--updates", type=_count, default=4, help="in a sequence; default: 4")
    parser.add_argument("--canaries", type=_count, default=3, help="people whose targets are exchanged; default: 3")
    parser.add_argument("--seed", type=int, default=0, help="of canaries and coins, never of the noise; default: 0")
    parser.add_argument("--options", default="{}", help='fields by method, as JSON: {"rewind": {"steps": 10}}')
    for name in ("epsilon", "delta", "noise-std", "max-distance"):
        parser.add_argument(f"--{name}", type=float, default=None, help="as in a policy")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


@contextmanager
def _bar(console: Console, method: str) -> Iterator[Tell]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TextColumn("{task.percentage:>3.0f} %"))
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True) as progress:
        task = progress.add_task(method, total=1.0)
        yield lambda name, share: progress.update(task, completed=share, description=f"{method}: {name}")


def _json(found: Audit) -> dict[str, Any]:
    return {
        "alpha": ALPHA,
        "exceeded": any(row.exceeded for row in found.rows),
        "rows": [row.to_json() for row in found.rows],
        "greatest_distance": found.distances,
        "refused": found.refused,
    }


def _show(found: Audit) -> None:
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160, markup=False, emoji=False)
    table = Table(caption=CAPTION)
    for name in ("method", "attack"):
        table.add_column(name, no_wrap=True)
    for name in ("versions", "mu claimed", "mu found", "epsilon claimed", "epsilon found", "seen", "detectable mu"):
        table.add_column(name, justify="right")
    table.add_column("verdict", no_wrap=True)
    for row in found.rows:
        table.add_row(*_cells(row))
    if found.rows:
        console.print(table)
    for name, distance in found.distances.items():
        console.print(f"{name}: an update ended {distance:.2g} or less from its retraining.")
    for name, why in found.refused.items():
        console.print(f"{name}: {why}", markup=False)
    console.print(_verdict(found.rows), style="bold")


def _cells(row: AttackRow) -> tuple[str | Text, ...]:
    detectable = f"over {LARGEST_MU:g}" if row.detectable >= LARGEST_MU else f"{row.detectable:.3g}"
    return (
        row.method,
        row.attack,
        f"{row.versions:,}",
        f"{row.mu:.3g}",
        f"{row.found.mu:.3g}",
        f"{row.epsilon:.3g}",
        f"{row.found.epsilon:.3g}",
        f"{row.seen:,}",
        detectable,
        Text("exceeds the claim", style="bold red") if row.exceeded else "below the claim",
    )


def _verdict(rows: Sequence[AttackRow]) -> str:
    exceeded = [row for row in rows if row.exceeded]
    if exceeded:
        named = ", ".join(dict.fromkeys(f"{row.method} ({row.attack})" for row in exceeded))
        return f"REFUTED: {named}. The claim is false, except with a probability of {ALPHA:g} for each row."
    if not rows:
        return "Nothing was attacked: no method has a claim here that trials could refute."
    return (
        f"No claim was exceeded in {len(rows)} attacks. That proves nothing: an overclaim below the column "
        "'detectable mu' may have gone unseen, and so may whatever these attacks do not look at."
    )


CAPTION = (
    f"found: a lower bound, false with a probability of at most {ALPHA:g}; epsilon found: what the Gaussian curve "
    "makes of mu found; seen: guesses, or numbers of noise; detectable mu: the smallest true mu that 99 of 100 such "
    "attacks show to exceed the claim. docs/measure.md explains the attacks"
)


if __name__ == "__main__":
    raise SystemExit(main())
