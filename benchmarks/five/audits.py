"""Audits of the table's versions over many trainings: ``python -m benchmarks five.audits``.

On the digits' softmax regression: U-LiRA, KLoM, and the agreement with models that never saw the forgotten, of every
entrant beside doing nothing and retraining. What was measured goes to ``build/reports/five_audits.json`` after each
row; ``python -m benchmarks.five.page`` publishes that file as well.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from benchmarks.five import results
from benchmarks.five.entrants import ENTRANTS, NOTHING, RETRAINING
from benchmarks.five.settings import SETTINGS, Setting
from expunge_lab.experiment.attacks import auc
from expunge_lab.experiment.replicas import Replicas, Version, margins, reseeded
from expunge_lab.experiment.rulers.klom import binned_divergences, divergences
from expunge_lab.experiment.rulers.u_lira import evidence, right_answers
from unlearning import Problem, Recipe
from unlearning.methods.retrain import Retrain
from unlearning.model.method import Method
from unlearning.model.training import train
from unlearning.quality.simulate import choose, left_by
from unlearning.types import RecipeError, Refused

PLAIN = "renormalised"


@dataclass(frozen=True)
class Size:
    """How much is trained: ``models`` of each kind, ``floors`` further sets of retrained models, and ``strangers``.

    A stranger sees ``stranger_share`` of the samples that stay. ``share`` of all samples leave.
    """

    models: int = 64
    floors: int = 3
    strangers: int = 16
    stranger_share: float = 0.15
    share: float = 0.10


@dataclass(frozen=True)
class Audit:
    """The trainings of one model that all entrants are audited on."""

    replicas: Replicas
    size: Size

    @cached_property
    def parts(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return the samples that are looked at: inputs (n, ...) and classes (n,)."""
        forget, recipe = self.replicas.forget, self.replicas.problem.recipe
        retain = left_by(self.replicas.examples, forget)
        gone = self.replicas.examples.only(torch.tensor(forget.positions))
        return {
            "forgotten": (gone.inputs, gone.targets),
            "retained": (retain.inputs, retain.targets),
            "unseen": recipe.holdout,
        }

    @cached_property
    def floors(self) -> list[list[Version]]:
        """Retrain further sets of models without the forgotten, each with seeds of its own."""
        recipe = self.replicas.problem.recipe
        return [
            replace(self.replicas, problem=Problem(reseeded(recipe, number)), oracles={}).retrained(PLAIN)
            for number in range(1, self.size.floors + 1)
        ]

    @cached_property
    def strangers(self) -> list[Version]:
        """Train models on a part of the samples that stay, drawn for each; they see nobody who leaves."""
        retain, recipe = left_by(self.replicas.examples, self.replicas.forget), self.replicas.problem.recipe
        count, generator = max(1, round(self.size.stranger_share * len(retain))), torch.Generator().manual_seed(0)
        strangers = []
        for number in range(1, self.size.strangers + 1):
            problem = Problem(reseeded(recipe, number))
            places = torch.randperm(len(retain), generator=generator)[:count].sort().values
            strangers.append(Version(problem, train(problem, retain.only(retain.positions[places])).weights))
        return strangers

    def row(self, method: Method | None) -> dict[str, Any]:
        """Audit a method; ``None`` is doing nothing."""
        versions = self.replicas.versions(method)
        return {
            "klom": self.klom(versions),
            "u_lira": u_lira(self.replicas, method),
            "agreement": self.agreement(versions),
            "reference": versions[0].reference,
        }

    def klom(self, versions: Sequence[Version]) -> dict[str, Any]:
        """Return the divergences by the retraining that they are of and by part."""
        references = dict.fromkeys((PLAIN, versions[0].reference))
        return {
            reference: {
                part: divergence(margins(self.replicas.retrained(reference), x, y), margins(versions, x, y))
                for part, (x, y) in self.parts.items()
            }
            for reference in references
        }

    def agreement(self, versions: Sequence[Version]) -> dict[str, list[float]]:
        """Return in %, by part, how often each version answers as the strangers do, in the mean over these."""
        agreement = {}
        for part, (x, _) in self.parts.items():
            theirs = answers(self.strangers, x)
            agreement[part] = [100 * float((mine == theirs).double().mean()) for mine in answers(versions, x)]
        return agreement


def audited(setting: Setting, recipe: Recipe, size: Size) -> Iterator[dict[str, Any]]:
    """Yield the setting's audits as JSON has them after each row, so that an interrupted run keeps those that ended."""
    problem = Problem(recipe)
    examples = problem.recipe.samples.examples()
    gone = choose(examples, max(1, round(size.share * len(examples))), torch.Generator().manual_seed(0))
    replicas = Replicas(problem, examples, gone, size.models, size.models, 0, lone_vectors=True)
    audit, rows, commit, start = Audit(replicas, size), [], results.commit(), time.process_time()
    entrants: Mapping[str, Method | None] = {NOTHING: None, RETRAINING: Retrain(), **ENTRANTS}
    say(f"{size.models} models of each kind; about {_estimate(replicas, entrants) * 2 * size.models / 60:.0f} minutes")
    for name, method in entrants.items():
        try:
            row = audit.row(method)
            if name == RETRAINING:
                row["floors"] = [audit.klom(floor)[PLAIN] for floor in audit.floors]
            rows.append({"name": name, "refused": "", **row})
        except (Refused, RecipeError) as error:
            rows.append({"name": name, "refused": str(error)})
        spent = time.process_time() - start
        say(f"{len(rows)} of {len(entrants)}: {name}, {spent:.0f} CPU s so far")
        yield {
            "data": setting.data,
            "model": setting.model,
            "at": datetime.now(UTC).date().isoformat(),
            "commit": commit,
            "cpu_seconds": spent,
            **vars(size),
            "people": len(gone.people),
            **{part: len(targets) for part, (_, targets) in audit.parts.items()},
            "rows": rows,
        }


def u_lira(replicas: Replicas, method: Method | None) -> dict[str, Any]:
    """Attack each half-trained version by means of all others: the share of right answers by model, and the AUC."""
    gone = replicas.examples.only(torch.tensor(replicas.forget.positions))
    inside = replicas.inside
    ratios = evidence(margins(replicas.halved_versions(method), gone.inputs, gone.targets), inside)
    return {"right": right_answers(ratios, inside).mean(dim=1).tolist(), "auc": auc(ratios[inside], ratios[~inside])}


def divergence(retrained: Tensor, unlearned: Tensor) -> dict[str, float | None]:
    """Return the 95th percentile and the mean over samples of the divergence, by histograms and by fitted normals."""
    binned, normal = binned_divergences(retrained, unlearned), divergences(retrained, unlearned)
    return {
        "binned 95th": float(binned.quantile(0.95)),
        "binned mean": float(binned.mean()),
        "normal 95th": None if normal is None else float(normal.quantile(0.95)),
        "normal mean": None if normal is None else float(normal.mean()),
    }


def answers(versions: Sequence[Version], x: Tensor) -> Tensor:
    """Return the class that each version names for each sample, (k, n)."""
    with torch.no_grad():
        return torch.stack(
            [each.problem.outputs(each.weights.to(each.problem.dtype), x).argmax(dim=1) for each in versions]
        )


def rows() -> Iterator[dict[str, Any]]:
    """Audit the digits' softmax regression; yield each row with its KLoM of the forgotten."""
    torch.set_num_threads(1)
    setting = SETTINGS[0]
    table: dict[str, Any] = {}
    for table in audited(setting, setting.recipe(), Size()):
        results.keep(table, results.AUDITS_MEASURED)
    for row in table["rows"]:
        name = f"five audits, {setting.data}, {setting.model}: {row['name']}"
        value = None if row["refused"] else row["klom"][PLAIN]["forgotten"]["normal 95th"]
        sides = {"refused": row["refused"]} if row["refused"] else {"u_lira": statistics.mean(row["u_lira"]["right"])}
        yield {"name": name, "value": value, "target": None, "unit": "nats", "met": None, "sides": sides}


def say(line: str) -> None:
    """Tell a person who waits; standard output carries the rows."""
    print(line, file=sys.stderr, flush=True)


def _estimate(replicas: Replicas, entrants: Mapping[str, Method | None]) -> float:
    """Return the CPU seconds that one model takes with every entrant."""
    first, start = replace(replicas, halved=0, whole=1, oracles={}), time.process_time()
    for method in entrants.values():
        try:
            first.versions(method)
        except (Refused, RecipeError):
            continue
    return time.process_time() - start
