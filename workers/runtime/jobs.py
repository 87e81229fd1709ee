"""What a claim hands out: everything that the work needs to know, read in the claim's transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from unlearning.accounting.policy import Policy
from workers.runtime.lease import Lease


@dataclass(frozen=True)
class Job:
    """What both kinds of work know of their model."""

    lease: Lease
    tenant_id: str
    model_name: str
    recipe: str
    policy: Policy
    generation_id: int

    @property
    def model_id(self) -> str:
        """The model that the work is about."""
        return self.lease.model_id


@dataclass(frozen=True)
class Preparation(Job):
    """A model to be prepared. ``attempt`` counts from 1."""

    attempt: int


@dataclass(frozen=True)
class Retraining(Preparation):
    """A candidate generation to be built while the old one keeps releasing; its lease stands beside the model's own."""


@dataclass(frozen=True)
class Claimed:
    """One queued task that this claim took."""

    id: str
    request_id: str
    traceparent: str | None = None
    """of the call that made the request, for the logs"""


@dataclass(frozen=True)
class Deletions(Job):
    """Deletions to be carried out in one update on top of ``current_id``."""

    current_id: str
    tasks: tuple[Claimed, ...]


Work: TypeAlias = Preparation | Deletions
