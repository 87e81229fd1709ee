"""The papers' table for a recipe: ``python -m expunge_lab.evaluate --recipe PATH``, without a running service."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import Tensor

from expunge_lab import plots, report
from expunge_lab.experiment.comparators import kinds
from expunge_lab.experiment.metrics import CertifiedWeights, Instruments, Plan, Row
from expunge_lab.experiment.run import evaluate, stream
from expunge_lab.figures import show_table
from expunge_lab.in_process import certify, opened, refine
from expunge_lab.recipe import load_recipe, place_of
from expunge_service.infra.settings import Settings, SettingsError
from expunge_service.queue import ForgottenCount
from expunge_workers.guarantee.terms import Terms, guarantee_of, sigma_of
from expunge_workers.runtime.device import device_of
from expunge_workers.runtime.model import method_of, with_options
from unlearning.accounting.certificate import Guarantee, Reference
from unlearning.accounting.policy import Policy, PolicyError
from unlearning.methods import NAMES
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.recipe import Recipe
from unlearning.types import Examples, ForgetSet, Forgotten, RecipeError, Refused, silent


@dataclass(frozen=True)
class Request:
    """What the command line asked for. ``rounds`` and ``per_round`` are 0 unless a stream is asked for."""

    recipe: Recipe
    policies: Mapping[str, Policy]
    plan: Plan
    device: torch.device
    rounds: int = 0
    per_round: int = 0
    comparators: Mapping[str, Method] = field(default_factory=dict)
    label: int | None = None

    def methods(self) -> dict[str, Method]:
        """Return the methods, as they work under a guarantee that is asked for, and after them the comparators."""
        return {name: self._method(policy) for name, policy in self.policies.items()} | dict(self.comparators)

    def _method(self, policy: Policy) -> Method:
        method = method_of(policy)
        return method if policy.guarantee is None else method.under(policy.guarantee, self.recipe)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit status: 0, or 2 with one line and a hint on standard error."""
    parser = _parser()
    given = parser.parse_args(arguments)
    given.said = list(sys.argv[1:] if arguments is None else arguments)
    console = Console(stderr=True, markup=False, emoji=False)
    try:
        request = _request(given)
        console.print(_announced(request), highlight=False)
        with _bar(console) as show:
            rows = measure(request, show, _timed(request, console))
        if given.report:
            report.write(rows, _about(given, request), given.report)
            console.print(f"Report written to {given.report}", highlight=False)
        if not given.no_plot and request.policies:
            path = given.plot or Path(f"{place_of(given.recipe)[1]}-evaluation.png")
            console.print(f"Plot written to {plots.draw(rows, request.policies, path)}", highlight=False)
    except (Refused, RecipeError, PolicyError) as error:
        console.print(f"{error.what} {error.hint}", style="red", highlight=False)
        return 2
    except (ValueError, SettingsError) as error:
        console.print(str(error), style="red", highlight=False)
        return 2
    if given.json:
        sys.stdout.write(json.dumps([row.to_json() for row in rows], indent=2, allow_nan=False) + "\n")
    else:
        show_table(rows)
    return 0


def measure(
    request: Request, progress: Callable[[float], None], trained: Callable[[float], None] = silent
) -> tuple[Row, ...]:
    """Measure all rows that the request asks for. ``trained`` is given the seconds of the first training."""
    methods = request.methods()
    instruments = Instruments(
        clock=time.perf_counter,
        classifier=support_vectors,
        certify=_certifier(request, methods),
        progress=progress,
        trained=trained,
    )
    if not request.rounds:
        return evaluate(request.recipe, methods, request.plan, instruments, request.device)
    return stream(
        request.recipe,
        methods,
        request.plan,
        instruments,
        rounds=request.rounds,
        samples=request.per_round,
        label=request.label,
        device=request.device,
    )


def support_vectors(features: Tensor, labels: Tensor, judged: Tensor) -> Tensor:
    """Run SAFE's membership attack: a support vector classifier with a radial kernel on standardised outputs."""
    machine = make_pipeline(StandardScaler(), SVC(kernel="rbf"))
    machine.fit(features.numpy(), labels.numpy())
    return torch.from_numpy(machine.decision_function(judged.numpy()))


def _certifier(request: Request, methods: Mapping[str, Method]) -> Callable[..., CertifiedWeights]:
    """Certify as an update of the service would: the strongest guarantee that the model has, and its noise."""
    count = len(request.recipe.samples)

    def certified(
        problem: Problem, method: str, forgotten: Forgotten, *, forget: ForgetSet, retain: Examples, updates: int
    ) -> CertifiedWeights:
        if method in request.comparators:
            return CertifiedWeights(forgotten.state.weights)
        policy = request.policies[method]
        guarantee = guarantee_of(policy, problem, methods[method])
        terms = _terms(policy, guarantee, forgotten, count=count, updates=updates)
        bench = opened(request.recipe, problem, methods[method])
        size = ForgottenCount(len(forget.positions), len(forget.people), len(forget.people))
        made = certify(bench, terms, refine(bench, terms, forgotten, retain), size)
        return CertifiedWeights(made.state.weights, terms.noise_std, made.claim.to_json())

    return certified


def _terms(policy: Policy, guarantee: Guarantee, forgotten: Forgotten, *, count: int, updates: int) -> Terms:
    report = forgotten.state.facts.get("report")
    named = report.get("reference") if isinstance(report, dict) else None
    budget = policy.budget(guarantee)
    return Terms(
        method=policy.method,
        guarantee=guarantee,
        reference=Reference(named) if isinstance(named, str) else policy.reference or Reference.RENORMALISED,
        noise_std=sigma_of(policy, guarantee),
        max_distance=policy.max_distance,
        delta=policy.delta,
        budget_cost=budget.budget_cost,
        spent=updates * budget.budget_cost,
        limit=budget.limit,
        count=count,
        updates=updates,
    )


def _request(given: argparse.Namespace) -> Request:
    loaded = load_recipe(given.recipe, Settings(), given.tenant)
    names = _chosen(given.methods, NAMES)
    options = _options(given.options)
    shared = {
        "epsilon": given.epsilon,
        "delta": given.delta,
        "noise_std": given.noise_std,
        "max_distance": given.max_distance,
    }
    shared |= {"guarantee": loaded.guarantee(given.guarantee), "fallback": "hold"}
    policies = {
        name: Policy.from_json({**shared, "method": name, "options": options.get(name)}, NAMES) for name in names
    }
    rounds, per_round = _stream(given.stream)
    plan = Plan(
        fractions=tuple(_fraction(part) for part in given.forget.split(",")),
        seeds=tuple(range(given.seeds)),
        shadows=given.shadows,
        trials=given.trials,
        u_lira=given.u_lira,
        klom=given.klom,
    )
    if given.label is not None and not rounds:
        raise ValueError("--class is given without --stream. Add --stream, such as --stream 5x20.")
    device, comparators = device_of(given.device), _comparators(given.comparators, options)
    return Request(loaded.recipe, policies, plan, device, rounds, per_round, comparators, given.label)


def _chosen(text: str, known: Sequence[str]) -> tuple[str, ...]:
    """Return the names of a list with commas; ``all`` means every known one, ``none`` no one."""
    if text == "none":
        return ()
    return tuple(known) if text == "all" else tuple(text.split(","))


def _comparators(text: str, options: Mapping[str, Any]) -> dict[str, Method]:
    known = kinds()
    chosen = _chosen(text, tuple(known))
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ValueError(f"There is no comparator {unknown[0]!r}. The comparators are: {', '.join(known)}.")
    return {name: with_options(known[name], name, options.get(name, {})) for name in chosen}


def _announced(request: Request) -> str:
    count, rows = request.plan.trainings(request.rounds), ", ".join(("untouched", *request.methods()))
    return f"At least {count} trainings, and what each row does itself: {rows}. The first one will tell the time."


def _timed(request: Request, console: Console) -> Callable[[float], None]:
    count = request.plan.trainings(request.rounds)

    def told(seconds: float) -> None:
        minutes = count * seconds / 60
        console.print(f"The first took {seconds:.2g} s: about {minutes:.2g} minutes for {count}.", highlight=False)

    return told


def _about(given: argparse.Namespace, request: Request) -> report.About:
    return report.About(
        name=place_of(given.recipe)[1],
        command=shlex.join(["expunge", "evaluate", *given.said]),
        date=datetime.now(UTC).date().isoformat(),
        comparators=tuple(request.comparators),
        seeds=len(request.plan.seeds),
        requests_read=given.tenant is not None,
    )


def _options(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except json.JSONDecodeError:
        options = None
    if not isinstance(options, dict):
        raise ValueError(f'--options is {text!r}. It must be a JSON object by method: {{"rewind": {{"steps": 10}}}}.')
    return options


def _fraction(text: str) -> float:
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise ValueError(f"--forget is {text!r}. Write 5% or 0.05, several with commas.") from None


def _stream(text: str | None) -> tuple[int, int]:
    if text is None:
        return 0, 0
    rounds, cross, samples = text.partition("x")
    if not (cross and rounds.isdecimal() and samples.isdecimal() and int(rounds) and int(samples)):
        raise ValueError(f"--stream is {text!r}. Write rounds x samples, such as 20x50.")
    return int(rounds), int(samples)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="expunge lab evaluate", description=__doc__)
    parser.add_argument("--recipe", required=True, help="a recipe's file or folder")
    parser.add_argument("--tenant", help="leave out everybody whom this tenant's requests name; reads the database")
    parser.add_argument("--forget", default="5%", help="shares of the samples to forget: 5%% or 1%%,5%%")
    parser.add_argument("--methods", default="all", help=f"all, none, or some of {','.join(NAMES)}")
    parser.add_argument("--seeds", type=int, default=3, help="how many forget sets (and trainings)")
    parser.add_argument("--stream", help="rounds x samples, such as 20x50: many updates, one after the other")
    parser.add_argument("--shadows", type=int, default=16, help="models of the likelihood-ratio attack; 0: none")
    parser.add_argument("--trials", type=int, default=10, help="deletions of the difference attack; 0: none")
    parser.add_argument("--options", default="{}", help='fields by method, as JSON: {"rewind": {"steps": 10}}')
    parser.add_argument("--guarantee", default=None, help="the least that may be published")
    for name in ("epsilon", "delta", "noise-std", "max-distance"):
        parser.add_argument(f"--{name}", type=float, default=None, help="as in a policy")
    names = ",".join(kinds())
    parser.add_argument("--comparators", default="none", help=f"other papers' baselines: all, or some of {names}")
    parser.add_argument("--u-lira", type=int, default=0, help="models to train for U-LiRA (even, 8 or more); costly")
    parser.add_argument("--klom", type=int, default=0, help="models of each kind to train for KLoM (3 or more); costly")
    parser.add_argument("--class", dest="label", type=int, help="with --stream: forget samples of this class alone")
    parser.add_argument("--report", type=Path, help="write one HTML page for a reader without a service")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--plot", type=Path, help="where the plots go; default: RECIPE-evaluation.png here")
    parser.add_argument("--no-plot", action="store_true")
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    return parser


@contextmanager
def _bar(console: Console) -> Iterator[Callable[[float], None]]:
    columns = (TextColumn("evaluating"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("evaluating", total=1.0)
        yield lambda share: progress.update(task, completed=share)


if __name__ == "__main__":
    raise SystemExit(main())
