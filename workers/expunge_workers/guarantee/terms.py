"""The terms of a generation: its guarantee and what that needs, its noise, cap, charge and limit.

The guarantee is decided before training. All terms are fixed once, before version 1, in the manifest.

A guarantee is never exchanged for another: what was asked for and cannot be had is refused, with the reason and with
what would work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

from expunge_service.infra.db import Database
from expunge_service.models import PORTED, ROUNDS
from expunge_service.queue import Preparation, extend_manifest, generation_of
from expunge_workers.runtime.model import OpenModel
from unlearning.accounting.certificate import Constant, Guarantee, Reference
from unlearning.accounting.policy import Granularity, Policy
from unlearning.bounds.calibration import Design
from unlearning.bounds.minimiser import Minimiser
from unlearning.methods import NAMES, load, package_of
from unlearning.model.method import Bound, KeepsVectors, Method
from unlearning.model.problem import Problem, metric_name
from unlearning.recipe import Recipe
from unlearning.types import Examples, Need, Refused, State

SMALLER = "Use rewind or retrain, or recollection_sketch (the package expunge-lab), which keeps a few numbers for each."
NUMBER_BYTES = 4
"""of a number in a stored vector"""
MEASURED = (Guarantee.CALIBRATED, Guarantee.ESTIMATED)
"""what has to be asked for by name"""
BOUNDED = (Guarantee.PROVED, *MEASURED)
"""a greatest distance, a charge, a budget"""


@dataclass(frozen=True)
class Terms:
    """What a generation fixed at registration, and its budget."""

    method: str
    guarantee: Guarantee
    reference: Reference
    noise_std: float
    max_distance: float
    delta: float
    budget_cost: int
    spent: int
    limit: int | None
    count: int
    """n, the samples of the manifest"""
    updates: int
    """how many updates deleted people so far"""
    unlearned: int = 0
    """how many people the method has forgotten so far"""
    constants: tuple[Constant, ...] = ()
    """of an estimated bound"""
    design: Design | None = None
    """of a calibrated one"""
    chosen: bool = False
    """the method was not named, and chosen by the counts of samples and features"""
    moved: str | None = None
    """how an exact update trained in another environment than the version before it; None: it did not"""
    deterministic: bool = False
    """every training of the preparation used deterministic algorithms alone"""
    repeats: bool | None = None
    """of a recipe with rows: another process made the same bytes at registration; None: it was not tried"""

    @property
    def values(self) -> dict[str, float]:
        """Return the constants by name."""
        return {each.name: each.value for each in self.constants}

    def bound(self, method: Method) -> Bound | None:
        """Return what bounds the method's updates under these terms."""
        return bound_of(method, self.guarantee, self.denominator)

    @property
    def denominator(self) -> int | None:
        """What divides the summed losses where a bound is computed at the weights; None: the retained."""
        return self.count if self.reference is Reference.FIXED_DENOMINATOR else None


def bound_of(method: Method, guarantee: Guarantee, denominator: int | None = None) -> Bound | None:
    """Return what bounds the method's updates under this guarantee; None where none is computed at an update.

    ``denominator`` divides the summed losses where the bound is computed at the weights; None: the retained.
    """
    if guarantee not in (Guarantee.PROVED, Guarantee.ESTIMATED):
        return None
    return method.bound(guarantee) or (Minimiser(denominator) if guarantee is Guarantee.PROVED else None)


def guarantee_of(policy: Policy, problem: Problem, method: Method) -> Guarantee:
    """Return the guarantee asked for, or else the strongest without measuring; of a foreign method ``none``.

    Raises:
        Refused: it cannot be had.
    """
    package = package_of(policy.method)
    if method.exact and (package is None or policy.guarantee is Guarantee.EXACT):
        return Guarantee.EXACT
    why = _impossible(bound_of(method, Guarantee.PROVED), problem)
    asked = policy.guarantee or (Guarantee.PROVED if why is None and package is None else Guarantee.NONE)
    _require_possible(asked, policy, problem, method, why)
    return asked


def guarantee_without_judge(policy: Policy, problem: Problem, method: Method) -> Guarantee:
    """Return the guarantee of a model that worlds of the recipe's own code compute with.

    A bound that this code computes would be its own word. A calibration takes its word for nothing: the distances are
    measured by the service, of weights that the same worlds give for a drawn order and for a request.

    Raises:
        Refused: it cannot be had.
    """
    asked = policy.guarantee or Guarantee.NONE
    require_computed_without_recipe(asked.value)
    if asked is Guarantee.EXACT:
        raise Refused(f"{policy.method} is never exact: it starts from the trained weights.", "Use retrain.")
    if asked is Guarantee.CALIBRATED:
        _require_drawable(policy, problem, method)
        if method.begins_anew:
            what = f"{policy.method} is calibrated with rows where the training ends in a minimiser (converge)."
            raise Refused(what, "Set converge, or choose another method.")
    return asked


def require_computed_without_recipe(asked: str | None) -> None:
    """Refuse a guarantee whose bound the recipe's own code would compute. ``asked``: as a policy names it."""
    if asked in (Guarantee.PROVED.value, Guarantee.ESTIMATED.value):
        raise Refused(
            f"The guarantee {asked} is a bound, and the code of this recipe would compute it. Without that code it is "
            "computed for a linear head or a tangent under a named loss, whose training ends in a minimiser "
            "(converge), and under rewind for a linear head that takes full-batch steps.",
            "Ask for the guarantee calibrated or none; or choose retrain, shards or late, which are exact.",
        )


def require_trajectory(policy: Policy, method: Method, recipe: Recipe, *, recorded: bool) -> None:
    """Refuse a method that follows the steps of a training elsewhere which were not ``recorded``. Raises Refused."""
    trained_here = recipe.weights is None or recipe.training.converge is not None
    if recorded or Need.TRAJECTORY not in method.needs or trained_here:
        return
    raise Refused(
        f"{policy.method} needs the training's trajectory, and this model was trained elsewhere without one.",
        "Record it (ul.Recorder) and give it as trajectory; or choose newton or safe, or let the service train.",
    )


def require_all_forgotten(policy: Policy, method: Method, recipe: Recipe) -> None:
    """Refuse vectors for a part of the people where nothing would forget the others."""
    if recipe.vectors_for is not None and isinstance(method, KeepsVectors) and not policy.falls_back:
        raise Refused(
            f"{policy.method} keeps a vector for a part of the people alone (vectors_for), and nothing would forget "
            "the others.",
            "Register with the fallback retrain, or leave vectors_for out.",
        )


def require_vectors_fit(bench: OpenModel, examples: Examples, most: int) -> None:
    """Require that the holders' vectors take at most ``most`` bytes, and what else it keeps fits. Raises Refused."""
    method = bench.method
    if bench.world_model is None:  # a world that trains has asked it, of the model itself
        method.require_size(bench.problem, len(examples))
    if not isinstance(method, KeepsVectors):
        return
    holders = len(method.holders(bench.problem, examples))
    size = NUMBER_BYTES * holders * method.length(bench.problem)
    if size > most:
        raise Refused(
            f"The vectors of {holders} holders of {bench.problem.dimension} weights take {size:,} bytes; at most "
            f"{most:,} are kept.",
            SMALLER if bench.problem.training.converge is None else "Use newton or retrain.",
        )


def design_of(policy: Policy, people: int) -> Design:
    """Return the calibration's design, fixed before anything is measured. Raises Refused where it shows too little."""
    asked = policy.calibration
    sizes = asked.sizes or _doubling(max(1, people // 20))
    if sizes[-1] >= people:
        raise Refused(f"The largest size is {sizes[-1]} and there are {people} people.", "Leave people to train on.")
    return Design(sizes=sizes, alpha=asked.alpha, orders=asked.orders)


def _require_possible(asked: Guarantee, policy: Policy, problem: Problem, method: Method, why: Refused | None) -> None:
    if asked is Guarantee.EXACT:
        raise Refused(f"{policy.method} is never exact: it starts from the trained weights.", "Use retrain.")
    if asked is Guarantee.PROVED and why is not None:
        raise Refused(f"{policy.method} on this model has no proof. {why.what}", why.hint)
    if asked is Guarantee.ESTIMATED:
        _require_estimable(policy, problem, method)
    if asked is Guarantee.CALIBRATED:
        _require_drawable(policy, problem, method)


def _require_estimable(policy: Policy, problem: Problem, method: Method) -> None:
    bound = bound_of(method, Guarantee.ESTIMATED)
    if bound is not None:
        bound.require_possible(problem)
        return
    able = [name for name in NAMES if load(name)().bound(Guarantee.ESTIMATED) is not None]
    raise Refused(
        f"{policy.method} has no bound whose constants could be estimated.",
        f"Choose {' or '.join(able)}, or the guarantee calibrated.",
    )


def _require_drawable(policy: Policy, problem: Problem, method: Method) -> None:
    if Need.VECTORS in method.needs:
        raise Refused(
            f"calibrated assumes that it does not matter how updates are cut, and with repair {policy.method} trains "
            "on at each of them.",
            "Leave repair_epochs out, or ask for the guarantee none.",
        )
    if problem.recipe.vectors_for is not None and isinstance(method, KeepsVectors):
        raise Refused(
            "calibrated draws orders over all people, and vectors_for keeps vectors for a part of them.",
            "Leave vectors_for out, or ask for the guarantee none.",
        )
    if policy.granularity is not Granularity.SUBJECT:
        raise Refused(
            "calibrated draws orders over people, and this policy forgets samples.", "Set granularity subject."
        )
    if problem.trained < problem.dimension:
        raise Refused(
            "calibrated covers the whole published file, and the training changes buffers of the model, as the running "
            "statistics of batch normalisation, which get no noise.",
            "Use GroupNorm or LayerNorm, call .eval() on the part in model(), or ask for the guarantee none.",
        )
    if problem.recipe.weights is not None:
        raise Refused(
            "calibrated really retrains, and this model was trained elsewhere: its training cannot be repeated.",
            "Train it here, or ask for the guarantee none.",
        )
    if any(len(people) > 1 for people in problem.recipe.samples.people):
        raise Refused(
            "calibrated draws orders over people, and some samples belong to several.",
            "Give every sample one subject, or ask for another guarantee.",
        )


def _impossible(bound: Bound | None, problem: Problem) -> Refused | None:
    """Return why the bound does not hold on this problem; None where it does."""
    try:
        if bound is not None:
            bound.require_possible(problem)
    except Refused as why:
        return why
    return None


def _doubling(largest: int) -> tuple[int, ...]:
    """Return 1, 2, 4, ... and the largest itself."""
    sizes = [1]
    while sizes[-1] * 2 <= largest:
        sizes.append(sizes[-1] * 2)
    return tuple(sizes) if sizes[-1] == largest else (*sizes, largest)


def guarantee_to_json(terms: Terms) -> dict[str, Any]:
    """Return the part of the manifest that ``guarantee_from_json`` reads."""
    design = None if terms.design is None else asdict(terms.design) | {"sizes": list(terms.design.sizes)}
    constants = [asdict(constant) for constant in terms.constants]
    repeats = {} if terms.repeats is None else {"repeats": terms.repeats}
    return {"constants": constants, "design": design, "deterministic": terms.deterministic} | repeats


def guarantee_from_json(frozen: Mapping[str, Any]) -> dict[str, Any]:
    """Read the part of the terms that ``guarantee_to_json`` wrote, and ``chosen``, from a generation's manifest."""
    design = frozen.get("design")
    return {
        "constants": tuple(Constant(**constant) for constant in frozen.get("constants", ())),
        "design": None if design is None else Design(**design | {"sizes": tuple(design["sizes"])}),
        "chosen": "chosen" in frozen,
        "deterministic": bool(frozen.get("deterministic", False)),
        "repeats": frozen.get("repeats"),
    }


def register(
    database: Database,
    job: Preparation,
    guarantee: Guarantee,
    made: State,
    count: int,
    *,
    longest: int,
    rounds: int | None,
) -> Terms:
    """Fix the generation's terms: guarantee, noise, cap, charge and limits. They never change again.

    ``rounds``: how many updates its method makes at most; None: any number.
    """
    policy = job.policy
    budget = policy.budget(guarantee)
    reference = reference_of(policy, made)
    limits = {} if rounds is None else {ROUNDS: rounds}
    with database.write() as session:
        generation = extend_manifest(session, job, {"reference": reference.value, "vectors": longest, **limits})
        generation.method, generation.guarantee = policy.method, guarantee.value
        generation.noise_std, generation.budget_cost, generation.budget = (
            sigma_of(policy, guarantee),
            budget.budget_cost,
            budget.limit,
        )
        claims = guarantee is not Guarantee.NONE
        generation.max_distance = policy.max_distance if guarantee in BOUNDED else 0.0 if claims else None
        generation.epsilon, generation.delta = (policy.epsilon, policy.delta) if claims else (None, None)
        chosen = "chosen" in (generation.manifest or {})
    return replace(terms_of(policy, guarantee, reference, count), chosen=chosen)


def longest_of(made: State) -> int:
    """Return the most numbers that a person's row has; 0 where the method keeps no rows."""
    return max((vector.numel() for vector in made.vectors.values()), default=0)


def freeze_guarantee(database: Database, job: Preparation, terms: Terms) -> None:
    """Write what every claim depends on into the manifest: constants, and the calibration's design."""
    with database.write() as session:
        extend_manifest(session, job, guarantee_to_json(terms))


def sigma_of(policy: Policy, guarantee: Guarantee) -> float:
    """Return the generation's noise: none where every version is an exact retraining."""
    return 0.0 if guarantee is Guarantee.EXACT else policy.noise_std


def terms_of(policy: Policy, guarantee: Guarantee, reference: Reference, count: int) -> Terms:
    budget = policy.budget(guarantee)
    return Terms(
        method=policy.method,
        guarantee=guarantee,
        reference=reference,
        noise_std=sigma_of(policy, guarantee),
        max_distance=policy.max_distance,
        delta=policy.delta,
        budget_cost=budget.budget_cost,
        spent=0,
        limit=budget.limit,
        count=count,
        updates=0,
    )


def reference_of(policy: Policy, made: State) -> Reference:
    """Return which retraining the method approximates: what its report says, else what the policy asks."""
    report = made.facts.get("report")
    named = report.get("reference") if isinstance(report, dict) else None
    if isinstance(named, str):
        return Reference(named)
    return policy.reference or Reference.RENORMALISED


def report_of(made: State, bench: OpenModel, job: Preparation) -> dict[str, Any]:
    """Return what preparation measured, before any deletion."""
    measured = made.facts.get("report")
    report = dict(cast(Mapping[str, Any], measured)) if isinstance(measured, dict) else {}
    return report | {"dimension": bench.problem.dimension, "attempts": job.attempt, "metric": metric_name(bench.recipe)}


def how_chosen(database: Database, job: Preparation) -> dict[str, Any]:
    """Return which method the rule chose, and which the fallback or a port replaced, with why; empty for none."""
    with database.read() as session:
        frozen = generation_of(session, job).manifest or {}
    return {name: frozen[name] for name in ("chosen", "switched", PORTED) if name in frozen}
