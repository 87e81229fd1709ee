"""Ask the admission checks of other packages for people to leave out: entry points of the group ``expunge.admission``.

Each check that is installed is asked before a training. The setting ``admission`` names those that must be.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from importlib.metadata import entry_points
from typing import Protocol

from expunge_service.audit import record
from expunge_service.infra.settings import Settings
from expunge_service.queue import Preparation
from expunge_workers.storage import Storage
from unlearning.types import Refused

GROUP = "expunge.admission"
log = logging.getLogger(__name__)


class Admission(Protocol):
    """What a check answers. It admits all others only where it has no ``refusal``."""

    @property
    def leave_out(self) -> Collection[str]:
        """Return the ids of the people not to train on."""
        ...

    @property
    def refusal(self) -> str | None:
        """Return why it cannot tell of every person, and what to do; None: it can."""
        ...


class Check(Protocol):
    def __call__(self, tenant: str, people: Collection[str], /) -> Admission:
        """Return the answer for the ids of these people. Where it raises, no person is admitted."""


def left_out(storage: Storage, settings: Settings, job: Preparation, people: Collection[str]) -> frozenset[str]:
    """Return the ids of the people that a check leaves out.

    A retrain is built also where a check refuses, or the model would stop forgetting where its budget is spent; the
    audit log says so.

    Raises:
        Refused: a check that must be asked is not installed, a check fails, or it refuses a registration.
    """
    found: frozenset[str] = frozenset()
    for name, check in sorted(_checks(settings).items()):
        answer = _ask(name, check, job, people)
        if answer.refusal is not None:
            if not job.retrains:
                raise Refused(f"The admission check {name} refuses: {answer.refusal}", "Then register again.")
            with storage.database.write() as session:
                record(session, job.tenant_id, "admission.unchecked", model_id=job.model_id, check=name)
        named = frozenset(answer.leave_out)
        if named:
            with storage.database.write() as session:
                record(session, job.tenant_id, "admission.left_out", model_id=job.model_id, check=name)
        found |= named
    return found


def _checks(settings: Settings) -> Mapping[str, Check]:
    installed = {each.name: each for each in entry_points(group=GROUP)}
    wanted = {name.strip() for name in settings.admission.split(",") if name.strip()}
    for name in sorted(wanted - installed.keys()):
        raise Refused(
            f"The admission check {name} is not installed where this worker runs (EXPUNGE_ADMISSION).",
            "Install its package there (drop: pip install expunge-connect), and register again.",
        )
    checks = {}
    for name, each in installed.items():
        try:
            checks[name] = each.load()
        except Exception as error:
            raise _failed(name, error) from error
    return checks


def _ask(name: str, check: Check, job: Preparation, people: Collection[str]) -> Admission:
    try:
        return check(job.tenant_id, people)
    except Exception as error:
        raise _failed(name, error) from error


def _failed(name: str, error: Exception) -> Refused:
    """Return the refusal. It gives the error's type alone: a message may name a person."""
    log.error("the admission check %s failed: %s", name, type(error).__name__)
    return Refused(
        f"The admission check {name} could not be asked ({type(error).__name__}), so no person is trained on.",
        "Run the check's own command (drop: `expunge drop status`) where this worker runs, and register again.",
    )
