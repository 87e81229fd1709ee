"""Repeat after a restore what the exported log says was done since the backup, and list what cannot be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from service.audit import hold_names as held_names
from service.audit.signed_note import NotAuthentic
from service.infra.pseudonyms import Pepper
from service.infra.tables import ApiKey, DeletionRequest, Hold, Model, SuppressionEntry, Task, WebhookEndpoint
from service.models.policy import apply_policy
from service.models.retire import SERVED, end_cancelled, end_retired
from service.requests import identity_check as verification
from service.requests import legal_holds as holds
from service.requests.intake import AT_ONCE
from service.requests.states import Status, awaits_decision
from service.requests.status import settle

Said = dict[str, Any]
"""the body of an audit entry"""


@dataclass
class RestoreReport:
    """What a restore did and could not do, for the operator who confirms it."""

    versions: list[str] = field(default_factory=list)
    """adopted, as model/number"""
    spent: dict[str, int] = field(default_factory=dict)
    """units added for each generation"""
    requests: list[str] = field(default_factory=list)
    """ids that the backup did not have"""
    forgotten_again: list[str] = field(default_factory=list)
    """requests that were queued again: a version still holds a person they name"""
    retired: list[str] = field(default_factory=list)
    requests_lost: list[str] = field(default_factory=list)
    """accepted after the backup and known from the log only: the controller must send them again"""
    holds_lost: list[str] = field(default_factory=list)
    """in force and known from the log only, which does not say whom they name: place them again"""
    holds_to_check: list[str] = field(default_factory=list)
    """in force in the backup; without an export nobody knows whether they were lifted since"""
    keys_lost: list[str] = field(default_factory=list)
    """made after the backup: no hash of them is left, so they do not work"""
    keys_to_check: list[str] = field(default_factory=list)
    """in force in the backup; without an export nobody knows whether they were revoked or rotated since"""
    webhooks_lost: list[str] = field(default_factory=list)
    """added after the backup: neither their address nor their secret is left"""
    webhooks_to_check: list[str] = field(default_factory=list)
    """live in the backup; without an export nobody knows whether they were disabled since"""
    lists_lost: list[str] = field(default_factory=list)
    """deletion lists that were imported after the backup: whom they name may come back with later data"""
    lists_to_check: list[str] = field(default_factory=list)
    """the newest deletion list of the backup; without an export nobody knows which were imported since"""
    reapplied: list[str] = field(default_factory=list)
    """what the log says and was repeated: cancellations, verifications, rejections, lifted suppression entries,
    holds placed and released, keys rotated and revoked, webhooks disabled, models retired and cancelled, policies"""
    replaced: dict[str, str] = field(default_factory=dict)
    """keys that were rotated: the prefix of the old one, by the id of its lost successor"""
    to_do: list[str] = field(default_factory=list)
    """for the operator, in words, before workers are started"""
    log_entries: int | None = None
    """how many were added to the audit log; None: no export was given, and heads signed since contradict the log"""
    unknown_from: int | None = None
    """microseconds since 1970: from then until the restore, requests that no update carried out may be lost"""
    unknown_until: int = 0


def follow(session: Session, report: RestoreReport, said: Iterable[Said], pepper: Pepper) -> None:
    """Repeat what the log says, in its order. Its entries are in the log already, so none is written."""
    for body in said:
        if body["kind"] in _OF_REQUESTS:
            done = _request(session, report, body)
        elif body["kind"] == "hold.placed":
            done = _place(session, report, body, pepper)
        else:
            done = body["kind"] in _OF_THE_REST and _OF_THE_REST[body["kind"]](session, report, body)
        if done:
            what = next(body[name] for name in ("hold", "key", "endpoint", "request", "model") if body.get(name))
            report.reapplied.append(f"{body['kind']} {what}")


def _request(session: Session, report: RestoreReport, body: Said) -> bool:
    request = session.get(DeletionRequest, body["request"])
    if request is None:
        if body["kind"] == "request.accepted":
            report.requests_lost.append(body["request"])
        return False
    if awaits_decision(Status(request.status), request.reason):
        return _decide(session, request, body)
    if body["kind"] not in ("request.cancelled", "suppression.lifted"):
        return False
    _lift(session, request, body)
    return True


def _place(session: Session, report: RestoreReport, body: Said, pepper: Pepper) -> bool:
    if session.get(Hold, body["hold"]) is not None:
        return False
    try:
        hold = held_names.unseal(pepper, body["tenant"], body["hold"], body["sealed"], body["at"])
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
    holds.end(session, hold, body["at"])
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


def _list_imported(session: Session, report: RestoreReport, body: Said) -> bool:  # noqa: ARG001
    report.lists_lost = sorted({*report.lists_lost, body["source"]})
    return False


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
    apply_policy(session, model, body["changed"])
    return True


_OF_REQUESTS = (
    "request.accepted",
    "request.verified",
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
    "feed.imported": _list_imported,
    "model.retired": _model_ended,
    "model.cancelled": _model_ended,
    "model.policy_changed": _policy_changed,
}
"""Each returns whether it changed a row of the backup."""


def _decide(session: Session, request: DeletionRequest, body: dict[str, Any]) -> bool:
    """Decide on a request that is unverified in the backup, as the log says; False where the entry is no decision."""
    if body["kind"] == "request.verified":
        verification.enforce(session, request, AT_ONCE)
    elif body["kind"] == "request.rejected":
        request.status, request.reason, request.rejection = Status.REJECTED, None, "repeated from the audit log"
    elif body["kind"] == "request.cancelled":
        request.status, request.reason = Status.CANCELLED, None
    else:
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
    """Return what is left for the operator: a sentence or two for each kind of thing that is lost or in doubt."""
    lost = [_of_lost_key(key, report.replaced.get(key)) for key in report.keys_lost]
    kinds = (
        (report.requests_lost, "Ask the controller to send the requests under requests_lost again."),
        (report.holds_lost, "Place the holds under holds_lost again: the log does not say whom they name."),
        (
            report.holds_to_check,
            "Ask who placed the holds under holds_to_check whether they still apply. End those that do not with "
            "`expunge holds lift ID`, and place again what was placed after the backup.",
        ),
        (
            report.keys_to_check,
            "Check the keys under keys_to_check: one that was revoked or rotated after the backup works again. End it "
            "with `expunge keys revoke ID`. Keys that were made after the backup do not work: make others.",
        ),
        (
            report.webhooks_lost,
            "Add the webhooks under webhooks_lost again with `expunge webhooks add URL`, and give each receiver its "
            "new secret.",
        ),
        (
            report.webhooks_to_check,
            "Check the webhooks under webhooks_to_check: one that was disabled after the backup is live again. End it "
            "with `expunge webhooks disable ID` before the scheduler is started.",
        ),
        (report.lists_lost, "Import the deletion lists under lists_lost again with `expunge drop import FILE`."),
        (
            report.lists_to_check,
            "Import every deletion list again that was downloaded from the day under lists_to_check on, with "
            "`expunge drop import FILE`: whom it names may come back otherwise.",
        ),
    )
    return [*lost, *(words for ids, words in kinds if ids)]


def _of_lost_key(key: str, replaced: str | None) -> str:
    again = "Make another with `expunge keys create` and give it to its user."
    if replaced is None:
        return f"Key {key} was made after the backup and does not work. {again}"
    ends = f"Key {replaced} was rotated after the backup and ends as it did then."
    return f"{ends} Its successor {key} does not work. {again}"
