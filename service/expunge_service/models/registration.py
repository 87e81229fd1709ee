"""Registering a model: its row, its first generation, and the audit entry. The worker does the rest."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from expunge_service.audit import record
from expunge_service.infra.db import now
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.tables import Generation, Lease, Model
from expunge_service.models.generations import open_generation
from expunge_service.models.retrain_plan import retrain_lease
from expunge_service.requests import RequestRefused
from unlearning.accounting.policy import Policy

LONGEST_NAME = 63
"""characters of a model's name"""


def register(
    session: Session, tenant_id: str, name: str, recipe: str, policy: Policy, *, leave_out_forgotten: bool = False
) -> Model:
    """Add a model in status ``preparing`` with an empty generation. Raises RequestRefused where the name is taken.

    A model that was refused or cancelled gives its name up, and is kept as ``NAME-refused-N`` or
    ``NAME-cancelled-N``. The recipe is only named here: neither it nor torch is ever loaded by the API. Guarantee,
    charge and budget of the generation are ``none``, 0 and None until preparation, which knows the model, sets them.
    ``leave_out_forgotten``: forgotten people that the recipe still names are left out without a question.
    """
    namesake = session.scalar(_named(tenant_id, name).with_for_update())
    if namesake is not None:
        _give_name_up(session, namesake)
    at = now(session)
    model = Model(
        id=new_id(),
        tenant_id=tenant_id,
        name=name,
        status="preparing",
        recipe=recipe,
        policy=policy.to_json(),
        place=policy.place,
        leave_out_forgotten=leave_out_forgotten,
        created_at=at,
    )
    session.add_all([model, Lease(name=model_lease(model.id)), Lease(name=retrain_lease(model.id))])
    session.flush()
    model.generation_id = open_generation(session, _generation(model, policy, at)).id
    facts: dict[str, Any] = {"name": name, "recipe": recipe, "policy": model.policy}
    facts["leave_out_forgotten"] = leave_out_forgotten
    record(session, tenant_id, "model.registered", model_id=model.id, **facts)
    return model


def model_lease(model_id: str) -> str:
    """Return the name of the lease for a model's preparation and updates."""
    return f"model:{model_id}"


def _named(tenant_id: str, name: str) -> Select[Model]:
    return select(Model).where(Model.tenant_id == tenant_id, Model.name == name)


def _give_name_up(session: Session, model: Model) -> None:
    """Rename a refused or cancelled model, which never had a version. Raises RequestRefused for any other."""
    if model.status not in ("refused", "cancelled"):
        errors = [{"pointer": "/name", "detail": "This name is taken."}]
        raise RequestRefused(409, "model_exists", "There is a model of this name; choose another.", errors)
    old, number = model.name, 1
    while session.scalar(_named(model.tenant_id, name := _former_name(old, model.status, number))) is not None:
        number += 1
    model.name = name
    session.flush()
    record(session, model.tenant_id, "model.renamed", model_id=model.id, name=name, was=old)


def _former_name(name: str, status: str, number: int) -> str:
    suffix = f"-{status}-{number}"
    return name[: LONGEST_NAME - len(suffix)] + suffix


def _generation(model: Model, policy: Policy, at: int) -> Generation:
    return Generation(
        tenant_id=model.tenant_id,
        model_id=model.id,
        status="preparing",
        method=policy.method,
        guarantee="none",
        noise_std=policy.noise_std,
        max_distance=policy.max_distance,
        epsilon=policy.epsilon,
        delta=policy.delta,
        created_at=at,
    )
