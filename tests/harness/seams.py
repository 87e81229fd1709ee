"""Where a process can be made to die, or something else to happen, without a line of the product that says so.

A seam is a call of a function of the product, a statement, or a commit. Named places are ``SEAMS``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.orm import Session

DIE_AT = "TESTS_DIE_AT"
"""names the seam at which a process of the tests dies"""
HOUSES = ("expunge_service.", "expunge_workers.", "unlearning.")
COMMIT_SECONDS = 0.0002
"""after which SQLite is still syncing its commit, mostly"""


class When(StrEnum):
    BEFORE = "before the call"
    AFTER = "after the call"
    INSIDE_COMMIT = "while the commit of the transaction that it was called in is under way"
    AFTER_COMMIT = "after that commit"
    STATEMENT = "after a statement that begins so"


@dataclass(frozen=True)
class Seam:
    when: When
    place: str
    """``module:function`` or ``module:Class.function``; the statement's first words"""


def before(place: str) -> Seam:
    return Seam(When.BEFORE, place)


def after(place: str) -> Seam:
    return Seam(When.AFTER, place)


def inside_commit_of(place: str) -> Seam:
    return Seam(When.INSIDE_COMMIT, place)


FILES = "expunge_service.infra.files:Files"
BUCKET = "expunge_service.infra.bucket:Bucket"
PUBLICATION = "expunge_service.queue.publication"
KEYS = "expunge_workers.storage.key_store"
UPDATE = "expunge_workers.update.run"
START = "expunge_workers.training.start"
CALIBRATION = "expunge_workers.training.calibrate:CalibrationUnits.compute"
PARTS = "expunge_workers.training.keyed_parts:KeyedParts"
SCHEDULER = "expunge_workers.scheduler"
SEAMS = {
    "api-before-transaction": before("expunge_service.api.intake:take_in"),
    "api-after-request": Seam(When.STATEMENT, "INSERT INTO deletion_requests"),
    "api-after-audit": after("expunge_service.requests.intake:_written"),
    "api-inside-commit": inside_commit_of("expunge_service.requests.intake:write"),
    "api-after-commit": before("expunge_service.api.dependencies:Service.notify"),
    "log-before-witness": before("expunge_service.audit.log:_let_witness"),
    "log-before-signature": after("expunge_service.audit.log:_let_witness"),
    "log-after-signature": Seam(When.AFTER_COMMIT, "expunge_service.audit.log:_sign"),
    "log-before-head": Seam(When.STATEMENT, "INSERT INTO tree_nodes"),
    "log-after-head": Seam(When.STATEMENT, "INSERT INTO tree_heads"),
    "version-noted": after("expunge_service.audit.witness:Witness.note_version"),
    "policy-after-audit": after("expunge_service.models.policy:change_policy"),
    "policy-inside-commit": inside_commit_of("expunge_service.models.policy:change_policy"),
    "cancel-after-audit": after("expunge_service.models.retirement:retire"),
    "retire-after-audit": after("expunge_service.models.retirement:retire"),
    "retire-inside-commit": inside_commit_of("expunge_service.models.retirement:retire"),
    "store-half-file": after(f"{FILES}.write"),
    "store-written": before(f"{FILES}.sync"),
    "store-synced": after(f"{FILES}.sync"),
    "store-renamed": after(f"{FILES}.rename"),
    "store-folder-synced": after(f"{FILES}.sync_folder"),
    "store-linked": after(f"{FILES}.link"),
    "store-deleted": after(f"{FILES}.unlink"),
    "bucket-before-put": before(f"{BUCKET}.write"),
    "bucket-put": after(f"{BUCKET}.write"),
    "bucket-created": after(f"{BUCKET}.create"),
    "bucket-overwritten": after(f"{BUCKET}.overwrite"),
    "bucket-copied": after(f"{BUCKET}._copy"),
    "worker-after-claim": before(f"{UPDATE}:update"),
    "worker-after-digest": after(f"{UPDATE}:_state"),
    "worker-after-load": before("expunge_workers.runtime.heartbeat:Stopwatch.unlearning"),
    "worker-after-compute": before("expunge_workers.guarantee.certify:published_of"),
    "worker-after-noise": after("expunge_workers.guarantee.certify:published_of"),
    "worker-before-publish": before(f"{PUBLICATION}:publication"),
    "publish-after-charge": before(f"{PUBLICATION}:_version"),
    "publish-after-version": before(f"{PUBLICATION}:mark_forgotten"),
    "publish-after-audit": after(f"{PUBLICATION}:_time_phases"),
    "publish-inside-commit": inside_commit_of(f"{PUBLICATION}:make_version"),
    "worker-after-commit": before("expunge_service.audit.witness:Witness.release"),
    "switch-after-version": before("expunge_service.models.vectors:drop_all_vectors"),
    "switch-after-tasks": after("expunge_service.requests.spelling_decisions:ask_those_since"),
    "worker-after-erasure": after(f"{KEYS}:KeyStore.destroy"),
    "worker-before-ack": after("expunge_workers.app:Worker.work"),
    "erase-after-state": before(f"{KEYS}:KeyStore.destroy_generation"),
    "keys-before-rows": after(f"{KEYS}:KeyFiles.write"),
    "keys-erased": after(f"{KEYS}:KeyFiles.erase"),
    "part-kept": after("expunge_workers.storage.parts:PartStore.keep"),
    "prepare-after-manifest": after(f"{START}:_freeze"),
    "prepare-after-train": after(f"{START}:_learned"),
    "prepare-after-work-units": after(f"{PARTS}.lay_out"),
    "prepare-after-rows": after("expunge_workers.training.prepare:_prepared"),
    "work-unit-inside": before(f"{PARTS}.compute"),
    "work-unit-after": after(f"{PARTS}.compute"),
    "calibration-inside-order": before(CALIBRATION),
    "calibration-after-order": after(CALIBRATION),
    "scheduler-during-purge": before("expunge_service.models.swept_files:note_deleted"),
    "webhook-before-send": before(f"{SCHEDULER}.webhook_sender:WebhookSender._send"),
    "webhook-after-send": after(f"{SCHEDULER}.ssrf_guard:Outbound.post"),
}


def die() -> None:
    """Kill this process, without any clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


def arm_from_environment() -> None:
    """Let this process die at the seam that its environment names, where it names one."""
    if (name := os.environ.get(DIE_AT)) is not None:
        _ARMED.enter_context(at(name, die))


_ARMED = ExitStack()
"""never closed: what is armed stays so until the process has died"""


@contextmanager
def at(name: str, act: Callable[[], object]) -> Iterator[None]:
    """Let ``act`` happen whenever this process comes to a seam. A function's seam is where it is called by any name."""
    seam = SEAMS[name]
    with ExitStack() as stack:
        if seam.when is When.STATEMENT:
            stack.enter_context(_listening(Engine, "after_cursor_execute", _after_statement(seam.place, act)))
        else:
            stack.enter_context(_called(seam, act, stack))
        yield


@contextmanager
def _called(seam: Seam, act: Callable[[], object], stack: ExitStack) -> Iterator[None]:
    module_name, _, path = seam.place.partition(":")
    *classes, function = path.split(".")
    holder: Any = functools.reduce(getattr, classes, importlib.import_module(module_name))
    original = inspect.getattr_static(holder, function)
    if seam.when in (When.INSIDE_COMMIT, When.AFTER_COMMIT):
        transaction = threading.local()

        def mark() -> None:
            transaction.is_marked = True

        def commit(session: Session) -> None:
            if getattr(transaction, "is_marked", False):
                transaction.is_marked = False
                if seam.when is When.INSIDE_COMMIT:
                    session.flush()
                    _soon(session.connection(), act)
                else:
                    act()

        moment = "before_commit" if seam.when is When.INSIDE_COMMIT else "after_commit"
        stack.enter_context(_listening(Session, moment, commit))
        wrapped = _around(original, holder, after=mark)
    elif seam.when is When.BEFORE:
        wrapped = _around(original, holder, before=act)
    else:
        wrapped = _around(original, holder, after=act)
    places = [holder]
    if not classes:  # other modules have imported the function by its name
        modules = [module for name, module in [*sys.modules.items()] if name.startswith(HOUSES)]
        places = [module for module in modules if vars(module).get(function) is original]
    for place in places:
        setattr(place, function, wrapped)
    try:
        yield
    finally:
        for place in places:
            setattr(place, function, original)


def _nothing() -> None:
    pass


def _around(
    original: Any, holder: Any, *, before: Callable[[], object] = _nothing, after: Callable[[], object] = _nothing
) -> Any:
    function = original.__func__ if isinstance(original, classmethod | staticmethod) else original
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*arguments: Any, **named: Any) -> Any:
            before()
            result = await function(*arguments, **named)
            after()
            return result

        return awaited

    @functools.wraps(function)
    def called(*arguments: Any, **named: Any) -> Any:
        before()
        result = function(*arguments, **named)
        after()
        return result

    return type(original)(called) if isinstance(original, classmethod | staticmethod) else called


def _after_statement(beginning: str, act: Callable[[], object]) -> Callable[..., None]:
    def executed(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(beginning):
            act()

    return executed


@contextmanager
def _listening(target: Any, moment: str, listener: Callable[..., None]) -> Iterator[None]:
    event.listen(target, moment, listener)
    try:
        yield
    finally:
        event.remove(target, moment, listener)


@contextmanager
def inside_commit(act: Callable[[], object]) -> Iterator[None]:
    """Let ``act`` happen while the next COMMIT runs."""

    def commit(session: Session) -> None:
        session.flush()
        _soon(session.connection(), act)

    with _listening(Session, "before_commit", commit):
        yield


def _soon(connection: Connection, act: Callable[[], object]) -> None:
    """Let ``act`` happen while COMMIT runs: whether that took effect is then unknown, as after a real crash."""
    driver: Any = connection.connection.driver_connection
    if connection.dialect.name == "postgresql":
        driver.pgconn.send_query(b"COMMIT")
        driver.pgconn.flush()
        act()
    # sqlite3 lets other threads run while COMMIT syncs: one of them acts somewhere in between
    threading.Timer(COMMIT_SECONDS, act).start()
