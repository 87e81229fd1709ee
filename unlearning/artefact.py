"""A model that is bytes: files of a library, in safe formats, that a recipe published."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from unlearning.formats import FORMATS, format_of
from unlearning.types import RecipeError

ARCHIVE_SUFFIX = "zip"
"""of several files that are published as one; whoever serves them unpacks what ends so"""
SAFE = f"Return a file of one of these formats: {', '.join(FORMATS)}."


@dataclass(frozen=True)
class Artefact:
    """The model of a training that gives bytes. The published file is these bytes.

    Args:
        predict: (data, inputs (n, ...)) -> outputs (n, ...).
        continues: whether the training goes on from the bytes of the phase before, which ``late`` needs.
    """

    predict: Callable[[bytes, Tensor], Tensor]
    continues: bool = False

    HELD: ClassVar[str] = "data"
    """the name of the tensor that holds the bytes inside Expunge"""

    def __call__(self) -> nn.Module:
        """Build the module that answers by ``predict``; it holds no bytes yet."""
        return Bytes(self)


class Bytes(nn.Module):
    """Answers by an artefact's ``predict``; the buffer ``data`` holds the model, uint8 (any length)."""

    data: Tensor

    def __init__(self, artefact: Artefact, data: Tensor | None = None) -> None:
        super().__init__()
        self.artefact = artefact
        self.register_buffer(Artefact.HELD, torch.empty(0, dtype=torch.uint8) if data is None else data)

    def forward(self, x: Tensor) -> Tensor:
        if not len(self.data):
            raise RecipeError("The model holds no byte: it is not trained.", "Train it first.")
        return self.artefact.predict(bytes_of(self.data), x)


def bytes_of(data: Tensor) -> bytes:
    """Return the bytes that a tensor (n,) uint8 holds."""
    return data.detach().cpu().numpy().tobytes()


def tensor_of(data: object, giver: str = "the training") -> Tensor:
    """Return bytes as a tensor (n,) uint8.

    Raises:
        RecipeError: they are no bytes, there is none, or they are of no format that is known to hold no code.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise RecipeError(f"{giver} returned a {type(data).__name__}, and the model is an Artefact.", "Return bytes.")
    plain = bytes(data)
    if not plain:
        raise RecipeError(f"{giver} returned no byte.", "Return the whole model.")
    if format_of(plain) is None:
        what = f"{giver} returned bytes of no format that is known to run no code where it is opened, as pickles do."
        raise RecipeError(what, SAFE)
    return torch.frombuffer(bytearray(plain), dtype=torch.uint8)
