"""What the bits of a training depend on, next to its samples and settings: every distribution, Python, device, threads.

It is recorded with each version. An exact method uses no checkpoint of a training in another environment: it trains the
whole again, so that no version is half of one and half of the other.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distributions
from typing import Any

import torch

import expunge
from expunge_workers.storage.manifest import card_of
from expunge_workers.storage.threads import own_threads

ENVIRONMENT = "environment"
"""the name under which a manifest has that of the worker that began it"""
NAMED = 5
"""of the facts that differ, how many a sentence names"""
DIGITS = 12
"""of a digest that a sentence names"""
OF_THE_MACHINE = frozenset({"python", "device", "card", "cuda", "cudnn", "instructions", "threads"})


@dataclass(frozen=True)
class Environment:
    """``machine``: Python, device, card, instruction set, threads. ``distributions``: the version of each one that this
    process can import, by its normalised name."""

    machine: Mapping[str, str]
    distributions: Mapping[str, str]

    @classmethod
    def of(cls, device: torch.device, threads: str | None = None) -> Environment:
        """Describe this process; ``threads``: those of another process on this machine, in place of this one's."""
        machine = {
            "python": platform.python_version(),
            "device": device.type,
            **card_of(device),
            "instructions": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
            "threads": str(threads or own_threads()),
        }
        return cls(machine, _installed())

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Environment:
        return cls(record["machine"], record["distributions"])

    @classmethod
    def of_manifest(cls, libraries: Mapping[str, str]) -> Environment:
        """Return what a manifest recorded before versions had an environment: a few libraries, Python, the device."""
        machine = {name: value for name, value in libraries.items() if name in OF_THE_MACHINE}
        others = libraries.items() - machine.items()
        rest = {
            normalised(name): value for name, value in others if value != "unknown"
        }  # unknown: it was not installed
        return cls(machine, rest)

    @property
    def digest(self) -> str:
        """Return the SHA-256 of all facts, in hex."""
        return hashlib.sha256(json.dumps(self._facts, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        return {"digest": self.digest, **self._facts}

    @property
    def _facts(self) -> dict[str, Any]:
        return {"machine": {**self.machine}, "distributions": {**self.distributions}}

    def differences(self, earlier: Environment, *, recorded: bool) -> tuple[str, ...]:
        """Return what differs from ``earlier``, as ``torch 2.13.0, now 2.14.0``.

        ``recorded``: of what ``earlier`` recorded alone, as a generation of an earlier release recorded less.
        """
        then = {**earlier.machine, **earlier.distributions}
        now = {**self.machine, **self.distributions}
        names = then if recorded else {**then, **now}
        pairs = ((name, then.get(name, "none"), now.get(name, "none")) for name in sorted(names))
        return tuple(f"{name} {before}, now {here}" for name, before, here in pairs if before != here)


@dataclass(frozen=True)
class Moved:
    """The environment of an update is not that of the version before it."""

    here: Environment
    earlier: Environment
    differences: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """Name both environments, and the first of what differs."""
        shown = "; ".join(self.differences[:NAMED])
        more = len(self.differences) - NAMED
        rest = f"; and {more} more" if more > 0 else ""
        return (
            f"The whole of it was trained in the environment {self.here.digest[:DIGITS]}. The version before it was "
            f"trained in {self.earlier.digest[:DIGITS]}, and nothing of its training was used again: {shown}{rest}."
        )


def moved(here: Environment, version: Mapping[str, Any] | None, libraries: Mapping[str, str]) -> Moved | None:
    """Return how ``here`` differs from the environment of a version; None: it does not.

    ``version`` is what the version recorded. Where an earlier release published it, that is None, and what the
    generation's manifest recorded in ``libraries`` is compared.
    """
    earlier = Environment.of_manifest(libraries) if version is None else Environment.from_json(version)
    differences = here.differences(earlier, recorded=version is None)
    return Moved(here, earlier, differences) if differences else None


def normalised(name: str) -> str:
    """Return a distribution's name as package indexes compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def _installed() -> Mapping[str, str]:
    """Return the version of each distribution that this process can import; of two of one name, the first on the path.

    Asked once, when this module is loaded: a package that is exchanged later is not what this process runs.
    """
    found: dict[str, str] = {}
    for each in distributions():
        found.setdefault(normalised(each.name), each.version)
    return found | {"expunge": expunge.__version__}


_installed()
