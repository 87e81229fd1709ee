"""The comparators by name: baselines of other papers, measured next to the methods and never offered as one.

A comparator is a frozen dataclass, a concrete subclass of ``unlearning.model.method.Method``, in a file of this folder;
or a public function there whose first parameters are ``problem, w, examples, gone`` (``comparator.StepFunction``). A
file may hold several. Registration reads ``unlearning.methods`` and cannot name them.
"""

from __future__ import annotations

from importlib import import_module
from inspect import isabstract, isfunction, signature
from pkgutil import iter_modules
from types import ModuleType

from expunge_lab.experiment.comparator import STEP_PARAMETERS, stepping
from unlearning.model.method import Method


def kinds() -> dict[str, type[Method]]:
    """Return the class of each comparator by its name, sorted by name."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    found = [kind for module in modules for kind in _in(module)]
    return {kind.name: kind for kind in sorted(found, key=lambda kind: kind.name)}


def _in(module: ModuleType) -> list[type[Method]]:
    own = [value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__]
    classes = [kind for kind in own if isinstance(kind, type) and issubclass(kind, Method) and not isabstract(kind)]
    return classes + [stepping(value.__name__, value) for value in own if _steps(value)]


def _steps(value: object) -> bool:
    if not isfunction(value) or value.__name__.startswith("_"):
        return False
    return tuple(signature(value).parameters)[: len(STEP_PARAMETERS)] == STEP_PARAMETERS
