"""Rules of the simulation about backups: what may happen between one and its restore, and what must not be undone."""

from __future__ import annotations

from abc import abstractmethod

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from sqlalchemy import select

from expunge_service.access.api_keys import revoke_key, rotate_key
from expunge_service.infra.tables import DeletionRequest, WebhookEndpoint
from expunge_service.queue import Work
from expunge_service.requests.webhooks import disable_endpoint
from expunge_workers.scheduler.replay import RestoreReport
from tests.faults.invariants import Broken
from tests.faults.town import Standing, Town

OVERLAP = 60_000_000
"""microseconds"""


class Restores(RuleBasedStateMachine):
    """The part of a history that makes backups, changes what a restore could turn back, and restores."""

    town: Town
    jobs: list[Work]
    accepted: list[str]
    cancelled: set[str]
    protected: set[tuple[str, str]]
    gone: set[tuple[str, str]]
    backup: bytes | None
    restored: bool

    @abstractmethod
    def count_fault(self) -> None: ...

    @abstractmethod
    def note_gone(self) -> None: ...

    @abstractmethod
    def forget_lost_decisions(self) -> None: ...

    @abstractmethod
    def require(self, harms: list[Broken]) -> None: ...

    @rule()
    def a_backup_is_made(self) -> None:
        self.backup = self.town.database.image()

    @precondition(lambda self: self.backup is not None)
    @rule(with_log=st.booleans())
    def the_backup_is_restored(self, with_log: bool) -> None:
        assert self.backup is not None
        self.count_fault()
        self.note_gone()
        before = self.town.standing()
        report = self.town.play_back(self.backup, with_log)
        self.jobs.clear()
        known = self.town.models
        self.gone = {each for each in self.gone if each[0] in known}  # one that is registered again is another
        if not with_log:
            self.protected.clear()
        self.restored = True
        self.cancelled.clear()
        with self.town.database.read() as session:
            kept = set(session.scalars(select(DeletionRequest.id)))
        lost = [request for request in self.accepted if request not in kept]
        self.accepted = [request for request in self.accepted if request in kept]
        self.forget_lost_decisions()
        unnamed = [request for request in lost if with_log and request not in report.requests_lost]
        self.require(
            [Broken("lost", f"request {request} is gone, and the report does not name it") for request in unnamed]
            + turned_back(before, self.town.standing(), report, with_log)
        )

    @rule(what=st.sampled_from(["rotated", "rotated with overlap", "revoked", "webhook"]))
    def a_door_is_closed(self, what: str) -> None:
        pepper, doors = self.town.world.storage.pepper, self.town.doors
        with self.town.database.write() as session:
            if what == "rotated":
                rotate_key(session, pepper, doors.keys[0].id, 0)
            elif what == "rotated with overlap":
                rotate_key(session, pepper, doors.keys[1].id, OVERLAP)
            elif what == "revoked":
                revoke_key(session, doors.keys[2].id)
            else:
                disable_endpoint(session, session.get_one(WebhookEndpoint, doors.webhook))

    @rule()
    def another_model_is_registered(self) -> None:
        """Register a model whose recipe still names everybody who was forgotten."""
        model_id = self.town.register()
        if model_id is not None:
            self.town.notifier.messages.append(model_id)


def turned_back(before: Standing, after: Standing, report: RestoreReport, with_log: bool) -> list[Broken]:
    """Return the holds, keys and webhooks that a restore brought back or lost without a word in its report."""
    found = {
        "hold": (after.holds - before.holds, report.holds_to_check),
        "key": (after.keys - before.keys, report.keys_to_check),
        "webhook": (after.webhooks - before.webhooks, report.webhooks_to_check),
    }
    # an export that reaches to the restore leaves nothing in doubt
    back = {kind: ids if with_log else ids - set(named) for kind, (ids, named) in found.items()}
    lost = {"hold": before.holds - after.holds - set(report.holds_lost)} if with_log else {}
    return [
        Broken("lost", f"a {kind} {words}")
        for group, words in ((back, "that was over is in force after a restore"), (lost, "is gone after a restore"))
        for kind, ids in group.items()
        for _ in ids
    ]
