"""Model and loss on a few samples: what raises there is the recipe's, and what the maths raises later is ours."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from expunge.workers.runtime.failures import may_pass, refusal_of_recipe
from unlearning.model.problem import Problem
from unlearning.types import Examples, RecipeError, Refused

FEW = 8
IGNORED = -100
"""the class that cross entropy leaves out"""


def require_computable(problem: Problem, examples: Examples, recipes: Path) -> None:
    """Compute outputs, losses and their gradient of the first samples, as the built-in training will.

    Raises Refused for what model or loss raise there, RecipeError for a class that the model has no output for.
    """
    if problem.artefact is not None or problem.recipe.train is not None:
        return
    x, y = examples.pick(torch.arange(min(FEW, len(examples))))
    w = problem.initial()
    try:
        with torch.random.fork_rng(devices=[]):
            outputs = problem.outputs(w, x)
            problem.losses(outputs, y)
            problem.gradient(w, x, y)
    except (RecipeError, Refused):
        raise
    except Exception as error:
        if may_pass(error):
            raise
        raise refusal_of_recipe(error, recipes) from None
    if problem.recipe.loss == "cross_entropy" and examples.held:
        _require_classes(problem.apart(examples.targets)[0], outputs)


def _require_classes(targets: Tensor, outputs: Tensor) -> None:
    if targets.dtype.is_floating_point or targets.numel() == 0:
        return
    classes = targets[targets != IGNORED]
    wrong = classes[(classes < 0) | (classes >= outputs.shape[1])]
    if len(wrong):
        what = f"{len(wrong)} targets are no class of the model, such as {int(wrong[0])}"
        raise RecipeError(
            f"{what}; it has {outputs.shape[1]} outputs.",
            "Number the classes from 0, and give the model an output for each.",
        )
