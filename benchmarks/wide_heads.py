"""A converged head of a million weights: whether it converges, and the Hessian products that it takes.

``python -m benchmarks wide_heads``. Two problems of 100 samples, 1,000,000 features and the logistic loss: features
of one scale, and features whose scales lie between a tenth and ten. A figure is the gradient norm that was reached over
the one that was asked. There is no other side: a minimiser is what the guarantee ``proved`` needs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import nn

from unlearning import Problem, Recipe, Samples, Training
from unlearning.model import convex
from unlearning.model.curvature import Solution, conjugate_gradients

SAMPLES, FEATURES, ASKED = 100, 1_000_000, 1e-10
SCALES = {"features of one scale": 0.0, "features of scales from 0.1 to 10": 1.0}


def rows() -> Iterator[dict[str, Any]]:
    torch.set_num_threads(1)
    for name, spread in SCALES.items():
        problem = problem_of(spread).double()
        examples, products = problem.recipe.samples.examples(), 0

        def counted(*given: Any, **named: Any) -> Solution:
            nonlocal products
            found = conjugate_gradients(*given, **named)
            products += found.iterations
            return found

        start = time.process_time()
        with mock.patch.object(convex, "conjugate_gradients", counted):
            w = convex.converge(problem, problem.initial(), examples, ASKED)
        seconds = time.process_time() - start
        slope = problem.gradient(w, examples.inputs, examples.targets) + problem.decay * w
        reached = float(slope.norm())
        sides = {"products": products, "cpu_seconds": seconds, "gradient_norm": reached, "asked": ASKED}
        sides["bound"] = convex.distance_bound(problem, w, examples)
        yield {
            "name": f"converged head, d = {FEATURES:,}, {name}: gradient norm reached / asked",
            "value": reached / ASKED,
            "target": "<= 1",
            "unit": "ratio",
            "met": reached <= ASKED,
            "sides": sides,
        }


def problem_of(spread: float) -> Problem:
    drawn = torch.Generator().manual_seed(0)
    x = torch.randn(SAMPLES, FEATURES, generator=drawn)
    x *= 10 ** (spread * (2 * torch.rand(FEATURES, generator=drawn) - 1))
    y = (x[:, :100].sum(dim=1) > 0).long()
    names = [f"p{place}" for place in range(SAMPLES)]
    training = Training(epochs=0, weight_decay=1e-3, converge=ASKED)
    samples = Samples(ids=names, subjects=names, inputs=x, targets=y)
    return Problem(
        Recipe(
            model=lambda: nn.Linear(FEATURES, 1, bias=False),
            samples=samples,
            holdout=(x[:8], y[:8]),
            loss="binary_logistic",
            training=training,
        )
    )
