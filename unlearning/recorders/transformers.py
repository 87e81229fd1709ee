"""Record a training by ``transformers.Trainer``, for a recipe with ``weights`` and ``trajectory``."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import TrainerCallback

from unlearning.recorders.steps import StepLog, require
from unlearning.types import RecipeError, Trajectory


class TrainerRecorder(TrainerCallback):
    """A callback for ``Trainer``. After ``trainer.train()``, ``trajectory`` is what a recipe is given.

    The model's trained parameters must be those of the recipe's model, in the same order. The trainer's arguments
    must say ``optim="sgd"``, ``max_grad_norm=0`` and ``remove_unused_columns=False``.

    Args:
        column: the column of the training set that holds each sample's place in the recipe's ``samples``. It is taken
            out of the batch before the model sees it.
        every: how many steps lie between two checkpoints of the weights.

    Raises:
        RecipeError: in ``train``: an optimiser other than plain SGD, clipped or accumulated gradients, several
            devices, half precision, a batch without the column.
    """

    def __init__(self, column: str = "position", every: int = 1) -> None:
        self._column = column
        self._steps = StepLog(every)
        self._hook: Any = None
        self.trajectory: Trajectory | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, *, model: nn.Module, **_: Any) -> None:
        require(
            {
                "max_grad_norm": (args.max_grad_norm, (0, None)),
                "gradient_accumulation_steps": (args.gradient_accumulation_steps, (1,)),
                "fp16": (args.fp16, (False,)),
                "bf16": (args.bf16, (False,)),
                "the number of devices": (max(args.n_gpu, args.world_size), (1,)),
            }
        )
        self._hook = model.register_forward_pre_hook(self._take, with_kwargs=True)

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, *, model: nn.Module, optimizer: Any, **_: Any
    ) -> None:
        # accelerate hands over its own wrapper of the optimizer
        self._steps.before_step(model, getattr(optimizer, "optimizer", optimizer))

    def on_train_end(self, args: Any, state: Any, control: Any, *, model: nn.Module, **_: Any) -> None:
        self._hook.remove()
        self.trajectory = self._steps.finish(model)

    def _take(self, module: nn.Module, positional: Any, named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Take the column out of a batch; keep it where the model is in training mode."""
        positions = named.pop(self._column, None)
        if module.training:
            if positions is None:
                raise RecipeError(
                    f"The batch has no column {self._column!r}.",
                    "Add it to the training set, and set remove_unused_columns=False.",
                )
            self._steps.saw(positions)
        return positional, named
