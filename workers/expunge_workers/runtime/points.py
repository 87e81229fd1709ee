"""Points that an interrupted part goes on from: the recipe's code offers them, and its worker takes them.

Between the two lies a file in memory for each process of the part, which both have mapped: a header, and behind it the
last point. A process that offers a point waits until it was taken, so that no half of one is ever read.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fcntl import F_ADD_SEALS, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK, fcntl
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load, save
from torch import Tensor

from expunge_workers.runtime import kernel
from expunge_workers.runtime.world import POINT
from unlearning.model.global_state import cards_are_open
from unlearning.types import RecipeError

RESUMED = "resumed "
"""how a file with the last point begins, before the number of a process"""
HEADER = 4096
MOST_BYTES = 1 << 36
"""of a point (64 GiB); the file takes what is written of it"""
LEAVE_SECONDS = 6.0
"""that a part which offered points before may take to the next one, once its worker is to stop"""
PAUSE_SECONDS = 0.01
CALLS, OFFERED, TAKEN, LENGTH, LEAVE_AT = range(5)
"""numbers of the header: the calls; the points offered, and taken; the bytes of the last; the call to leave at"""
NEVER = 2**63


class PointFile:
    """The file of one process's points, mapped here, and the numbers of its header by their place."""

    def __init__(self, memory: memoryview) -> None:
        self.memory = memory

    def __getitem__(self, number: int) -> int:
        (value,) = struct.unpack_from("<Q", self.memory, 8 * number)
        return int(value)

    def __setitem__(self, number: int, value: int) -> None:
        struct.pack_into("<Q", self.memory, 8 * number, value)


class OwnPoints:
    """The points of the process that trains (``unlearning.rows.TrainingRun``)."""

    def __init__(self, memory: memoryview, last: memoryview | None, seconds: float) -> None:
        self._shared, self._last, self._seconds = PointFile(memory), last, seconds
        self._since = time.monotonic()

    def last(self) -> Any:
        if self._last is None:
            return None
        made, states = _read(self._last)
        _put_back(states)
        return made

    def offer(self, make: Callable[[], Any]) -> None:
        shared = self._shared
        shared[CALLS] += 1
        late = time.monotonic() - self._since >= self._seconds
        if not _agreed(late or shared[CALLS] >= shared[LEAVE_AT]):
            return
        data = _written((make(), _states()))
        if len(data) > MOST_BYTES - HEADER:
            what = f"run.checkpoint was given {len(data):,} bytes, more than {MOST_BYTES - HEADER:,}."
            raise RecipeError(what, "Keep what the rest of the training follows from.")
        shared.memory[HEADER : HEADER + len(data)] = data
        shared[LENGTH] = len(data)
        shared[OFFERED] += 1
        while shared[TAKEN] < shared[OFFERED]:
            time.sleep(PAUSE_SECONDS)
        self._since = time.monotonic()


def _written(value: object) -> bytes:
    """Return tensors and plain values as bytes: the structure as JSON, after its length, and then safetensors."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_plain(value, tensors)).encode()
    return len(text).to_bytes(8, "little") + text + save(tensors)


def _read(data: memoryview) -> Any:
    end = 8 + int.from_bytes(data[:8], "little")
    return _as_it_was(json.loads(bytes(data[8:end])), load(bytes(data[end:])))


def _plain(value: object, tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON has it, and note its tensors. Raises RecipeError where it is of another type."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {"tensor": name}
    if isinstance(value, Mapping):
        return {"dict": [[_plain(key, tensors), _plain(each, tensors)] for key, each in value.items()]}
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [_plain(each, tensors) for each in value]}
    what = f"run.checkpoint was given a {type(value).__name__}, which is neither a tensor nor a plain value."
    raise RecipeError(what, "Give state_dicts, numbers, texts, and lists or dicts of them.")


def _as_it_was(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    match value:
        case {"tensor": name}:
            return tensors[name]
        case {"dict": items}:
            return {_as_it_was(key, tensors): _as_it_was(each, tensors) for key, each in items}
        case {"list": items}:
            return [_as_it_was(each, tensors) for each in items]
        case {"tuple": items}:
            return tuple(_as_it_was(each, tensors) for each in items)
    return value


def _agreed(due: bool) -> bool:
    """Return whether it is time in any process of the part: all of them are at the same call."""
    if not (dist.is_available() and dist.is_initialized()):
        return due
    flag = torch.tensor(int(due), device="cuda" if dist.get_backend() == "nccl" else "cpu")
    dist.all_reduce(flag, dist.ReduceOp.MAX)
    return bool(flag)


def _states() -> dict[str, Any]:
    cards = torch.cuda.get_rng_state_all() if cards_are_open() and torch.cuda.is_available() else []
    name, keys, *rest = np.random.get_state()  # no tensor, and no plain value
    numpy = [str(name), torch.from_numpy(np.asarray(keys).astype(np.int64)), *rest]
    return {"torch": torch.get_rng_state(), "cards": cards, "numpy": numpy, "python": random.getstate()}


def _put_back(states: Mapping[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    if states["cards"]:
        torch.cuda.set_rng_state_all(states["cards"])
    name, keys, *rest = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    random.setstate(states["python"])


class TakenPoints:
    """The worker's side of one part: it takes what all processes of the part have offered.

    Args:
        count: the processes of the part. keep: what becomes of a point, the bytes of each process in order.
        leave_at: the call at which the part is to offer one, None: when it is time.
    """

    def __init__(self, count: int, keep: Callable[[Sequence[bytes]], object], leave_at: int | None = None) -> None:
        self._keep = keep
        self.handles = [os.memfd_create("point", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING) for _ in range(count)]
        self._shared = []
        for handle in self.handles:
            os.ftruncate(handle, MOST_BYTES)
            # The recipe's code may hold the file too: cut short under this process, it would kill it.
            fcntl(handle, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
            shared = PointFile(memoryview(mmap.mmap(handle, MOST_BYTES)))
            shared[LEAVE_AT] = NEVER if leave_at is None else leave_at
            self._shared.append(shared)

    @property
    def files(self) -> dict[str, int]:
        return {f"{POINT}{rank}": handle for rank, handle in enumerate(self.handles)}

    @property
    def calls(self) -> int:
        """How often the first process has looked whether it is to offer one."""
        return self._shared[0][CALLS]

    def look(self) -> bool:
        """Take the point that all have offered, if there is one; return whether there was."""
        number = self._shared[0][TAKEN] + 1
        if any(shared[OFFERED] < number for shared in self._shared):
            return False
        lengths = [min(shared[LENGTH], MOST_BYTES - HEADER) for shared in self._shared]  # the recipe's code wrote it
        ends = [(shared, HEADER + length) for shared, length in zip(self._shared, lengths, strict=True)]
        self._keep([bytes(shared.memory[HEADER:end]) for shared, end in ends])
        for handle, shared in zip(self.handles, self._shared, strict=True):
            kernel.free_memory(handle, HEADER, MOST_BYTES - HEADER)
            shared[TAKEN] = number
        return True

    def leave(self) -> None:
        """Have a part that ever offered points make one more, and take it."""
        deadline = time.monotonic() + (LEAVE_SECONDS if self.calls else 0.0)
        for shared in self._shared:
            shared[LEAVE_AT] = 0
        while time.monotonic() < deadline and not self.look():
            time.sleep(PAUSE_SECONDS)

    def close(self) -> None:
        for handle in self.handles:
            with suppress(OSError):
                os.close(handle)
