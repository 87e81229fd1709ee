"""After a restore: what the exported log tells is done again, and what nobody can do again is named."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import update
from sqlalchemy.orm import Session

from service.audit import hold_names as held_names
from service.audit.signed_note import NotAuthentic
from service.infra.pseudonyms import Pepper
from service.infra.tables import ApiKey, DeletionRequest, Hold, SuppressionEntry, Task, WebhookEndpoint
from service.requests import identity_check as verification
from service.requests import legal_holds as holds
from service.requests.intake import AT_ONCE
from service.requests.states import Status, awaits_decision
from service.requests.status import settle

Said = dict[str, Any]
"""the body of an audit entry"""


@dataclass
class Report:
    """What a restore did and could not do, for the operator who confirms it."""

    versions: list[str] = field(default_factory=list)
    """adopted, as model/number"""
    spent: dict[str, int] = field(default_factory=dict)
    """units added for each generation"""
    requests: list[str] = field(default_factory=list)
    """ids that the backup did not know"""
    forgotten_again: list[str] = field(default_factory=list)
    """requests that were queued anew: a version still holds somebody they name"""
    retired: list[str] = field(default_factory=list)
    requests_lost: list[str] = field(default_factory=list)
    """accepted after the backup and known by the log alone: the controller must send them again"""
    holds_lost: list[str] = field(default_factory=list)
    """in force, and known by the log alone, which cannot be read about whom they name: place them again"""
    holds_to_check: list[str] = field(default_factory=list)
    """in force in the backup; without an export nobody can tell whether they were lifted since"""
    keys_lost: list[str] = field(default_factory=list)
    """made after the backup: no hash of them is left, so they open nothing"""
    keys_to_check: list[str] = field(default_factory=list)
    """in force in the backup; without an export nobody can tell whether they were revoked or rotated since"""
    webhooks_lost: list[str] = field(default_factory=list)
    """added after the backup: neither their address nor their secret is left"""
    webhooks_to_check: list[str] = field(default_factory=list)
    """live in the backup; without an export nobody can tell whether they were disabled since"""
    reapplied: list[str] = field(default_factory=list)
    """what the log tells and was done again: cancellations, verifications, rejections, lifted suppression entries,
    holds placed and released, keys rotated and revoked, webhooks disabled"""
    replaced: dict[str, str] = field(default_factory=dict)
    """keys that were rotated: the prefix of the old one, by the id of its lost successor"""
    to_do: list[str] = field(default_factory=list)
    """for the operator, in words, before workers are started"""
    log_entries: int | None = None
    """added to the audit log; None: no export was given, heads signed since the backup contradict the log"""
    unknown_from: int | None = None
    """microseconds since 1970: from here until the restore, requests may be lost that no update carried out"""
    unknown_until: int = 0


def follow(session: Session, report: Report, said: Iterable[Said], pepper: Pepper) -> None:
    """Do again what the log tells, in its order. The entries of it are in the log already: none is written."""
    for body in said:
        if body["kind"] in _OF_REQUESTS:
            done = _request(session, report, body)
        elif body["kind"] == "hold.placed":
            done = _place(session, report, body, pepper)
        else:
            done = body["kind"] in _STANDING and _STANDING[body["kind"]](session, report, body)
        if done:
            what = next(body[name] for name in ("hold", "key", "endpoint", "request") if body.get(name))
            report.reapplied.append(f"{body['kind']} {what}")


def _request(session: Session, report: Report, body: Said) -> bool:
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


def _place(session: Session, report: Report, body: Said, pepper: Pepper) -> bool:
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


def _update(session: Session, report: Report, body: Said) -> bool:
    report.holds_lost = [hold for hold in report.holds_lost if hold != body["hold"]]
    hold = session.get(Hold, body["hold"])
    if hold is None or hold.lifted_at is not None:
        return False
    session.flush()
    holds.end(session, hold, body["at"])
    return True


def _key_made(session: Session, report: Report, body: Said) -> bool:
    if session.get(ApiKey, body["key"]) is None:
        report.keys_lost.append(body["key"])
    return False


def _rotate(session: Session, report: Report, body: Said) -> bool:
    """The old key ends when the log says; of its successor nobody knows the hash."""
    report.keys_lost = [each for each in report.keys_lost if each != body["key"]]
    key = session.get(ApiKey, body["key"])
    if key is None:
        return False
    report.replaced[body["successor"]] = key.prefix
    if key.expires_at is not None and key.expires_at <= body["expires_at"]:
        return False
    key.expires_at = body["expires_at"]
    return True


def _revoke(session: Session, report: Report, body: Said) -> bool:
    report.keys_lost = [key for key in report.keys_lost if key != body["key"]]
    key = session.get(ApiKey, body["key"])
    if key is None or key.revoked_at is not None:
        return False
    key.revoked_at = body["at"]
    return True


def _webhook_added(session: Session, report: Report, body: Said) -> bool:
    if session.get(WebhookEndpoint, body["endpoint"]) is None:
        report.webhooks_lost.append(body["endpoint"])
    return False


def _disable(session: Session, report: Report, body: Said) -> bool:
    report.webhooks_lost = [each for each in report.webhooks_lost if each != body["endpoint"]]
    endpoint = session.get(WebhookEndpoint, body["endpoint"])
    if endpoint is None or endpoint.disabled_at is not None:
        return False
    endpoint.disabled_at = body["at"]
    return True


_OF_REQUESTS = (
    "request.accepted",
    "request.verified",
    "request.rejected",
    "request.cancelled",
    "suppression.lifted",
)
_STANDING: dict[str, Callable[[Session, Report, Said], bool]] = {
    "hold.lifted": _update,
    "key.created": _key_made,
    "key.rotated": _rotate,
    "key.revoked": _revoke,
    "webhook.added": _webhook_added,
    "webhook.disabled": _disable,
}
"""each says whether it changed a row of the backup"""


def _decide(session: Session, request: DeletionRequest, body: dict[str, Any]) -> bool:
    """Decide on a request that the backup knows as unverified, as the log tells; False: the entry tells of no decision.

    The entries of it are in the log already.
    """
    if body["kind"] == "request.verified":
        verification.enforce(session, request, AT_ONCE)
    elif body["kind"] == "request.rejected":
        request.status, request.reason, request.rejection = Status.REJECTED, None, "told by the audit log"
    elif body["kind"] == "request.cancelled":
        request.status, request.reason = Status.CANCELLED, None
    else:
        return False
    session.flush()
    return True


def _lift(session: Session, request: DeletionRequest, body: dict[str, Any]) -> None:
    stones = update(SuppressionEntry).where(
        SuppressionEntry.request_id == request.id, SuppressionEntry.lifted_at.is_(None)
    )
    session.execute(stones.values(lifted_at=body["at"], lifted_reason="told by the audit log"))
    if body["kind"] == "request.cancelled":
        tasks = update(Task).where(Task.request_id == request.id, Task.status.in_(("queued", "running", "blocked")))
        session.execute(tasks.values(status="cancelled", completed_at=body["at"]))
        settle(session, [request.id])


def to_do(report: Report) -> list[str]:
    """What is left for the operator, one sentence or two for each kind of thing that was lost or may have changed."""
    lost = [_of_lost_key(key, report.replaced.get(key)) for key in report.keys_lost]
    told = (
        (report.requests_lost, "Ask the controller to send the requests under requests_lost again."),
        (report.holds_lost, "Place the holds under holds_lost again: the log does not tell whom they name."),
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
    )
    return [*lost, *(words for ids, words in told if ids)]


def _of_lost_key(key: str, replaced: str | None) -> str:
    again = "Make another with `expunge keys create` and give it to its holder."
    if replaced is None:
        return f"Key {key} was made after the backup and does not work. {again}"
    ends = f"Key {replaced} was rotated after the backup and ends as it did then."
    return f"{ends} Its successor {key} does not work. {again}"
