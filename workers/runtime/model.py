"""An opened model: its recipe, its problem on the device, its method. A worker keeps it between updates."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType, NoneType, UnionType
from typing import Any, cast, get_args, get_type_hints

import torch

from expunge.service.infra.db import Database
from expunge.service.infra.pseudonyms import Pepper, subject_digest
from expunge.service.infra.settings import Settings
from expunge.service.infra.tenants import recipes_of
from expunge.service.queue import is_current
from expunge.workers.runtime import recipes
from expunge.workers.runtime.failures import refusal_of
from expunge.workers.runtime.fresh import FreshProcesses, Recipes
from expunge.workers.storage.manifest import FoundSamples
from unlearning.accounting.certificate import Guarantee, Part
from unlearning.accounting.policy import Policy
from unlearning.methods import NAMES, load
from unlearning.model.method import Method
from unlearning.model.parts import parts_of, runs_own_code
from unlearning.model.problem import Problem
from unlearning.recipe import Recipe, Samples
from unlearning.types import RecipeError, Refused, State

KEPT_BYTES = 2 * 2**30
"""of samples that a process keeps between two updates; more are read and compared again each time"""


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

    def under(self, guarantee: Guarantee) -> OpenModel:
        """Return the opened model with its method as it works under a generation's guarantee."""
        return replace(self, method=self.method.under(guarantee, self.recipe))

    @property
    def deterministic(self) -> bool:
        """Tell whether every training so far used deterministic algorithms alone; this process's own, on a CPU."""
        return self.problem.device.type == "cpu" if self.fresh is None else self.fresh.seen.deterministic


@dataclass(frozen=True)
class LastPublished:
    """What an update left in memory: the state of the version that it published, and the samples still in the model."""

    version_id: str
    state_digest: str
    state: State
    samples: FoundSamples | None


class ModelCache:
    """What a worker process keeps from one update to the next: one opened model, and what its last update left.

    The opened model holds no samples. It is opened again when its recipe's code changes.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept: dict[int, OpenModel] = {}
        self._left: LastPublished | None = None

    def state_of(self, digest: str) -> State | None:
        """Return the state of that digest if this process published it last: it need not be read and decrypted."""
        return self._left.state if self._left is not None and self._left.state_digest == digest else None

    def samples_of(self, version_id: str) -> FoundSamples | None:
        """Return the samples that are in a version if this process published it last and they were few enough."""
        return self._left.samples if self._left is not None and self._left.version_id == version_id else None

    def remember(self, version_id: str, digest: str, state: State, samples: FoundSamples | None) -> None:
        """Keep what was just published in place of what was kept: nobody who was forgotten is in it."""
        small = samples is not None and samples.examples.held and samples.size <= KEPT_BYTES
        self._left = LastPublished(version_id, digest, replace(state, vectors={}), samples if small else None)

    def drop(self) -> None:
        """Drop what the last update left: a preparation needs the memory, or another worker took over."""
        self._left = None

    def drop_superseded(self, database: Database) -> None:
        """Drop what the last update left if its version is not current any more: another worker may have published.

        A thread may call this while an update is computed. That holds what it needs itself.
        """
        left = self._left
        if left is None:
            return
        with database.read() as session:
            superseded = not is_current(session, left.version_id)
        if superseded and self._left is left:
            self._left = None

    def of(self, generation_id: int, tenant_id: str, recipe: str, policy: Policy) -> OpenModel:
        """Return the generation's model. Raises Refused as ``build`` does."""
        kept = self._kept.get(generation_id)
        folder = recipes_of(self._settings.recipes, tenant_id)
        if kept is None or recipes.digest_of(recipes.find(folder, recipe)) != kept.digest:
            loaded = recipes.load(folder, recipe)
            kept = set_up(self._settings, tenant_id, recipe, loaded, policy, samples=False)
            self._kept = {generation_id: kept}
        return kept


def build(settings: Settings, tenant_id: str, recipe: str, policy: Policy) -> OpenModel:
    """Run the recipe; return its problem and method, set up. Raises Refused with a plain reason."""
    loaded = recipes.load(recipes_of(settings.recipes, tenant_id), recipe)
    named = replace(loaded, recipe=_pseudonymous(settings, tenant_id, loaded.recipe))
    return set_up(settings, tenant_id, recipe, named, policy)


def set_up(
    settings: Settings, tenant_id: str, name: str, loaded: recipes.LoadedRecipe, policy: Policy, *, samples: bool = True
) -> OpenModel:
    """Set up a recipe that was run, or all but its samples.

    Raises Refused with a plain reason, also for what ``model()`` raises. Where the method is exact, and the recipe's
    own code runs in a training, fresh processes train the problem.
    """
    try:
        bench = opened(loaded, policy, device_of(settings.device), samples=samples)
        if sys.platform != "linux" or not runs_own_code(loaded.recipe):  # a fork with torch in it may crash elsewhere
            return bench
        device, dtype = str(bench.problem.device), str(bench.problem.dtype).removeprefix("torch.")
        where = Recipes(settings, tenant_id, name, loaded.digest, loaded.settings, device)
        fresh = FreshProcesses(where, dtype)
        bench.problem.fresh = fresh if bench.method.exact else None
        return replace(bench, fresh=fresh)
    except RecipeError as error:
        raise Refused(error.what, error.hint) from None
    except Exception as error:  # the model's constructor is the user's code
        refused = refusal_of(error, settings.recipes)
        if refused is None:
            raise
        raise refused from None


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
    """Return the recipe with an empty sample in place of its samples, so that an opened model holds nobody's data.

    The holdout is copied: as a part of a larger tensor it would keep the whole of it in memory.
    """
    nobody = Samples(("none",), ("none",), torch.zeros(1), torch.zeros(1))
    inputs, targets = recipe.holdout
    return replace(recipe, samples=nobody, holdout=(inputs.clone(), targets.clone()), vectors_for=None)


def device_of(name: str) -> torch.device:
    """Return the device of that name; ``auto`` is the first GPU, or the CPU if there is none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(name)


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
