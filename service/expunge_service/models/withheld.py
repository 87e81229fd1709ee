"""A first version that waits for a decision: it is less accurate than a plain training by more than the policy allows.

The model stays in preparation, and requests that come meanwhile are treated as in any preparation. Its reason begins
with the code ``accuracy_drop``; no worker takes it until a person publishes it anyway. Then it is prepared once more,
without the gate: what was trained for the decision is not kept. Both accuracies were measured on all people, so they
are in the report's file of figures, and in no row.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, func
from sqlalchemy.orm import Session

from expunge_service.audit import record
from expunge_service.infra.db import now
from expunge_service.infra.tables import Generation, Model
from expunge_service.requests import RETIRE, Reason, RequestRefused, actions

ACCEPTED = "accuracy_accepted"
"""in the manifest of a generation that a person publishes at any accuracy"""
_CODE = f"{Reason.ACCURACY_DROP}: "
WITHHELD = (
    f"{_CODE}On the holdout the version to publish is worse than a plain training, by more than the policy allows. "
    "Publish it anyway, or retire the model."
)


def is_withheld(model: Model) -> bool:
    """Return whether the model's first version waits for a decision."""
    return model.status == "preparing" and (model.reason or "").startswith(_CODE)


def prepared_now() -> ColumnElement[bool]:
    """Return the condition that a model is in preparation and waits for no decision."""
    return (Model.status == "preparing") & ~func.coalesce(Model.reason, "").startswith(_CODE)


def publish_anyway(session: Session, model: Model) -> bool:
    """Let workers prepare and publish a withheld first version at any accuracy; return whether that is new.

    The caller has locked the model's row. Raises RequestRefused (409) where nothing waits for the decision.
    """
    generation = session.get(Generation, model.generation_id or 0)
    if model.status == "preparing" and generation is not None and (generation.manifest or {}).get(ACCEPTED):
        return False
    if generation is None or not is_withheld(model):
        what = f"The model is {model.status}: no version of it waits to be published."
        steps = (RETIRE,) if model.status == "preparing" else ()
        raise RequestRefused(409, "not_withheld", what, actions=actions(steps, model=[model.name]))
    generation.manifest = (generation.manifest or {}) | {ACCEPTED: True}
    generation.attempts, generation.phase, generation.progress = 0, None, 0.0
    model.reason, model.due_at, model.notified_at = None, now(session), 0
    record(session, model.tenant_id, "preparation.accepted", model_id=model.id, generation=generation.id)
    session.flush()
    return True
