"""Correct a database that was restored from an old backup, from the journal of updates and the exported log.

The budget that was spent and the versions that were published stay so, and people deleted since the backup
stay forgotten. A model or generation that was begun after the backup has left no rows to continue with: such a model
is retired, with the reason, and what is left of it is destroyed once the operator has confirmed the report.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from sqlalchemy import delete, func, or_, select, update
from sqlalchemy.orm import Session

from expunge_service.audit import (
    Export,
    NotAuthentic,
    Signer,
    charge,
    continue_log,
    hand_over,
    handovers,
    record,
    recorded_at,
)
from expunge_service.infra.db import now
from expunge_service.infra.pseudonyms import Pepper, new_id
from expunge_service.infra.tables import (
    ApiKey,
    AuditEntry,
    Certificate,
    DeletionRequest,
    Generation,
    Heartbeat,
    Hold,
    Lease,
    Model,
    Restoration,
    StoredVector,
    SuppressionEntry,
    Task,
    Version,
    WebhookEndpoint,
)
from expunge_service.infra.tenants import DEFAULT_TENANT
from expunge_service.infra.time import SECOND, rfc_3339
from expunge_service.models import (
    PUBLISHED,
    RESTORED,
    SERVED,
    drop_vectors,
    end_retired,
    facts_of,
    has_blocks,
    holds_in,
    marked,
    number_above,
    unconfirmed,
    withdraw,
    write_marked,
)
from expunge_service.queue import (
    JournalEntry,
    erase,
    mark_forgotten,
    note_exhaustion,
    queue_tasks,
    target_of,
)
from expunge_service.requests import (
    Reason,
    Status,
    awaits_decision,
    derive,
    end_hold,
    end_open_tasks,
    held_by,
    outcomes_of,
    positions,
    put_in_force,
    record_status,
    settle,
)
from expunge_workers.scheduler.replay import RestoreReport, Said, follow, to_do
from expunge_workers.storage import Storage, revived

_NOT_IN_THE_TREE = {"id": None, "log_index": None, "leaf_hash": None}
_RETIRED = (
    "The backup is older than what is served of this model, and holds neither its people nor its state. "
    "Register its recipe under another name with --leave-out-forgotten; everybody who asked stays out of it."
)


def restore(storage: Storage, lease_seconds: float, signer: Signer, exports: Sequence[Export] = ()) -> RestoreReport:
    """Reconcile the database with the journal and the exports; from then on it is read-only until confirmed.

    Repeatable. Raises NotAuthentic, Damaged; then no row was changed.
    """
    rotations = handovers(storage.store.folder)
    entries = sorted(storage.journal.entries(), key=lambda each: (each.model_id, each.at, each.spent))
    with storage.database.write() as session:
        _require_quiet(session, lease_seconds)
        said = continue_log(session, exports, signer.verifier, rotations) if exports else []
        last = session.scalar(select(func.max(AuditEntry.created_at)))
        report = RestoreReport(
            unknown_from=None if last is None else rfc_3339(last), unknown_until=rfc_3339(now(session))
        )
        hand_over(session, signer.verifier, rotations)
        report.log_entries = len(said) if exports else None
        published = {body["version"] for body in said if body["kind"] == PUBLISHED}
        new = [entry for entry in entries if not _known(session, entry)]
        settled = [
            (entry, _take_up(session, report, storage.pepper, entry, new=new, published=published)) for entry in new
        ]
        entries += storage.journal.entries(set_aside=True)
        _spend_greatest(session, report, entries)
        follow(session, report, said, storage.pepper)
        _destroy_retired(session, report)
        _restart(session)
        _queue_again(session, report)
        _certify_again(session, new)
        _note_what_may_have_changed(session, report)
        _note_missing_files(session, storage, report)
        report.to_do = to_do(report)
        restoration = _file(session, report)
        number_above(session, restoration, _last_generation(storage, entries, said))
    for entry, adopted in settled:
        storage.journal.settle(entry, adopted=adopted)
    return report


def _note_what_may_have_changed(session: Session, report: RestoreReport) -> None:
    """List the holds, keys and webhooks in force.

    Each may have been ended after the last entry of the log, and others made.
    """
    kept = select(Hold.id).where(Hold.lifted_at.is_(None)).order_by(Hold.id)
    lives = or_(ApiKey.expires_at.is_(None), ApiKey.expires_at > now(session))
    keys = select(ApiKey.id).where(ApiKey.revoked_at.is_(None), lives).order_by(ApiKey.id)
    hooks = select(WebhookEndpoint.id).where(WebhookEndpoint.disabled_at.is_(None)).order_by(WebhookEndpoint.id)
    report.holds_to_check = list(session.scalars(kept))
    report.keys_to_check = list(session.scalars(keys))
    report.webhooks_to_check = list(session.scalars(hooks))


def _note_missing_files(session: Session, storage: Storage, report: RestoreReport) -> None:
    """List the served versions of which the checkpoint or the secret state is in no store: others may have swept it."""
    served = select(Model.name, Version).join(Version, Version.id == Model.current_id)
    for name, version in session.execute(served.where(Model.status.in_(SERVED)).order_by(Model.name)):
        if not (storage.store.holds(version.checkpoint) and storage.private.holds(version.state)):
            report.files_missing.append(f"{name}/{version.number}")


def _last_generation(storage: Storage, entries: Iterable[JournalEntry], said: Iterable[Said]) -> int:
    """Return the largest number of a generation that journal, key store, figures or export know; 0: they know none."""
    told = {body.get("generation") for body in said} | {entry.generation_id for entry in entries}
    numbers = {number for number in told if isinstance(number, int)} | storage.figures.generations()
    return max(storage.keys.last_generation(), *numbers, 0)


def _require_quiet(session: Session, lease_seconds: float) -> None:
    at, span = now(session), int(lease_seconds * SECOND)
    alive = session.scalars(select(Heartbeat.process).where(Heartbeat.beat_at.between(at - span, at + span))).all()
    if alive:
        raise NotAuthentic(
            f"{len(alive)} of the workers and the scheduler sent a heartbeat in the last {lease_seconds:g} s. "
            f"Stop them, wait {lease_seconds:g} s, and run the restore again."
        )


def _known(session: Session, entry: JournalEntry) -> bool:
    return entry.version is not None and session.get(Version, entry.version["id"]) is not None


def _take_up(
    session: Session,
    report: RestoreReport,
    pepper: Pepper,
    entry: JournalEntry,
    *,
    new: Iterable[JournalEntry],
    published: set[str],
) -> bool:
    """Add the entry's version to the database, or note why not. False where no database will know it."""
    if entry.version is None:  # a draw that was withheld: it is in what was spent
        return True
    parents = {other.version["parent_id"] for other in new if other.version}
    if not (entry.committed or entry.version["id"] in published | parents):
        return False  # the transaction was never committed, as far as anybody knows; its charge counts
    model = session.get(Model, entry.model_id)
    if model is not None and _continues(session, model, entry):
        _adopt(session, report, pepper, entry, model, in_log=entry.version["id"] in published)
    elif model is not None:
        _retire(session, report, model)
    elif entry.model_name not in report.retired:  # a model that is gone may have several entries
        report.retired.append(entry.model_name)
    _recover_requests(session, report, entry, known_model=model is not None)
    return model is not None and session.get(Version, entry.version["id"]) is not None


def _continues(session: Session, model: Model, entry: JournalEntry) -> bool:
    """Return whether the version follows the database's current version, in the same generation."""
    generation = session.get(Generation, entry.generation_id)
    same = generation is not None and generation.status == "live" and model.generation_id == generation.id
    return same and entry.version is not None and entry.version["parent_id"] == model.current_id


def _adopt(
    session: Session, report: RestoreReport, pepper: Pepper, entry: JournalEntry, model: Model, *, in_log: bool
) -> None:
    version = revived(Version, entry.version or {})
    assert isinstance(version, Version)  # noqa: S101 (for mypy)
    parent = session.get_one(Version, version.parent_id)
    version.status, version.retired_at, version.purged_at = "current", None, None
    parent.status, parent.retired_at = "retired", version.published_at
    session.add(version)
    model.current_id = version.id
    session.flush()
    _end_holds(session, report, entry, in_log)
    _forget_again(session, pepper, entry, version)
    withdraw(session, Generation.model_id == model.id)
    _spend(session, report, entry.generation_id, entry.budget_cost, version.id)
    report.versions.append(f"{entry.model_name}/{version.number}")
    if not in_log:
        record(
            session,
            entry.tenant_id,
            RESTORED,
            model_id=model.id,
            **facts_of(version, parent, entry.budget_cost),
        )


def _end_holds(session: Session, report: RestoreReport, entry: JournalEntry, in_log: bool) -> None:
    """End the backup's holds on people that the update deleted: they were lifted before it."""
    gone = frozenset(entry.positions)
    for hold_id, kept in held_by(session, entry.tenant_id, entry.generation_id).items():
        if gone.isdisjoint(kept):
            continue
        end_hold(session, session.get_one(Hold, hold_id), entry.at)
        report.reapplied.append(f"hold.lifted {hold_id}")
        if not in_log:
            record(session, entry.tenant_id, "hold.lifted", hold=hold_id, why="a later update shows it")


def _forget_again(session: Session, pepper: Pepper, entry: JournalEntry, version: Version) -> None:
    """Mark what the version lacks, and delete the vectors that the backup restored; their keys are gone."""
    mark_forgotten(session, version, entry.positions)
    if has_blocks(session, entry.generation_id):
        write_marked(session, entry.generation_id, marked(session, pepper, entry.generation_id, entry.positions))
    holders: Iterable[str] = target_of(session, entry.generation_id, entry.positions).holders
    if entry.rewritten:  # the backup's vectors belong to weights of before: none of them may be used
        holders = session.scalars(
            select(StoredVector.holder).where(StoredVector.generation_id == entry.generation_id)
        ).all()
    erase(session, version, entry.generation_id, drop_vectors(session, entry.generation_id, holders))


def _spend(session: Session, report: RestoreReport, generation_id: int, units: int, version_id: str | None) -> None:
    if units:
        charge(session, generation_id, version_id, units)
        report.spent[str(generation_id)] = report.spent.get(str(generation_id), 0) + units


def _retire(session: Session, report: RestoreReport, model: Model) -> None:
    """Retire the model: the version that was served last is not in the backup."""
    if model.status == "retired":
        return
    at = recorded_at(session)
    model.status, model.reason, model.due_at = "retired", _RETIRED, None
    current = session.get(Version, model.current_id) if model.current_id else None
    if current is not None:
        current.status, current.retired_at = "retired", at
    end_open_tasks(session, model.id, Reason.MODEL_RETIRED)
    record(session, model.tenant_id, "model.retired", model_id=model.id, name=model.name, reason="restored")
    report.retired.append(model.name)


def _destroy_retired(session: Session, report: RestoreReport) -> None:
    """Delete the vectors of retired models, and order the destruction of their keys and states, as a retirement does.

    What a legal hold keeps stays: the report names model and hold.
    """
    left = select(Model).join(Generation, Generation.id == Model.generation_id)
    left = left.where(Model.status == "retired", Generation.status != "ended").order_by(Model.name)
    for model in session.scalars(left).all():
        under_hold = holds_in(session, model)
        if under_hold:
            report.kept[model.name] = under_hold
            continue
        why = model.reason
        end_retired(session, model)
        model.reason = why


def _recover_requests(session: Session, report: RestoreReport, entry: JournalEntry, known_model: bool) -> None:
    """Restore the requests that the update carried out, with their suppression entries, as completed."""
    for each in entry.requests:
        known = session.get(DeletionRequest, each["request"]["id"])
        if known is None:
            session.add(revived(DeletionRequest, each["request"] | {"status": "queued", "completed_at": None}))
            session.flush()
            if not _logged(session, each["request"]["id"], "request.accepted"):
                session.add(revived(AuditEntry, each["accepted"] | _NOT_IN_THE_TREE))
            report.requests.append(each["request"]["id"])
        elif awaits_decision(Status(known.status), known.reason) or known.near is not None:
            put_in_force(session, known, entry.at)
            known.reason, known.near, known.others = None, None, each["request"].get("others")
        _recover_entries(session, each["suppressions"])
        if known_model:
            row = each["task"]
            _finish_task(session, row if _known(session, entry) else row | _lost(row, entry))
        session.flush()
        _finish_request(session, session.get_one(DeletionRequest, each["request"]["id"]), entry.at)


def _recover_entries(session: Session, rows: Iterable[dict[str, Any]]) -> None:
    """Add the suppression entries that the database lacks; of a known request, those of right ids named since."""
    for row in rows:
        if session.get(SuppressionEntry, row["id"]) is None:
            session.add(revived(SuppressionEntry, row))


def _lost(task: dict[str, Any], entry: JournalEntry) -> dict[str, Any]:
    """Return the columns of a task with a version that no database will know: carried out, in a retired model."""
    at = task["completed_at"] or entry.at
    return {"status": "completed", "reason": Reason.MODEL_RETIRED, "version_id": None, "completed_at": at}


def _finish_task(session: Session, row: dict[str, Any]) -> None:
    present = session.scalar(select(Task).where(Task.request_id == row["request_id"], Task.model_id == row["model_id"]))
    if present is None:
        session.add(revived(Task, row))
        return
    for name in ("status", "reason", "samples", "method", "version_id", "completed_at"):
        setattr(present, name, row[name])


def _finish_request(session: Session, request: DeletionRequest, at: int) -> None:
    """Complete the request at its old moment, which is that of the last update that carried it out."""
    request.status = derive(session.scalars(select(Task.status).where(Task.request_id == request.id)))
    if request.status == Status.COMPLETED:
        request.reason, request.completed_at = None, max(request.completed_at or 0, at)


def _certify_again(session: Session, new: Iterable[JournalEntry]) -> None:
    """Let the scheduler certify what is completed and was not so in the backup: the certificates are lost with it.

    A completion that is missing in the log, or came to something else there, is recorded now, and the webhooks are
    sent.
    """
    session.flush()
    for request_id in sorted({each["request"]["id"] for entry in new for each in entry.requests}):
        request = session.get(DeletionRequest, request_id)
        if request is None or request.status != Status.COMPLETED:
            continue
        ended = {"completed_at": request.completed_at, "outcome": outcomes_of(session, [request])[request_id]}
        if not _logged(session, request_id, "request.completed", ended):
            record_status(session, request)
        key = {"request_id": request_id, "completed_at": request.completed_at}
        changed = select(Task.id).where(Task.request_id == request_id, Task.version_id.is_not(None)).limit(1)
        if session.scalar(changed) and session.get(Certificate, key) is None:
            session.add(Certificate(**key, tenant_id=request.tenant_id))


def _logged(session: Session, request_id: str, kind: str, facts: Mapping[str, object] = MappingProxyType({})) -> bool:
    """Return whether the log tells this of the request, with these facts: the backup's own entries, and an export's."""
    told = select(AuditEntry.body).where(AuditEntry.request_id == request_id, AuditEntry.kind == kind)
    return any(facts.items() <= json.loads(body).items() for body in session.scalars(told))


def _spend_greatest(session: Session, report: RestoreReport, entries: Sequence[JournalEntry]) -> None:
    """Charge up to the greatest spent of any entry, drafts included: their weights may have been read."""
    for generation_id in sorted({entry.generation_id for entry in entries}):
        generation = session.get(Generation, generation_id, populate_existing=True)
        if generation is None:
            continue
        mine = (generation.id, generation.model_id)  # a restore of an older release gave numbers again
        spent = [entry.spent for entry in entries if (entry.generation_id, entry.model_id) == mine]
        greatest = max(spent, default=0)
        if generation.budget is not None:
            greatest = min(greatest, generation.budget)
        _spend(session, report, generation_id, max(0, greatest - generation.spent), None)


def _restart(session: Session) -> None:
    """End the leases from before the restore; running tasks wait again. No process of before lives."""
    session.execute(delete(Heartbeat))
    session.execute(update(Model).values(notified_at=0))
    session.execute(update(Lease).values(token=0, expires_at=0))
    busy = (Task.status == "running") & (func.coalesce(Task.reason, "") != Reason.AWAITING_CONSUMERS)
    running = session.scalars(select(Task).where(busy)).all()
    for task in running:
        task.status = "queued"
    settle(session, [task.request_id for task in running])


def _queue_again(session: Session, report: RestoreReport) -> None:
    """Queue a task for every suppression entry that names a person of a served generation."""
    at = recorded_at(session)
    for model in session.scalars(select(Model).where(Model.status.in_(("live", "exhausted")))).all():
        named = positions(session, model.tenant_id, model.name, model.generation_id or 0)
        tasks = {task.request_id: task for task in session.scalars(select(Task).where(Task.model_id == model.id))}
        again = [tasks[each] for each in named if each in tasks and tasks[each].status == "completed"]
        for task in again:
            task.status, task.reason, task.completed_at = "queued", None, None
            task.not_before = task.created_at = at
        missing = named.keys() - tasks.keys()
        queue_tasks(session, model, missing)
        settle(session, named)
        report.forgotten_again += sorted({*missing, *(task.request_id for task in again)})
        note_exhaustion(session, model)
        model.due_at = at


def _file(session: Session, report: RestoreReport) -> Restoration:
    waiting = unconfirmed(session)
    if waiting is None:
        waiting = Restoration(id=new_id(), started_at=recorded_at(session), report={})
        session.add(waiting)
    waiting.report = vars(report) | {"before": waiting.report or None}
    counts = {name: len(each) for name, each in vars(report).items() if isinstance(each, list | dict)}
    record(session, DEFAULT_TENANT, "restore.applied", restoration=waiting.id, counts=counts)
    return waiting
