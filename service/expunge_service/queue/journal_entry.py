"""What a publication writes down before it commits, as far as the queue knows it. Workers seal it and store it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from sqlalchemy.orm import Session

from expunge_service.models import Guard
from expunge_service.queue.jobs import Job


@dataclass(frozen=True)
class JournalEntry:
    """One update, or one that was charged and withheld (``version`` None), with its rows as of the commit."""

    name: str
    """of its files in the journal's folder, without their ending"""
    committed: bool
    """whether the transaction is known to have been committed"""
    at: int
    tenant_id: str
    model_id: str
    model_name: str
    generation_id: int
    budget_cost: int
    spent: int
    """of the generation, this charge included"""
    version: dict[str, Any] | None
    rewritten: bool
    """whether the update replaced all remaining vectors"""
    positions: tuple[int, ...]
    """positions that the version forgot in its generation"""
    requests: tuple[dict[str, Any], ...]
    """``request``, ``accepted`` (its audit entry), ``task`` and ``suppressions``: the rows of each request that it
    carried out"""


class UpdateJournal(Protocol):
    """The journal of updates, which a restored backup is compared with."""

    guard: Guard

    def write(
        self,
        session: Session,
        job: Job,
        budget_cost: int,
        version_id: str,
        *,
        positions: Sequence[int],
        rewritten: bool,
    ) -> None: ...
    def write_withheld(self, session: Session, job: Job, budget_cost: int) -> None: ...
    def draft(self, model_id: str, number: int) -> JournalEntry: ...
