"""Run a model in training mode with random masks that are keyed by sample."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from unlearning.model.descent.draws import below, chosen
from unlearning.types import RecipeError

aten = torch.ops.aten
RATES = ("dropout_p", "dropout")
"""what operators that drop out call their rate"""


class Keyed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Answer the random operators of a forward pass over samples with ``keys`` (n,) int64, in the batch's order.

    Every form of dropout, in modules, functions and attention, ends in one of two operators: a mask of booleans, or
    ``native_dropout``. Its first dimension is the batch (or, in attention, n times the heads). Each sample's part of
    the mask follows from its key and from how many masks the pass drew before. Any other operator that draws random
    numbers is refused.

    Raises:
        RecipeError: the model draws other random numbers, or a mask with another first dimension than the batch.
    """

    def __init__(self, keys: Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._keys = keys
        self._drawn = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags or _rate(func, args, given) == 0:
            return func(*args, **given)
        if func is aten.bernoulli_.float:
            return args[0].copy_(self._mask(args[0].shape, args[1] if len(args) > 1 else 0.5))
        if func is aten.native_dropout.default and args[2] is not False:
            mask = self._mask(args[0].shape, 1.0 - args[1]).to(args[0].device)
            return args[0] * mask / (1.0 - args[1]), mask
        raise RecipeError(
            f"The model draws random numbers by {func} in training, and they cannot be keyed by sample.",
            "Use torch.nn.Dropout or Training.augment, or give train, a function that trains the model.",
        )

    def _mask(self, shape: torch.Size, share: float) -> Tensor:
        """Return booleans of this shape, each true with chance ``share``."""
        rows = len(self._keys)
        if len(shape) == 0 or shape[0] % rows:
            raise RecipeError(
                f"Dropout meets a tensor of shape {tuple(shape)} in a batch of {rows} samples: no row of a sample.",
                "Put the batch first (batch_first=True), or give train, a function that trains the model.",
            )
        keys = below(self._keys, self._drawn)
        self._drawn += 1
        return chosen(keys, shape.numel() // rows, share).reshape(shape)


def _rate(func: Any, args: Sequence[Any], given: Mapping[str, Any]) -> float | None:
    """Return the rate at which an operator drops out as one of several things that it does; None: no such operator."""
    for place, argument in enumerate(func._schema.arguments):
        if argument.name in RATES:
            named = given.get(argument.name, argument.default_value)
            rate: float = args[place] if place < len(args) else named
            return rate
    return None
