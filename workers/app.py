"""The task that a notification starts: claim a model's work, do it, ring again if more waits."""

from __future__ import annotations

import logging
import time
import traceback

from celery import Celery
from sqlalchemy import select

from service.infra.db import Busy, now
from service.infra.fault_injection import crash_point
from service.infra.queue import notify as queue
from service.infra.queue.messages import MODEL_ID, TASK
from service.infra.tables import Model
from service.requests.reasons import Reason
from workers.runtime.db_retry import patiently
from workers.runtime.failures import of_the_machine
from workers.runtime.heartbeat import Pulse
from workers.runtime.jobs import Deletions, Preparation, Work
from workers.runtime.lease import Stale
from workers.runtime.model import Benches
from workers.runtime.process import Process
from workers.runtime.stopwatch import Stopwatch
from workers.training.calibrate import Orders
from workers.training.parallel import VectorUnits, assist
from workers.training.run import prepare
from workers.update.claim import HALVE_AFTER, HOLD_AFTER, claim
from workers.update.precedence import Interrupted, before, put_off
from workers.update.run import Errand, update
from workers.update.task_results import give_up

PAUSE_SECONDS = 2.0
MACHINE_PAUSE_SECONDS = 5.0
"""after a failure that no other request is spared either"""

log = logging.getLogger(__name__)


class Worker:
    """One worker process: at most one claim at a time, models and problems kept between claims."""

    def __init__(self, process: Process, pulse: Pulse) -> None:
        self._process = process
        self._database = process.storage.database
        self._pulse = pulse
        self._benches = Benches(process.settings)

    def work(self, model_id: str) -> None:
        """Claim and do what waits for this model. Never raises: the row is the queue, and the sweep repairs."""
        if not isinstance(model_id, str) or not MODEL_ID.fullmatch(model_id):
            log.warning("a message that names no model was dropped: who writes to the broker?")
            return
        try:
            if self._did_what_comes_first(model_id):
                return
            self._claim_and_do(model_id)
        except Stale as error:
            log.warning("%s", error)
        except Busy as error:
            log.warning("database busy: %s", error)
        crash_point("worker-before-ack")

    def _did_what_comes_first(self, model_id: str) -> bool:
        """Before a preparation: the waiting deletions of other models, then a piece of another preparation.

        After a piece the message goes to the end of the line, and is looked at again.
        """
        deletions, pieces = before(self._database, model_id, self._process.settings.served_tenants)
        for other in deletions:
            self._claim_and_do(other)
        if pieces is None or not self._help(pieces):
            return False
        queue.notify_one(self._process.notifier, model_id)
        return True

    def _claim_and_do(self, model_id: str) -> None:
        start = time.perf_counter()
        job = claim(
            self._database,
            model_id,
            self._process.owner,
            self._process.settings.lease_seconds,
            self._process.settings.served_tenants,
        )
        if job is None:
            self._help(model_id)
            return
        watch = Stopwatch(self._pulse)
        watch.seconds["claim"] = time.perf_counter() - start
        self._pulse.hold(job.lease, job.generation_id)
        try:
            self._do(job, watch)
        except Stale:
            raise
        except Interrupted:
            self._put_off(job)
            return
        except Exception as error:  # whatever a recipe or a disk may do: the tasks wait again, the process lives
            log.error("attempt on model %s failed: %s", model_id, _where(error))
            why = f"{Reason.FAILED}:{type(error).__name__}"[:64]
            pause, most = (MACHINE_PAUSE_SECONDS, HALVE_AFTER) if of_the_machine(error) else (PAUSE_SECONDS, HOLD_AFTER)
            patiently(lambda: give_up(self._database, job, why, pause, most))
        finally:
            self._pulse.release()
        self._ring_again(model_id)

    def _put_off(self, job: Work) -> None:
        """Deletions wait: they are done first, and the preparation is taken up again at the end of the line."""
        if isinstance(job, Preparation):
            put_off(self._database, job)
        queue.ring(self._database, self._process.notifier, [job.lease.model_id])

    def _help(self, model_id: str) -> bool:
        """Nothing to claim: another worker may be preparing or calibrating the model, which are shared out.

        False: there was no free piece.
        """
        try:
            return assist(self._process, model_id, (VectorUnits, Orders))
        except Exception as error:  # the piece is free again; who builds the generation will meet the same, and say so
            log.error("helping to prepare model %s failed: %s", model_id, _where(error))
            return False

    def _do(self, job: Work, watch: Stopwatch) -> None:
        if isinstance(job, Preparation):
            prepare(self._process, job, watch)
        else:
            _tell(job, "claimed")
            update(Errand(self._process, self._benches, job, watch))
            _tell(job, "attempted")

    def _ring_again(self, model_id: str) -> None:
        """Requests that came meanwhile: go to the end of the line, so that other models get their turn."""
        with self._database.read() as session:
            waits = session.scalar(select(Model.id).where(Model.id == model_id, Model.due_at <= now(session)))
        if waits is not None:
            queue.ring(self._database, self._process.notifier, [model_id])


def register(app: Celery, worker: Worker) -> None:
    """Make ``worker`` answer the notifications of ``app``."""

    @app.task(name=TASK, acks_late=True, ignore_result=True)  # type: ignore[untyped-decorator]
    def work(model_id: str) -> None:
        worker.work(model_id)


def _tell(job: Deletions, what: str) -> None:
    """A line for each request whose call carried a trace, so that the trace goes on in this process."""
    for task in job.tasks:
        if task.traceparent is not None:
            facts = {"request_id": task.request_id, "model": job.model_name, "traceparent": task.traceparent}
            log.info("request %s", what, extra=facts)


def _where(error: Exception) -> str:
    """The error's kind and place. Never its message: it may carry a person's data."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename.rsplit('/', 1)[-1]}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {place}"
