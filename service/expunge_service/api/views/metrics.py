"""Metrics, read from the database at scrape time, so that several workers never undercount."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from platform import python_version
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from sqlalchemy import ColumnElement, Select, case, exists, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, aliased

import expunge
from expunge_service.api.traffic import Traffic
from expunge_service.api.views.consumers import consumer_rows
from expunge_service.api.views.log import log_state
from expunge_service.api.views.models import gauge
from expunge_service.api.views.processes import processes
from expunge_service.api.views.selection import OPEN
from expunge_service.audit import signed_size
from expunge_service.infra.broker.messages import FAILED_NOTIFICATIONS
from expunge_service.infra.db import Busy, Database, now
from expunge_service.infra.limits import LIMITS
from expunge_service.infra.settings import Settings
from expunge_service.infra.tables import (
    ApiKey,
    BudgetEntry,
    Certificate,
    DeletionRequest,
    Erasure,
    Generation,
    Model,
    Task,
    Version,
    WebhookDelivery,
    WebhookEndpoint,
    WorkUnit,
)
from expunge_service.infra.time import ALIVE_SECONDS, BUCKETS, SECOND
from expunge_service.models import (
    BEYOND,
    ENTRIES,
    INTAKE,
    IS_FIRST,
    LATENCY,
    LATENCY_BUCKETS,
    OUTCOMES,
    PHASE,
    SAMPLES,
    VERSIONS,
    FirstVersion,
    Key,
    budgets_of,
    counts,
)
from expunge_service.queue import Serves, untaken
from expunge_service.requests import MAX_ATTEMPTS, Reason, Role, explain
from unlearning.accounting.policy import Policy

_PLACES = ("home", "store", "private_store", "key_folder")
_LABEL: Any = Model.tenant_id + "/" + Model.name
"""what ``_of`` splits; no tenant's name has a slash"""


_STANDS = Model.status.not_in(("retired", "cancelled"))
"""whether a model has series: those of one that ended would stand for ever, and count as a model that is served"""


class _Scrape:
    """One scrape's collector: its metrics were computed before prometheus_client asks for them."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)


def render(database: Database, settings: Settings, traffic: Traffic, *, differs: bool) -> bytes:
    """Write the exposition text: this process's own metrics, then those from the database, where it answers."""
    try:
        counted = _read(database)
    except (Busy, DBAPIError):  # the process answers all the same: no API, and no database, are two alerts
        counted = None
    registry = CollectorRegistry()
    own = [_build(), _witnessed(differs), _answered(counted is not None), *_disks(settings)]
    registry.register(_Scrape([*own, *(counted or ())]))
    registry.register(FAILED_NOTIFICATIONS)
    return generate_latest(REGISTRY) + generate_latest(traffic.registry) + generate_latest(registry)


def _read(database: Database) -> list[Metric]:
    """Return the metrics that are read from the database, all of one moment. Raises Busy."""
    with database.snapshot() as session:
        counted = counts(session)
        metrics = [*_requests(session, counted), *_updates(session, counted)]
        for part in (
            _reasons,
            _erasures,
            _certificates,
            _preparations,
            _budgets,
            _consumers,
            _webhooks,
            _keys,
            _processes,
            _audit_log,
        ):
            metrics += part(session)
    return metrics


def _disks(settings: Settings) -> Iterator[Metric]:
    """Show what is free on the disks that this process can reach; a bucket has none."""
    free = GaugeMetricFamily("expunge_disk_free_bytes", "Free on the disk of a place of the service", labels=["place"])
    for name in _PLACES:
        place = getattr(settings, name)
        with suppress(OSError):
            if isinstance(place, Path):
                free.add_metric([name], shutil.disk_usage(place).free)
    yield free
    text = "With less than this free `expunge doctor` fails"
    yield GaugeMetricFamily("expunge_disk_reserve_bytes", text, LIMITS.disk_reserve_bytes)


def _build() -> Metric:
    """Show which release answers; the value is always 1."""
    facts = {"version": expunge.__version__, "python": python_version()}
    return InfoMetricFamily("expunge_build", "The release that answers", value=facts)


def _witnessed(differs: bool) -> Metric:
    text = "1: the database and the store differ, and nothing is taken in, published, signed or handed out"
    return GaugeMetricFamily("expunge_database_put_back", text, int(differs))


def _answered(answers: bool) -> Metric:
    text = "0: the database is away, or has another schema, and every metric that is read from it is missing"
    return GaugeMetricFamily("expunge_database_answers", text, int(answers))


def _webhooks(session: Session) -> Iterator[Metric]:
    """Show the endpoints in force for which deliveries wait: how many, and since when."""
    waiting = (
        select(
            WebhookEndpoint.tenant_id,
            WebhookEndpoint.id,
            func.count(WebhookDelivery.id),
            func.min(WebhookDelivery.created_at),
        )
        .join(WebhookDelivery, WebhookDelivery.endpoint_id == WebhookEndpoint.id)
        .where(WebhookDelivery.delivered_at.is_(None), WebhookEndpoint.disabled_at.is_(None))
        .where(WebhookDelivery.attempts - WebhookDelivery.attempts_before < MAX_ATTEMPTS)
        .group_by(WebhookEndpoint.tenant_id, WebhookEndpoint.id)
    )
    labels = ["tenant", "endpoint"]
    text = "Deliveries that the receiver has not taken yet"
    pending = GaugeMetricFamily("expunge_webhook_deliveries_pending", text, labels=labels)
    oldest = GaugeMetricFamily("expunge_webhook_oldest_pending_seconds", "Age of the oldest of them", labels=labels)
    at = now(session)
    for tenant_id, endpoint, count, since in session.execute(waiting):
        pending.add_metric([tenant_id, endpoint], count)
        oldest.add_metric([tenant_id, endpoint], (at - since) / SECOND)
    yield from (pending, oldest)


def _keys(session: Session) -> Iterator[Metric]:
    """Show when the next API key that is in force expires; no value where none does. One that was rotated has its
    successor already: its overlap is no alarm.
    """
    text = "When the next API key in force expires that has no successor"
    expiry = GaugeMetricFamily("expunge_api_key_next_expiry_timestamp_seconds", text, labels=["tenant"])
    later = aliased(ApiKey)
    successor = exists().where(
        later.actor_id == ApiKey.actor_id,
        later.label == ApiKey.label,
        later.created_at > ApiKey.created_at,
        later.revoked_at.is_(None),
        later.expires_at.is_(None) | (later.expires_at > ApiKey.expires_at),
    )
    in_force = (ApiKey.revoked_at.is_(None), ApiKey.expires_at > now(session), ~successor)
    rows = select(ApiKey.tenant_id, func.min(ApiKey.expires_at)).where(*in_force).group_by(ApiKey.tenant_id)
    for tenant_id, expires_at in session.execute(rows):
        expiry.add_metric([tenant_id], (expires_at or 0) / SECOND)
    yield expiry


def _requests(session: Session, counted: Counter[Key]) -> Iterator[Metric]:
    """Yield the requests by status, from the audit log, so that the counter never falls; and the open tasks by
    model.
    """
    total = CounterMetricFamily(
        "expunge_deletion_requests",
        "Deletion requests that reached a status, as the audit log tells",
        labels=["status"],
    )
    kinds = {f"request.{status}": status for status in ("completed", "blocked", "cancelled", "rejected")}
    kinds["request.accepted"] = "queued"
    for kind, status in sorted(kinds.items()):
        total.add_metric([status], counted[Key(ENTRIES, label=kind)])
    yield total
    outcomes = CounterMetricFamily(
        "expunge_deletion_request_outcomes",
        "Deletion requests by the key that sent them (its id) and by what was known of the person at once",
        labels=["caller", "outcome"],
    )
    for key, count in sorted(counted.items()):
        if key.name == OUTCOMES:
            outcomes.add_metric([key.label, key.method], count)
    yield outcomes
    at = now(session)
    pending = _per_model("expunge_deletion_requests_pending", "Tasks of a model that are not finished")
    oldest = _per_model(
        "expunge_deletion_oldest_pending_seconds", "Age of the oldest unfinished task, from its receipt"
    )
    queued = _per_model(
        "expunge_deletion_oldest_queued_seconds",
        "Age of the oldest unfinished task, from its intake; blocked ones wait for people and are left out",
    )
    held = _per_model("expunge_requests_blocked", "Tasks of a model that wait for an operator")
    due = _per_model(
        "expunge_deletion_next_due_timestamp_seconds",
        "The nearest statutory deadline of unfinished tasks that is not missed yet",
    )
    stopped = func.sum(case((Task.status == "blocked", 1), else_=0))
    waiting = (
        select(
            _LABEL,
            func.count(Task.id),
            func.min(DeletionRequest.received_at),
            stopped,
            _nearest(at),
            func.min(case((Task.status != "blocked", DeletionRequest.created_at))),
        )
        .select_from(Model)
        .outerjoin(Task, (Task.model_id == Model.id) & Task.status.in_(OPEN))
        .outerjoin(DeletionRequest, DeletionRequest.id == Task.request_id)
        .where(_STANDS)
        .group_by(_LABEL)
    )
    for model, count, received_at, stands, due_at, queued_at in session.execute(waiting):
        queued.add_metric(_of(model), (at - queued_at) / SECOND if queued_at is not None else 0)
        pending.add_metric(_of(model), count)
        oldest.add_metric(_of(model), (at - received_at) / SECOND if received_at is not None else 0)
        held.add_metric(_of(model), int(stands or 0))
        if due_at is not None:
            due.add_metric(_of(model), due_at / SECOND)
    yield from (pending, oldest, queued, held, due, *_deadlines(session, at))
    yield from (*_unverified(session, at), *_near_misses(session, at))


def _reasons(session: Session) -> Iterator[Metric]:
    """Yield why tasks are blocked and which role can act, as the table of reasons says."""
    blocked = GaugeMetricFamily(
        "expunge_requests_blocked_by_reason",
        "Tasks of a model that wait for a person, by reason and by who can act",
        labels=["tenant", "model", "reason", "by", "what", "action"],
    )
    counts: Counter[tuple[str, ...]] = Counter()
    rows = select(_LABEL, Task.reason, Task.facts).join(Model, Model.id == Task.model_id)
    for model, code, facts in session.execute(rows.where(Task.status == "blocked")):
        why = explain(code, "", facts=facts)
        remedy = why["remedy"] or {"by": Role.OPERATOR, "action": "See the request."}
        counts[*_of(model), str(why["reason"]), remedy["by"], str(why["title"]), remedy["action"]] += 1
    for labels, count in sorted(counts.items()):
        blocked.add_metric(labels, count)
    yield blocked


def _nearest(at: int) -> ColumnElement[int | None]:
    """Return the expression for the nearest deadline that is not missed: a missed one must not hide the next."""
    return func.min(case((DeletionRequest.due_at >= at, DeletionRequest.due_at)))


def _deadlines(session: Session, at: int) -> Iterator[Metric]:
    """Yield the late requests, the next deadline, and what has none. One that touches two models counts once."""
    missed = case((DeletionRequest.due_at < at, DeletionRequest.due_at))
    facts = select(func.count(missed), func.min(missed), _nearest(at)).where(DeletionRequest.status.in_(OPEN))
    count, first_missed, due_at = session.execute(facts).one()
    yield GaugeMetricFamily(
        "expunge_requests_overdue",
        "Unfinished requests whose statutory deadline is over, verified or not; each counts once",
        value=count,
    )
    yield _moment(
        "expunge_requests_first_missed_timestamp_seconds",
        "The earliest statutory deadline that unfinished requests have missed, verified or not",
        first_missed,
    )
    yield _moment(
        "expunge_requests_next_due_timestamp_seconds",
        "The nearest statutory deadline of unfinished requests that is not missed yet, verified or not",
        due_at,
    )
    used = GaugeMetricFamily(
        "expunge_requests_deadline_used_ratio",
        "Share of the time from receipt to deadline that is over, the greatest of those whose deadline is ahead",
        labels=["tenant"],
    )
    without = GaugeMetricFamily(
        "expunge_requests_without_deadline", "Unfinished requests without a statutory deadline", labels=["tenant"]
    )
    oldest = GaugeMetricFamily(
        "expunge_requests_without_deadline_oldest_seconds", "Age of the oldest of them, from receipt", labels=["tenant"]
    )
    period = func.nullif(DeletionRequest.due_at - DeletionRequest.received_at, 0)
    share = func.max(case((DeletionRequest.due_at >= at, (at - DeletionRequest.received_at) * 1.0 / period)))
    undated = case((DeletionRequest.due_at.is_(None), DeletionRequest.received_at))
    by_tenant = select(DeletionRequest.tenant_id, share, func.count(undated), func.min(undated))
    open_ones = by_tenant.where(DeletionRequest.status.in_(OPEN)).group_by(DeletionRequest.tenant_id)
    for tenant_id, greatest, count, received_at in session.execute(open_ones):
        if greatest is not None:
            used.add_metric([tenant_id], float(greatest))
        without.add_metric([tenant_id], count)
        oldest.add_metric([tenant_id], 0 if received_at is None else (at - received_at) / SECOND)
    yield from (used, without, oldest)


def _near_misses(session: Session, at: int) -> Iterator[Metric]:
    """Yield the number of requests that wait for a decision about their id."""
    waiting = (DeletionRequest.status == "blocked") & (DeletionRequest.reason == Reason.NEAR_MISS)
    count, due_at = session.execute(select(func.count(), _nearest(at)).where(waiting)).one()
    yield GaugeMetricFamily(
        "expunge_requests_near_miss", "Requests that wait for a decision about the id that they name", value=count
    )
    yield _moment(
        "expunge_requests_near_miss_next_due_timestamp_seconds",
        "The nearest statutory deadline of such requests that is not missed yet",
        due_at,
    )


def _unverified(session: Session, at: int) -> Iterator[Metric]:
    """Yield the number of unverified requests. They belong to no model, and have a deadline all the
    same.
    """
    waiting = (DeletionRequest.status == "blocked") & (DeletionRequest.reason == Reason.UNVERIFIED)
    count, due_at = session.execute(select(func.count(), _nearest(at)).where(waiting)).one()
    yield GaugeMetricFamily("expunge_requests_unverified", "Requests that wait to be verified or rejected", value=count)
    yield _moment(
        "expunge_requests_unverified_next_due_timestamp_seconds",
        "The nearest statutory deadline of unverified requests that is not missed yet",
        due_at,
    )


def _moment(name: str, text: str, at: int | None) -> GaugeMetricFamily:
    """Return a metric of one moment in seconds; without a value where there is none."""
    return GaugeMetricFamily(name, text, value=None if at is None else at / SECOND)


def _erasures(session: Session) -> Iterator[Metric]:
    """Yield how long the oldest key, or state of a replaced version, has waited for its destruction."""
    keys = select(func.min(Erasure.created_at)).where(Erasure.destroyed_at.is_(None)).scalar_subquery()
    kept = select(func.min(Version.retired_at)).where(Version.retired_at.is_not(None))
    states = kept.where(Version.state_deleted_at.is_(None)).scalar_subquery()
    since = [each for each in session.execute(select(keys, states)).one() if each is not None]
    age = (now(session) - min(since)) / SECOND if since else 0
    text = "Age of the oldest key or state that is to be destroyed and is not yet"
    yield GaugeMetricFamily("expunge_erasure_oldest_pending_seconds", text, value=age)


def _certificates(session: Session) -> Iterator[Metric]:
    """Yield how many certificates are due and not signed, and how many the scheduler refuses to sign.

    A refused one is counted apart: it must not hide that others are late.
    """
    awaited = case((Certificate.refused.is_(None), Certificate.completed_at))
    counts = select(func.count(), func.count(Certificate.refused), func.min(awaited))
    due, refused, oldest = session.execute(counts.where(Certificate.issued_at.is_(None))).one()
    yield GaugeMetricFamily("expunge_certificates_pending", "Certificates that are not signed yet", value=due)
    age = (now(session) - oldest) / SECOND if oldest is not None else 0
    yield GaugeMetricFamily(
        "expunge_certificates_oldest_pending_seconds", "Age of the oldest that is not refused", value=age
    )
    text = "Certificates that are not signed because the database contradicts the audit log"
    yield GaugeMetricFamily("expunge_certificates_refused", text, value=refused)


def _preparations(session: Session) -> Iterator[Metric]:
    """Show how far the generations are that are being built, first ones and retrains."""
    progress = _per_model("expunge_preparation_progress", "How far the generation that is being built is, 0 to 1")
    work_units = GaugeMetricFamily(
        "expunge_preparation_work_units",
        "Work units of the generation that is being built",
        labels=["tenant", "model", "state"],
    )
    counts = (func.count(WorkUnit.done_at), func.count(WorkUnit.number))
    rows = (
        select(_LABEL, func.max(Generation.progress), *counts)
        .select_from(Generation)
        .join(Model, Model.id == Generation.model_id)
        .outerjoin(WorkUnit, WorkUnit.generation_id == Generation.id)
        .where(Generation.status.in_(("preparing", "candidate")), _STANDS)
        .group_by(_LABEL)
    )
    for model, share, done, count in session.execute(rows):
        progress.add_metric(_of(model), share)
        work_units.add_metric([*_of(model), "done"], done)
        work_units.add_metric([*_of(model), "waiting"], count - done)
    yield from (progress, work_units)


def _updates(session: Session, counted: Counter[Key]) -> Iterator[Metric]:
    labels = {model_id: label for model_id, label in session.execute(select(Model.id, _LABEL).where(_STANDS))}
    counted = Counter({key: count for key, count in counted.items() if key.model_id in labels})
    latency = HistogramMetricFamily(
        "expunge_deletion_latency_seconds",
        "From the receipt of a request to the publication that carried it out",
        labels=["tenant", "model", "method"],
    )
    yield _filled(latency, _histograms(counted, LATENCY, labels), LATENCY_BUCKETS)
    intake = HistogramMetricFamily(
        "expunge_deletion_latency_from_intake_seconds",
        "From the intake of a request to the publication that carried it out; it may have been received long before",
        labels=["tenant", "model", "method"],
    )
    yield _filled(intake, _histograms(counted, INTAKE, labels), LATENCY_BUCKETS)
    seconds = HistogramMetricFamily(
        "expunge_unlearning_seconds",
        "Phases of an update, each rounded up to a power of two; unlearn: forgetting and certifying together",
        labels=["tenant", "model", "method", "phase"],
    )
    yield _filled(seconds, _histograms(counted, PHASE, labels), BUCKETS)
    forgotten = CounterMetricFamily(
        "expunge_samples_forgotten", "Samples forgotten", labels=["tenant", "model", "method"]
    )
    published = CounterMetricFamily("expunge_publications", "Updates by result", labels=["tenant", "model", "result"])
    versions: Counter[str] = Counter()
    for key, count in sorted(counted.items()):
        if key.name == SAMPLES:
            forgotten.add_metric([*_of(labels[key.model_id]), key.method], count)
        elif key.name == VERSIONS:
            versions[labels[key.model_id]] += count
    for model, count in versions.items():
        published.add_metric([*_of(model), "published"], count)
    for model, count in session.execute(_withheld()):
        published.add_metric([*_of(model), "withheld"], count)
    for model_id, model in labels.items():
        published.add_metric([*_of(model), "failed"], counted[Key(ENTRIES, model_id, label="attempt.failed")])
    head = _per_model("expunge_model_version", "Number of the version that is served")
    accuracy = _per_model("expunge_model_holdout_accuracy", "Holdout accuracy of the version that is served, 0 to 1")
    served = select(_LABEL, Version.number, Version.holdout_accuracy).join(Version, Version.id == Model.current_id)
    for model, number, share in session.execute(served.where(_STANDS)):
        head.add_metric(_of(model), number)
        if share is not None:
            accuracy.add_metric(_of(model), share)
    yield from (forgotten, published, head, accuracy)


def _histograms(counted: Counter[Key], name: str, labels: Mapping[str, str]) -> dict[tuple[str, ...], Counter[str]]:
    """Return, for each series of a histogram, how many values each bucket holds."""
    series: dict[tuple[str, ...], Counter[str]] = {}
    for key, count in sorted(counted.items()):
        if key.name == name:
            said = (*_of(labels[key.model_id]), key.method, *((key.label,) if key.label else ()))
            series.setdefault(said, Counter())[key.bound] += count
    return series


def _withheld() -> Select[Any]:
    """Select how many draws were charged and then blocked by the utility gate; 0 for a model without any."""
    return (
        select(_LABEL, func.count(BudgetEntry.id))
        .select_from(Model)
        .outerjoin(Generation, Generation.model_id == Model.id)
        .outerjoin(BudgetEntry, (BudgetEntry.generation_id == Generation.id) & BudgetEntry.version_id.is_(None))
        .where(_STANDS)
        .group_by(_LABEL)
    )


def _consumers(session: Session) -> Iterator[Metric]:
    """Count the consumers that serve the current version, an old one, or have been silent."""
    serving = GaugeMetricFamily(
        "expunge_consumers",
        "Consumers of a model by their standing to its current version",
        labels=["tenant", "model", "standing"],
    )
    models = session.scalars(select(_LABEL).join(Version, Version.id == Model.current_id).where(_STANDS)).all()
    counts = Counter(((each.tenant, each.model), each.status) for each in consumer_rows(session))
    for label in models:
        tenant, model = _of(label)
        for status in ("current", "behind", "unknown"):
            serving.add_metric([tenant, model, status], counts[(tenant, model), status])
    yield serving


def _budgets(session: Session) -> Iterator[Metric]:
    spent = _per_model(
        "expunge_budget_epsilon_spent", "Epsilon of all updates of the generation, at the policy's delta"
    )
    limit = _per_model("expunge_budget_epsilon_limit", "Epsilon that the policy allows the generation")
    ratio = _per_model("expunge_budget_spent_ratio", "Spent share of the generation's budget, in mu squared")
    left = _per_model("expunge_budget_updates_left", "Updates that the rest of the generation's budget pays for")
    text = "What the generation used of a budget: epsilon, updates (rounds), share forgotten, holdout accuracy lost"
    used = GaugeMetricFamily("expunge_model_budget_used", text, labels=["tenant", "model", "kind"])
    text = "Where the budget ends, or a retrain is advised; no value where nothing ends it"
    end = GaugeMetricFamily("expunge_model_budget_limit", text, labels=["tenant", "model", "kind"])
    rows = (
        select(_LABEL, Model.policy, Generation, Version.holdout_accuracy, FirstVersion.holdout_accuracy)
        .join(Generation, (Generation.id == Model.generation_id) & (Generation.status == "live"))
        .outerjoin(Version, Version.id == Model.current_id)
        .outerjoin(FirstVersion, IS_FIRST)
    )
    for model, policy, generation, *accuracies in session.execute(rows.where(_STANDS)):
        for each in budgets_of(generation, Policy.from_json(policy), *accuracies):
            used.add_metric([*_of(model), each.kind], each.used)
            if each.limit is not None:
                end.add_metric([*_of(model), each.kind], each.limit)
        budget = gauge(generation)
        if budget is None or budget.epsilon_spent is None or budget.epsilon_limit is None:
            continue
        if budget.left is not None:
            left.add_metric(_of(model), budget.left)
        spent.add_metric(_of(model), budget.epsilon_spent)
        limit.add_metric(_of(model), budget.epsilon_limit)
        ratio.add_metric(_of(model), budget.share)
    yield from (spent, limit, ratio, left, used, end)


def _processes(session: Session) -> Iterator[Metric]:
    """Show the heartbeats, how many processes of each kind are alive, and the state of the audit log."""
    beats = GaugeMetricFamily(
        "expunge_worker_heartbeat_timestamp_seconds",
        "Last heartbeat of a worker, updater or scheduler; of none that another has replaced",
        labels=["worker"],
    )
    dropped = CounterMetricFamily(
        "expunge_messages_dropped", "Messages of other programs in the broker, which were dropped", labels=["worker"]
    )
    found = processes(session, ALIVE_SECONDS)
    for each in found:
        beats.add_metric([each.row.process], each.row.beat_at / SECOND)
        if each.row.kind == "worker":
            dropped.add_metric([each.row.process], each.row.dropped)
    labels = ["worker", "device", "card", "places"]
    text = "Memory of the device that a living worker or updater computes on"
    memory = GaugeMetricFamily("expunge_worker_memory_bytes", text, labels=labels)
    for each in found:
        serves = Serves.from_json(each.row.serves)
        if each.alive and serves.memory is not None:
            places = " ".join(sorted(serves.places or ()))
            memory.add_metric([each.row.process, each.row.device or "", each.row.card or "", places], serves.memory)
    yield from (beats, dropped, memory)
    text = "Models that no living worker takes, while some worker lives; the doctor names them"
    yield GaugeMetricFamily("expunge_models_without_worker", text, len(untaken(session)))
    alive = Counter(each.row.kind for each in found if each.alive)
    counts = GaugeMetricFamily("expunge_processes", "Processes that beat within the last minute", labels=["kind"])
    for kind in sorted({"worker", "scheduler", *alive}):  # without an updater a service works: nobody is to be alerted
        counts.add_metric([kind], alive[kind])
    yield counts
    text = "Living workers whose user or password the broker refuses: they get no message"
    refused = sum(each.is_refused for each in found)
    yield GaugeMetricFamily("expunge_workers_refused_by_broker", text, refused)
    text = "Living workers and updaters that an operator asked to take no work"
    yield GaugeMetricFamily("expunge_workers_drained", text, sum(each.alive and each.row.drained for each in found))


def _audit_log(session: Session) -> Iterator[Metric]:
    """Show the log's size, and the scheduler's last check of it. Before the first one it has no value."""
    yield GaugeMetricFamily("expunge_audit_log_size", "Entries in the signed log", value=signed_size(session))
    text = "When the scheduler last checked the whole audit log"
    checked_at = GaugeMetricFamily("expunge_audit_log_checked_timestamp_seconds", text)
    text = "1: the last check of the audit log found no fault; 0: the log was tampered with"
    verified = GaugeMetricFamily("expunge_audit_log_verified", text)
    state = log_state(session)
    if state["checked_at"] is not None:
        checked_at.add_metric([], state["checked_at"] / SECOND)
        verified.add_metric([], int(state["fault"] is None))
    yield from (checked_at, verified)


def _filled(
    family: HistogramMetricFamily, series: Mapping[tuple[str, ...], Counter[str]], bounds: tuple[float, ...]
) -> Metric:
    """Add one sample for each series: its labels, and the values in each bucket.

    The sum counts every value as its bucket's upper bound (the last one beyond it). An exact sum would reveal a single
    value to a reader of both scrapes.
    """
    for labels, inside in series.items():
        edges = [*((str(float(bound)), float(bound)) for bound in bounds), (BEYOND, float(bounds[-1]))]
        below = accumulate(inside[edge] for edge, _ in edges)
        total = sum(inside[edge] * bound for edge, bound in edges)
        family.add_metric(list(labels), [(edge, count) for (edge, _), count in zip(edges, below, strict=True)], total)
    return family


def _per_model(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["tenant", "model"])


def _of(label: str) -> list[str]:
    """Return the labels tenant and model of what ``_LABEL`` gave."""
    return label.split("/", 1)
