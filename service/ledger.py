"""The two append-only ledgers: the audit log, and the privacy budget."""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import or_, update
from sqlalchemy.orm import Session

from service.db import now
from service.identity import new_id
from service.records import AuditEntry, BudgetEntry, Lineage


class Overspent(RuntimeError):
    """The charge does not fit into what is left of the lineage's budget. Nothing was charged."""


def canonical(facts: dict[str, Any]) -> str:
    """JSON with sorted keys, no spaces, ASCII only: one text for one meaning. Refuses NaN and infinities."""
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)


def record(
    session: Session,
    tenant_id: str,
    kind: str,
    *,
    request_id: str | None = None,
    model_id: str | None = None,
    **facts: Any,
) -> None:
    """Append an audit entry in the transaction of what it records. Its place in the log is given later.

    ``facts`` are JSON values; whoever they concern appears by keyed digest only, never by name.
    """
    at = now(session)
    names = {"entry": new_id(), "at": at, "kind": kind, "tenant": tenant_id, "request": request_id, "model": model_id}
    taken = names.keys() & facts.keys()
    if taken:
        raise ValueError(f"An audit entry sets {sorted(taken)} itself; name the fact otherwise.")
    session.add(
        AuditEntry(
            tenant_id=tenant_id,
            kind=kind,
            request_id=request_id,
            model_id=model_id,
            body=canonical(names | facts),
            created_at=at,
        )
    )


def charge(session: Session, lineage_id: int, version_id: str | None, units: int) -> None:
    """Spend ``units`` (1e-12 mu^2) of the lineage's budget in one conditional update, and write the ledger's entry.

    ``version_id`` None: a draw that was looked at and then held; it is paid for all the same.
    Raises Overspent where it does not fit; reading first and writing then would overspend under contention.
    """
    if units < 0:
        raise ValueError(f"A charge of {units} units would give budget back.")
    spend = (
        update(Lineage)
        .where(Lineage.id == lineage_id)
        .where(or_(Lineage.budget.is_(None), Lineage.spent + units <= Lineage.budget))
        .values(spent=Lineage.spent + units)
        .returning(Lineage.tenant_id)
        .execution_options(synchronize_session=False)
    )
    tenant_id = session.execute(spend).scalar_one_or_none()
    if tenant_id is None:
        raise Overspent(f"A charge of {units} units does not fit into the budget of lineage {lineage_id}.")
    session.add(
        BudgetEntry(
            tenant_id=tenant_id,
            lineage_id=lineage_id,
            version_id=version_id,
            charge=units,
            created_at=now(session),
        )
    )
