"""Find the numbers that an object holds, and those that functions of a recipe's own code refer to.

A tensor need not be an attribute itself: it can lie in a list, in a fitted scaler, in a module that a list hides from
its parent, in a closure, or in a global variable that ``forward`` reads. Code of installed libraries is not followed.
"""

from __future__ import annotations

import dis
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType

import numpy as np
import torch
from torch import Tensor

_LIBRARIES = (sys.prefix, sys.base_prefix)
_WITHOUT_NUMBERS = (str, bytes, bytearray, type, ModuleType, logging.Logger)
_ROWS = (list, tuple, set, frozenset)


def numbers_in(name: str, value: object, seen: dict[int, object]) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and values of all tensors below ``value``; arrays and rows of real numbers as tensors.

    A single number of Python's is a setting, as ``eps`` is; whole numbers are too. ``seen`` holds by id what was
    looked at before, and is added to.
    """
    if id(value) in seen or isinstance(value, _WITHOUT_NUMBERS):
        return
    seen[id(value)] = value
    found = _tensor_of(value)
    if found is not None:
        yield name, found
        return
    for key, each in _below(value):
        yield from numbers_in(f"{name}.{key}", each, seen)


def _tensor_of(value: object) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biuf":
        return torch.from_numpy(np.array(value, order="C"))
    if isinstance(value, _ROWS) and value and all(type(each) in (int, float) for each in value):
        return torch.tensor([float(each) for each in value]).double() if float in map(type, value) else None
    return None


def _below(value: object) -> Iterator[tuple[object, object]]:
    """Yield what an object holds or refers to, each with a name."""
    if isinstance(value, _ROWS):
        yield from enumerate(value)
    elif isinstance(value, Mapping):
        yield from ((key if isinstance(key, str) else place, each) for place, (key, each) in enumerate(value.items()))
    elif isinstance(value, np.ndarray) and value.dtype == object:
        yield "items", value.reshape(-1).tolist()
    elif isinstance(value, partial):
        yield from (("func", value.func), ("args", value.args), ("keywords", value.keywords))
    elif isinstance(value, MethodType):
        yield from (("__self__", value.__self__), ("__func__", value.__func__))
    elif isinstance(value, property):
        yield "fget", value.fget
    elif isinstance(value, staticmethod | classmethod):
        yield "__func__", value.__func__
    elif isinstance(value, FunctionType):
        yield from _referred(value)
    else:
        yield from ((slot, getattr(value, slot, None)) for kind in type(value).__mro__ for slot in _slots(kind))
        yield from getattr(value, "__dict__", {}).items()


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _referred(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the defaults, the closure and the global variables that a function of the recipe's own code reads."""
    if function.__code__.co_filename.startswith(_LIBRARIES):
        return
    yield "defaults", function.__defaults__
    yield "keyword defaults", function.__kwdefaults__
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable that has no value yet
            yield name, cell.cell_contents
    for name in sorted(_globals_read(function.__code__)):
        yield name, function.__globals__.get(name)


def _globals_read(code: CodeType) -> set[str]:
    """Return the names of the global variables that this code, or a function inside it, reads."""
    names = {each.argval for each in dis.get_instructions(code) if each.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_globals_read(inner) for inner in code.co_consts if isinstance(inner, CodeType)))
