"""Claims of work, what an update forgets, and the one transaction that publishes it."""

from __future__ import annotations

from expunge_service.queue.building import (
    Suppressing,
    ask_nearly_suppressed,
    asked_for_samples,
    before_registration,
    extend_manifest,
    freeze_manifest,
    generation_of,
    model_of,
    named_by_holds,
    nearly_suppressed,
    note_holds_read,
    served_beside,
    served_people,
    start_over,
    still_served,
    suppressing,
    write_holdout,
)
from expunge_service.queue.claims import (
    HALVE_AFTER,
    HOLD_AFTER,
    PATIENCE_SECONDS,
    before,
    claim,
    claim_deletions,
    deletions_wait,
    is_due,
    mark_notified,
    postpone,
    select_waiting_deletions,
    unnotified,
    waiting_deletions,
)
from expunge_service.queue.clock_change import shorten_waits
from expunge_service.queue.drains import WorkerState, drain_processes, worker_states
from expunge_service.queue.jobs import ClaimedTask, Deletions, Job, Preparation, Work
from expunge_service.queue.journal_entry import JournalEntry
from expunge_service.queue.leases import Stale, TakenLease, fence, in_force, renew, take
from expunge_service.queue.promotion import Leaving, departure, publish_generation
from expunge_service.queue.publication import Draft, Replan, erase, mark_forgotten, publish
from expunge_service.queue.recipe_messages import ADVICE, OUTLIVED, REPORT, drop_messages, hint_of
from expunge_service.queue.results import (
    Blocked,
    Completed,
    Postponed,
    Result,
    charge_withheld,
    end_dry_run,
    end_without_version,
    give_back,
    moved_on,
    note_exhaustion,
    points_of,
    queue_tasks,
    refuse,
    requeue,
    withhold,
    without_numbers,
)
from expunge_service.queue.selection import (
    ForgottenCount,
    Selection,
    Target,
    begins_model,
    forgotten,
    held_positions,
    plan,
    served,
    target_of,
    without_vector,
)
from expunge_service.queue.serves import (
    BROKER_REFUSES,
    EVERYTHING,
    LONG_DUE,
    RESTS,
    THREADS,
    WITHOUT_WORKER,
    Serves,
    block_untaken,
    living,
    needs_of,
    others_take,
    queue_taken,
    threads_of_workers,
    untaken,
)
from expunge_service.queue.work_units import BUILT, POLL_SECONDS, WorkUnits, free_pieces
