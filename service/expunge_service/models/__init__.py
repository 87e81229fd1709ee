"""Models, their generations, versions and consumers, and what a retrain would cost."""

from __future__ import annotations

from expunge_service.models.batch import done_at, how_often, policy_with_batch
from expunge_service.models.budgets import (
    IS_FIRST,
    ROUNDS,
    BudgetKind,
    FirstVersion,
    ModelBudget,
    budgets_of,
    count_use,
)
from expunge_service.models.commitments import (
    FORGOTTEN,
    MEMBERSHIPS,
    SAMPLE,
    SUBJECT,
    WORK_NOTES,
    Committed,
    block_rows,
    changed,
    changed_marks,
    committed,
    committed_in_full,
    differing,
    forgetting,
    has_blocks,
    marked,
    marks_changed,
    memberships_changed,
    write_blocks,
    write_marked,
)
from expunge_service.models.consumers import (
    MOVED_ON,
    behind,
    complete_waiting,
    is_silent,
    left_behind,
    remove_consumer,
    report_consumer,
    standing,
)
from expunge_service.models.counters import (
    BEYOND,
    ENTRIES,
    INTAKE,
    LATENCY,
    LATENCY_BUCKETS,
    OUTCOMES,
    PHASE,
    SAMPLES,
    UNTALLIED,
    VERSIONS,
    Key,
    counts,
    tally,
)
from expunge_service.models.eta import expected, foreseen
from expunge_service.models.figures import FIGURES, Figures, withdraw
from expunge_service.models.generations import begun_at, empty_generation, number_above, put_in_place, serving
from expunge_service.models.policy import CHANGEABLE, apply_policy, change_policy, require_changeable, require_known
from expunge_service.models.publication_entry import (
    PUBLISHED,
    PUBLISHING,
    RESTORED,
    body_of,
    compare_shown,
    facts_of,
    require_published,
    unlogged,
)
from expunge_service.models.recipe_files import is_other_module, locate, require_recipe
from expunge_service.models.recipe_forms import old_forms
from expunge_service.models.registration import model_lease, register
from expunge_service.models.restore_guard import (
    UNCONFIRMED,
    Guard,
    PutBack,
    Verdict,
    Watch,
    confirm,
    restore_waits,
    unconfirmed,
)
from expunge_service.models.retirement import SERVED, end_cancelled, end_retired, holds_in, retire, steps_of
from expunge_service.models.retrain_plan import (
    FALLBACK,
    HOLDS_READ_AT,
    PLANNED,
    PORTED,
    budget_of,
    candidate_of,
    is_dry_run,
    is_due_otherwise,
    is_port,
    is_with_rows,
    measured_seconds,
    measured_work,
    plan_new_data,
    plan_of,
    plan_port,
    plan_retrain,
    retrain_lease,
    schedule_retrain,
    waiting_for_retrain,
    work_units_of,
)
from expunge_service.models.swept_files import UNPURGED, any_swept, note_deleted, note_swept, sweep_store
from expunge_service.models.table_comparison import compare_tables
from expunge_service.models.trained_parts import drop_parts
from expunge_service.models.vectors import (
    Row,
    drop_all_vectors,
    drop_vectors,
    keys_of,
    rewrite_vectors,
    sealed_rows,
    write_vectors,
)
from expunge_service.models.withheld import ACCEPTED, WITHHELD, is_withheld, prepared_now, publish_anyway
