"""An opened model: its recipe, its problem on the device, its method."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from types import MappingProxyType, NoneType, UnionType
from typing import Any, cast, get_args, get_type_hints

import torch
from torch import Tensor

from expunge_service.infra.pseudonyms import Pepper, subject_digest
from expunge_service.infra.settings import Settings
from expunge_workers.runtime.build import Parts, WorldBuild
from expunge_workers.runtime.device import device_of
from expunge_workers.runtime.engine import engine_of
from expunge_workers.runtime.rows_recipe import RowsRecipe, SourceUnits, Unit, declared, recipe_of, salt_of, survey
from expunge_workers.runtime.world_model import WorldModel
from expunge_workers.storage.parts import PartStore
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import Policy
from unlearning.methods import NAMES, load
from unlearning.model.method import Method
from unlearning.model.problem import Problem
from unlearning.recipe import Recipe
from unlearning.types import Examples, ForgetSet, Forgotten, Need, RecipeError, Refused, State


@dataclass(frozen=True)
class OpenModel:
    """An opened model: this process runs none of its recipe's code.

    ``digest`` is that of the recipe's code, ``settings`` that of what it declares.
    """

    recipe: Recipe
    problem: Problem
    method: Method
    digest: str
    settings: str
    built: WorldBuild | None = None
    """makes the parts of the trainings, for an exact method; else None"""
    world_model: WorldModel | None = None
    """the model that worlds are asked about, for any other method; else None"""

    def under(self, guarantee: Guarantee) -> OpenModel:
        """Return the opened model with its method as it works under a generation's guarantee."""
        if self.world_model is not None and not self.world_model.has_judge:
            return self  # its worlds do that, which know the recipe's loss
        return replace(self, method=self.method.under(guarantee, self.recipe))

    def accuracies(self, weights: Sequence[Tensor]) -> list[float | None]:
        """Return what the recipe's metric gives at each of these weights (d,); None: nothing is measured."""
        if self.world_model is not None:
            return self.world_model.accuracies(weights)
        inputs, targets = self.recipe.holdout_tensors
        return [self.problem.accuracy(w.to(self.problem.device), inputs, targets) for w in weights]

    @property
    def imports(self) -> bool:
        """Whether the recipe brings a model along that was trained elsewhere on everybody."""
        return self.world_model is not None and bool(self.world_model.recipe.weights)

    @property
    def required_world_model(self) -> WorldModel:
        """The model that worlds are asked about. Raises TypeError: an exact method has none."""
        if self.world_model is None:
            raise TypeError("an exact method asks no world about its model")
        return self.world_model

    @property
    def parts_used(self) -> Collection[str] | None:
        """The keys of the parts that versions are made of, as far as they were asked for; None: of none."""
        maker = self.built or self.world_model
        return None if maker is None else maker.used.keys()


def open_model(
    settings: Settings, tenant_id: str, name: str, policy: Policy, *, parts: PartStore, until: int
) -> OpenModel:
    """Read the recipe's sources, within a block of ``readers``, and set up what its method repeats.

    Where that is no training, the samples of the opened model are the units that leave as one, until ``described``.

    ``until``: the moment (microseconds) when the generation began. Raises Refused, Lost, MemoryError.
    """
    rows_recipe = declared(settings, tenant_id, name)
    pepper = Pepper.load(settings.pepper_file)
    salt = salt_of(pepper, tenant_id)
    units = survey(rows_recipe, settings, tenant_id, policy.granularity, salt=salt, until=until)
    bench = set_up(rows_recipe, units, policy, device_of(settings.device), parts)
    if bench.built is not None:
        bench.built.engine = engine_of(settings.runner, settings.home)
    if bench.world_model is not None:
        bench.world_model.digest_of = partial(subject_digest, pepper, tenant_id)
    return bench


def set_up(
    rows_recipe: RowsRecipe, units: SourceUnits, policy: Policy, device: torch.device, parts: Parts
) -> OpenModel:
    """Set up what the recipe's method repeats, see ``open_model``. Raises Refused."""
    method = method_of(policy)
    try:
        recipe = recipe_of(rows_recipe, units)
        problem = Problem(method.recipe(recipe) if method.exact else recipe, device)
    except RecipeError as error:
        raise Refused(error.what, error.hint) from None
    if not method.exact:
        world_model = WorldModel(rows_recipe, units, parts, method, policy.method, device)
        return OpenModel(recipe, problem, method, rows_recipe.digest, rows_recipe.settings, world_model=world_model)
    built = WorldBuild(rows_recipe, units, parts, device)
    problem.fresh, problem.measured_by = built, built.score
    return OpenModel(recipe, problem, method, rows_recipe.digest, rows_recipe.settings, built=built)


def described(bench: OpenModel, staying: Collection[Unit], *, again: bool = False) -> OpenModel:
    """Return the opened model with the samples that its recipe makes of the rows of these units, by digests.

    ``again``: as ``WorldModel.described`` has it. Raises Refused, Lost, MemoryError.
    """
    world_model = bench.required_world_model
    recipe, problem = world_model.described(staying, again=again)
    problem.measured_by = world_model.accuracy
    return replace(bench, recipe=recipe, problem=problem)


def forget_in_worlds(
    bench: OpenModel, state: State, forget: ForgetSet, retain: Examples, guarantee: Guarantee
) -> Forgotten:
    """Forget by worlds: by the method's own update, or by the parts of a training."""
    if bench.world_model is not None:
        if len(state.weights) != bench.problem.dimension:  # a class or a column left with them
            weights = bench.world_model.trained(retain, guarantee)
            return Forgotten(replace(state, weights=weights), {"trained": len(retain)})
        if guarantee is Guarantee.PROVED and bench.method.begins_anew and bench.method.bound(guarantee) is None:
            return Forgotten(state)  # the bound's steps lead from any weights to its cap: one more only costs
        reads = Need.RETAINED in bench.method.needs
        return bench.world_model.forget(state, forget, retain if reads else None, guarantee)
    return forget_by_parts(bench, state, forget, retain)


def forget_by_parts(bench: OpenModel, state: State, forget: ForgetSet, retain: Examples) -> Forgotten:
    """Make the parts of a training without the forgotten: those that no key finds. The state keeps none of them."""
    if bench.built is None:
        raise ValueError("the recipe has no parts")
    bench.built.used.clear()
    draws = torch.Generator().manual_seed(0)  # no exact method draws
    forgotten = bench.method.forget(bench.problem, bench.method.afresh(state), forget, retain, draws)
    return replace(forgotten, state=bench.method.afresh(forgotten.state))


SKETCHED = ("rank", "probes", "tolerance", "updates", "oversampling", "stability")
SKETCH = "It is one of the method recollection_sketch, which the package expunge-lab brings."
GONE = {
    **{f"recollection {each}": SKETCH for each in SKETCHED},
    "late core": "Set early_share.",
    "late passes": "Set phase_shares.",
    "newton ball": "Leave it out: the ball is enforced where the recipe's Training(radius=C) holds the weights in it.",
    "newton residual": "Leave it out: it is 0.1 under the guarantee proved, and 1e-6 elsewhere.",
    "rewind precision": "Leave it out: under the guarantee proved the steps are repeated in float64.",
    "threshold": "Leave it out: every method is measured alike at registration.",
    "calibration_count": "Leave it out: registration really retrains without three sets of people.",
    "calibration_share": "Leave it out: registration really retrains without three sets of 5 % of the people.",
}
"""what to do in place of an option that is gone, of one method or of all"""
LAPSED = {"shards": {"core", "passes", "slices", "early_share", "phase_shares", "stacked"}}
"""options of earlier releases that mean nothing any more: a registration refuses them, and a port passes over them"""
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


def require_no_lapsed(policy: Policy) -> None:
    """Refuse options that mean nothing any more, where a model is registered. Raises Refused."""
    for name in sorted(policy.options.keys() & LAPSED.get(policy.method, ())):
        raise Refused(f"The option {name} of {policy.method} means nothing any more.", "Leave it out.")


def with_options(
    kind: Any, name: str, options: Mapping[str, Any], shared: Mapping[str, Any] = MappingProxyType({})
) -> Method:
    """Return an instance of a method's class with ``options``, and with the values ``shared`` of the policy's fields.

    Raises Refused as above.
    """
    types = get_type_hints(kind)
    instead = {each.name: HINTS[mark] for each in fields(kind) for mark in each.metadata if mark in HINTS}
    names = [each.name for each in fields(kind) if each.name not in instead]
    options = {each: value for each, value in options.items() if each not in LAPSED.get(name, ())}
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
