"""What a library's callback tells about each step, made into a trajectory.

A trajectory has one form: plain gradient steps, ``w <- w - rate * (mean data gradient + weight_decay * w)``. What can
be seen to have another one is refused at the first step. When the recipe is registered, the recorded weights are
compared with steps on the recipe's own loss (``unlearning.model.training.verify``).
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from unlearning.model.training import Recorder
from unlearning.types import RecipeError, Trajectory


class StepLog:
    """Collects the steps of one training: ``saw`` each batch, ``before_step``, and ``finish`` after the last.

    Args:
        every: how many steps lie between two checkpoints of the weights.
    """

    def __init__(self, every: int = 1) -> None:
        self._recorder = Recorder(every)
        self._seen: Tensor | None = None

    def saw(self, positions: Tensor) -> None:
        """Keep the positions (b,) of the batch that the next step learns from.

        Raises:
            RecipeError: there was a batch already since the last step.
        """
        if self._seen is not None:
            raise RecipeError("A step learned from two batches.", "Accumulate no gradients: take larger batches.")
        self._seen = positions.reshape(-1).to(dtype=torch.int64)

    def before_step(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Record the weights, the batch and the step size, after the gradients are computed.

        Raises:
            RecipeError: no batch was seen, or the optimiser takes other steps than plain gradient steps.
        """
        if self._seen is None:
            raise RecipeError("A step was taken without a batch.", "Give every batch the positions of its samples.")
        self._recorder.step(flat(module), self._seen, rate_of(optimizer))
        self._seen = None

    def finish(self, module: nn.Module) -> Trajectory:
        """Return the trajectory, which ended in the weights of ``module``."""
        return self._recorder.finish(flat(module))


def flat(module: nn.Module) -> Tensor:
    """Return the trained parameters as one vector (d,), in the order of ``named_parameters``."""
    return torch.cat([value.detach().reshape(-1) for value in module.parameters() if value.requires_grad])


def rate_of(optimizer: torch.optim.Optimizer) -> float:
    """Return the step size of a plain gradient step. Raises RecipeError where the optimiser takes another one."""
    if type(optimizer) is not torch.optim.SGD:
        raise RecipeError(f"The optimizer is {type(optimizer).__name__}.", "Use torch.optim.SGD without momentum.")
    for group in optimizer.param_groups:
        for name in ("momentum", "nesterov", "maximize"):
            if group[name]:
                raise RecipeError(f"The optimizer has {name}={group[name]}.", "Use torch.optim.SGD without it.")
    rates = {float(group["lr"]) for group in optimizer.param_groups}
    if len(rates) != 1:
        raise RecipeError(f"The optimizer has {len(rates)} step sizes at once.", "Use one for all parameters.")
    return rates.pop()


def require(settings: Mapping[str, tuple[object, tuple[object, ...]]]) -> None:
    """Raise RecipeError where a setting, given by name as (value, allowed values), has another value."""
    for name, (value, allowed) in settings.items():
        if value not in allowed:
            raise RecipeError(f"{name} is {value!r}: no plain gradient steps.", f"Set {name} to {allowed[0]!r}.")
