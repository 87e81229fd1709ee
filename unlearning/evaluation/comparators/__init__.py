"""The comparators by name: baselines of other papers, measured next to the methods and never offered as one.

A comparator is a frozen dataclass, a concrete subclass of ``unlearning.model.method.Method``, in a file of this folder.
A file may hold several. Registration reads ``unlearning.methods`` and cannot name them.
"""

from __future__ import annotations

from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules

from unlearning.model.method import Method


def kinds() -> dict[str, type[Method]]:
    """Return the class of each comparator by its name, sorted by name."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    found = [kind for module in modules for kind in vars(module).values() if _is_defined_in(kind, module.__name__)]
    return {kind.name: kind for kind in sorted(found, key=lambda kind: kind.name)}


def _is_defined_in(kind: object, module: str) -> bool:
    return isinstance(kind, type) and issubclass(kind, Method) and kind.__module__ == module and not isabstract(kind)
