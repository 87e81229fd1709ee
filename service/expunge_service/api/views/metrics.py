"""Metrics: what each is called and says, its labels, and the query that gives it.

They are read from the database at scrape time, so that several workers never undercount.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
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
from sqlalchemy import ColumnElement, case, exists, func, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session, aliased

import expunge
from expunge_service.api.traffic import Traffic
from expunge_service.api.views.consumers import consumer_rows
from expunge_service.api.views.log import log_state
from expunge_service.api.views.models import gauge
from expunge_service.api.views.processes import ProcessState, processes
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
    ModelBudget,
    budgets_of,
    counts,
)
from expunge_service.models import Key as Counted
from expunge_service.queue import Serves, untaken
from expunge_service.requests import MAX_ATTEMPTS, Reason, Role, explain
from unlearning.accounting.policy import Policy

_PLACES = ("home", "store", "private_store", "key_folder")
_MODEL = (Model.tenant_id, Model.name)
_STANDS = Model.status.not_in(("retired", "cancelled"))
"""whether a model has series: those of one that ended would stand for ever, and count as a model that is served"""


class Reading:
    """What one scrape reads, all of one moment; what several queries need is read once."""

    def __init__(self, session: Session) -> None:
        self.session = session

    @cached_property
    def at(self) -> int:
        return now(self.session)

    @cached_property
    def counted(self) -> Counter[Counted]:
        return counts(self.session)

    @cached_property
    def models(self) -> dict[str, tuple[str, str]]:
        """Tenant and name of each model that has series, by its id."""
        rows = self.session.execute(select(Model.id, *_MODEL).where(_STANDS))
        return {model_id: (tenant_id, name) for model_id, tenant_id, name in rows}

    @cached_property
    def processes(self) -> list[ProcessState]:
        return processes(self.session, ALIVE_SECONDS)

    @cached_property
    def budgets(self) -> list[tuple[tuple[str, str], Generation, list[ModelBudget]]]:
        """Tenant and name of each model with a live generation, that generation, and its budgets."""
        rows = (
            select(*_MODEL, Model.policy, Generation, Version.holdout_accuracy, FirstVersion.holdout_accuracy)
            .join(Generation, (Generation.id == Model.generation_id) & (Generation.status == "live"))
            .outerjoin(Version, Version.id == Model.current_id)
            .outerjoin(FirstVersion, IS_FIRST)
        )
        return [
            ((tenant, model), generation, budgets_of(generation, Policy.from_json(policy), *accuracies))
            for tenant, model, policy, generation, *accuracies in self.session.execute(rows.where(_STANDS))
        ]

    def age(self, since: int | None) -> float:
        """Seconds since a moment; 0 where there is none."""
        return 0.0 if since is None else (self.at - since) / SECOND


Rows = Iterable[Sequence[Any]]


@dataclass(frozen=True)
class Group:
    """Metrics with the same labels that one query gives.

    A row of it has the values of the labels, then a value for each metric; None: that series has none. A histogram's
    value is its buckets and their sum.
    """

    labels: Sequence[str]
    kind: Callable[..., Any]
    texts: Mapping[str, str]
    """what each metric says, by its name; a counter's is written without ``_total``"""
    rows: Callable[[Reading], Rows]

    def read(self, reading: Reading) -> list[Metric]:
        metrics = [self.kind(name, text, labels=self.labels) for name, text in self.texts.items()]
        for row in self.rows(reading):
            labels, values = row[: len(self.labels)], row[len(self.labels) :]
            for metric, value in zip(metrics, values, strict=True):
                if value is not None:
                    metric.add_metric(labels, *(value if isinstance(value, tuple) else (value,)))
        return metrics


TABLE: list[Group] = []


def metrics(
    labels: str, kind: Callable[..., Any] = GaugeMetricFamily, **texts: str
) -> Callable[[Callable[[Reading], Rows]], Callable[[Reading], Rows]]:
    """Put a query into the table, with the labels of its metrics, and what each of them says."""

    def into_table(rows: Callable[[Reading], Rows]) -> Callable[[Reading], Rows]:
        TABLE.append(Group(labels.split(), kind, texts, rows))
        return rows

    return into_table


@metrics(
    "status",
    CounterMetricFamily,
    expunge_deletion_requests="Deletion requests that reached a status, as the audit log tells",
)
def _by_status(reading: Reading) -> Rows:
    """From the audit log, so that the counter never falls."""
    kinds = {status: f"request.{status}" for status in ("blocked", "cancelled", "completed", "rejected")}
    kinds["queued"] = "request.accepted"
    return [(status, reading.counted[Counted(ENTRIES, label=kind)]) for status, kind in kinds.items()]


@metrics(
    "caller outcome",
    CounterMetricFamily,
    expunge_deletion_request_outcomes="Deletion requests by the key that sent them (its id) and by what was known of "
    "the person at once",
)
def _outcomes(reading: Reading) -> Rows:
    return [(key.label, key.method, count) for key, count in sorted(reading.counted.items()) if key.name == OUTCOMES]


@metrics(
    "tenant model",
    expunge_deletion_requests_pending="Tasks of a model that are not finished",
    expunge_deletion_oldest_pending_seconds="Age of the oldest unfinished task, from its receipt",
    expunge_deletion_oldest_queued_seconds="Age of the oldest unfinished task, from its intake; blocked ones wait for "
    "people and are left out",
    expunge_requests_blocked="Tasks of a model that wait for an operator",
    expunge_deletion_next_due_timestamp_seconds="The nearest statutory deadline of unfinished tasks that is not "
    "missed yet",
)
def _open_tasks(reading: Reading) -> Rows:
    blocked = func.sum(case((Task.status == "blocked", 1), else_=0))
    queued = func.min(case((Task.status != "blocked", DeletionRequest.created_at)))
    rows = (
        select(
            *_MODEL, func.count(Task.id), func.min(DeletionRequest.received_at), queued, blocked, _nearest(reading.at)
        )
        .select_from(Model)
        .outerjoin(Task, (Task.model_id == Model.id) & Task.status.in_(OPEN))
        .outerjoin(DeletionRequest, DeletionRequest.id == Task.request_id)
        .where(_STANDS)
        .group_by(*_MODEL)
    )
    for *model, count, received_at, queued_at, blocked_tasks, due_at in reading.session.execute(rows):
        yield *model, count, reading.age(received_at), reading.age(queued_at), blocked_tasks or 0, _seconds(due_at)


@metrics(
    "tenant model reason by what action",
    expunge_requests_blocked_by_reason="Tasks of a model that wait for a person, by reason and by who can act",
)
def _reasons(reading: Reading) -> Rows:
    tasks: Counter[tuple[str, ...]] = Counter()
    rows = select(*_MODEL, Task.reason, Task.facts).join(Model, Model.id == Task.model_id)
    for tenant, model, code, facts in reading.session.execute(rows.where(Task.status == "blocked")):
        why = explain(code, "", facts=facts)
        remedy = why["remedy"] or {"by": Role.OPERATOR, "action": "See the request."}
        tasks[tenant, model, str(why["reason"]), remedy["by"], str(why["title"]), remedy["action"]] += 1
    return [(*labels, count) for labels, count in sorted(tasks.items())]


@metrics(
    "",
    expunge_requests_overdue="Unfinished requests whose statutory deadline is over, verified or not; each counts once",
    expunge_requests_first_missed_timestamp_seconds="The earliest statutory deadline that unfinished requests have "
    "missed, verified or not",
    expunge_requests_next_due_timestamp_seconds="The nearest statutory deadline of unfinished requests that is not "
    "missed yet, verified or not",
)
def _deadlines(reading: Reading) -> Rows:
    """A request that touches two models counts once."""
    missed = case((DeletionRequest.due_at < reading.at, DeletionRequest.due_at))
    rows = select(func.count(missed), func.min(missed), _nearest(reading.at)).where(DeletionRequest.status.in_(OPEN))
    count, first_missed, due_at = reading.session.execute(rows).one()
    yield count, _seconds(first_missed), _seconds(due_at)


@metrics(
    "tenant",
    expunge_requests_deadline_used_ratio="Share of the time from receipt to deadline that is over, the greatest of "
    "those whose deadline is ahead",
    expunge_requests_without_deadline="Unfinished requests without a statutory deadline",
    expunge_requests_without_deadline_oldest_seconds="Age of the oldest of them, from receipt",
)
def _deadlines_of_tenants(reading: Reading) -> Rows:
    at, due_at, received_at = reading.at, DeletionRequest.due_at, DeletionRequest.received_at
    used = func.max(case((due_at >= at, (at - received_at) * 1.0 / func.nullif(due_at - received_at, 0))))
    undated = case((due_at.is_(None), received_at))
    rows = (
        select(DeletionRequest.tenant_id, used, func.count(undated), func.min(undated))
        .where(DeletionRequest.status.in_(OPEN))
        .group_by(DeletionRequest.tenant_id)
    )
    for tenant_id, share, count, oldest in reading.session.execute(rows):
        yield tenant_id, share, count, reading.age(oldest)


@metrics(
    "",
    expunge_requests_unverified="Requests that wait to be verified or rejected",
    expunge_requests_unverified_next_due_timestamp_seconds="The nearest statutory deadline of unverified requests "
    "that is not missed yet",
)
def _unverified(reading: Reading) -> Rows:
    return _waiting_requests(reading, Reason.UNVERIFIED)


@metrics(
    "",
    expunge_requests_near_miss="Requests that wait for a decision about the id that they name",
    expunge_requests_near_miss_next_due_timestamp_seconds="The nearest statutory deadline of such requests that is "
    "not missed yet",
)
def _near_misses(reading: Reading) -> Rows:
    return _waiting_requests(reading, Reason.NEAR_MISS)


def _waiting_requests(reading: Reading, reason: Reason) -> Rows:
    """Blocked requests that belong to no model, and have a deadline all the same."""
    waiting = (DeletionRequest.status == "blocked") & (DeletionRequest.reason == reason)
    count, due_at = reading.session.execute(select(func.count(), _nearest(reading.at)).where(waiting)).one()
    yield count, _seconds(due_at)


@metrics(
    "tenant model method",
    HistogramMetricFamily,
    expunge_deletion_latency_seconds="From the receipt of a request to the publication that carried it out",
)
def _latency_from_receipt(reading: Reading) -> Rows:
    return _histogram(reading, LATENCY, LATENCY_BUCKETS)


@metrics(
    "tenant model method",
    HistogramMetricFamily,
    expunge_deletion_latency_from_intake_seconds="From the intake of a request to the publication that carried it "
    "out; it may have been received long before",
)
def _latency_from_intake(reading: Reading) -> Rows:
    return _histogram(reading, INTAKE, LATENCY_BUCKETS)


@metrics(
    "tenant model method phase",
    HistogramMetricFamily,
    expunge_unlearning_seconds="Phases of an update, each rounded up to a power of two; unlearn: forgetting and "
    "certifying together",
)
def _phases(reading: Reading) -> Rows:
    return _histogram(reading, PHASE, BUCKETS)


def _histogram(reading: Reading, name: str, bounds: tuple[float, ...]) -> Rows:
    """Yield the buckets of each series of a histogram, and its sum.

    The sum counts every value as its bucket's upper bound (the last one beyond it). An exact sum would reveal a single
    value to a reader of both scrapes.
    """
    series: dict[tuple[str, ...], Counter[str]] = {}
    for key, count in sorted(reading.counted.items()):
        if key.name == name and key.model_id in reading.models:
            labels = (*reading.models[key.model_id], key.method, *((key.label,) if key.label else ()))
            series.setdefault(labels, Counter())[key.bound] += count
    edges = [*((str(float(bound)), float(bound)) for bound in bounds), (BEYOND, float(bounds[-1]))]
    for labels, inside in series.items():
        below = accumulate(inside[edge] for edge, _ in edges)
        buckets = [(edge, count) for (edge, _), count in zip(edges, below, strict=True)]
        yield *labels, (buckets, sum(inside[edge] * bound for edge, bound in edges))


@metrics(
    "tenant model method",
    CounterMetricFamily,
    expunge_samples_forgotten="Samples forgotten",
)
def _samples_forgotten(reading: Reading) -> Rows:
    for key, count in sorted(reading.counted.items()):
        if key.name == SAMPLES and key.model_id in reading.models:
            yield *reading.models[key.model_id], key.method, count


@metrics(
    "tenant model result",
    CounterMetricFamily,
    expunge_publications="Updates by result",
)
def _publications(reading: Reading) -> Rows:
    """``withheld``: draws that were charged and then blocked by the utility gate."""
    published: Counter[str] = Counter()
    for key, count in reading.counted.items():
        if key.name == VERSIONS:
            published[key.model_id] += count
    withheld = (
        select(Model.id, func.count(BudgetEntry.id))
        .select_from(Model)
        .outerjoin(Generation, Generation.model_id == Model.id)
        .outerjoin(BudgetEntry, (BudgetEntry.generation_id == Generation.id) & BudgetEntry.version_id.is_(None))
        .where(_STANDS)
        .group_by(Model.id)
    )
    draws = {model_id: count for model_id, count in reading.session.execute(withheld)}
    for model_id, model in reading.models.items():
        if model_id in published:
            yield *model, "published", published[model_id]
        yield *model, "withheld", draws.get(model_id, 0)
        yield *model, "failed", reading.counted[Counted(ENTRIES, model_id, label="attempt.failed")]


@metrics(
    "tenant model",
    expunge_model_version="Number of the version that is served",
    expunge_model_holdout_accuracy="Holdout accuracy of the version that is served, 0 to 1",
)
def _served_versions(reading: Reading) -> Rows:
    rows = select(*_MODEL, Version.number, Version.holdout_accuracy).join(Version, Version.id == Model.current_id)
    return reading.session.execute(rows.where(_STANDS)).all()


@metrics(
    "tenant model",
    expunge_preparation_progress="How far the generation that is being built is, 0 to 1",
)
def _preparations(reading: Reading) -> Rows:
    rows = (
        select(*_MODEL, func.max(Generation.progress))
        .join(Generation, Generation.model_id == Model.id)
        .where(Generation.status.in_(("preparing", "candidate")), _STANDS)
        .group_by(*_MODEL)
    )
    return reading.session.execute(rows).all()


@metrics(
    "tenant model state",
    expunge_preparation_work_units="Work units of the generation that is being built",
)
def _work_units(reading: Reading) -> Rows:
    rows = (
        select(*_MODEL, func.count(WorkUnit.done_at), func.count(WorkUnit.number))
        .join(Generation, Generation.model_id == Model.id)
        .outerjoin(WorkUnit, WorkUnit.generation_id == Generation.id)
        .where(Generation.status.in_(("preparing", "candidate")), _STANDS)
        .group_by(*_MODEL)
    )
    for *model, done, count in reading.session.execute(rows):
        yield *model, "done", done
        yield *model, "waiting", count - done


@metrics(
    "tenant model",
    expunge_budget_epsilon_spent="Epsilon of all updates of the generation, at the policy's delta",
    expunge_budget_epsilon_limit="Epsilon that the policy allows the generation",
    expunge_budget_spent_ratio="Spent share of the generation's budget, in mu squared",
    expunge_budget_updates_left="Updates that the rest of the generation's budget pays for",
)
def _epsilon(reading: Reading) -> Rows:
    for model, generation, _ in reading.budgets:
        budget = gauge(generation)
        if budget is not None and budget.epsilon_spent is not None and budget.epsilon_limit is not None:
            yield *model, budget.epsilon_spent, budget.epsilon_limit, budget.share, budget.left


@metrics(
    "tenant model kind",
    expunge_model_budget_used="What the generation used of a budget: epsilon, updates (rounds), share forgotten, "
    "holdout accuracy lost",
    expunge_model_budget_limit="Where the budget ends, or a retrain is advised; no value where nothing ends it",
)
def _budgets(reading: Reading) -> Rows:
    for model, _, budgets in reading.budgets:
        yield from ((*model, budget.kind, budget.used, budget.limit) for budget in budgets)


@metrics(
    "tenant model standing",
    expunge_consumers="Consumers of a model by their standing to its current version",
)
def _consumers(reading: Reading) -> Rows:
    consumers = Counter(((row.tenant, row.model), row.status) for row in consumer_rows(reading.session))
    rows = select(*_MODEL).join(Version, Version.id == Model.current_id).where(_STANDS)
    for tenant, model in reading.session.execute(rows):
        for standing in ("current", "behind", "unknown"):
            yield tenant, model, standing, consumers[(tenant, model), standing]


@metrics(
    "",
    expunge_erasure_oldest_pending_seconds="Age of the oldest key or state that is to be destroyed and is not yet",
)
def _erasures(reading: Reading) -> Rows:
    keys = select(func.min(Erasure.created_at)).where(Erasure.destroyed_at.is_(None)).scalar_subquery()
    replaced = select(func.min(Version.retired_at)).where(Version.retired_at.is_not(None))
    states = replaced.where(Version.state_deleted_at.is_(None)).scalar_subquery()
    waiting = [since for since in reading.session.execute(select(keys, states)).one() if since is not None]
    yield (reading.age(min(waiting, default=None)),)


@metrics(
    "",
    expunge_certificates_pending="Certificates that are not signed yet",
    expunge_certificates_oldest_pending_seconds="Age of the oldest that is not refused",
    expunge_certificates_refused="Certificates that are not signed because the database contradicts the audit log",
)
def _certificates(reading: Reading) -> Rows:
    """A refused one is counted apart: it must not hide that others are late."""
    awaited = case((Certificate.refused.is_(None), Certificate.completed_at))
    rows = select(func.count(), func.min(awaited), func.count(Certificate.refused))
    due, oldest, refused = reading.session.execute(rows.where(Certificate.issued_at.is_(None))).one()
    yield due, reading.age(oldest), refused


@metrics(
    "tenant endpoint",
    expunge_webhook_deliveries_pending="Deliveries that the receiver has not taken yet",
    expunge_webhook_oldest_pending_seconds="Age of the oldest of them",
)
def _webhooks(reading: Reading) -> Rows:
    """Endpoints in force for which deliveries wait."""
    endpoint = (WebhookEndpoint.tenant_id, WebhookEndpoint.id)
    rows = (
        select(*endpoint, func.count(WebhookDelivery.id), func.min(WebhookDelivery.created_at))
        .join(WebhookDelivery, WebhookDelivery.endpoint_id == WebhookEndpoint.id)
        .where(WebhookDelivery.delivered_at.is_(None), WebhookEndpoint.disabled_at.is_(None))
        .where(WebhookDelivery.attempts - WebhookDelivery.attempts_before < MAX_ATTEMPTS)
        .group_by(*endpoint)
    )
    for tenant_id, endpoint_id, count, since in reading.session.execute(rows):
        yield tenant_id, endpoint_id, count, reading.age(since)


@metrics(
    "tenant",
    expunge_api_key_next_expiry_timestamp_seconds="When the next API key in force expires that has no successor",
)
def _key_expiries(reading: Reading) -> Rows:
    """A key that was rotated has its successor already: its overlap is no alarm."""
    later = aliased(ApiKey)
    successor = exists().where(
        later.actor_id == ApiKey.actor_id,
        later.label == ApiKey.label,
        later.created_at > ApiKey.created_at,
        later.revoked_at.is_(None),
        later.expires_at.is_(None) | (later.expires_at > ApiKey.expires_at),
    )
    in_force = (ApiKey.revoked_at.is_(None), ApiKey.expires_at > reading.at, ~successor)
    rows = select(ApiKey.tenant_id, func.min(ApiKey.expires_at)).where(*in_force).group_by(ApiKey.tenant_id)
    return [(tenant_id, _seconds(expires_at)) for tenant_id, expires_at in reading.session.execute(rows)]


@metrics(
    "worker",
    expunge_worker_heartbeat_timestamp_seconds="Last heartbeat of a worker, updater or scheduler; of none that "
    "another has replaced",
)
def _heartbeats(reading: Reading) -> Rows:
    return [(each.row.process, each.row.beat_at / SECOND) for each in reading.processes]


@metrics(
    "worker",
    CounterMetricFamily,
    expunge_messages_dropped="Messages of other programs in the broker, which were dropped",
)
def _dropped_messages(reading: Reading) -> Rows:
    return [(each.row.process, each.row.dropped) for each in reading.processes if each.row.kind == "worker"]


@metrics(
    "worker device card places",
    expunge_worker_memory_bytes="Memory of the device that a living worker or updater computes on",
)
def _memory(reading: Reading) -> Rows:
    for process in reading.processes:
        serves = Serves.from_json(process.row.serves)
        if process.alive and serves.memory is not None:
            places = " ".join(sorted(serves.places or ()))
            yield process.row.process, process.row.device or "", process.row.card or "", places, serves.memory


@metrics(
    "kind",
    expunge_processes="Processes that beat within the last minute",
)
def _living_processes(reading: Reading) -> Rows:
    """Without an updater a service works: nobody is to be alerted."""
    alive = Counter(process.row.kind for process in reading.processes if process.alive)
    return [(kind, alive[kind]) for kind in sorted({"worker", "scheduler", *alive})]


@metrics(
    "",
    expunge_models_without_worker="Models that no living worker takes, while some worker lives; the doctor names them",
    expunge_workers_refused_by_broker="Living workers whose user or password the broker refuses: they get no message",
    expunge_workers_drained="Living workers and updaters that an operator asked to take no work",
)
def _workers(reading: Reading) -> Rows:
    refused = sum(process.is_refused for process in reading.processes)
    drained = sum(process.alive and process.row.drained for process in reading.processes)
    yield len(untaken(reading.session)), refused, drained


@metrics(
    "",
    expunge_audit_log_size="Entries in the signed log",
    expunge_audit_log_checked_timestamp_seconds="When the scheduler last checked the whole audit log",
    expunge_audit_log_verified="1: the last check of the audit log found no fault; 0: the log was tampered with",
)
def _audit_log(reading: Reading) -> Rows:
    """Before the scheduler's first check there is no value of it."""
    state = log_state(reading.session)
    verified = None if state["checked_at"] is None else int(state["fault"] is None)
    yield signed_size(reading.session), _seconds(state["checked_at"]), verified


def _nearest(at: int) -> ColumnElement[int | None]:
    """Return the expression for the nearest deadline that is not missed: a missed one must not hide the next."""
    return func.min(case((DeletionRequest.due_at >= at, DeletionRequest.due_at)))


def _seconds(at: int | None) -> float | None:
    return None if at is None else at / SECOND


def render(database: Database, settings: Settings, traffic: Traffic, *, differs: bool) -> bytes:
    """Write the exposition text: this process's own metrics, then those from the database, where it answers."""
    try:
        with database.snapshot() as session:
            reading = Reading(session)
            from_database = [metric for group in TABLE for metric in group.read(reading)]
        answers = True
    except (Busy, DBAPIError):  # the process answers all the same: no API, and no database, are two alerts
        from_database, answers = [], False
    registry = CollectorRegistry()
    registry.register(_Scrape([*_own(settings, differs=differs, answers=answers), *from_database]))
    registry.register(FAILED_NOTIFICATIONS)
    return generate_latest(REGISTRY) + generate_latest(traffic.registry) + generate_latest(registry)


def _own(settings: Settings, *, differs: bool, answers: bool) -> Iterator[Metric]:
    """Yield what this process knows by itself."""
    facts = {"version": expunge.__version__, "python": python_version()}
    yield InfoMetricFamily("expunge_build", "The release that answers", value=facts)
    text = "1: the database and the store differ, and nothing is taken in, published, signed or handed out"
    yield GaugeMetricFamily("expunge_database_put_back", text, int(differs))
    text = "0: the database is away, or has another schema, and every metric that is read from it is missing"
    yield GaugeMetricFamily("expunge_database_answers", text, int(answers))
    free = GaugeMetricFamily("expunge_disk_free_bytes", "Free on the disk of a place of the service", labels=["place"])
    for name in _PLACES:
        place = getattr(settings, name)
        with suppress(OSError):
            if isinstance(place, Path):  # a bucket has no disk
                free.add_metric([name], shutil.disk_usage(place).free)
    yield free
    text = "With less than this free `expunge doctor` fails"
    yield GaugeMetricFamily("expunge_disk_reserve_bytes", text, LIMITS.disk_reserve_bytes)


class _Scrape:
    """One scrape's collector: its metrics were computed before prometheus_client asks for them."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return iter(self._metrics)
