"""An update: select, load, forget, refine, certify, write, publish. One version for everything that waited.

What it decides before its transaction is a value; an exception is for what must roll back.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from sqlalchemy.orm import Session

from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.settings import Settings
from expunge_service.infra.stores import Damaged
from expunge_service.infra.tenants import recipes_of
from expunge_service.models import Committed, begun_at, forgetting, is_with_rows
from expunge_service.queue import (
    Blocked,
    ClaimedTask,
    Completed,
    Deletions,
    ForgottenCount,
    Postponed,
    Replan,
    Result,
    Selection,
    Target,
    end_without_version,
    fence,
    moved_on,
    plan,
    points_of,
    publish,
    served,
    without_numbers,
)
from expunge_service.requests import Cause, Reason
from expunge_workers.guarantee.certify import Certified, certify, refine
from expunge_workers.guarantee.terms import Terms, guarantee_from_json
from expunge_workers.runtime import recipes
from expunge_workers.runtime.db_retry import retry
from expunge_workers.runtime.failures import Attributed, reason_of
from expunge_workers.runtime.heartbeat import UNLEARN, Stopwatch
from expunge_workers.runtime.model import OpenModel, forget_in_worlds, open_model
from expunge_workers.runtime.worlds import readers
from expunge_workers.storage import Sealer, Storage, manifest, private_state
from expunge_workers.storage.as_published import (
    TablesDiffer,
    Uncommitted,
    as_published,
    changed_of,
    commit_at_first,
)
from expunge_workers.storage.checkpoint_format import Malformed
from expunge_workers.storage.environment import NAMED, Environment, Moved, moved
from expunge_workers.storage.parts import PartStore
from expunge_workers.update.draft import write_draft
from expunge_workers.update.rows import rows_of_update, samples_of_update
from unlearning.accounting.budget import Budget, Overspent
from unlearning.accounting.certificate import Guarantee, Reference
from unlearning.types import Examples, ForgetSet, Forgotten, Json, Need, Refused, State, Vectors, VectorsMissing

log = logging.getLogger(__name__)
MEASURED_SHARE = 0.5
"""of a training that an update must repeat at least, to measure what a whole one costs"""
PLANS = 5
"""A legal hold that appears during the computation makes us select again, this often at most in one claim."""
RETRAIN_HELPS = frozenset(
    {
        Reason.ENVIRONMENT_CHANGED,
        Reason.NEEDS_RETRAIN,
        Reason.PARTIAL_SUBJECT,
        Reason.STATE_UNREADABLE,
    }
)
"""Changed samples or a changed recipe are not among them: a retrain would read the same."""


@dataclass(frozen=True)
class Current:
    """What the update starts from: the current version, and what its generation fixed at registration."""

    version_id: str
    number: int
    state: str
    place: str
    """that the state is sealed for"""
    holdout_accuracy: float | None
    terms: Terms
    manifest: Mapping[str, Any]
    environment: Mapping[str, Any] | None
    """that it was trained in; None: an earlier release published it"""
    read_at: int


@dataclass(frozen=True)
class _Selected:
    """What an update selects, and what the version with this id commits to that forgets it."""

    current: Current
    selection: Selection
    version_id: str
    tables: Committed


@dataclass(frozen=True)
class Loaded:
    """The opened model, and what the method reads: the secret state, what it is to forget, and the retained samples."""

    bench: OpenModel
    state: State
    forget: ForgetSet
    retained: Examples
    evidence: Mapping[str, Json] = field(default_factory=dict)
    """how the rows changed since registration"""


@dataclass(frozen=True)
class Computed:
    """What an update computed."""

    certified: Certified
    training_work: float | None
    """as in ``Draft``"""
    parts: Collection[str] | None = None
    """the keys of the parts that the version is made of; None: it is not made of parts"""
    evidence: Mapping[str, Json] = field(default_factory=dict)
    """what is sealed with the version of how the rows changed"""


class Shared(Protocol):
    """Makes the missing parts of a training together with other workers; None: this one does it alone."""

    def __call__(
        self, job: Deletions, bench: OpenModel, state: State, *, forget: ForgetSet, retain: Examples
    ) -> Forgotten | None: ...


def alone(*_: object, **__: object) -> None:
    return None


def update(
    claim: Deletions, storage: Storage, settings: Settings, watch: Stopwatch, *, shared: Shared = alone
) -> Mapping[ClaimedTask, Result]:
    """Carry out a batch of deletions, publish a version where anything is forgotten; return each task's result.

    Raises Stale, and RuntimeError where legal holds kept appearing during the computation.
    """
    for _ in range(PLANS):
        try:
            with readers():
                return _update(claim, storage, settings, watch, shared=shared)
        except Replan:
            continue
    raise RuntimeError("legal holds kept appearing while the update was computed")


def _update(
    claim: Deletions, storage: Storage, settings: Settings, watch: Stopwatch, *, shared: Shared
) -> Mapping[ClaimedTask, Result]:
    """Do what ``update`` does, on one selection. Raises Replan too."""
    with watch.phase("load"), storage.database.snapshot() as session:
        selected = _select(session, storage, claim)
    if isinstance(selected, Uncommitted):
        commit_at_first(storage, claim)
        raise Replan("what versions commit to is written since")
    if isinstance(selected, TablesDiffer):
        why = Blocked(Reason.TABLES_DIFFER, {"table": selected.table})
        results: dict[ClaimedTask, Result] = dict.fromkeys(claim.tasks, why)
        end_without_version(storage.database, storage.journal, claim, results)
        return results
    current, selection = selected.current, selected.selection
    others: dict[ClaimedTask, Result] = dict(selection.empty)
    others |= {task: _or_retrain(claim, storage.sealer, why) for task, why in selection.blocked.items()}

    def end(stopped: Result | None = None, budget_cost: int = 0) -> Mapping[ClaimedTask, Result]:
        results = others | ({} if stopped is None else dict.fromkeys(selection.forget, stopped))
        end_without_version(storage.database, storage.journal, claim, results, budget_cost)
        return results

    if not selection.forget:
        return end()
    computed = compute(claim, current, selection, storage=storage, settings=settings, watch=watch, shared=shared)
    if isinstance(computed, Blocked):
        return end(_or_retrain(claim, storage.sealer, computed))
    certified, target = computed.certified, selection.target
    try:
        if _too_bad(claim, current, certified):
            cost = certified.budget_cost
            facts = {"withheld": Reason.ACCURACY_DROP, "budget_cost": cost, **points_of(claim.policy)}
            return end(Blocked(Reason.ACCURACY_DROP, facts), cost)
        with watch.phase("store"):
            size = ForgottenCount(len(target.positions), target.people)
            draft = write_draft(
                storage,
                claim,
                certified,
                target,
                size,
                version_id=selected.version_id,
                evidence=computed.evidence,
                tables=selected.tables,
                begun=current.read_at,
            )
        parts = computed.parts
        draft = replace(draft, seconds=dict(watch.seconds), training_work=computed.training_work, parts=parts)
        superseded = [] if parts is None else PartStore(storage, claim.generation_id).files_of_others(parts)
        del computed, certified  # the published weights are on the disk by now
        results = others | {task: Completed(len(positions)) for task, positions in selection.forget.items()}
        retry(partial(publish, storage.database, storage.journal, claim, draft, results, names=selection.names))
    except Overspent:
        return end(_or_retrain(claim, storage.sealer, Blocked(Reason.BUDGET_EXHAUSTED)))
    storage.private.delete(*superseded)
    return results


def _select(session: Session, storage: Storage, claim: Deletions) -> _Selected | TablesDiffer | Uncommitted:
    """Select in a snapshot of a database that says what was published."""
    published = as_published(session, storage, claim.model_id, claim.generation_id)
    if not isinstance(published, Committed):
        return published
    current = current_of(session, claim)
    selection = plan(session, claim, atomic=bool(current.manifest["vectors"]))
    table = changed_of(session, storage, published, selection.names)
    if table is not None:
        return TablesDiffer(table, current.number)
    version_id, positions = new_id(), selection.target.positions
    tables = forgetting(session, storage.pepper, published, positions=positions, version_id=version_id)
    return _Selected(current, selection, version_id, tables)


def current_of(session: Session, claim: Deletions) -> Current:
    """Return what the update starts from, as the database says."""
    now = served(session, claim)
    generation, frozen = now.generation, now.generation.manifest or {}
    terms = Terms(
        method=generation.method,
        guarantee=Guarantee(generation.guarantee),
        reference=Reference(frozen["reference"]),
        noise_std=generation.noise_std or 0.0,
        max_distance=generation.max_distance or 0.0,
        delta=claim.policy.delta,
        budget_cost=generation.budget_cost,
        spent=generation.spent,
        limit=generation.budget,
        count=int(frozen["samples"]),
        updates=now.updates,
        unlearned=now.unlearned,
        **guarantee_from_json(frozen),
    )
    version = now.version
    which = version.id, version.number, version.state, private_state.place_of(version)
    return Current(*which, version.holdout_accuracy, terms, frozen, version.environment, read_at=now.at)


def compute(
    claim: Deletions,
    current: Current,
    selection: Selection,
    *,
    storage: Storage,
    settings: Settings,
    watch: Stopwatch,
    shared: Shared = alone,
) -> Computed | Blocked:
    """Load, forget, refine, certify.

    An update that does not fit the budget is not begun; the transaction that publishes decides in the end.
    """
    terms, target = current.terms, selection.target
    if Budget(spent=terms.spent, limit=terms.limit, budget_cost=terms.budget_cost).exhausted:
        return Blocked(Reason.BUDGET_EXHAUSTED)
    with watch.phase("load"):
        loaded = load(claim, current, selection, storage, settings)
    if isinstance(loaded, Blocked):
        return loaded
    bench, retain, evidence = loaded.bench, loaded.retained, loaded.evidence
    change = _moved(current, bench)
    if change is not None:
        log.warning(
            "the whole model is trained again: this worker's environment is another than its last version's (%s)",
            "; ".join(change.differences[:NAMED]),
        )
        loaded = replace(loaded, state=bench.method.afresh(loaded.state))
        terms = replace(terms, moved=change.sentence)
    with watch.unlearning():
        try:
            result = None
            if bench.built is not None:
                result = shared(claim, bench, loaded.state, forget=loaded.forget, retain=retain)
            together = result is not None
            result = result or forget_in_worlds(bench, loaded.state, loaded.forget, retain, terms.guarantee)
            del loaded  # the state of a large model does not fit into memory together with its noise
            result = refine(bench, terms, result, retain)
            size = ForgottenCount(len(target.positions), target.people, len(target.holders))
            certified = certify(bench, terms, result, size)
        except VectorsMissing as error:
            return Blocked(Reason.NEEDS_RETRAIN, {"cause": Cause.VECTORS_MISSING, "missing": error.count})
        except Refused as error:
            return _refused(claim, bench, error)
    if isinstance(certified, Blocked):
        return certified
    work = None if together else _training_work(bench, target, watch, whole=change is not None)
    parts = None if bench.parts_used is None else frozenset(bench.parts_used)
    return Computed(certified, work, parts, evidence)


def _refused(claim: Deletions, bench: OpenModel, error: Refused) -> Blocked:
    """Return why the training or the method refused: in a world it was the recipe's code, or its rows."""
    if bench.built is not None:
        return Blocked(*reason_of(error))
    who, detail = claim.policy.method, without_numbers(error.what)
    return Blocked(Reason.NEEDS_RETRAIN, {"cause": Cause.METHOD_REFUSED, "method": who, "detail": detail})


def _training_work(bench: OpenModel, target: Target, watch: Stopwatch, *, whole: bool) -> float | None:
    """Return the seconds of work of one whole training, by this update; None where it repeated less than half of one.

    ``whole``: it repeated all of it, whoever was deleted.

    Registration measured it too. It is measured again because one measurement may be wrong, and stays for years.
    """
    share = 1.0 if whole else bench.method.repeats(bench.problem, [(holder,) for holder in target.holders])
    return watch.work(UNLEARN, str(bench.problem.device)) / share if share >= MEASURED_SHARE else None


def load(
    claim: Deletions, current: Current, selection: Selection, storage: Storage, settings: Settings
) -> Loaded | Blocked:
    """Load what the method reads. An update never starts from bytes that are not the current version's."""
    if not is_with_rows(current.manifest):
        return Blocked(Reason.RECIPE_FORM)
    try:
        return _load(claim, current, selection, storage=storage, settings=settings)
    except Refused as error:
        return Blocked(*reason_of(error))


def _load(
    claim: Deletions, current: Current, selection: Selection, *, storage: Storage, settings: Settings
) -> Loaded | Blocked:
    """Read the sources, and find what is left of the generation's people in them. Raises Refused."""
    parts = PartStore(storage, claim.generation_id, partial(fence, lease=claim.lease), partial(moved_on, job=claim))
    with storage.database.read() as session:
        begun = begun_at(session, claim.generation_id)
    bench = open_model(settings, claim.tenant_id, claim.recipe, claim.policy, parts=parts, until=begun)
    bench = bench.under(current.terms.guarantee)
    if bench.built is not None:
        bench.built.may_resume = current.terms.repeats is not False
    changed = _changed(claim, current, bench, settings)
    if changed is not None:
        return changed
    state = _state(current, storage, bench.problem.device)
    if isinstance(state, Blocked):
        return state
    if bench.world_model is not None:
        return _load_described(claim, current, bench, state, storage=storage, target=selection.target)
    found = rows_of_update(storage, claim.tenant_id, claim.generation_id, bench, selection.target.positions)
    if isinstance(found, Blocked):
        return found
    target = selection.target
    forget = ForgetSet(frozenset(target.holders), target.positions, None, Vectors({}))
    return Loaded(bench, state, forget, found.retained, {"rows": {"gone": found.gone, "changed": found.changed}})


def _load_described(
    claim: Deletions, current: Current, bench: OpenModel, state: State, *, storage: Storage, target: Target
) -> Loaded | Blocked:
    """Have the recipe make its samples of the rows of those who stay. Raises Refused."""
    guarantee = current.terms.guarantee
    try:
        selected = samples_of_update(storage, claim, bench, target.positions, guarantee)
        if isinstance(selected, Blocked):
            return selected
        _require_dimension(state, selected.bench, guarantee)
    except Refused as error:
        if isinstance(error, Attributed):
            raise
        return _refused(claim, bench, error)
    device = selected.bench.problem.device
    numbers = int(current.manifest["vectors"])
    vectors = private_state.VectorStore(storage.database, storage.keys, claim.generation_id, numbers, device)
    rows: dict[str, Json] = {"gone": selected.changes.missing, "changed": selected.changes.changed}
    return Loaded(selected.bench, state, selected.forget(vectors), selected.retained, {"rows": rows})


def _require_dimension(state: State, bench: OpenModel, guarantee: Guarantee) -> None:
    """Raise Refused where the model has another number of weights than before, and no bound is met at the weights."""
    before, now, world_model = len(state.weights), bench.problem.dimension, bench.required_world_model
    met = guarantee is Guarantee.PROVED and world_model.has_judge and bench.method.begins_anew
    if before != now and not met:
        what = f"The recipe's model has {now} weights without those who leave, and had {before}."
        raise Refused(what, "Retrain it, or build a model whose size does not follow from the rows.")


def _changed(claim: Deletions, current: Current, bench: OpenModel, settings: Settings) -> Blocked | None:
    """Return in what the opened model, or this machine, is not the registered one; None where it is."""
    frozen = current.manifest
    # a world says it later, once it is asked
    dimension = bench.problem.dimension if bench.world_model is None else frozen["dimension"]
    names = ("recipe_digest", "settings_digest", "dimension")
    if (bench.digest, bench.settings, dimension) != tuple(frozen[name] for name in names):
        file = recipes.find(recipes_of(settings.recipes, claim.tenant_id), claim.recipe).name
        return Blocked(Reason.RECIPE_CHANGED, {"file": file} if bench.digest != frozen["recipe_digest"] else {})
    libraries, device = frozen["libraries"], bench.problem.device
    if Need.TRAJECTORY in bench.method.needs and not manifest.replayable(libraries, device):
        return Blocked(Reason.ENVIRONMENT_CHANGED, manifest.difference(libraries, device))
    return None


def _moved(current: Current, bench: OpenModel) -> Moved | None:
    """Return how the environment of an exact update is another than that of the version before it."""
    if not bench.method.exact:
        return None
    here = Environment.of(bench.problem.device)
    return moved(here, current.environment, current.manifest["libraries"])


def _state(current: Current, storage: Storage, device: torch.device) -> State | Blocked:
    """Return the state of the current version."""
    try:
        return private_state.load(storage.private, storage.sealer, current.place, current.state, device)
    except Damaged as error:
        return Blocked(Reason.STATE_UNREADABLE, {"file": current.state, "what": type(error).__name__})
    except Malformed:
        return Blocked(Reason.STATE_UNREADABLE, {"cause": Cause.FORMAT, "file": current.state})


def _too_bad(claim: Deletions, current: Current, certified: Certified) -> bool:
    """Return whether the holdout accuracy of the published weights fell by more than the policy allows."""
    return claim.policy.withholds(current.holdout_accuracy, certified.accuracy)


def _or_retrain(claim: Deletions, sealer: Sealer, why: Blocked) -> Result:
    """Return ``why``; or, where the policy falls back to a retrain and that helps, wait for the retrain."""
    helps = why.reason in RETRAIN_HELPS and why.facts.get("cause") != Cause.ENGINE_DIFFERS
    if not claim.policy.falls_back or not helps:
        return why
    facts = {name: value for name, value in why.facts.items() if name != "cause"}
    note = {"method": "retrain", "why": why.facts.get("cause", why.reason), **facts}
    return Postponed(Reason.AWAITING_RETRAIN, private_state.seal_note(sealer, note))
