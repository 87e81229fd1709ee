"""Tensors to bytes and back, in the safetensors format, which can run no code."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from unlearning.types import Json, State

FORMAT = "expunge-state-1"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,254}")
_VECTOR_DTYPES = (torch.float32, torch.float64)


class Malformed(ValueError):
    """Tensors or bytes that no checkpoint may hold: which one and why."""


def encode(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    """Return a safetensors file of tensors on any device and of any shape; one that two names share is written twice.

    Raises Malformed for a name or dtype that the format does not carry, and for tensors that overlap.
    """
    parts: dict[str, Tensor] = {}
    memory: set[int] = set()
    for name in sorted(tensors):
        part = tensors[name].detach().cpu().contiguous()
        parts[name] = part.clone() if part.data_ptr() in memory else part
        memory.add(part.data_ptr())
    try:
        return save(parts, dict(metadata))
    except (SafetensorError, KeyError, RuntimeError) as error:
        raise Malformed(f"The tensors cannot be stored as safetensors: {error}") from None


def decode(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors of a safetensors file, on the CPU, and its metadata. Raises Malformed."""
    try:
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")], object_pairs_hook=_without_duplicates)
    except Malformed:
        raise
    except (SafetensorError, ValueError, KeyError, TypeError, AssertionError, RuntimeError, OverflowError) as error:
        raise Malformed(f"The file is not safetensors: {type(error).__name__}: {error}") from None
    return tensors, header.get("__metadata__", {})


def admit(tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights that no checkpoint may carry: NaN or infinity, no tensor, an odd name. Raises Malformed."""
    for name, tensor in tensors.items():
        if not NAME.fullmatch(name):
            raise Malformed(f"the tensor name {name[:60]!r} is not allowed")
        if tensor.numel() == 0:
            raise Malformed(f"tensor {name} is empty")
        if tensor.dtype.is_floating_point and not all(map(torch.isfinite, torch.aminmax(tensor))):
            raise Malformed(f"tensor {name} holds NaN or infinity")


def encode_state(state: State, evidence: Mapping[str, Json]) -> bytes:
    """Return what a method keeps, and the evidence of the update, as one file. Vectors are not in it: they are rows."""
    tensors = {"weights": state.weights} | {f"state.{name}": tensor for name, tensor in state.tensors.items()}
    metadata = {"format": FORMAT, "facts": json.dumps(dict(state.facts)), "evidence": json.dumps(dict(evidence))}
    return encode(tensors, metadata)


def decode_state(data: bytes) -> tuple[State, dict[str, Json]]:
    """Return what ``encode_state`` was given. Raises Malformed for anything else, or a format unknown here."""
    tensors, metadata = decode(data)
    if metadata.get("format") != FORMAT:
        raise Malformed(f"the state has format {metadata.get('format')!r}; this worker knows {FORMAT!r}")
    weights, facts, evidence = tensors.pop("weights", None), _json(metadata, "facts"), _json(metadata, "evidence")
    if weights is None or facts is None or evidence is None:
        raise Malformed("the state lacks its weights, its facts or its evidence")
    kept = {name.removeprefix("state."): tensor for name, tensor in tensors.items()}
    return State(weights=weights, tensors=kept, facts=facts), evidence


def pack(vector: Tensor) -> bytes:
    """Return one float32 or float64 tensor as bytes: its kind, its shape (little-endian u32), its numbers."""
    plain = vector.detach().cpu().contiguous()
    kind = _VECTOR_DTYPES.index(plain.dtype)
    return struct.pack(f"<BB{plain.dim()}I", kind, plain.dim(), *plain.shape) + plain.numpy().tobytes()


def unpack(data: bytes) -> Tensor:
    """Return the tensor of ``pack``, on the CPU. Raises Malformed."""
    try:
        kind, dimensions = struct.unpack_from("<BB", data)
        shape = struct.unpack_from(f"<{dimensions}I", data, 2)
        return torch.frombuffer(bytearray(data), dtype=_VECTOR_DTYPES[kind], offset=2 + 4 * dimensions).reshape(shape)
    except (struct.error, IndexError, ValueError, RuntimeError) as error:
        raise Malformed(f"not a packed vector: {type(error).__name__}") from None


def _json(metadata: Mapping[str, str], name: str) -> dict[str, Json] | None:
    """Return what the file says under that name; None where it cannot be read."""
    try:
        found = json.loads(metadata[name])
    except (KeyError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise Malformed("a safetensors header names a tensor twice")
    return dict(pairs)
