"""Changing a model's policy after registration: what may change, and what a change sets going."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from expunge_service.audit import record
from expunge_service.infra.db import now
from expunge_service.infra.tables import Generation, Model, Task
from expunge_service.models.generations import put_in_place
from expunge_service.models.retirement import SERVED
from expunge_service.models.retrain_plan import plan_retrain, schedule_retrain
from expunge_service.requests import FALL_BACK, RETIRE, Reason, RequestRefused, actions, queue_again, reason_of
from unlearning.accounting.policy import GONE, Fallback, Policy, PolicyError

CHANGEABLE = (
    "fallback",
    "batch",
    "retrain_every",
    "place",
    "complete_when",
    "max_accuracy_drop",
    "twins",
)
FIXED = {field.name for field in fields(Policy)}.difference(CHANGEABLE)
_NEW = "Register the recipe under another name to have it otherwise."
_CLAIMED = f"It is fixed at registration, because the claims of the versions depend on it. {_NEW}"


def change_policy(session: Session, model: Model, changes: Mapping[str, Any]) -> bool:
    """Set these fields of the model's policy; return whether work waits now that did not before. Idempotent.

    What was blocked and may go on under the new policy is queued again. An update that is being computed ends under
    the policy that it began with. The caller has locked the model's row.

    Raises:
        RequestRefused: the model is not served (409); a field may not change, or its value is not allowed (422).
    """
    require_changeable(changes)
    if model.status not in SERVED:
        steps = (RETIRE,) if model.status == "preparing" else ()
        what = f"The model is {model.status}: only the policy of a model that is served can change."
        raise RequestRefused(409, "not_served", what, actions=actions(steps, model=[model.name]))
    old = Policy.from_json(model.policy).to_json()
    try:
        new = Policy.from_json(old | dict(changes)).to_json()
    except PolicyError as error:
        errors = [{"pointer": f"/{error.field}", "detail": error.hint}]
        raise RequestRefused(422, "invalid_policy", "The policy cannot be used; see errors.", errors) from None
    changed = {name: new[name] for name in CHANGEABLE if new[name] != old[name]}
    if not changed:
        return False
    apply_policy(session, model, changed)
    record(session, model.tenant_id, "model.policy_changed", model_id=model.id, changed=changed)
    queued = _go_on(session, model, changed)
    session.flush()
    return queued


def apply_policy(session: Session, model: Model, changed: Mapping[str, Any]) -> None:
    """Write these fields into the policy, and what follows from it: the next scheduled retrain, the model's place."""
    model.policy = model.policy | dict(changed)
    if "retrain_every" in changed:
        schedule_retrain(session, model)
    if "place" in changed:
        put_in_place(model, session.get_one(Generation, model.generation_id))


def require_changeable(names: Iterable[str]) -> None:
    """Check that none of these is a field of a policy that stays as registered, or is gone. Raises RequestRefused."""
    require_known(names)
    fixed = sorted(FIXED.intersection(names))
    if fixed:
        errors = [{"pointer": f"/{name}", "detail": _CLAIMED} for name in fixed]
        raise RequestRefused(422, "fixed_at_registration", "These fields cannot change; see errors.", errors)


def require_known(names: Iterable[str]) -> None:
    """Check that none of these is a field of former releases. Raises RequestRefused (422), with the new way."""
    errors = [{"pointer": f"/{name}", "detail": GONE[name]} for name in sorted(GONE.keys() & {*names})]
    if errors:
        raise RequestRefused(422, "invalid_policy", "The policy has fields that are gone; see errors.", errors)


def _go_on(session: Session, model: Model, changed: Mapping[str, Any]) -> bool:
    """Queue the tasks again that the new policy helps, and plan the retrain that is now due.

    Where tasks wait for a batch, a worker reckons again when that is.
    """
    waiting = (Task.status == "blocked") | (Task.reason == Reason.AWAITING_BATCH)
    open_tasks = session.scalars(select(Task).where(Task.model_id == model.id, waiting)).all()
    retrains = changed.get("fallback") == Fallback.RETRAIN
    helped = [task for task in open_tasks if task.status == "blocked" and retrains and _is_helped(task)]
    queue_again(session, helped)
    planned = plan_retrain(session, model)
    batched = "batch" in changed and any(task.reason == Reason.AWAITING_BATCH for task in open_tasks)
    going = bool(helped) or batched or planned is not None
    if going:
        model.due_at = now(session)
    return going


def _is_helped(task: Task) -> bool:
    reason = reason_of(task.reason or "")
    return reason is not None and FALL_BACK in reason.steps
