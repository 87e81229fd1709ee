"""What a training left, and what it needs to go on: weights, and an optimiser's state without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from unlearning.types import Json


@dataclass(frozen=True)
class Fitted:
    """What a training leaves: the weights (d,), and what its optimiser needs to go on, as ``packed`` writes it."""

    weights: Tensor
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    facts: Json = None


def packed(value: object) -> tuple[dict[str, Tensor], Json]:
    """Take a nested value apart into tensors by name and JSON: dicts, lists, tuples, tensors, numbers, text, None.

    Raises:
        TypeError: it holds something else. It is never pickled.
    """
    tensors: dict[str, Tensor] = {}

    def pack(value: object, path: str) -> Json:
        match value:
            case Tensor() if value.layout is torch.strided and not (value.is_meta or value.is_quantized):
                name = str(len(tensors))
                tensors[name] = value.detach().cpu().clone()
                return {"tensor": name}
            case dict():
                return {"dict": [[pack(key, path), pack(each, f"{path}[{key!r}]")] for key, each in value.items()]}
            case list() | tuple():
                parts: list[Json] = [pack(each, f"{path}[{place}]") for place, each in enumerate(value)]
                return {"list" if isinstance(value, list) else "tuple": parts}
            case None | bool() | int() | str():
                return {"plain": value}
            case float():
                return {"float": value.hex()}
        raise TypeError(f"an optimiser's state has a {type(value).__name__} at {path}")

    return tensors, pack(value, "the state")


def unpacked(tensors: Mapping[str, Tensor], facts: Any) -> Any:
    """Return the value that ``packed`` took apart."""
    ((kind, held),) = facts.items()
    match kind:
        case "tensor":
            return tensors[held].clone()
        case "dict":
            return {unpacked(tensors, key): unpacked(tensors, each) for key, each in held}
        case "list":
            return [unpacked(tensors, each) for each in held]
        case "tuple":
            return tuple(unpacked(tensors, each) for each in held)
        case "float":
            return float.fromhex(held)
    return held
