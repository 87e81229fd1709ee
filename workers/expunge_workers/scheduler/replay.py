"""Repeat after a restore what the exported log says was done since the backup, and list what cannot be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from expunge_service.audit import NotAuthentic, unseal_hold
from expunge_service.infra.pseudonyms import Pepper
from expunge_service.infra.tables import ApiKey, DeletionRequest, Hold, Model, SuppressionEntry, Task, WebhookEndpoint
from expunge_service.models import CHANGEABLE, SERVED, apply_policy, end_cancelled, end_retired
from expunge_service.requests import (
    NO_WINDOWS,
    Status,
    awaits_decision,
    end_hold,
    enforce,
    entries_digest,
    named_by,
    repeat_denied,
    settle,
)

Said = dict[str, Any]
"""the body of an audit entry"""


@dataclass
class RestoreReport:
    """What a restore did and could not do, for the operator to confirm."""

    versions: list[str] = field(default_factory=list)
    """adopted, as model/number"""
    spent: dict[str, int] = field(default_factory=dict)
    """units added for each generation"""
    requests: list[str] = field(default_factory=list)
    """ids that the backup did not have"""
    forgotten_again: list[str] = field(default_factory=list)
    """requests that were queued again: a version still holds a person they name"""
    retired: list[str] = field(default_factory=list)
    kept: dict[str, list[str]] = field(default_factory=dict)
    """retired models that are not destroyed, because these legal holds keep samples in them"""
    files_missing: list[str] = field(default_factory=list)
    """served versions, as model/number, without their checkpoint or secret state in a store"""
    requests_lost: list[str] = field(default_factory=list)
    """accepted after the backup and known from the log only: the controller must send them again"""
    ids_lost: list[str] = field(default_factory=list)
    """requests whose right id somebody had named since: the log has no ids, so the decision is open again"""
    holds_lost: list[str] = field(default_factory=list)
    """in force and known from the log only, without their subjects: place them again"""
    holds_to_check: list[str] = field(default_factory=list)
    """in force now; whether they were lifted since ``unknown_from`` is not known"""
    keys_lost: list[str] = field(default_factory=list)
    """made after the backup: no hash of them is left, so they do not work"""
    keys_to_check: list[str] = field(default_factory=list)
    """in force now; whether they were revoked or rotated since ``unknown_from`` is not known"""
    webhooks_lost: list[str] = field(default_factory=list)
    """added after the backup: neither their address nor their secret is left"""
    webhooks_to_check: list[str] = field(default_factory=list)
    """live now; whether they were disabled since ``unknown_from`` is not known"""
    reapplied: list[str] = field(default_factory=list)
    """what the log says and was repeated: cancellations, verifications, rejections, lifted suppression entries,
    holds placed and released, keys rotated and revoked, webhooks disabled, models retired and cancelled, policies"""
    replaced: dict[str, str] = field(default_factory=dict)
    """keys that were rotated: the prefix of the old one, by the id of its lost successor"""
    to_do: list[str] = field(default_factory=list)
    """for the operator, in words, before workers are started"""
    log_entries: int | None = None
    """how many were added to the audit log; None: no export was given, and heads signed since contradict the log"""
    unknown_from: str | None = None
    """RFC 3339: the last entry of the log, the export's where one was given. From then until the restore only updates
    and what they carried out are known. None: from the beginning"""
    unknown_until: str = ""


def follow(session: Session, report: RestoreReport, said: Iterable[Said], pepper: Pepper) -> None:
    """Repeat what the log says, in its order. Its entries are in the log already, so none is written."""
    for body in said:
        if body["kind"] in _OF_REQUESTS:
            done = _request(session, report, body, pepper)
        elif body["kind"] == "hold.placed":
            done = _place(session, report, body, pepper)
        else:
            done = body["kind"] in _OF_THE_REST and _OF_THE_REST[body["kind"]](session, report, body)
        if done:
            what = next(body[name] for name in ("hold", "key", "endpoint", "request", "model") if body.get(name))
            report.reapplied.append(f"{body['kind']} {what}")


def _request(session: Session, report: RestoreReport, body: Said, pepper: Pepper) -> bool:
    request = session.get(DeletionRequest, body["request"])
    if request is None:
        if body["kind"] == "request.accepted":
            report.requests_lost.append(body["request"])
        return False
    if awaits_decision(Status(request.status), request.reason):
        return _decide(session, request, body)
    if request.near is not None:
        return _decide_spelling(session, report, request, body)
    if body["kind"] == "request.spelling_confirmed":
        session.flush()
        if entries_digest(pepper, request.id, named_by(session, request)) != body["suppressions"]:
            report.ids_lost.append(request.id)
        return False
    if body["kind"] not in ("request.cancelled", "suppression.lifted"):
        return False
    _lift(session, request, body)
    return True


def _place(session: Session, report: RestoreReport, body: Said, pepper: Pepper) -> bool:
    if session.get(Hold, body["hold"]) is not None:
        return False
    try:
        hold = unseal_hold(pepper, body["tenant"], body["hold"], body["sealed"], body["at"])
    except NotAuthentic:
        report.holds_lost.append(body["hold"])
        return False
    session.add(hold)
    session.flush()
    return True


def _lift_hold(session: Session, report: RestoreReport, body: Said) -> bool:
    report.holds_lost = [hold for hold in report.holds_lost if hold != body["hold"]]
    hold = session.get(Hold, body["hold"])
    if hold is None or hold.lifted_at is not None:
        return False
    session.flush()
    end_hold(session, hold, body["at"])
    return True


def _key_made(session: Session, report: RestoreReport, body: Said) -> bool:
    if session.get(ApiKey, body["key"]) is None:
        report.keys_lost.append(body["key"])
    return False


def _rotate(session: Session, report: RestoreReport, body: Said) -> bool:
    """End the old key when the log says. The hash of its successor is lost."""
    report.keys_lost = [each for each in report.keys_lost if each != body["key"]]
    key = session.get(ApiKey, body["key"])
    if key is None:
        return False
    report.replaced[body["successor"]] = key.prefix
    if key.expires_at is not None and key.expires_at <= body["expires_at"]:
        return False
    key.expires_at = body["expires_at"]
    return True


def _revoke(session: Session, report: RestoreReport, body: Said) -> bool:
    report.keys_lost = [key for key in report.keys_lost if key != body["key"]]
    key = session.get(ApiKey, body["key"])
    if key is None or key.revoked_at is not None:
        return False
    key.revoked_at = body["at"]
    return True


def _webhook_added(session: Session, report: RestoreReport, body: Said) -> bool:
    if session.get(WebhookEndpoint, body["endpoint"]) is None:
        report.webhooks_lost.append(body["endpoint"])
    return False


def _disable(session: Session, report: RestoreReport, body: Said) -> bool:
    report.webhooks_lost = [each for each in report.webhooks_lost if each != body["endpoint"]]
    endpoint = session.get(WebhookEndpoint, body["endpoint"])
    if endpoint is None or endpoint.disabled_at is not None:
        return False
    endpoint.disabled_at = body["at"]
    return True


def _model_ended(session: Session, report: RestoreReport, body: Said) -> bool:  # noqa: ARG001
    """End the model again. What it was made of is destroyed, although the backup shows it."""
    model = session.get(Model, body["model"])
    if model is None or model.status in ("retired", "cancelled") or body.get("reason") == "restored":
        return False
    if body["kind"] == "model.cancelled":
        end_cancelled(session, model)
    else:
        end_retired(session, model)
    return True


def _policy_changed(session: Session, report: RestoreReport, body: Said) -> bool:  # noqa: ARG001
    model = session.get(Model, body["model"])
    if model is None or model.status not in SERVED:
        return False
    known = {name: value for name, value in body["changed"].items() if name in CHANGEABLE}  # a log may be older
    apply_policy(session, model, known)
    return bool(known)


_OF_REQUESTS = (
    "request.accepted",
    "request.verified",
    "request.spelling_confirmed",
    "request.spelling_denied",
    "request.rejected",
    "request.cancelled",
    "suppression.lifted",
)
_OF_THE_REST: dict[str, Callable[[Session, RestoreReport, Said], bool]] = {
    "hold.lifted": _lift_hold,
    "key.created": _key_made,
    "key.rotated": _rotate,
    "key.revoked": _revoke,
    "webhook.added": _webhook_added,
    "webhook.disabled": _disable,
    "model.retired": _model_ended,
    "model.cancelled": _model_ended,
    "model.policy_changed": _policy_changed,
}
"""Each returns whether it changed a row of the backup."""


def _decide(session: Session, request: DeletionRequest, body: dict[str, Any]) -> bool:
    """Decide on a request that is unverified in the backup, as the log says; False where the entry is no decision."""
    if body["kind"] == "request.verified":
        enforce(session, request, NO_WINDOWS)
    elif body["kind"] == "request.rejected":
        request.status, request.reason, request.rejection = Status.REJECTED, None, "repeated from the audit log"
    elif body["kind"] == "request.cancelled":
        request.status, request.reason = Status.CANCELLED, None
    else:
        return False
    session.flush()
    return True


def _decide_spelling(session: Session, report: RestoreReport, request: DeletionRequest, body: dict[str, Any]) -> bool:
    """Decide about the id of a request that waits for that in the backup, as far as the log says."""
    if body["kind"] == "request.spelling_denied":
        repeat_denied(session, request)
    elif body["kind"] == "request.cancelled":
        request.near, request.status, request.reason = None, Status.CANCELLED, None
    else:
        if body["kind"] == "request.spelling_confirmed":
            report.ids_lost.append(body["request"])
        return False
    session.flush()
    return True


def _lift(session: Session, request: DeletionRequest, body: dict[str, Any]) -> None:
    lifted = update(SuppressionEntry).where(
        SuppressionEntry.request_id == request.id, SuppressionEntry.lifted_at.is_(None)
    )
    session.execute(lifted.values(lifted_at=body["at"], lifted_reason="repeated from the audit log"))
    if body["kind"] == "request.cancelled":
        tasks = update(Task).where(Task.request_id == request.id, Task.status.in_(("queued", "running", "blocked")))
        session.execute(tasks.values(status="cancelled", completed_at=body["at"]))
        settle(session, [request.id])


def to_do(report: RestoreReport) -> list[str]:
    """Return what is left for the operator: what is lost, then a sentence or two for each kind of thing in doubt."""
    since = report.unknown_from or "the beginning"
    lost = [_of_lost_key(key, report.replaced.get(key)) for key in report.keys_lost]
    lost += [_of_kept(model, holds) for model, holds in report.kept.items()]
    kinds = (
        (
            report.files_missing,
            "Put the files of the versions under files_missing back from a replica of the stores, or retire these "
            "models with `expunge models retire NAME`: nothing can be downloaded or forgotten in them.",
        ),
        (report.requests_lost, "Ask the controller to send the requests under requests_lost again."),
        (
            report.ids_lost,
            "Name the right id of the requests under ids_lost again, with `expunge requests same-person REQUEST "
            "--subject RIGHT-ID`: the log does not say it. One that does not wait is asked about again where a "
            "registration names the person.",
        ),
        (report.holds_lost, "Place the holds under holds_lost again: the log does not say which person they name."),
        (
            report.webhooks_lost,
            "Add the webhooks under webhooks_lost again with `expunge webhooks add URL`, and give each receiver its "
            "new secret.",
        ),
    )
    return [*lost, *(words for ids, words in kinds if ids), *_in_doubt(since, report.unknown_until)]


def _in_doubt(since: str, until: str) -> list[str]:
    """Return a line for each kind of thing that may have come or ended unseen. No export reaches to the restore."""
    return [
        f"Requests: ask each controller to send again what it sent from {since} to {until}, with withdrawals and "
        "cancellations; `expunge drop match` does so for deletion lists. What is known here is linked, and nobody is "
        "forgotten twice.",
        f"Holds: ask each person who places holds what was placed and lifted since {since}. Place again what is not "
        "here, and end with `expunge holds lift ID` those under holds_to_check that do not apply.",
        f"Keys: one under keys_to_check that was revoked or rotated since {since} works again. End it with "
        "`expunge keys revoke ID`. Keys that were made since do not work: make others.",
        f"Webhooks: one under webhooks_to_check that was disabled since {since} is live again. End it with `expunge "
        "webhooks remove ID` before the scheduler is started, and add again those that were added since.",
    ]


def _of_kept(model: str, holds: list[str]) -> str:
    return (
        f"Model {model} is retired, and its vectors and keys are kept under {', '.join(holds)}. When no legal hold "
        f"keeps them any more, `expunge models retire {model}` destroys them."
    )


def _of_lost_key(key: str, replaced: str | None) -> str:
    again = "Make another with `expunge keys create` and give it to its user."
    if replaced is None:
        return f"Key {key} was made after the backup and does not work. {again}"
    ends = f"Key {replaced} was rotated after the backup and ends as it did then."
    return f"{ends} Its successor {key} does not work. {again}"
