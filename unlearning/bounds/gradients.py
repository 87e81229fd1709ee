"""L and G of every sample's data gradient: in closed form for linear heads, or measured at a few points.

``unlearning.bounds.rewind`` says what they are for. For the claim ``proved`` neither may be measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from unlearning.model.curvature import own_hessian_products
from unlearning.model.linear_head import Head, head_of
from unlearning.model.problem import Problem
from unlearning.types import Examples, Refused

POWER = 20
"""products for the spectral norms of the samples' Hessians"""
TINY = 1e-300
"""below the norm of any product that is not 0"""


def closed_form_smoothness(problem: Problem, feature_norm: float) -> float:
    """Return L of every sample's data gradient for a linear head on features of norm at most ``feature_norm``.

    ||x||^2 / 2 for softmax, ||x||^2 / 4 for logistic regression, ||x||^2 for the squared losses; the constant feature
    of a bias counts. Raises Refused where the model is no linear head.
    """
    return head_required(problem).curve.steepness * feature_norm**2


RESIDUALS = {"cross_entropy": math.sqrt(2), "binary_logistic": 1.0}
"""the longest dl/dz for a target that is one class: two points of the simplex, two numbers in [0, 1]"""


def closed_form_gradient_bound(problem: Problem, feature_norm: float) -> float:
    """Return G of every sample's unclipped data gradient: sqrt(2) ||x|| for softmax, ||x|| for logistic
    regression. Raises Refused where the model is no linear head or the loss another one.
    """
    head_required(problem)
    loss = str(problem.recipe.loss)
    if loss not in RESIDUALS:
        raise Refused(f"The loss {loss} has no bounded gradient.", f"Use one of {', '.join(RESIDUALS)}.")
    return RESIDUALS[loss] * feature_norm


def proved_constants(problem: Problem, feature_norm: float) -> tuple[tuple[float, float], float]:
    """Return the curvature (least, largest) and G, from the model and ``feature_norm`` alone.

    Clipping a scalar residual leaves it increasing in the score, so that one output stays convex; clipped softmax
    gradients are those of no loss. Raises Refused where the model is no linear head, or its loss another one.
    """
    own, clip = closed_form_gradient_bound(problem, feature_norm), problem.training.sample_clip or math.inf
    convex = own <= clip or head_required(problem).layer.out_features == 1
    smoothness = closed_form_smoothness(problem, feature_norm)
    return (0.0 if convex else -smoothness, smoothness), min(own, clip)


def rounding_errors(problem: Problem, samples: int, feature_norm: float, rates: Sequence[float]) -> tuple[float, ...]:
    """Return how far each computed full-batch step of a linear head can end from the exact one, in ``problem``'s dtype.

    With round-off u, R = ``feature_norm``, ||w|| <= W and gamma = 4 (n + d + D + K + 40) u for n samples, d weights, D
    features and K outputs (any order of summation; exp accurate to 4 units in the last place, as in heads):
    scores err by gamma W R, residuals by t = gamma (1 + 2 W R), the data gradient by R t + gamma G, and the step by
    eta (R t + 2 gamma (G + lambda W)) + 4 u W. Clipping projects, which enlarges no error. W_{t+1} = |1 - eta lambda|
    W_t + eta G from ||w_0||.
    """
    layer, bound = head_required(problem).layer, closed_form_gradient_bound(problem, feature_norm)
    unit = torch.finfo(problem.dtype).eps / 2
    gamma = 4 * (samples + problem.dimension + layer.in_features + layer.out_features + 40) * unit
    least, decay, longest = float(problem.decay.min()), float(problem.decay.max()), float(problem.initial().norm())
    errors = []
    for rate in rates:
        residual = gamma * (1 + 2 * longest * feature_norm)
        gradient = feature_norm * residual + 2 * gamma * (bound + decay * longest)
        errors.append(rate * gradient + 4 * unit * longest)
        longest = max(abs(1 - rate * least), abs(1 - rate * decay)) * longest + rate * bound
    return tuple(errors)


ADMITTED = 1 + 1e-6
"""how much longer than declared a sample's features may be: unit vectors in float32 are, by 1e-7"""


def admitted(feature_norm: float) -> float:
    """Return the longest features that ``require_within`` accepts: a bound must cover them. The extra 1e-12 is for
    the rounding of a computed norm."""
    return feature_norm * ADMITTED * (1 + 1e-12)


def require_within(problem: Problem, examples: Examples, feature_norm: float) -> None:
    """Check what the closed forms assume of the data.

    Raises Refused where some sample's features (the constant 1 of a bias included) are longer than ``feature_norm``,
    or a class is given by anything but its index (two classes: 0 or 1).
    """
    targets, weights = problem.apart(examples.targets)
    if weights is not None:
        raise Refused("The gradient's bound holds for samples of weight 1.", "Use newton, or leave the weights out.")
    loss = str(problem.recipe.loss)
    soft = loss == "cross_entropy" and targets.is_floating_point()
    if soft or (loss == "binary_logistic" and not bool(((targets == 0) | (targets == 1)).all())):
        raise Refused("The gradient's bound holds for targets that are one class.", "Give classes as indices.")
    longest = float(head_required(problem).features(examples.inputs).double().norm(dim=1).max())
    if not longest <= feature_norm * ADMITTED:
        raise Refused(
            f"A sample's features have norm {longest:.6g}, above feature_norm = {feature_norm:g}.",
            "Scale every sample's features, or declare a larger feature_norm.",
        )


def measured_constants(problem: Problem, examples: Examples, points: Sequence[Tensor]) -> tuple[float, float]:
    """Measure L and G of a sample's data gradient: the largest spectral norm of its Hessian, the longest gradient.

    The theorem needs every sample's L: the mean's can be n times smaller. For a linear head L is the largest closed
    form ``steepness ||x||^2`` and holds everywhere; for other models it is what power iteration sees at ``points``
    (each (d,)). G is the longest seen at ``points``. What is seen is a lower bound of the truth, which holds over the
    whole path: a claim with it is ``estimated``.
    """
    smoothness = max(_largest_curvature(problem, examples, w) for w in points)
    return smoothness, max(_longest_gradient(problem, examples, w) for w in points)


def _largest_curvature(problem: Problem, examples: Examples, w: Tensor) -> float:
    """Return the largest spectral norm of a sample's data Hessian: closed form, or as power iteration sees it at w."""
    head = head_of(problem)
    if head is not None:
        squares = head.features(examples.inputs).square().sum(dim=1)
        return head.curve.steepness * float((head.curve.weight(examples.targets).to(squares) * squares).max())
    seeded = torch.Generator().manual_seed(problem.training.seed)
    largest = 0.0
    for part in _parts(problem, examples):
        x, y = examples.inputs[part], examples.targets[part]
        vectors = torch.randn(len(x), problem.dimension, generator=seeded, dtype=problem.dtype).to(problem.device)
        norms = vectors.norm(dim=1)
        for _ in range(POWER):
            vectors = own_hessian_products(problem, w, x, y, vectors / norms.clamp(min=TINY).unsqueeze(1))
            norms = vectors.norm(dim=1)
        largest = max(largest, float(norms.max()))
    return largest


def _parts(problem: Problem, examples: Examples) -> Iterator[slice]:
    """Cut the samples so that each part's vectors of length d fit into 2^24 numbers."""
    rows = max(1, 2**24 // problem.dimension)
    return (slice(first, first + rows) for first in range(0, len(examples), rows))


def _longest_gradient(problem: Problem, examples: Examples, w: Tensor) -> float:
    longest = 0.0
    for part in _parts(problem, examples):
        gradients = problem.sample_gradients(w, examples.inputs[part], examples.targets[part])
        longest = max(longest, float(gradients.norm(dim=1).max()))
    return longest


def head_required(problem: Problem) -> Head:
    """Return the problem's linear head. Raises Refused where it has none."""
    head = head_of(problem)
    if head is None:
        raise Refused(
            "This model is no linear head: its gradients have no Lipschitz constant in closed form.",
            "Put a linear head on a frozen backbone, or require no proof.",
        )
    return head
