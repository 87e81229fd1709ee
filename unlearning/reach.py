"""Find the numbers that an object holds, and those that functions of a recipe's own code refer to.

A tensor need not be an attribute itself: it can lie in a list, in a fitted scaler, in a module that a list hides from
its parent, in a closure, in a global variable that ``forward`` reads, in a class, or in a module of the recipe's
folder. Code of installed libraries is not followed.
"""

from __future__ import annotations

import ast
import dis
import linecache
import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType

import numpy as np
import torch
from torch import Tensor

_PACKAGES = (each for each in sys.path if each.endswith("-packages"))
_LIBRARIES = (sys.prefix, sys.base_prefix, str(Path(__file__).parent), *_PACKAGES)
_WITHOUT_NUMBERS = (str, logging.Logger)
LEAST_BYTES = 256
"""that count as numbers; fewer are a mark, a separator or a name"""
_ROWS = (list, tuple, set, frozenset)
_LEAD_TO: dict[type, tuple[str, ...]] = {
    partial: ("func", "args", "keywords"),
    MethodType: ("__self__", "__func__"),
    property: ("fget",),
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
}
_READS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")


def numbers_in(
    name: str, value: object, seen: dict[int, object], source: str | None = ""
) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and values of all tensors below ``value``; arrays and rows of real numbers as tensors.

    A single number of Python's is a setting, as ``eps`` is; whole numbers and texts are too. Bytes count from
    ``LEAST_BYTES`` on. A dictionary of numbers that a function refers to is a row of them (``TABLE.mean().to_dict()``).
    A row that ``source``, the file of the last function on the way, writes out (``RATES = [0.1, 0.01]``) is code; where
    ``source`` is None, it is yielded too. ``seen`` holds by id what was looked at before, and is added to.
    """
    if id(value) in seen or isinstance(value, _WITHOUT_NUMBERS):
        return
    seen[id(value)] = value
    found = _tensor_of(list(value.values()) if source and isinstance(value, Mapping) else value)
    if found is not None:
        if not source or not _is_written(source, found):
            yield name, found
        return
    if isinstance(value, FunctionType) and source is not None:
        source = value.__code__.co_filename
    for key, each in _below(value, written=source is None):
        yield from numbers_in(f"{name}.{key}", each, seen, source)


def line_of(value: object, path: str) -> str:
    """Return ``line 7 of fit.py``: the last line on the way to what ``numbers_in`` names ``path`` below ``value``.

    Empty where no function leads there.
    """
    place = ""
    while path:
        key, below = next((key, each) for key, each in _below(value) if f"{path}.".startswith(f"{key}."))
        if isinstance(value, FunctionType):
            place = _line_that_reads(value.__code__, str(key).partition(".")[0]) or place
        value, path = below, path.removeprefix(str(key)).removeprefix(".")
    return place


def _line_that_reads(code: CodeType, name: str) -> str:
    line = code.co_firstlineno
    for each in dis.get_instructions(code):
        line = (each.positions and each.positions.lineno) or line  # starts_line is a bool from Python 3.13 on
        if each.opname in _READS and each.argval == name:
            return f"line {line} of {Path(code.co_filename).name}"
    inner = (_line_that_reads(each, name) for each in code.co_consts if isinstance(each, CodeType))
    return next(filter(None, inner), "")


def _tensor_of(value: object) -> Tensor | None:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bytes | bytearray):  # a model of another library, for example
        return torch.frombuffer(bytearray(value), dtype=torch.uint8) if len(value) >= LEAST_BYTES else None
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        return _of_array(np.asarray(value))
    if isinstance(value, _ROWS) and value and all(type(each) in (int, float) for each in value):
        return torch.tensor([float(each) for each in value]).double() if float in map(type, value) else None
    return None


def _of_array(array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> Tensor:
    """Return the array's own memory as a tensor where torch can take it, else a copy."""
    if array.flags.c_contiguous and array.flags.writeable:
        with suppress(TypeError, ValueError):
            return torch.from_numpy(array)
    plain = np.array(array, dtype=array.dtype.newbyteorder("="), order="C")
    try:
        return torch.from_numpy(plain)
    except TypeError:  # torch has no such type: long doubles, for example
        return torch.from_numpy(plain.astype(np.complex128 if plain.dtype.kind == "c" else np.float64))


def _below(value: object, *, written: bool = True) -> Iterator[tuple[object, object]]:
    """Yield what an object holds or refers to, each with a name; also what a module of the folder has ``written``."""
    if isinstance(value, _ROWS):
        yield from enumerate(value)
    elif isinstance(value, Mapping):
        yield from ((key if isinstance(key, str) else place, each) for place, (key, each) in enumerate(value.items()))
    elif isinstance(value, np.ndarray):
        yield from ((name, value[name]) for name in value.dtype.names or ())
        if value.dtype == object:
            yield "items", value.reshape(-1).tolist()
    elif isinstance(value, tuple(_LEAD_TO)):
        names = next(names for kind, names in _LEAD_TO.items() if isinstance(value, kind))
        yield from ((name, getattr(value, name)) for name in names)
    elif isinstance(value, FunctionType):
        yield from _referred(value, written)
    elif isinstance(value, type):
        yield from (each for kind in value.__mro__ if _is_own(kind) for each in vars(kind).items())
    elif not isinstance(value, ModuleType):
        yield from _held(value)


def _held(value: object) -> Iterator[tuple[str, object]]:
    """Yield what an instance holds itself, and what its classes do: their constructors left it behind already."""
    kinds = type(value).__mro__
    yield from ((slot, getattr(value, slot, None)) for kind in kinds for slot in _slots(kind))
    yield from getattr(value, "__dict__", {}).items()
    if hasattr(type(value), "__array__"):  # a table or a column of another library
        with suppress(TypeError, ValueError):
            yield "values", np.asarray(value)
    for kind in kinds:
        if _is_own(kind):
            yield from ((name, each) for name, each in vars(kind).items() if name != "__init__")


def _is_own(kind: type) -> bool:
    """Tell whether a class is of the recipe's own code: modules of its folder are not kept among the loaded ones."""
    module = sys.modules.get(kind.__module__)
    return module is None or _is_own_module(module)


def _is_own_module(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and not file.startswith(_LIBRARIES)


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _referred(function: FunctionType, written: bool) -> Iterator[tuple[str, object]]:
    """Yield the defaults, the closure and the global variables that a function of the recipe's own code reads.

    Of a module in the recipe's folder, what the function names of it.
    """
    code = function.__code__
    if code.co_filename.startswith(_LIBRARIES):
        return
    yield "defaults", function.__defaults__
    yield "keyword defaults", function.__kwdefaults__
    names, attributes = _names_read(code)
    read = {name: function.__globals__.get(name) for name in sorted(names)}
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        with suppress(ValueError):  # a variable that has no value yet
            read[name] = cell.cell_contents
    for name, value in read.items():
        if not isinstance(value, ModuleType):
            yield name, value
        elif _is_own_module(value):
            for attribute in sorted(attributes & set(vars(value))):
                found = _tensor_of(vars(value)[attribute])
                if written or found is None or not _is_written(str(value.__file__), found):
                    yield f"{name}.{attribute}", vars(value)[attribute]


def _names_read(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the names of the global variables, and of all attributes, that this code or a function inside it reads."""
    globals_read, attributes = set(), set()
    for each in dis.get_instructions(code):
        if each.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            globals_read.add(each.argval)
        elif each.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            attributes.add(each.argval)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            more, others = _names_read(inner)
            globals_read |= more
            attributes |= others
    return globals_read, attributes


def _is_written(file: str, found: Tensor) -> bool:
    """Tell whether the source file writes these very numbers out."""
    if found.is_complex():
        return False
    linecache.checkcache(file)
    rows = [each for each in _written("".join(linecache.getlines(file))) if each.shape == found.shape]
    # a row of Python's numbers was taken for float32 on the way
    return any(torch.equal(found.detach().cpu(), one.to(found.dtype)) for each in rows for one in (each, each.float()))


@lru_cache(maxsize=64)
def _written(text: str) -> tuple[Tensor, ...]:
    """Return the rows of numbers that a source writes out, in float64."""
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except SyntaxError:
        return ()
    rows = []
    for each in (row for node in nodes for row in _rows_of(node)):
        with suppress(TypeError, ValueError):  # not written out, or not numbers
            rows.append(torch.tensor([ast.literal_eval(one) for one in each], dtype=torch.float64, device="cpu"))
    return tuple(rows)


def _rows_of(node: ast.AST) -> Iterator[list[ast.expr]]:
    """Yield the rows that a piece of source has: a list's, a dictionary's values, ``dict(a=0.5)``, and defaults."""
    match node:
        case ast.List() | ast.Tuple() | ast.Set():
            yield node.elts
        case ast.Dict():
            yield node.values
        case ast.Call():
            yield [each.value for each in node.keywords]
        case ast.arguments():
            yield node.defaults
            yield [each for each in node.kw_defaults if each is not None]
