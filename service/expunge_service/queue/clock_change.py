"""The database's clock had jumped ahead, and is back: nothing waits for the moments that were written meanwhile.

A lease, a notification and a heartbeat of the future are void where they are read. The other waits are written anew,
once: each is as long as it would be had it begun now.
"""

from __future__ import annotations

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from expunge_service.infra.tables import Model, Task, WebhookDelivery
from expunge_service.infra.time import SECOND
from unlearning.accounting.policy import Policy


def shorten_waits(session: Session, at: int) -> None:
    """Write the waits anew after the clock went back to ``at``, in microseconds since 1970.

    A request that came meanwhile keeps the length of its window. Models are looked at again now: the next claim decides
    how long their batch still is. A pause after a failure ends.
    """
    unfinished = Task.status.in_(("queued", "blocked"))
    came_meanwhile = (Task.created_at > at) & (Task.not_before > at)
    rest_of_window = at + Task.not_before - Task.created_at
    session.execute(update(Task).where(unfinished, came_meanwhile).values(not_before=rest_of_window))
    session.execute(update(Model).where(Model.due_at > at).values(due_at=at))
    for model in session.scalars(select(Model).where(Model.retrain_at > at)).all():
        every = Policy.from_json(model.policy).retrain_every or 0
        model.retrain_at = min(model.retrain_at or at, at + every * SECOND)
    unsent = (WebhookDelivery.delivered_at.is_(None), WebhookDelivery.next_at > at)
    session.execute(update(WebhookDelivery).where(*unsent).values(next_at=at))
