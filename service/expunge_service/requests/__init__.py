"""Requests, what is forgotten and held back, deadlines, and webhooks."""

from __future__ import annotations

from expunge_service.requests.accounts import (
    HOLDOUT_NAMED,
    Account,
    accounts_of,
    foreseen_accounts,
    foreseen_records,
    names_in,
    unnamed_holdouts,
)
from expunge_service.requests.cancellation import cancel, cancellable
from expunge_service.requests.deadlines import (
    DUE_SOON,
    PLANNED_DAYS,
    Regulation,
    Term,
    announce_due_soon,
    extend,
    gives_term,
    planned_deadline,
    require_extendable,
    shorter_than,
    zone_of,
)
from expunge_service.requests.estimation import Cost, estimate
from expunge_service.requests.idempotency import IDEMPOTENCY_KEY, StoredAnswer, Use, begin_calls, finish_calls, read_key
from expunge_service.requests.identity_check import enforce, put_in_force, reject, verify
from expunge_service.requests.intake import (
    NO_WINDOWS,
    Accepted,
    Named,
    Order,
    Windows,
    accept,
    accept_all,
    decide,
    opening,
    reach,
)
from expunge_service.requests.legal_holds import (
    LARGE_AND_DUE,
    Keeps,
    approve,
    end_hold,
    forgotten_already,
    keeps,
    lift_hold,
    place_hold,
    queue_again,
    retry,
    retry_large,
)
from expunge_service.requests.near_misses import (
    SPELLINGS,
    Compared,
    NamedPerson,
    Question,
    Written,
    how_compared,
    questions_of,
)
from expunge_service.requests.people_search import find_person
from expunge_service.requests.reasons import (
    AT_ONCE,
    FALL_BACK,
    LIFT,
    NOT_FOR_AN_UPDATE,
    OPEN_HOLD,
    PUBLISH,
    REGISTER,
    RETIRE,
    RETRAIN,
    Cause,
    Reason,
    Role,
    WayOut,
    actions,
    explain,
    reason_of,
    stored,
)
from expunge_service.requests.spelling_decisions import (
    ask_again,
    ask_those,
    ask_those_since,
    end_unpublished,
    other_person,
    question_about,
    question_about_hold,
    rehearse_same,
    repeat_denied,
    same_person,
)
from expunge_service.requests.states import CASE_ID, RequestRefused, Status, Suppress, awaits_decision, derive
from expunge_service.requests.status import (
    change_tasks,
    end_open_tasks,
    locked_tasks,
    outcomes_of,
    record_status,
    settle,
    settle_begun,
)
from expunge_service.requests.still_to_delete import holds_on, outstanding
from expunge_service.requests.suppression import (
    MEMBERS_FROZEN,
    WITH_ROWS,
    Names,
    concerns,
    effective,
    entries_digest,
    entries_said,
    held_by,
    held_elsewhere,
    holdout_facts,
    known_of,
    lift_suppression,
    named_by,
    names_of,
    names_with_requests,
    never_verified,
    positions,
    registration_of,
    related,
    stands,
    suppressed,
)
from expunge_service.requests.tasks_with_models import ModelTask, model_tasks
from expunge_service.requests.webhooks import (
    ABOUT_REQUESTS,
    BACKOFF_SECONDS,
    MAX_ATTEMPTS,
    SUBSCRIBED,
    DeliveryOutcome,
    WebhookEvent,
    add_endpoint,
    announce,
    announce_exhaustion,
    disable_endpoint,
    replay_webhooks,
    send_test,
    webhook_key,
    webhook_signature,
)
