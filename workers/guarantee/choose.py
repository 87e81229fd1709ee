"""Which guarantee a model and a method have, and what it needs: decided before training, settled before version 1.

A guarantee is never exchanged for another: what was asked for and cannot be had is refused, with the reason and with
what would work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from typing import cast

import torch

from unlearning.accounting.certificate import Constant, Guarantee
from unlearning.accounting.policy import Granularity, OnExhausted, Policy
from unlearning.bounds import newton as constrained
from unlearning.bounds.calibration import Design
from unlearning.bounds.newton import Constrained, rounded_up
from unlearning.bounds.rewind import Descent, measured_constants, proved_constants
from unlearning.methods import NAMES
from unlearning.methods.newton import Newton
from unlearning.methods.rewind import Rewind
from unlearning.model import closed_form, convex
from unlearning.model.linear_head import head_of
from unlearning.model.problem import Problem
from unlearning.recipe import Recipe
from unlearning.types import Examples, Json, Method, Need, Refused, State

MEASURED = (Guarantee.CALIBRATED, Guarantee.ESTIMATED)
"""what has to be asked for by name"""
BOUNDED = (Guarantee.PROVED, *MEASURED)
"""a cap, a charge, a budget"""
ESTIMATED_METHODS = ("newton", "rewind")
RAISE = "Raise max_distance and noise_std together, forget from further back, or train slower."
SAMPLED = "measured on everyone at a few points, rounded up to one digit: a lower bound of the truth before rounding"


def guarantee_of(policy: Policy, problem: Problem, method: Method) -> Guarantee:
    """The guarantee asked for, or else the strongest without measuring. Raises Refused where it cannot be had."""
    if policy.method == "retrain":
        return Guarantee.EXACT
    why = _unproved(problem, method)
    asked = policy.guarantee or (Guarantee.PROVED if why is None else Guarantee.NONE)
    if asked.satisfies(policy.min_guarantee):
        _require_possible(asked, policy, problem, method, why)
        return asked
    what = (
        f"The policy requires the guarantee {policy.min_guarantee.value}; {policy.method} on this model has "
        f"{asked.value}."
    )
    if policy.min_guarantee in MEASURED:
        raise Refused(what, f"Ask for it: guarantee {policy.min_guarantee.value}. Or use retrain.")
    if why is None:
        raise Refused(what, "Use retrain, or require less.")
    raise Refused(f"{what} {why.what}", why.hint)


def require_closed_form(policy: Policy, problem: Problem, examples: Examples) -> None:
    """Refuse a model that computes something else than its weights and its closed form say.

    Plain retraining computes nothing with a closed form, so it is not compared there.
    """
    drawn = torch.Generator().manual_seed(problem.training.seed)
    closed_form.require_own_weights(problem, examples, drawn)
    if policy.method == "retrain" and problem.training.converge is None:
        return
    closed_form.require_agreement(problem.double(), examples, drawn)


def require_needs(policy: Policy, method: Method, recipe: Recipe) -> None:
    """Refuse, before any work, what a model that was trained elsewhere does not allow: a retraining, a trajectory."""
    if recipe.weights is not None and "retrain" in (policy.method, policy.fallback):
        raise Refused(
            "The model was trained elsewhere, so it cannot be trained anew here: another training would replace it.",
            "Choose newton or safe, without the fallback retrain; or leave out weights and let the recipe train.",
        )
    trained_here = recipe.weights is None or recipe.trajectory is not None or recipe.training.converge is not None
    if Need.TRAJECTORY not in method.needs or trained_here:
        return
    raise Refused(
        f"{policy.method} needs the training's trajectory, and this model was trained elsewhere without one.",
        f"Record it (unlearning.Recorder), or choose {_either(_without_trajectory())}.",
    )


def may_claim_without_her(policy: Policy, guarantee: Guarantee, recipe: Recipe) -> bool:
    """Whether some version of the generation, or of the retrain that follows it, claims ``proved`` or ``exact``."""
    if guarantee in (Guarantee.PROVED, Guarantee.EXACT):
        return True
    exhausted = guarantee in MEASURED and policy.on_exhausted is OnExhausted.RETRAIN
    return recipe.weights is None and (exhausted or policy.fallback == "retrain")


def design_of(policy: Policy, people: int) -> Design:
    """The calibration's design, fixed before anything is measured. Raises Refused where it shows nothing."""
    asked = policy.calibration
    sizes = asked.sizes or _doubling(max(1, people // 20))
    if sizes[-1] >= people:
        raise Refused(f"The largest size is {sizes[-1]} and there are {people} people.", "Leave somebody to train on.")
    return Design(sizes=sizes, alpha=asked.alpha, orders=asked.orders)


def constants_of(problem: Problem, method: Method, examples: Examples, state: State) -> tuple[Constant, ...]:
    """What an ``estimated`` claim rests on, each with its origin. Measured once, before any deletion."""
    work = problem.cast(state.weights.dtype)
    if isinstance(method, Newton):
        return _newton_constants(work, method, examples, state)
    assert isinstance(method, Rewind)  # noqa: S101 (guarantee_of let nothing else through)
    checkpoint = state.tensors["checkpoint"].to(problem.device)
    points = (work.initial(), checkpoint, state.weights.to(problem.device))
    smoothness, longest = measured_constants(work, examples, points)
    clip = problem.training.sample_clip
    enforced = Constant("G", clip, "sample_clip of the training") if clip is not None else None
    return (
        Constant("L", rounded_up(smoothness), _origin_of_smoothness(work)),
        enforced or Constant("G", rounded_up(longest), f"longest data gradient of a sample, {SAMPLED}"),
    )


def _origin_of_smoothness(problem: Problem) -> str:
    if head_of(problem) is None:
        return f"largest spectral norm of a sample's data Hessian, {SAMPLED}"
    return "closed form of a linear head at the longest features of a sample, rounded up to one digit"


def descent_of(problem: Problem, method: Rewind, state: State, constants: dict[str, float] | None) -> Descent:
    """What rewind's bound depends on: proved without constants, estimated with them. Raises Refused."""
    if constants is None:
        return method.proved(problem, state)
    convex_loss = head_of(problem) is not None and problem.training.sample_clip is None
    curvature = (0.0 if convex_loss else -constants["L"], constants["L"])
    return method.descent(problem, state, curvature=curvature, gradient_bound=constants["G"])


def constrained_of(constants: dict[str, float], residual: float) -> Constrained:
    """What newton's estimated bound depends on. ``residual``: of the update's last solve."""
    return Constrained(
        radius=constants["C"],
        damping=constants["lambda"],
        smallest_eigenvalue=constants["mu"],
        hessian_lipschitz=constants["M"],
        gradient_norm=constants["G"],
        residual=residual,
    )


def residual_of(evidence: Mapping[str, Json]) -> float:
    """||r|| of the last solve in a Newton update's evidence.

    Where no step was taken, x = 0 stands for the solution of (H + lambda I) x = grad F_D: its residual is the whole
    gradient.
    """
    steps = cast("list[dict[str, float]]", evidence["steps"])
    if not steps:
        return float(cast(float, evidence["gradient_norm"]))
    return float(steps[-1]["residual"]) * float(steps[-1]["gradient_norm"])


def require_useful(
    problem: Problem, method: Method, state: State, cap: float, constants: tuple[Constant, ...]
) -> dict[str, Json]:
    """See to it, before any deletion, that an update of one sample fits under the cap; how many samples do.

    Raises Refused. Nothing here reads a sample but through the constants.
    """
    values = {each.name: each.value for each in constants} or None
    if not isinstance(method, Rewind):
        # An update that arrives without a step leaves up to gradient_norm of residual.
        ball = constrained_of(values or {}, (method.gradient_norm or 0.0) if isinstance(method, Newton) else 0.0)
        bound = ball.require_useful()
        _require_below(cap, 2 * ball.radius, f"any two models in the ball of radius {ball.radius:g}")
        if bound > cap:
            raise Refused(f"The bound {bound:.3g} is above max_distance {cap:g}.", RAISE)
        return {"bound": bound}
    descent = descent_of(problem, method, state, values)
    first = replace(descent, forgotten=1).require_useful()
    _require_below(cap, replace(descent, forgotten=1).ignorance(), "the trainings on any two data sets")
    if first > cap:
        raise Refused(f"The bound for one forgotten sample is {first:.3g}, above max_distance {cap:g}.", RAISE)
    return {"bound_of_one_sample": first, "samples_within_cap": _most(descent, cap)}


def _require_below(cap: float, ignorance: float, which: str) -> None:
    if cap >= ignorance:
        raise Refused(
            f"max_distance {cap:g} is vacuous: {which} end within {ignorance:.3g} of each other, whoever was "
            f"forgotten.",
            "Lower max_distance, and noise_std with it.",
        )


def _most(descent: Descent, cap: float) -> int:
    """The most samples in all whose bound is at most the cap: it grows with their number."""
    low, high = 1, descent.samples - 1
    while low < high:
        middle = (low + high + 1) // 2
        if replace(descent, forgotten=middle).distance() <= cap:
            low = middle
        else:
            high = middle - 1
    return low


def _newton_constants(work: Problem, method: Newton, examples: Examples, state: State) -> tuple[Constant, ...]:
    assert method.radius is not None  # noqa: S101 (guarantee_of refused that)
    smallest, rough, gradient = constrained.measured(work, examples, state.weights.to(work.device), method.radius)
    return (
        Constant("C", method.radius, "option radius: both models are taken to lie in this ball"),
        Constant("lambda", method.damping, "option damping"),
        Constant("mu", smallest, f"least eigenvalue of the objective's Hessian in the ball, {SAMPLED}"),
        Constant("M", rough, f"Lipschitz constant of the Hessian in the ball, {SAMPLED}"),
        Constant(
            "G",
            gradient,
            "gradient norm that the training left on everyone, rounded up to one digit; a "
            "retraining is taken to leave no more",
        ),
    )


def _require_possible(asked: Guarantee, policy: Policy, problem: Problem, method: Method, why: Refused | None) -> None:
    if asked is Guarantee.EXACT:
        raise Refused(f"{policy.method} is never exact: it starts from the trained weights.", "Use retrain.")
    if asked is Guarantee.PROVED and why is not None:
        raise Refused(f"{policy.method} on this model has no proof. {why.what}", why.hint)
    if asked is Guarantee.ESTIMATED:
        _require_estimable(policy, method)
    if asked is Guarantee.CALIBRATED:
        _require_drawable(policy, problem, method)


def _require_estimable(policy: Policy, method: Method) -> None:
    if policy.method not in ESTIMATED_METHODS:
        raise Refused(
            f"{policy.method} has no bound whose constants could be estimated.",
            f"Choose {_either(ESTIMATED_METHODS)}, or the guarantee calibrated.",
        )
    if isinstance(method, Newton) and method.radius is None:
        raise Refused(
            "newton's estimated bound holds in a ball, and the option radius is not set.",
            "Set radius to a norm that neither the trained nor a retrained model exceeds.",
        )


def _require_drawable(policy: Policy, problem: Problem, method: Method) -> None:
    if Need.VECTORS in method.needs:
        raise Refused(
            f"calibrated assumes that it does not matter how updates are cut, and with repair {policy.method} trains "
            "on at each of them.",
            "Leave repair_epochs out, or ask for the guarantee none.",
        )
    if policy.granularity is not Granularity.SUBJECT:
        raise Refused(
            "calibrated draws orders over people, and this policy forgets samples.", "Set granularity subject."
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


def _unproved(problem: Problem, method: Method) -> Refused | None:
    """Why nothing can be proved about this problem; None where it can."""
    try:
        if isinstance(method, Rewind):
            return _unproved_descent(problem, method)
        convex.require_strongly_convex(problem)
    except Refused as why:
        return why
    if problem.training.converge is None:
        return Refused("The training does not end in the minimiser.", "Set Training.converge, for example to 1e-8.")
    return None


def _unproved_descent(problem: Problem, method: Rewind) -> Refused | None:
    if method.feature_norm is None:
        return Refused("No bound of the features' norm is declared.", "Set the method's option feature_norm.")
    if method.source != "checkpoint" or problem.recipe.weights is not None:
        return Refused("The proof needs this recipe's own checkpoint.", "Train here, with source=checkpoint.")
    size, count = problem.training.batch_size, len(problem.recipe.samples.ids)
    if size is not None and size < count:
        return Refused("The bound holds for full-batch gradient descent.", "Train without batch_size.")
    proved_constants(problem, method.feature_norm)
    return None


def _without_trajectory() -> list[str]:
    built = {name: import_module(f"unlearning.methods.{name}").METHOD() for name in NAMES}
    needless = [name for name, method in built.items() if Need.TRAJECTORY not in method.needs]
    return [name for name in needless if name != "recollection"]  # its trajectory form needs one to prepare


def _either(names: list[str] | tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _doubling(largest: int) -> tuple[int, ...]:
    """1, 2, 4, ... and the largest itself."""
    sizes = [1]
    while sizes[-1] * 2 <= largest:
        sizes.append(sizes[-1] * 2)
    return tuple(sizes) if sizes[-1] == largest else (*sizes, largest)
