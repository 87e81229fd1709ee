"""Where two runs of one training first differ: a byte and its line, a tensor and its element. It names no value."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from unlearning.artefact import bytes_of
from unlearning.model.problem import Slot
from unlearning.model.user_code.own_training import Fitted


def first_difference(one: Fitted, two: Fitted, layout: Sequence[Slot], *, of_bytes: bool) -> str:
    """Return the place in words, such as ``0.weight, element 12 of 48``; empty where the two are the same.

    ``layout`` names the parts of the weights; ``of_bytes``: the weights are the bytes of an artefact.
    """
    if of_bytes:
        return _in_bytes(bytes_of(one.weights), bytes_of(two.weights))
    for slot in layout:
        place = _in_tensor(one.weights[slot.start : slot.stop], two.weights[slot.start : slot.stop])
        if place:
            return f"{slot.name}, {place}"
    if one.facts != two.facts:
        return "what train returned, apart from its tensors"
    for name in sorted(one.tensors, key=int):
        place = _in_tensor(one.tensors[name], two.tensors[name])
        if place:
            return f"tensor {int(name) + 1} of what train returned, {place}"
    return ""


def _in_tensor(one: Tensor, two: Tensor) -> str:
    """Compare the bytes: of two NaN alike no number would tell that they are the same."""
    if (one.shape, one.dtype) != (two.shape, two.dtype):
        return f"of {str(one.dtype).removeprefix('torch.')} {tuple(one.shape)} in one run alone"
    sides = [each.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for each in (one, two)]
    apart = (sides[0] != sides[1]).nonzero()
    return f"element {int(apart[0]) // one.element_size()} of {one.numel()}" if len(apart) else ""


def _in_bytes(one: bytes, two: bytes) -> str:
    shorter = min(len(one), len(two))
    offset = next((place for place in range(shorter) if one[place] != two[place]), shorter)
    if offset == len(one) == len(two):
        return ""
    is_text, line = b"\0" not in one[:offset], one.count(b"\n", 0, offset) + 1
    return f"byte {offset} of {len(one)}" + (f", line {line}" if is_text else "")
