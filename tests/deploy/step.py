"""A step of the check, what it works on, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tests.deploy.project import Project
from tests.deploy.promises import Promises


class Ending(StrEnum):
    """How a step ended."""

    KEPT = "kept"
    """it ran, and what it asks held"""
    FAILED = "failed"
    LEFT_OUT = "left out"
    """not asked for, or a step that it needs did not run"""
    UNVERIFIED = "unverified here"
    """this machine lacks what it needs"""


class Unverified(Exception):
    """This machine lacks what a step needs; the message says what."""


@dataclass
class Check:
    """What the steps share: the copy of the project, what was acknowledged, and the versions of what ran."""

    compose_command: list[str]
    may_restart_engine: bool = False
    copy: Project | None = None
    made_promises: Promises | None = None
    left_out_services: list[str] = field(default_factory=list)
    """services whose image cannot be had here"""
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def project(self) -> Project:
        assert self.copy is not None, "the step `images` makes the copy of the project"
        return self.copy

    @property
    def promises(self) -> Promises:
        assert self.made_promises is not None, "the step `keys` makes the key"
        return self.made_promises

    def services(self) -> list[str]:
        """Return the services that `docker compose up` starts, without those whose image cannot be had here."""
        listed = self.project.compose("config", "--services").split()
        return [each for each in listed if each not in self.left_out_services]


@dataclass(frozen=True)
class Step:
    """One function, with the sentence that is printed before it and how many seconds it takes about."""

    name: str
    sentence: str
    seconds: int
    run: Callable[[Check], str]
    """returns what was seen, in a sentence; raises AssertionError or Unverified"""
    needs: Sequence[str] = ()
    """steps that must have been kept before it"""
    promises_kept: bool = True
    """after it, no acknowledged request may be lost or doubled, and served versions are verified"""


@dataclass(frozen=True)
class Outcome:
    """How a step ended, after how many seconds, and a sentence: what was seen, or why it failed or was left out."""

    step: str
    ending: Ending
    seconds: float
    said: str
