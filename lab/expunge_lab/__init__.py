"""The laboratory. ``from expunge_lab import check, advise`` shows in a notebook what ``expunge check`` prints."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from expunge_lab.notebook import advise as advise
    from expunge_lab.notebook import check as check

__all__ = ["advise", "check"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'expunge_lab' has no attribute {name!r}")
    return getattr(import_module("expunge_lab.notebook"), name)
