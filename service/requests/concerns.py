"""Which models a deletion request is about: those that it names, and those that are registered after it.

A request that names no model is about every model, at any time. Registrations are ordered by the id of their first
generation, which grows with each one: no clock decides who is suppressed.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

from service.infra.tables import Generation, Model
from service.requests.states import Suppress


def concerns(models: Collection[str] | None, suppress_after: int | None, name: str, registration: int) -> bool:
    """Whether a request is about the model of this name and registration.

    Args:
        models: the names that the request is limited to; None: every model.
        suppress_after: registrations above this id are suppressed as well; None: the named models alone.
        name: the model's.
        registration: the id of the model's first generation.
    """
    if models is None or name in models:
        return True
    return suppress_after is not None and registration > suppress_after


def suppressed(models: Collection[str] | None, suppress_after: int | None) -> Suppress:
    """Say in which later registrations such a request keeps the person out."""
    limited = models is not None and suppress_after is None
    return Suppress.NAMED_MODELS if limited else Suppress.EVERYWHERE


def latest_registration(session: Session) -> int:
    """What a request that is taken in now keeps as its ``suppress_after``; 0 where nothing was registered yet."""
    return session.scalar(select(func.max(Generation.id))) or 0


def registration_of(session: Session, generation_id: int) -> int:
    """The id of the first generation of the model that this generation belongs to."""
    model = select(Generation.model_id).where(Generation.id == generation_id).scalar_subquery()
    return session.scalar(select(func.min(Generation.id)).where(Generation.model_id == model)) or generation_id


def registered_after(suppress_after: int) -> Select[str]:
    """The ids of the models that were registered later."""
    return select(Generation.model_id).group_by(Generation.model_id).having(func.min(Generation.id) > suppress_after)


def others(tenant_id: str, names: Collection[str], statuses: Collection[str]) -> Select[Model]:
    """The tenant's models in one of these statuses that a limited request does not name, in id order."""
    theirs = select(Model).where(Model.tenant_id == tenant_id, Model.status.in_(statuses))
    return theirs.where(Model.name.not_in(names)).order_by(Model.id)
