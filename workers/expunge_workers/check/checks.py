"""Look at a recipe with rows before it is registered: its sources, one training of them, and whether that repeats."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from expunge_service.cli.checks import Finding
from expunge_service.infra.settings import Settings
from expunge_service.infra.tenants import DEFAULT_TENANT
from expunge_workers.guarantee.terms import guarantee_of
from expunge_workers.runtime.build import WorldBuild
from expunge_workers.runtime.device import device_of
from expunge_workers.runtime.model import method_of
from expunge_workers.runtime.rows_recipe import RowsRecipe, SourceUnits, declared, survey
from expunge_workers.runtime.world_model import WorldModel
from expunge_workers.runtime.worlds import Lost, readers
from expunge_workers.storage.parts import MadePart
from expunge_workers.training.person_ids import WRITE_IDS, describe, lint_people
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import Fallback, Granularity, Policy
from unlearning.artefact import bytes_of
from unlearning.methods import NAMES, load
from unlearning.model.training import Whole
from unlearning.types import RecipeError, Refused, silent

SHOWN = 3
"""ids that are shown of each source: whoever checks compares them with those that requests name"""
KEPT_APART = " {} people are kept apart, drawn anew by each check."
ANY = "safe"
"""a method that follows every training"""
NEEDS_RUN = "It goes on from what the phase before left: let the recipe take run=ul.run() and read run.start."
MOMENT = re.compile(rb"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
CATBOOST = (
    "CatBoost writes the time and a random name into its file. Before you save it: "
    "`for name in ('train_finish_time', 'model_guid'): model.get_metadata()[name] = ''`."
)


@dataclass(frozen=True)
class Possible:
    """A method's guarantee on a recipe; or why the method is refused."""

    method: str
    guarantee: Guarantee | None
    refused: str | None = None


STRONGEST = (Guarantee.EXACT, Guarantee.PROVED, Guarantee.CALIBRATED, Guarantee.ESTIMATED, Guarantee.NONE)


def strongest_first(methods: Iterable[Possible]) -> list[Possible]:
    """Order methods by the strength of their guarantee; those that are refused come last."""

    def place(method: Possible) -> int:
        return len(STRONGEST) if method.guarantee is None else STRONGEST.index(method.guarantee)

    return sorted(methods, key=place)


@dataclass
class PartsInMemory:
    """Parts of a training that is looked at and thrown away, by their keys."""

    made: dict[str, MadePart] = field(default_factory=dict)

    def key_of(self, inputs: str) -> str:
        return inputs

    def load(self, key: str) -> MadePart | None:
        return self.made.get(key)

    def load_many(self, keys: Iterable[str]) -> Iterator[tuple[str, MadePart]]:
        return ((key, self.made[key]) for key in keys if key in self.made)

    def keep(self, key: str, part: MadePart) -> None:
        self.made[key] = part

    def keep_point(self, key: str, part: MadePart) -> None:
        self.made[key] = part

    def keep_many(self, parts: Mapping[str, MadePart]) -> None:
        self.made.update(parts)

    def require_claim(self) -> None:
        """Return: nobody else makes them."""


def check(folder: Path, name: str) -> dict[str, Any]:
    """Return findings, counts, and each method's guarantee where no check failed, as JSON."""
    settings = Settings().model_copy(update={"recipes": folder})
    found: dict[str, Any] = {"findings": [], "counts": None, "methods": []}
    findings: list[Finding] = []
    possible: list[Possible] = []
    try:
        recipe = declared(settings, DEFAULT_TENANT, name)
        with readers():
            units = survey(recipe, settings, DEFAULT_TENANT, Granularity.SUBJECT, salt=secrets.token_bytes(32))
            findings += [_source(source, units) for source in units.reader.surveys]
            findings.append(_ids(units))
            found["counts"] = _counts(units)
            findings += _trained(recipe, units, settings)
            possible = strongest_first([*_exact(recipe), *_others(recipe, units, settings)])
    except (Refused, RecipeError) as error:
        findings.append(Finding("the recipe runs", False, error.what, error.hint))
    except (Lost, MemoryError) as error:
        findings.append(
            Finding("the recipe runs", False, f"It did not end: {error}.", "Try again with more memory free.")
        )
    found["findings"] = [asdict(finding) for finding in findings]
    if all(finding.well for finding in findings):
        found["methods"] = [asdict(method) for method in possible]
    return found


def _source(name: str, units: SourceUnits) -> Finding:
    """Say what a source holds, with some ids as requests must spell them."""
    survey = units.reader.surveys[name]
    people = list(dict.fromkeys(person for group in survey.people for person in group))
    apart = {person for group, aside in zip(survey.people, survey.aside, strict=True) if aside for person in group}
    shown = ", ".join(map(repr, people[:SHOWN]))
    what = f"{int(survey.counts.sum())} rows of {len(people)} people; requests name them as {shown}."
    return Finding(f"source {name}", True, what + (KEPT_APART.format(len(apart)) if apart else ""))


def _ids(units: SourceUnits) -> Finding:
    """Lint the ids of people, as a registration does."""
    findings = lint_people(units.samples)
    if not findings:
        return Finding("ids of people", True, "They look like ids that requests can name.")
    damaged = any(finding.refused for finding in findings)
    what = "; ".join(describe(finding) for finding in findings)
    return Finding("ids of people", not damaged, f"{what[0].upper()}{what[1:]}.", WRITE_IDS if damaged else "")


def _counts(units: SourceUnits) -> dict[str, Any]:
    surveys = units.reader.surveys.values()
    people = {person for survey in surveys for group in survey.people for person in group}
    rows = sum(int(survey.counts.sum()) for survey in surveys)
    return {"sources": len(surveys), "rows": rows, "people": len(people)}


def _trained(recipe: RowsRecipe, units: SourceUnits, settings: Settings) -> list[Finding]:
    """Train on all rows in a world, and again in another."""
    build = WorldBuild(recipe, units, PartsInMemory(), device_of(settings.device), repeat_within=settings.trial_seconds)
    for source, number in units.aside:
        build.aside = {**build.aside, source: [*build.aside.get(source, ()), number]}
    fitted = build(Whole(), units.samples.examples(), None, silent)
    seconds = sum(part.seconds for part in build.used.values())
    score = build.score(fitted.weights)
    unscored = "it gives no score" if units.aside else "nothing scores it, for no source keeps people apart (aside=)"
    measured = unscored if score is None else f"its score is {score:.4g}"
    published = bytes_of(fitted.weights)
    what = f"In {seconds:.1f} s of work; it publishes {len(published):,} bytes, and {measured}. Retrain takes as long."
    return [Finding("the recipe runs", True, what), _repeats(build, settings.trial_seconds, published)]


def _repeats(build: WorldBuild, most: float, published: bytes) -> Finding:
    went_on = ", though one was interrupted and went on from its checkpoint" if build.looks else ""
    match build.repeats:
        case True:
            return Finding("it repeats", True, f"Two processes made the same bytes{went_on}.")
        case False:
            what = "Two processes made different bytes of the same rows, and certificates will say so."
            stamped = b"train_finish_time" in published and MOMENT.search(published)
            hint = CATBOOST if stamped else "Seed what draws, and leave the clock out."
            if build.looks:
                hint += " One was interrupted: give run.checkpoint all that the rest of the training follows from."
            return Finding("it repeats", True, what, hint)
        case None:
            return Finding("it repeats", True, f"Not tried: it takes more than EXPUNGE_TRIAL_SECONDS ({most:g} s).")


def _exact(recipe: RowsRecipe) -> list[Possible]:
    methods = [method for method in NAMES if load(method).exact]
    return [
        Possible(method, None, NEEDS_RUN) if method == "late" and not recipe.run else Possible(method, Guarantee.EXACT)
        for method in methods
    ]


def _others(recipe: RowsRecipe, units: SourceUnits, settings: Settings) -> list[Possible]:
    """Say what each method that trains nothing anew can have."""
    methods, device = [method for method in NAMES if not load(method).exact], device_of(settings.device)
    asked = WorldModel(recipe, units, PartsInMemory(), load(ANY)(), ANY, device, others=methods)
    try:
        _, problem = asked.described(units.trained_on)
    except Refused as error:
        return [Possible(method, None, error.what) for method in methods]
    possible = []
    for method in methods:
        if method in asked.refused:
            possible.append(Possible(method, None, " ".join(asked.refused[method])))
        elif not asked.has_judge:
            possible.append(Possible(method, Guarantee.NONE))
        else:
            policy = Policy(method, fallback=Fallback.HOLD)
            possible.append(Possible(method, guarantee_of(policy, problem, method_of(policy))))
    return possible
