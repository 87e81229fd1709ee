"""Weights that were trained elsewhere: a whole state_dict, checked against the model that they are loaded into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from unlearning.types import RecipeError

if TYPE_CHECKING:
    from unlearning.model.problem import Problem

SHOWN = 8
"""names that a message lists"""


def load_constants(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Give ``module`` the frozen parameters and the buffers of ``weights``; its trained parameters stay as they are.

    Raises:
        RecipeError: a name of the state_dict is missing, another one is given, a shape differs, a constant holds NaN,
            or two names of one tensor come with different values.
    """
    wanted = module.state_dict(keep_vars=True)
    _require_names(wanted, weights)
    first: dict[int, str] = {}
    with torch.no_grad():
        for name, value in wanted.items():
            given, tied = weights[name], first.setdefault(id(value), name)
            _require_shape(name, value, given)
            if not torch.equal(given, weights[tied]):
                raise RecipeError(
                    f"The weights' {name!r} and {tied!r} differ; the model has one tensor under both names.",
                    "Give weights of this model.",
                )
            if not (isinstance(value, nn.Parameter) and value.requires_grad):
                _require_numbers(name, given)
                value.copy_(given)


def require_same_accuracy(problem: Problem, module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Compare the problem at ``weights`` with a run of ``module``, as the recipe builds it, on the holdout.

    Raises:
        RecipeError: the accuracies differ by more than one sample, and by more than 0.001.
    """
    module.load_state_dict(dict(weights))
    module.to(problem.device)
    dtype = next(value.dtype for value in module.parameters())
    inputs, targets = (part.to(problem.device) for part in problem.recipe.holdout_tensors)
    with torch.no_grad():
        outputs = module(inputs.to(dtype) if inputs.dtype.is_floating_point else inputs)
    given = problem.score(outputs.to(problem.dtype), targets)
    found = problem.accuracy(problem.flatten(weights), inputs, targets)
    if given is None or found is None:
        return  # nothing is measured
    if not abs(given - found) <= max(1 / len(targets), 0.001):
        raise RecipeError(
            f"The given module's accuracy on the holdout is {given:.4f}; with its weights imported, it is {found:.4f}.",
            "Call .eval() on the module in model(), and see that its outputs follow from its state_dict alone.",
        )


def _require_names(wanted: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    missing, unknown = sorted(wanted.keys() - weights.keys()), sorted(weights.keys() - wanted.keys())
    if missing:
        raise RecipeError(
            f"The weights lack {_listed(missing)}.",
            "Give the whole state_dict, buffers (such as running statistics) and tied names included.",
        )
    if unknown:
        raise RecipeError(
            f"The weights name {_listed(unknown)}, which the model does not have.",
            "Give the state_dict of this very model.",
        )


def _require_shape(name: str, wanted: Tensor, given: Tensor) -> None:
    if given.shape != wanted.shape:
        raise RecipeError(
            f"The weights' {name!r} has shape {tuple(given.shape)}; the model's has {tuple(wanted.shape)}.",
            "Give weights of this model.",
        )


def _require_numbers(name: str, given: Tensor) -> None:
    if bool(torch.isnan(given).any()):
        raise RecipeError(f"The weights' {name!r} holds NaN.", "Give weights that were trained to numbers.")


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(map(repr, names[:SHOWN]))}{more}"
