"""Tensors <-> bytes: safetensors, and nothing that can run code.

``encode`` writes the format itself, tensor by tensor, and ``decode`` lays its tensors into the bytes it is given: a
large checkpoint is never copied whole, as the safetensors library would do twice. Its tests read our files with it.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from unlearning.types import Json, State

FORMAT = "expunge-state-1"
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.\-]{0,254}")
_VECTOR_DTYPES = (torch.float32, torch.float64)
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


_CODES = {code: dtype for dtype, code in _DTYPES.items()}


class Malformed(ValueError):
    """Tensors or bytes that no checkpoint may hold: which one and why."""


@dataclass(frozen=True)
class _Place:
    """Where a tensor lies, in bytes after the header."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


def encode(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The chunks of a safetensors file: tensors in order of name, on any device and of any shape.

    Raises Malformed for a name or dtype that the format does not carry.
    """
    parts = {name: tensors[name].detach().cpu().contiguous() for name in sorted(tensors)}
    yield _header(parts, metadata)
    for tensor in parts.values():
        if tensor.numel():
            yield tensor.reshape(-1).view(torch.uint8).numpy().data


def decode(data: bytes | bytearray) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors on the CPU, which lie in ``data`` where that can be written to; and the metadata. Raises Malformed."""
    header = _parse_header(data)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise Malformed("not a safetensors file: its metadata are not texts")
    room = data if isinstance(data, bytearray) else bytearray(data)
    body = 8 + int.from_bytes(data[:8], "little")
    places = sorted((_place(name, entry) for name, entry in header.items()), key=lambda place: (place.begin, place.end))
    reached = 0
    for place in places:
        if place.begin != reached:
            raise Malformed("not a safetensors file: its tensors overlap or leave a hole")
        reached = place.end
    if reached != len(room) - body:
        raise Malformed("not a safetensors file: it has another length than its header says")
    return {place.name: _laid(room, body, place) for place in places}, metadata


def admit(tensors: Mapping[str, Tensor]) -> None:
    """Refuse weights that no checkpoint may carry: NaN or infinity, nothing in them, an odd name. Raises Malformed."""
    for name, tensor in tensors.items():
        if not NAME.fullmatch(name):
            raise Malformed(f"the tensor name {name[:60]!r} is not allowed")
        if tensor.numel() == 0:
            raise Malformed(f"tensor {name} is empty")
        if tensor.dtype.is_floating_point and not all(map(torch.isfinite, torch.aminmax(tensor))):
            raise Malformed(f"tensor {name} holds NaN or infinity")


def encode_state(state: State, evidence: Mapping[str, Json]) -> Iterator[bytes | memoryview]:
    """What a method keeps, and the evidence of the update, as one file. Vectors are not in it: they are rows."""
    tensors = {"weights": state.weights} | {f"state.{name}": tensor for name, tensor in state.tensors.items()}
    metadata = {"format": FORMAT, "facts": json.dumps(dict(state.facts)), "evidence": json.dumps(dict(evidence))}
    return encode(tensors, metadata)


def decode_state(data: bytes | bytearray) -> State:
    """The state of ``encode_state``. Raises Malformed for anything else, a format unknown to this worker too."""
    tensors, metadata = decode(data)
    if metadata.get("format") != FORMAT:
        raise Malformed(f"the state has format {metadata.get('format')!r}; this worker knows {FORMAT!r}")
    weights, facts = tensors.pop("weights", None), _facts(metadata)
    if weights is None or facts is None:
        raise Malformed("the state lacks its weights or its facts")
    kept = {name.removeprefix("state."): tensor for name, tensor in tensors.items()}
    return State(weights=weights, tensors=kept, facts=facts)


def pack(vector: Tensor) -> bytes:
    """One float32 or float64 tensor as bytes: its kind, its shape (little-endian u32), its numbers."""
    plain = vector.detach().cpu().contiguous()
    kind = _VECTOR_DTYPES.index(plain.dtype)
    return struct.pack(f"<BB{plain.dim()}I", kind, plain.dim(), *plain.shape) + plain.numpy().tobytes()


def unpack(data: bytes | bytearray) -> Tensor:
    """The tensor of ``pack``; it lies in ``data`` where that can be written to. Raises Malformed."""
    room = data if isinstance(data, bytearray) else bytearray(data)
    try:
        kind, dimensions = struct.unpack_from("<BB", data)
        shape = struct.unpack_from(f"<{dimensions}I", data, 2)
        return torch.frombuffer(room, dtype=_VECTOR_DTYPES[kind], offset=2 + 4 * dimensions).reshape(shape)
    except (struct.error, IndexError, ValueError, RuntimeError) as error:
        raise Malformed(f"not a packed vector: {type(error).__name__}") from None


def unpack_in_pieces(pieces: Iterable[bytes]) -> Iterator[tuple[int, Tensor]]:
    """The numbers of ``pack`` from its bytes in pieces: where each part begins, and the part (k,), flat.

    The first piece holds the shape. Raises Malformed; at the end too, where numbers are missing.
    """
    following = iter(pieces)
    dtype, shape, rest = _opening(next(following, b""))
    start = 0
    for piece in chain((b"",), following):
        room = bytearray(rest + piece)
        count = len(room) // dtype.itemsize
        if count:
            yield start, torch.frombuffer(room, dtype=dtype, count=count)
        start += count
        rest = bytes(room[count * dtype.itemsize :])
    if rest or start != math.prod(shape):
        raise Malformed("not a packed vector: it has another length than its shape")


def _opening(data: bytes) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    """Dtype and shape of a packed vector, and the bytes that follow them."""
    try:
        kind, dimensions = struct.unpack_from("<BB", data)
        shape = struct.unpack_from(f"<{dimensions}I", data, 2)
        return _VECTOR_DTYPES[kind], shape, data[2 + 4 * dimensions :]
    except (struct.error, IndexError) as error:
        raise Malformed(f"not a packed vector: {type(error).__name__}") from None


def _facts(metadata: Mapping[str, str]) -> dict[str, Json] | None:
    """What the state says of itself. None: nothing that can be read."""
    try:
        facts = json.loads(metadata["facts"])
    except (KeyError, ValueError, RecursionError):
        return None
    return facts if isinstance(facts, dict) else None


def _header(parts: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name, tensor in parts.items():
        if tensor.dtype not in _DTYPES or name == "__metadata__":
            raise Malformed(f"tensor {name} of {tensor.dtype} cannot be stored as safetensors")
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _place(name: str, entry: object) -> _Place:
    """Where a header's entry puts its tensor; begin, dtype and shape decide the end. Raises Malformed."""
    match entry:
        case {"dtype": str(code), "shape": list(shape), "data_offsets": [int(begin), int(end)]} if (
            code in _CODES and all(type(each) is int and each >= 0 for each in shape)
        ):
            dtype = _CODES[code]
        case _:
            raise Malformed("not a safetensors file: a tensor of no known form")
    if begin < 0 or end - begin != math.prod(shape) * dtype.itemsize:
        raise Malformed("not a safetensors file: a tensor has another size than its shape")
    return _Place(name, dtype, tuple(shape), begin, end)


def _laid(room: bytearray, body: int, place: _Place) -> Tensor:
    try:
        if place.begin == place.end:
            return torch.empty(place.shape, dtype=place.dtype)
        count = (place.end - place.begin) // place.dtype.itemsize
        flat = torch.frombuffer(room, dtype=place.dtype, count=count, offset=body + place.begin)
        return flat.reshape(place.shape)
    except (RuntimeError, TypeError, ValueError, OverflowError) as error:
        raise Malformed(f"not a safetensors file: {type(error).__name__}") from None


def _parse_header(data: bytes | bytearray) -> dict[str, Any]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise Malformed("not a safetensors file: it is cut short")
    try:
        header = json.loads(data[8 : 8 + length], object_pairs_hook=_without_duplicates)
    except Malformed:
        raise
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not a safetensors file: its header is no JSON ({type(error).__name__})") from None
    if not isinstance(header, dict):
        raise Malformed("not a safetensors file: its header is not an object")
    return header


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise Malformed("a safetensors header names a tensor twice")
    return dict(pairs)
