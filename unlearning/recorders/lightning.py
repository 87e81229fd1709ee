"""Record a training by Lightning, for a recipe with ``weights`` and ``trajectory``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

try:
    from lightning.pytorch import Callback
except ImportError:  # the same library under its older name
    from pytorch_lightning import Callback

from unlearning.recorders.steps import StepLog, require
from unlearning.types import Trajectory


class LightningRecorder(Callback):
    """A callback for Lightning's ``Trainer``. After ``trainer.fit``, ``trajectory`` is what a recipe is given.

    The module's trained parameters must be those of the recipe's model, in the same order.

    Args:
        positions: gives, for a batch, the place of each of its samples in the recipe's ``samples``, (b,): let the
            dataset return each sample's index too.
        every: how many steps lie between two checkpoints of the weights.

    Raises:
        RecipeError: in ``fit``: an optimiser other than plain SGD, clipped or accumulated gradients, several devices,
            a precision other than that of the weights.
    """

    def __init__(self, positions: Callable[[Any], Tensor], every: int = 1) -> None:
        self._positions = positions
        self._steps = StepLog(every)
        self.trajectory: Trajectory | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        require(
            {
                "gradient_clip_val": (trainer.gradient_clip_val, (None, 0)),
                "accumulate_grad_batches": (trainer.accumulate_grad_batches, (1,)),
                "precision": (str(trainer.precision), ("32-true", "64-true")),
                "the number of devices": (trainer.world_size, (1,)),
            }
        )

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._steps.saw(self._positions(batch))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: torch.optim.Optimizer) -> None:
        self._steps.before_step(pl_module, optimizer)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.trajectory = self._steps.finish(pl_module)
