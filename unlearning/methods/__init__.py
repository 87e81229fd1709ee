"""The methods by name. Nothing is imported here: the API lists names without loading torch.

A method is one file or one folder. It defines one frozen dataclass, a subclass of ``unlearning.model.method.Method``,
and binds it to ``METHOD``.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

NAMES: tuple[str, ...] = tuple(sorted(module.name for module in iter_modules(__path__)))


def load(name: str) -> Any:
    """Import the method of that name, one of ``NAMES``, and return its class. This loads torch."""
    return import_module(f"unlearning.methods.{name}").METHOD
