"""What a process takes: the tenants it serves, the places it is, and the memory that it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from sqlalchemy import ColumnElement, Select, and_, func, select, true
from sqlalchemy.orm import Session

from expunge_service.audit import record
from expunge_service.infra.db import NOW, Database
from expunge_service.infra.tables import Heartbeat, Model, Task
from expunge_service.infra.time import ALIVE_SECONDS, SECOND
from expunge_service.models import model_lease
from expunge_service.queue.leases import is_held
from expunge_service.requests import (
    NOT_FOR_AN_UPDATE,
    Reason,
    locked_tasks,
    queue_again,
    settle,
    stored,
)
from unlearning.accounting.policy import Policy

UNTAKEN_SECONDS = 600
"""a deletion that is due for so long while no living process takes its model is blocked: a restart is shorter"""
LARGE_BYTES = 10**8
"""less than this is named in no reason: every machine has it"""
THREADS = "threads"
"""the key beside those of ``Serves``: how many threads the libraries of the process take"""
BROKER_REFUSES = "broker_refuses"
"""the key beside those of ``Serves`` of a worker whose user or password the broker refuses: it gets no message"""
RESTS = "rests"
"""the key beside those of ``Serves`` of a process that takes no work, because an operator asked it to"""
TAKEN = ("preparing", "live", "exhausted")


@dataclass(frozen=True)
class Serves:
    """Of each: None stands for all.

    Args:
        tenants: those that the process works for.
        places: ``any``, the class of its device, and the groups that it belongs to.
        memory: bytes of its device.
    """

    tenants: frozenset[str] | None = None
    places: frozenset[str] | None = None
    memory: int | None = None

    @classmethod
    def from_json(cls, record: Mapping[str, Any] | None) -> Self:
        """Read what ``to_json`` wrote; None: a process of a release before places, which takes every model."""
        if record is None:
            return cls()
        tenants, places = (None if each is None else frozenset(each) for each in (record["tenants"], record["places"]))
        return cls(tenants, places, record["memory"])

    def to_json(self) -> dict[str, Any]:
        names = {"tenants": self.tenants, "places": self.places}
        return {key: None if each is None else sorted(each) for key, each in names.items()} | {"memory": self.memory}

    def where(self, model: type[Model]) -> ColumnElement[bool]:
        """Return the condition that the process takes a model's updates, and the pieces of its preparation."""
        return and_(
            true() if self.tenants is None else model.tenant_id.in_(sorted(self.tenants)),
            true() if self.places is None else model.place.in_(sorted(self.places)),
            true() if self.memory is None else model.memory <= self.memory,
        )

    def takes(self, model: Model) -> bool:
        """Return the same of one model."""
        return self._is_in(model, model.place) and (self.memory is None or model.memory <= self.memory)

    def trains(self, model: Model) -> bool:
        """Return whether the process takes a model's trainings: where its policy says, for each begins anew."""
        return self._is_in(model, Policy.from_json(model.policy).place)

    def _is_in(self, model: Model, place: str) -> bool:
        ours = self.tenants is None or model.tenant_id in self.tenants
        return ours and (self.places is None or place in self.places)


EVERYTHING = Serves()


def beats(within_seconds: float) -> ColumnElement[bool]:
    """Return the condition that a process beat so lately. A beat of the future, by a clock that had jumped ahead, is
    none.
    """
    span = int(within_seconds * SECOND)
    return Heartbeat.beat_at.between(NOW - span, NOW + span)


def living(session: Session) -> list[Serves]:
    """Return what the living workers and updaters take, drained ones too: what waits for these is not blocked."""
    alive = select(Heartbeat.serves).where(Heartbeat.kind.in_(("worker", "updater")), beats(ALIVE_SECONDS))
    return list(dict.fromkeys(map(Serves.from_json, session.scalars(alive))))


def threads_of_workers(session: Session, model: Model) -> frozenset[str]:
    """Return how many threads the living processes take that take the model, as far as they say so."""
    alive = select(Heartbeat.serves).where(
        Heartbeat.kind.in_(("worker", "updater")), Heartbeat.beat_at >= NOW - ALIVE_SECONDS * SECOND
    )
    records = [each for each in session.scalars(alive) if each is not None and Serves.from_json(each).takes(model)]
    return frozenset(record[THREADS] for record in records if THREADS in record)


def others_take(session: Session, model: Model, owner: str) -> bool:
    """Return whether another living worker than ``owner`` takes the model, and is not asked to rest."""
    alive = select(Heartbeat.serves).where(
        Heartbeat.kind == "worker", Heartbeat.process != owner, ~Heartbeat.drained, beats(ALIVE_SECONDS)
    )
    return any(Serves.from_json(each).takes(model) for each in session.scalars(alive))


def untaken(session: Session) -> list[Model]:
    """Return the models that no living process takes, by id; none where no process lives, which is another alarm."""
    alive = living(session)
    if not alive:
        return []
    left = select(Model).where(Model.status.in_(TAKEN), *(~each.where(Model) for each in alive)).order_by(Model.id)
    return [
        model
        for model in session.scalars(left)
        if model.status == "live" or not any(each.trains(model) for each in alive)
    ]


LONG_DUE = (
    Task.status.in_(("queued", "running"))
    & (Task.not_before <= NOW - UNTAKEN_SECONDS * SECOND)
    & func.coalesce(Task.reason, "").not_in(NOT_FOR_AN_UPDATE)
    & select(Model.id)
    .where(Model.id == Task.model_id, Model.status == "live")
    .where(func.coalesce(Model.due_at, 0) <= NOW - UNTAKEN_SECONDS * SECOND, ~is_held(model_lease("") + Model.id, NOW))
    .exists()
)
"""whether a deletion is due for long and no process works on it"""
WITHOUT_WORKER = (Task.status == "blocked") & (Task.reason == Reason.NO_WORKER)


def block_untaken(database: Database) -> int:
    """Block the deletions that are due for long in models that no living process takes; return how many."""
    with database.write() as session:
        models = {model.id: model for model in untaken(session)}
        tasks = locked_tasks(session, LONG_DUE, Task.model_id.in_(models)) if models else ()
        for task in tasks:
            needs = {"needs": needs_of(models[task.model_id])}
            task.status, task.reason, task.facts = "blocked", Reason.NO_WORKER, stored(Reason.NO_WORKER, needs)
            told = {"request_id": task.request_id, "model_id": task.model_id, "reason": Reason.NO_WORKER}
            record(session, task.tenant_id, "update.blocked", **told, **needs)
        settle(session, (task.request_id for task in tasks))
        return len(tasks)


def queue_taken(database: Database) -> int:
    """Queue those tasks again that a living process takes by now; return how many."""
    with database.write() as session:
        taken = [model_id for each in living(session) for model_id in session.scalars(_blocked(each))]
        tasks = locked_tasks(session, WITHOUT_WORKER, Task.model_id.in_(taken)) if taken else ()
        for task in tasks:
            told = {"request_id": task.request_id, "why": "worker_started"}
            record(session, task.tenant_id, "request.retried", **told)
        queue_again(session, tasks)
        return len(tasks)


def needs_of(model: Model) -> str:
    """Return what a worker must have to take the model, as the reason says it."""
    large = model.memory >= LARGE_BYTES
    return f"{model.place} and {model.memory / 1e9:.1f} GB" if large else model.place


def _blocked(process: Serves) -> Select[str]:
    """Select the models that the process takes and that have such tasks."""
    return select(Model.id).join(Task, Task.model_id == Model.id).where(WITHOUT_WORKER, process.where(Model)).distinct()
