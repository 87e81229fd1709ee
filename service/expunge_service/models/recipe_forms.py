"""The served models that were registered with a recipe of the old form, which reads everybody's data by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge_service.infra.tables import Generation, Model, Task
from expunge_service.infra.tenants import recipes_of
from expunge_service.models.recipe_files import gets_rows
from expunge_service.models.retirement import SERVED
from expunge_service.models.retrain_plan import is_with_rows
from expunge_service.requests import Reason

NAMED = 20
"""models that a sentence names"""


@dataclass(frozen=True)
class OldForms:
    """Names of served models whose generation had no rows: their recipe read everybody's data by itself.

    Args:
        served: how many models are served.
        unwritten: their recipe is still of the old form, or is not found.
        unported: their recipe was rewritten as one with rows.
        blocked: requests that wait for a port, over all models.
    """

    served: int
    unwritten: Sequence[str]
    unported: Sequence[str]
    blocked: int

    def rewrites(self) -> str:
        """Return the sentences about recipes that are to be rewritten; empty where there is none."""
        if not self.unwritten:
            return ""
        waiting = f"{self._wait(self.unwritten)} for a rewrite of the recipe: {_listed(self.unwritten)}."
        return f"{waiting} They are served, and no deletion is carried out on them until then; docs/rows.md says how."

    def ports(self) -> str:
        """Return the sentences about models that are to be ported; empty where there is none."""
        if not self.unported:
            return ""
        requests = "1 request waits" if self.blocked == 1 else f"{self.blocked} requests wait"
        return (
            f"{self._wait(self.unported)} for a port to the rewritten recipe: {_listed(self.unported)}. {requests} as "
            f"{Reason.RECIPE_FORM}."
        )

    def _wait(self, names: Sequence[str]) -> str:
        return f"{len(names)} of {self.served} models {'waits' if len(names) == 1 else 'wait'}"


def old_forms(session: Session, recipes: Path) -> OldForms:
    """Return the served models of every tenant that were registered with the old form. ``recipes``: EXPUNGE_RECIPES."""
    served = select(Model, Generation.manifest).join(Generation, Generation.id == Model.generation_id)
    models = session.execute(served.where(Model.status.in_(SERVED)).order_by(Model.name)).all()
    old = [model for model, manifest in models if not is_with_rows(manifest)]
    rewritten = {model.id for model in old if gets_rows(recipes_of(recipes, model.tenant_id), model.recipe)}
    blocked = select(func.count(Task.id)).where(Task.status == "blocked", Task.reason == Reason.RECIPE_FORM)
    return OldForms(
        served=len(models),
        unwritten=[model.name for model in old if model.id not in rewritten],
        unported=[model.name for model in old if model.id in rewritten],
        blocked=session.scalar(blocked) or 0,
    )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
