"""An opened model: its recipe, its problem on the device, its method. A worker keeps some between updates."""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, cast, get_args, get_type_hints

import torch
from torch import Tensor

from expunge.service.infra.db import Database
from expunge.service.infra.pseudonyms import Pepper, subject_digest
from expunge.service.infra.settings import Settings
from expunge.service.infra.tenants import recipes_of
from expunge.service.models import declares_sources
from expunge.service.queue import still_current
from expunge.workers.runtime import recipes
from expunge.workers.runtime.build import Parts, WorldBuild
from expunge.workers.runtime.device import device_of
from expunge.workers.runtime.failures import refusal_of
from expunge.workers.runtime.fresh import FreshProcesses, Recipes
from expunge.workers.runtime.rows_recipe import RowsRecipe, SourceUnits, Unit, declared, recipe_of, salt_of, survey
from expunge.workers.runtime.world_model import WorldModel
from expunge.workers.storage.manifest import FoundSamples
from expunge.workers.storage.parts import PartStore
from unlearning.accounting.certificate import Guarantee, Part
from unlearning.accounting.policy import Policy
from unlearning.artefact import Artefact
from unlearning.methods import NAMES, load
from unlearning.model.method import Method
from unlearning.model.parts import parts_of, runs_own_code
from unlearning.model.problem import Problem
from unlearning.recipe import Recipe, Samples
from unlearning.types import Examples, ForgetSet, Forgotten, Need, RecipeError, Refused, State

KEPT_BYTES = 2 * 2**30
"""of models that a process keeps between updates; a version with more samples has them read again each time"""
COMPARED_SECONDS = 86_400.0
"""A recipe's data may change outside: samples that were compared with it longer ago are not kept any longer."""


@dataclass(frozen=True)
class OpenModel:
    """An opened model. ``digest`` is that of the recipe's code, ``settings`` that of its settings; ``parts`` are the
    model's declared parts. ``fresh`` carries out its trainings where the recipe's own code runs in them; None: none
    does, or this system has no fresh processes."""

    recipe: Recipe
    problem: Problem
    method: Method
    digest: str
    settings: str
    parts: tuple[Part, ...]
    fresh: FreshProcesses | None = None
    built: WorldBuild | None = None
    """makes the parts of the trainings of a recipe with rows, for an exact method; else None"""
    asked: WorldModel | None = None
    """the model of a recipe with rows, for any other method; else None"""

    def under(self, guarantee: Guarantee) -> OpenModel:
        """Return the opened model with its method as it works under a generation's guarantee."""
        if self.asked is not None and not self.asked.has_judge:  # its worlds do that, which know the recipe's loss
            return self
        return replace(self, method=self.method.under(guarantee, self.recipe))

    def accuracies(self, weights: Sequence[Tensor]) -> list[float | None]:
        """Return what the recipe's metric gives at each of these weights (d,); None: nothing is measured."""
        if self.asked is not None:
            return self.asked.accuracies(weights)
        inputs, targets = (part.to(self.problem.device) for part in self.recipe.holdout_tensors)
        return [self.problem.accuracy(w.to(self.problem.device), inputs, targets) for w in weights]

    @property
    def with_rows(self) -> bool:
        """Whether the service reads the recipe's rows, and this process runs none of its code."""
        return self.built is not None or self.asked is not None

    @property
    def parts_used(self) -> Collection[str] | None:
        """The keys of the parts that versions are made of, as far as they were asked for; None: of none."""
        maker = self.built or self.asked
        return None if maker is None else maker.used.keys()

    @property
    def deterministic(self) -> bool:
        """Tell whether every training so far used deterministic algorithms alone; this process's own, on a CPU.

        Of a recipe with rows registration tries it: nothing that it did here speaks against it.
        """
        if self.built is not None:
            return True
        if self.asked is not None:
            return False
        return self.problem.device.type == "cpu" if self.fresh is None else self.fresh.seen.deterministic


@dataclass(frozen=True)
class Left:
    """What an update left: the state of the version that it published, and the samples that are in it.

    ``digests`` are those of ``FoundSamples``; there are none where no update reads samples.
    """

    version_id: str
    state: State
    digests: Mapping[int, str]
    samples: FoundSamples | None = None


@dataclass(frozen=True)
class Kept:
    """An opened model, which holds no samples; and what its last update left, where that is still of use."""

    bench: OpenModel
    left: Left | None = None

    @property
    def size(self) -> int:
        """Return about how many bytes it takes."""
        module, left = self.bench.problem.module, self.left
        tensors = [*self.bench.recipe.holdout_tensors, *module.parameters(), *module.buffers()]
        if left is not None:
            tensors += [left.state.weights, *left.state.tensors.values()]
        samples = 0 if left is None or left.samples is None else left.samples.size
        return samples + sum(each.nbytes for each in tensors)


class ModelCache:
    """The models that a worker process keeps opened from one update to the next, by generation, last used last.

    They take ``KEPT_BYTES`` together, but for the one that was used last. One is opened again when its recipe's code
    changes.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept: dict[int, Kept] = {}

    def of(
        self, generation_id: int, tenant_id: str, recipe: str, policy: Policy
    ) -> tuple[OpenModel, Left | None, Samples | None]:
        """Return the generation's model and what its last update left here, if anything.

        Where the recipe was run for that, its samples come along. Raises Refused as ``build`` does.
        """
        folder, samples = recipes_of(self._settings.recipes, tenant_id), None
        kept = self._kept.get(generation_id)
        if kept is None or recipes.digest_of(recipes.find(folder, recipe)) != kept.bench.digest:
            loaded = recipes.load(folder, recipe)
            kept = Kept(set_up(self._settings, tenant_id, recipe, loaded, policy, samples=False))
            samples = loaded.recipe.samples
        self._keep(generation_id, kept)
        return kept.bench, kept.left, samples

    def remember(self, generation_id: int, left: Left) -> None:
        """Keep what was just published in place of what was kept of its model: it holds no deleted person."""
        samples = left.samples
        small = samples is not None and samples.examples.held and samples.size <= KEPT_BYTES
        left = replace(left, state=replace(left.state, vectors={}), samples=samples if small else None)
        self._keep(generation_id, replace(self._kept[generation_id], left=left))

    def drop(self) -> None:
        """Drop what updates left: a preparation needs the memory, or another worker took over."""
        self._kept = {each: replace(kept, left=None) for each, kept in self._kept.items()}

    def drop_old(self, database: Database) -> None:
        """Drop what updates left of every version that is not current any more: another worker may have published.

        Drop samples, too, that were compared with the recipe's ``COMPARED_SECONDS`` ago. A thread may call this while
        an update is computed. That holds what it needs itself.
        """
        left = [(each, kept, kept.left) for each, kept in list(self._kept.items()) if kept.left is not None]
        if not left:
            return
        with database.read() as session:
            current = still_current(session, [last.version_id for _, _, last in left])
        oldest = time.monotonic() - COMPARED_SECONDS
        for each, kept, last in left:
            aged = last.samples is not None and last.samples.compared_at < oldest
            if (aged or last.version_id not in current) and self._kept.get(each) is kept:
                self._kept[each] = replace(kept, left=None)

    def _keep(self, generation_id: int, kept: Kept) -> None:
        """Make this the model that was used last, and drop others as far as all take too much."""
        self._kept.pop(generation_id, None)
        self._kept[generation_id] = kept
        sizes = {each: other.size for each, other in list(self._kept.items())}
        excess = sum(sizes.values()) - KEPT_BYTES
        for each in list(sizes)[:-1]:
            if excess <= 0:
                return
            excess -= sizes[each]
            del self._kept[each]


def build(settings: Settings, tenant_id: str, recipe: str, policy: Policy) -> OpenModel:
    """Run the recipe; return its problem and method, set up. Raises Refused with a plain reason."""
    loaded = recipes.load(recipes_of(settings.recipes, tenant_id), recipe)
    named = replace(loaded, recipe=_pseudonymous(settings, tenant_id, loaded.recipe))
    return set_up(settings, tenant_id, recipe, named, policy)


def takes_rows(settings: Settings, tenant_id: str, name: str) -> bool:
    """Return whether the service reads the recipe's rows for it. Raises Refused where there is no such recipe."""
    path = recipes.find(recipes_of(settings.recipes, tenant_id), name)
    return _takes_rows(path, recipes.digest_of(path))


@lru_cache(maxsize=64)
def _takes_rows(path: Path, _digest: str) -> bool:
    try:
        return declares_sources(path)
    except (SyntaxError, ValueError):  # it is found out where the recipe is loaded
        return False


def build_with_rows(
    settings: Settings, tenant_id: str, name: str, policy: Policy, *, parts: PartStore, until: int
) -> OpenModel:
    """Read the sources of a recipe with rows, within a block of ``readers``, and set up what its method repeats.

    Where that is no training, the samples of the opened model are the units that leave as one, until ``described``.

    ``until``: the moment (microseconds) when the generation began. Raises Refused, Lost, MemoryError.
    """
    recipe_with_rows = declared(settings, tenant_id, name)
    salt = salt_of(Pepper.load(settings.pepper_file), tenant_id)
    units = survey(recipe_with_rows, settings, tenant_id, policy.granularity, salt=salt, until=until)
    return opened_with_rows(recipe_with_rows, units, policy, device_of(settings.device), parts)


def opened_with_rows(
    recipe_with_rows: RowsRecipe, units: SourceUnits, policy: Policy, device: torch.device, parts: Parts
) -> OpenModel:
    """Set up what the method of a recipe with rows repeats, see ``build_with_rows``. Raises Refused."""
    method = method_of(policy)
    try:
        recipe = recipe_of(recipe_with_rows, units)
        problem = Problem(method.recipe(recipe) if method.exact else recipe, device)
    except RecipeError as error:
        raise Refused(error.what, error.hint) from None
    if not method.exact:
        asked = WorldModel(recipe_with_rows, units, parts, method, policy.method, device)
        return OpenModel(recipe, problem, method, recipe_with_rows.digest, recipe_with_rows.settings, (), asked=asked)
    built = WorldBuild(recipe_with_rows, units, parts, device)
    problem.fresh, problem.measured_by = built, built.score
    return OpenModel(recipe, problem, method, recipe_with_rows.digest, recipe_with_rows.settings, (), built=built)


def described(bench: OpenModel, staying: Collection[Unit]) -> OpenModel:
    """Return the opened model with the samples that its recipe makes of the rows of these units, by digests.

    Raises Refused, Lost, MemoryError.
    """
    if bench.asked is None:
        raise ValueError("the recipe's samples are known")
    recipe, problem = bench.asked.described(staying)
    problem.measured_by = bench.asked.accuracy
    return replace(bench, recipe=recipe, problem=problem)


def set_up(
    settings: Settings, tenant_id: str, name: str, loaded: recipes.LoadedRecipe, policy: Policy, *, samples: bool = True
) -> OpenModel:
    """Set up a recipe that was run, or all but its samples.

    Raises Refused with a plain reason, also for what ``model()`` raises. Fresh processes train the problem where the
    recipe trains by itself, and where the method is exact and other code of the recipe's runs in a training.
    """
    try:
        bench = opened(loaded, policy, device_of(settings.device), samples=samples)
        _require_admitted(settings, bench.problem.artefact)
        if sys.platform != "linux" or not runs_own_code(loaded.recipe):  # a fork with torch in it may crash elsewhere
            return bench
        device, dtype = str(bench.problem.device), str(bench.problem.dtype).removeprefix("torch.")
        where = Recipes(settings, tenant_id, name, loaded.digest, loaded.settings, device)
        artefact = bench.problem.artefact
        fresh = FreshProcesses(where, dtype, () if artefact is None else artefact.libraries)
        repeated = bench.method.exact or loaded.recipe.train is not None
        bench.problem.fresh = fresh if repeated else None
        return replace(bench, fresh=fresh)
    except RecipeError as error:
        raise Refused(error.what, error.hint) from None
    except Exception as error:  # the model's constructor is the user's code
        refused = refusal_of(error, settings.recipes)
        if refused is None:
            raise
        raise refused from None


def forget_in_worlds(
    bench: OpenModel, state: State, forget: ForgetSet, retain: Examples | None, guarantee: Guarantee
) -> Forgotten | None:
    """Forget by worlds: by the method's own update, or by the parts of a training. None: the recipe has no rows."""
    if bench.asked is not None:
        reads = Need.RETAINED in bench.method.needs
        return bench.asked.forget(state, forget, retain if reads else None, guarantee)
    return None if bench.built is None or retain is None else forget_by_parts(bench, state, forget, retain)


def forget_by_parts(bench: OpenModel, state: State, forget: ForgetSet, retain: Examples) -> Forgotten:
    """Make the parts of a training without the forgotten: those that no key finds. The state keeps none of them."""
    if bench.built is None:
        raise ValueError("the recipe has no parts")
    bench.built.used.clear()
    draws = torch.Generator().manual_seed(0)  # no exact method draws
    forgotten = bench.method.forget(bench.problem, bench.method.afresh(state), forget, retain, draws)
    return replace(forgotten, state=bench.method.afresh(forgotten.state))


def _require_admitted(settings: Settings, artefact: Artefact | None) -> None:
    """Raise Refused where the recipe names a format of its own for its bytes, and the operator does not admit it."""
    named = None if artefact is None else artefact.format
    if named is not None and named not in {name.strip() for name in settings.artefact_formats.split(",")}:
        what = f"The recipe publishes bytes of the format {named!r}, which is not checked for code."
        raise Refused(what, f"Drop its format=, or have the operator set EXPUNGE_ARTEFACT_FORMATS={named}.")


def opened(loaded: recipes.LoadedRecipe, policy: Policy, device: torch.device, *, samples: bool = True) -> OpenModel:
    """Set up a recipe that was run, or all but its samples.

    Raises Refused and RecipeError; what ``model()`` raises is not caught.
    """
    method, parts = method_of(policy), parts_of(loaded.recipe)
    recipe = loaded.recipe if samples else _without_samples(loaded.recipe)
    return OpenModel(recipe, Problem(method.recipe(recipe), device), method, loaded.digest, loaded.settings, parts)


def _pseudonymous(settings: Settings, tenant_id: str, recipe: Recipe) -> Recipe:
    """Return the recipe with the digests of ``vectors_for`` in its place, as a manifest names people."""
    if recipe.vectors_for is None:
        return recipe
    pepper = Pepper.load(settings.pepper_file)
    return replace(recipe, vectors_for=[subject_digest(pepper, tenant_id, each) for each in recipe.vectors_for])


def _without_samples(recipe: Recipe) -> Recipe:
    """Return the recipe with an empty sample in place of its samples, so that an opened model holds no person's data.

    The holdout is copied: as a part of a larger tensor it would keep the whole of it in memory.
    """
    samples, weight = recipe.samples, None if recipe.samples.weight is None else torch.ones(1)
    nobody = Samples(("none",), ("none",), torch.zeros(1), torch.zeros(1), samples.missing, weight)
    inputs, targets = recipe.holdout_tensors
    return replace(recipe, samples=nobody, holdout=(inputs.clone(), targets.clone()), vectors_for=None)


SKETCHED = ("rank", "probes", "tolerance", "updates", "oversampling", "stability")
SKETCH = "It is one of the method recollection_sketch, which the package expunge-lab brings."
GONE = {
    **{f"recollection {each}": SKETCH for each in SKETCHED},
    "late core": "Set early_share.",
    "late passes": "Set phase_shares.",
    "shards core": "Set early_share.",
    "shards passes": "Set phase_shares.",
    "newton ball": "Leave it out: the ball is enforced where the recipe's Training(radius=C) holds the weights in it.",
    "newton residual": "Leave it out: it is 0.1 under the guarantee proved, and 1e-6 elsewhere.",
    "rewind precision": "Leave it out: under the guarantee proved the steps are repeated in float64.",
    "threshold": "Leave it out: every method is measured alike at registration.",
    "calibration_count": "Leave it out: registration really retrains without three sets of people.",
    "calibration_share": "Leave it out: registration really retrains without three sets of 5 % of the people.",
}
"""what to do in place of an option that is gone, of one method or of all"""
HINTS = {
    "internal": "Leave it out: only programs that use the method from Python set it.",
    "policy": "It is a field of the policy: set it there.",
}
"""what to do in place of an option, by the metadata of its field"""
KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a word", NoneType: "null"}


def method_of(policy: Policy) -> Method:
    """Return the policy's method with its options.

    Raises Refused for an unknown method, an option that it lacks, and a value that it rejects.
    """
    if policy.method not in NAMES:
        raise Refused(f"There is no method {policy.method!r}.", f"The methods are: {', '.join(NAMES)}.")
    kind, record = load(policy.method), policy.to_json()
    shared = {each.name: record[each.name] for each in fields(kind) if each.metadata.get("policy")}
    given = {name: value for name, value in shared.items() if value is not None}
    return with_options(kind, policy.method, policy.options, given)


def with_options(
    kind: Any, name: str, options: Mapping[str, Any], shared: Mapping[str, Any] = MappingProxyType({})
) -> Method:
    """Return an instance of a method's class with ``options``, and with the values ``shared`` of the policy's fields.

    Raises Refused as above.
    """
    types = get_type_hints(kind)
    instead = {each.name: HINTS[mark] for each in fields(kind) for mark in each.metadata if mark in HINTS}
    names = [each.name for each in fields(kind) if each.name not in instead]
    unknown = sorted(options.keys() - set(names))
    if unknown:
        gone = GONE.get(f"{name} {unknown[0]}") or GONE.get(unknown[0]) or instead.get(unknown[0])
        raise Refused(f"{name} has no option {unknown[0]!r}.", gone or f"Its options are: {', '.join(sorted(names))}.")
    given = {each: _fitting(name, each, value, types[each]) for each, value in options.items()}
    try:
        return cast(Method, kind(**given, **shared))
    except (ValueError, TypeError) as error:
        raise Refused(f"{name} refused its options: {error}", "Correct them and register again.") from None


def _fitting(method: str, name: str, value: object, wanted: Any) -> object:
    """Return the value; a whole number becomes a float where a number is wanted. ``True`` is not a number.

    A single number is taken for a list of one. Raises Refused for a value of another type.
    """
    if wanted == tuple[float, ...]:
        return tuple(_fitting(method, name, each, float) for each in (value if isinstance(value, list) else [value]))
    allowed = get_args(wanted) if isinstance(wanted, UnionType) else (wanted,)
    if type(value) in allowed:
        return value
    if type(value) is int and float in allowed:
        return float(value)
    kinds = " or ".join(KINDS.get(each, each.__name__) for each in allowed)
    shown = repr(value) if len(repr(value)) <= 60 else repr(value)[:57] + "..."
    raise Refused(f"The option {name} of {method} is {shown}.", f"It must be {kinds}.")
