"""The methods by name: the files of this folder, and the entry points ``expunge.methods`` of other packages.

No method is imported here: the API lists names without loading torch. A method of ours is one file or one folder. It
defines one frozen dataclass, a subclass of ``unlearning.model.method.Method``, and binds it to ``METHOD``. The entry
point of a foreign method names its class. A name of ours is never given to a foreign method.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pkgutil import iter_modules
from typing import Any

OWN: tuple[str, ...] = tuple(sorted(module.name for module in iter_modules(__path__)))
FOREIGN: dict[str, EntryPoint] = {
    each.name: each for each in entry_points(group="expunge.methods") if each.name not in OWN
}
NAMES: tuple[str, ...] = (*OWN, *sorted(FOREIGN))


def load(name: str) -> Any:
    """Import the method of that name, one of ``NAMES``, and return its class. This loads torch."""
    return import_module(f"unlearning.methods.{name}").METHOD if name in OWN else FOREIGN[name].load()


def package_of(name: str) -> str | None:
    """Return the distribution and version that a foreign method comes from; None for a method of ours."""
    if name not in FOREIGN:
        return None
    distribution = FOREIGN[name].dist
    return None if distribution is None else f"{distribution.name} {distribution.version}"
