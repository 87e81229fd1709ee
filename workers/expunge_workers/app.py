"""The task that a notification starts: claim a model's work, do it, notify again if more waits."""

from __future__ import annotations

import errno
import logging
import os
import sysconfig
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery
from celery.worker import state
from sqlalchemy import select

from expunge_service.infra.broker.messages import MODEL_ID, TASK
from expunge_service.infra.broker.notify import notify, notify_many, notify_one
from expunge_service.infra.db import Busy
from expunge_service.infra.tracing import updating
from expunge_service.models import PutBack
from expunge_service.queue import (
    HALVE_AFTER,
    HOLD_AFTER,
    PATIENCE_SECONDS,
    Deletions,
    Preparation,
    Stale,
    Work,
    before,
    claim,
    claim_deletions,
    free_pieces,
    give_back,
    is_due,
    postpone,
    requeue,
    select_waiting_deletions,
)
from expunge_service.requests import Cause
from expunge_workers.runtime import device, drain
from expunge_workers.runtime.db_retry import retry
from expunge_workers.runtime.failures import lacks_memory, may_pass, of_the_machine
from expunge_workers.runtime.heartbeat import HeartbeatSender, Stopwatch
from expunge_workers.runtime.own_packages import FOLDERS
from expunge_workers.runtime.process import Process
from expunge_workers.runtime.worlds import end_idle_template, kill_template, readers
from expunge_workers.storage import erase_due, erasures_wait
from expunge_workers.training.calibrate import CalibrationUnits
from expunge_workers.training.keyed_parts import KeyedParts, forget_by_keys
from expunge_workers.training.prepare import prepare
from expunge_workers.training.start import Ended
from expunge_workers.training.units import assist
from expunge_workers.update.run import update

PAUSE_SECONDS = 2.0
MACHINE_PAUSE_SECONDS = 5.0
"""after a failure that no other request is spared either"""
DEVICE_BROKEN = os.EX_TEMPFAIL
"""the exit status of a process when its device computes no more; a new process can open it"""
PASSING = (Stale, PutBack, Busy, OSError)
"""what stands in the way of work for now; whoever looks for work next finds it again"""
HELPED = (KeyedParts, CalibrationUnits)
"""what a worker computes units of for another"""

_OURS = tuple(f"{folder}/" for folder in FOLDERS)
_LIBRARIES = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))

log = logging.getLogger(__name__)


class Worker:
    """One worker process. It has at most one claim at a time.

    ``broken``: its device computes no more. It claims no work from then on, because every attempt would fail.
    """

    def __init__(self, process: Process, pulse: HeartbeatSender) -> None:
        self._process = process
        self._database = process.storage.database
        self._pulse = pulse
        self._device = device.device_of(process.settings.device)
        self.broken = False
        self._job: Work | None = None
        pulse.after_beats += [self.erase, end_idle_template]

    def work(self, model_id: str) -> None:
        """Claim and do what waits for this model. Never raises: the scheduler repairs what fails."""
        if not isinstance(model_id, str) or not MODEL_ID.fullmatch(model_id):
            log.warning("Dropped a message that names no model. Check who can write to the broker.")
            return
        try:
            if not (self._update(model_id) or self._did_what_precedes(model_id)):
                self._claim_and_do(model_id)
        except drain.Drained:
            self._pass_on(model_id)
            drain.sit_out()  # Celery fetches no further message while it waits for this one
        except PASSING as error:
            log.warning("%s", _passing(error))

    def give_back(self) -> None:
        """Give back at once what this process holds, as it is to stop or rest: another thread may be at work on it.

        Never raises: what could not be given back is free when the lease ends.
        """
        kill_template()
        job = self._job
        if job is not None:
            self._give_back(job)
            return
        try:
            with self._database.write() as session:
                freed = free_pieces(session, self._process.owner)
            for model_id in freed:
                notify_many(self._database, self._process.notifier, model_id, 1)
        except Busy as error:
            log.warning("work units not given back: %s", error)

    def _give_back(self, job: Work) -> None:
        """Give back a claim, where it is this process's still: neither published nor given back before."""
        phase, owner = self._pulse.now, self._process.owner
        facts = {"model": job.model_name, "phase": phase}
        try:
            retry(lambda: give_back(self._database, job, owner, phase))
        except Stale:
            return
        except Exception as error:
            log.warning("not given back, its lease ends later: %s", type(error).__name__, extra=facts)
            return
        log.warning("given back, for this process is asked to do no work; no attempt is counted", extra=facts)
        if isinstance(job, Preparation):
            notify_one(self._process.notifier, job.model_id, job.policy.place)
        else:
            self._pass_on(job.model_id)

    def _pass_on(self, model_id: str) -> None:
        """Send a message about this model again: the one that this process got ends with it."""
        try:
            notify_many(self._database, self._process.notifier, model_id, 1)
        except Busy as error:  # the scheduler's sweep finds it
            log.warning("The database is busy: %s", error)

    def erase(self) -> None:
        """Destroy what the updates since the last heartbeat have left. Raises PutBack, Busy, KeysMissing, OSError."""
        storage, tenants = self._process.storage, self._process.settings.served_tenants
        ((waits,),) = self._database.look(select(erasures_wait(tenants)))
        if waits:
            storage.guard.look()
            erase_due(self._database, storage.private, storage.keys, storage.guard.witness, tenants)
            storage.figures.sweep(self._database)

    def _did_what_precedes(self, model_id: str) -> bool:
        """Do what comes before a preparation: deletions of other models, then a piece of another preparation.

        Return whether a piece was done. The message is then sent again, to be handled after those that wait.
        """
        deletions, pieces = before(self._database, model_id, self._process.serves)
        for other in deletions:
            self._update(other)
        if pieces is None or self.broken:
            return False
        self._process.storage.guard.look(pieces)
        if not self._help(pieces):
            return False
        notify_many(self._database, self._process.notifier, model_id, 1)
        return True

    def update_what_waits(self) -> int:
        """Carry out the deletions that no worker has taken for a while; return how many models had some.

        Never raises, as ``work``.
        """
        done = 0
        try:
            for (model_id,) in self._database.look(select_waiting_deletions(self._process.serves, PATIENCE_SECONDS)):
                done += self._update(model_id)
        except drain.Drained:
            log.info("the updater takes no further deletions")
        except PASSING as error:
            log.warning("%s", _passing(error))
        return done

    def _update(self, model_id: str) -> bool:
        """Carry out the deletions that wait for this model; return whether there were any. Raises Drained."""
        drain.look()
        if self.broken:
            return False
        start, process = time.perf_counter(), self._process
        process.storage.guard.look(model_id)
        seconds = process.limits.lease_seconds
        job = claim_deletions(self._database, model_id, process.owner, seconds, process.serves)
        if job is not None:
            self._carry_out(job, time.perf_counter() - start)
        return job is not None

    def _claim_and_do(self, model_id: str) -> None:
        drain.look()
        if self.broken:
            return
        start = time.perf_counter()
        self._process.storage.guard.look(model_id)
        owner, lease = self._process.owner, self._process.limits.lease_seconds
        job = claim(self._database, model_id, owner, lease, self._process.serves)
        if job is None:
            self._help(model_id)
        else:
            self._carry_out(job, time.perf_counter() - start)

    def _look_at_device(self) -> None:
        """Find out after a failure whether the device still computes for the other models of this process."""
        self.broken = not device.answers(self._device)
        if self.broken:
            log.error(
                "The device %s computes no more in this process, which ends. Another takes its work.", self._device
            )

    def _carry_out(self, job: Work, claiming: float) -> None:
        """Do what was claimed. ``claiming``: the seconds that the claim took."""
        model_id = job.lease.model_id
        watch = Stopwatch(self._pulse)
        watch.seconds["claim"] = claiming
        self._pulse.hold(job.lease, job.generation_id)
        self._job = job
        ended, failed = None, False
        try:
            ended = self._unless_stopped(job, watch)
        except drain.Drained:
            self._give_back(job)
            raise
        except (Stale, PutBack) as error:
            facts = self._facts(job) | {"reason": type(error).__name__}
            log.warning("%s lost: %s", _kind(job), error, extra=facts)
            raise
        except Exception as error:  # a recipe or a disk may raise anything: the tasks wait again, the process continues
            why = _where(error)
            facts = self._facts(job) | {"reason": why["error"], "count": job.attempt}
            log.error("%s failed: %s", _kind(job), _shown(why), extra=facts)
            pause, most = (MACHINE_PAUSE_SECONDS, HALVE_AFTER) if of_the_machine(error) else (PAUSE_SECONDS, HOLD_AFTER)
            if lacks_memory(error):
                pause = MACHINE_PAUSE_SECONDS
            retry(lambda: requeue(self._database, job, why, pause, most))
            failed = True
        finally:
            self._job = None
            self._pulse.release()
        if failed:
            self._look_at_device()
        if failed or isinstance(job, Preparation):  # only here the error, and all that its frames held, is gone
            device.give_back_memory(self._device)
        if isinstance(job, Preparation) and ended is Ended.PUT_OFF:  # taken up again after the messages that wait
            log.info(
                "%s put off: deletions come first, and what is done of it is kept", _kind(job), extra=self._facts(job)
            )
            postpone(self._database, job)
            notify(self._database, self._process.notifier, [model_id])
        else:
            self._notify_again(model_id)

    def _help(self, model_id: str) -> bool:
        """Compute a piece of a preparation or calibration by another worker; return False if none is free."""
        try:
            with readers():
                return assist(self._process, model_id, HELPED)
        except Exception as error:  # the piece is free again; who builds the generation will meet the same, and say so
            why = _where(error)
            facts = {"model_id": model_id, "phase": self._pulse.now, "reason": why["error"]}
            log.error("a unit of another worker's training failed: %s", _shown(why), extra=facts)
            self._look_at_device()
            return False

    def _unless_stopped(self, job: Work, watch: Stopwatch) -> Ended | None:
        """Do what was claimed. What fails while this process is to stop did not fail by itself. Raises Drained."""
        try:
            drain.look()
            return self._do(job, watch)
        except Exception:
            drain.look()
            raise

    def _facts(self, job: Work) -> dict[str, object]:
        return {"model": job.model_name, "phase": self._pulse.now}

    def _do(self, job: Work, watch: Stopwatch) -> Ended | None:
        if job.attempt > 1:
            before = {"model": job.model_name, "count": job.attempt - 1, "phase": job.lost_in}
            log.warning("%s taken over: an attempt before ended without a result", _kind(job), extra=before)
        if isinstance(job, Preparation):
            log.info("%s begun", _kind(job), extra={"model": job.model_name, "method": job.policy.method})
            return prepare(self._process, job, watch)
        log.info("deletions claimed", extra={"model": job.model_name, "count": len(job.tasks)})
        _log_traces(job, "claimed")
        traces = [(task.request_id, task.traceparent) for task in job.tasks if task.traceparent is not None]
        with updating(job.model_name, traces):
            shared = partial(forget_by_keys, self._process)
            update(job, self._process.storage, self._process.settings, watch, shared=shared)
        _log_traces(job, "attempted")
        return None

    def _notify_again(self, model_id: str) -> None:
        """Notify again for requests that came meanwhile, after the messages of other models."""
        with self._database.read() as session:
            waits = is_due(session, model_id)
        if waits:
            notify(self._database, self._process.notifier, [model_id])


def register(app: Celery, worker: Worker) -> None:
    """Make ``worker`` answer the notifications of ``app``."""

    @app.task(name=TASK, acks_late=True, ignore_result=True)  # type: ignore[untyped-decorator]
    def work(model_id: str) -> None:
        worker.work(model_id)
        if worker.broken:
            state.should_stop = DEVICE_BROKEN  # Celery's way to end its worker after this message


def _log_traces(job: Deletions, what: str) -> None:
    """Log a line for each request with a trace of its call, so that the trace continues in this process."""
    for task in job.tasks:
        if task.traceparent is not None:
            facts = {"request_id": task.request_id, "model": job.model_name, "traceparent": task.traceparent}
            log.info("request %s", what, extra=facts)


def _passing(error: Exception) -> str:
    """Say what stands in the way for now: the work waits, and is found again."""
    if isinstance(error, Busy):
        return f"The database is busy: {error}"
    return f"The store does not answer: {error}" if isinstance(error, OSError) else str(error)


def _kind(job: Work) -> str:
    """Name the work in a line of the log."""
    if isinstance(job, Deletions):
        return "update"
    return "retrain" if job.retrains else "training"


def _where(error: Exception) -> dict[str, Any]:
    """Return the error's type and its place: the last line of ours or of a recipe, not one deep in a library.

    Of an error of the system, its name (``ENOSPC``) says more than its type. Where the place is ours, and the error is
    neither a disk's nor one that passes, ``cause`` says so. The error's message is left out: it may contain a person's
    data.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [each for each in frames if each.filename.startswith(_OURS) or not each.filename.startswith(_LIBRARIES)]
    places = [{"file": Path(each.filename).name, "line": each.lineno} for each in own or frames]
    number = error.errno if isinstance(error, OSError) else None
    name = type(error).__name__ if number is None else errno.errorcode.get(number, type(error).__name__)
    ours = bool(own) and own[-1].filename.startswith(_OURS) and not (isinstance(error, OSError) or may_pass(error))
    cause = {"cause": Cause.OUR_FAULT} if ours else {}
    return {"error": name, **(places[-1] if places else {}), **cause}


def _shown(why: dict[str, Any]) -> str:
    return f"{why['error']} at {why.get('file', '?')}:{why.get('line', '?')}"
