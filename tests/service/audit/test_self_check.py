"""The scheduler's check of the audit log: what it finds, and when it is due."""

from __future__ import annotations

from threading import Event

import pytest
from sqlalchemy import delete, select, update

from expunge_service.api.dependencies import Service
from expunge_service.audit import self_check
from expunge_service.audit.log import integrate, record
from expunge_service.audit.self_check import check_log, keep_checking
from expunge_service.audit.signed_note import Signer
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.tables import AuditEntry, LogCheck, TreeHead, TreeNode


def grow(service: Service, count: int, signer: Signer | None = None) -> None:
    with service.database.write() as session:
        for _ in range(count):
            record(session, "default", "hold.placed", hold=new_id())
    with service.database.write() as session:
        integrate(session, signer or Signer.of(service.settings))


def checked(service: Service) -> tuple[int, str | None]:
    check_log(service.database, Signer.of(service.settings).verifier)
    with service.database.read() as session:
        row = session.scalars(select(LogCheck)).one()
    return row.size, row.fault


def test_the_log_is_checked_in_parts_as_it_grows(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_check, "_STEP", 2)
    assert checked(service) == (0, None)
    for size in (5, 8):
        grow(service, size - checked(service)[0])
        assert checked(service) == (size, None)


def test_a_log_that_was_rewritten_with_the_key_does_not_continue_the_last_check(service: Service) -> None:
    """An attacker who holds the signing key can make a new log, not one that continues what was checked."""
    grow(service, 4)
    assert checked(service) == (4, None)
    with service.database.write() as session:
        session.execute(delete(TreeHead))
        session.execute(delete(TreeNode))
        session.execute(update(AuditEntry).values(log_index=None, body=AuditEntry.body + " "))
    grow(service, 1)
    size, fault = checked(service)
    assert size == 4 and fault == "One of the first 4 entries was edited, removed or moved."


def test_the_stored_result_cannot_be_edited_unseen(service: Service) -> None:
    grow(service, 4)
    checked(service)
    with service.database.write() as session:
        session.execute(update(LogCheck).values(note="expunge.local\n2\n"))
    assert checked(service)[1] == "The stored result of the last check was edited."


def turn(service: Service, turns: int = 1) -> None:
    """Run the scheduler's loop in a new process of its own for so many looks."""
    stop = Event()
    left = iter(range(turns - 1))

    def wait(*_: object) -> None:
        if next(left, None) is None:
            stop.set()

    stop.wait = wait  # type: ignore[method-assign,assignment]
    keep_checking(service.database, lambda: Signer.of(service.settings), stop)


def test_a_check_is_due_with_the_first_entry_and_then_every_hour(service: Service) -> None:
    def due() -> bool:
        return self_check._is_due(service.database, True)

    assert not due() and not self_check._is_due(service.database, False)
    grow(service, 1)
    assert due()
    turn(service)
    assert not due()
    with service.database.write() as session:
        session.execute(update(LogCheck).values(checked_at=LogCheck.checked_at - 3_600_000_000))
    assert due()


def test_the_log_is_checked_after_a_start_and_whenever_it_has_doubled(service: Service) -> None:
    """What is said to be verified is more than half of the log, and all that a start found."""

    def size() -> int:
        with service.database.read() as session:
            return session.get_one(LogCheck, 1).size

    grow(service, 1)
    turn(service)
    assert size() == 1
    grow(service, 4)
    assert self_check._is_due(service.database, True), "it has doubled"
    turn(service, 2)
    assert size() == 5
    grow(service, 4)
    assert not self_check._is_due(service.database, True)
    turn(service)
    assert size() == 9, "another process started"


def test_a_fault_is_looked_at_again_after_an_hour_and_not_all_the_time(service: Service) -> None:
    grow(service, 2)
    assert checked(service) == (2, None)
    grow(service, 3)
    with service.database.write() as session:
        session.execute(update(AuditEntry).where(AuditEntry.log_index == 1).values(body="{}"))
    assert checked(service)[1] is not None
    assert not self_check._is_due(service.database, True)
