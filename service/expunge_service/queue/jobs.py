"""What a claim returns: everything that the work needs to know, read in the claim's transaction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

from expunge_service.models import retrain_lease
from expunge_service.queue.leases import TakenLease
from unlearning.accounting.policy import Policy


@dataclass(frozen=True)
class Job:
    """What every kind of work knows about its model."""

    lease: TakenLease
    tenant_id: str
    model_name: str
    recipe: str
    policy: Policy
    generation_id: int
    lost_in: str | None = field(default=None, kw_only=True)
    """the last phase of the attempt before this one, where that is known"""

    @property
    def model_id(self) -> str:
        """Return the id of the model."""
        return self.lease.model_id


@dataclass(frozen=True)
class Preparation(Job):
    """A generation to build: a model's first, or a candidate. ``attempt`` counts from 1."""

    attempt: int

    @property
    def retrains(self) -> bool:
        """Return whether it builds a candidate under a second lease, while the served generation stays in use."""
        return self.lease.name == retrain_lease(self.model_id)


@dataclass(frozen=True)
class ClaimedTask:
    """One queued task that this claim took."""

    id: str
    request_id: str
    traceparent: str | None = None
    """W3C trace context of the call that made the request, for the logs"""
    attempts: int = 0
    """those that counted before this claim"""
    group: int = 0
    """the token of the claim before this one; tasks that failed together share it"""


@dataclass(frozen=True)
class Deletions(Job):
    """Deletions to carry out in one update of the version ``current_id``."""

    current_id: str
    tasks: tuple[ClaimedTask, ...]

    @property
    def attempt(self) -> int:
        """Return which attempt it is of the task with the most; it counts from 1."""
        return 1 + max((task.attempts for task in self.tasks), default=0)


Work: TypeAlias = Preparation | Deletions
