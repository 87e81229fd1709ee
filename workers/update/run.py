"""An update: select, load, forget, refine, certify, write, publish. One version for everything that waited.

What it decides before its transaction is a value; an exception is for what must roll back.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import torch
from sqlalchemy.orm import Session

from expunge.service.infra.fault_injection import crash_point
from expunge.service.infra.files import Damaged
from expunge.service.infra.pseudonyms import new_id
from expunge.service.infra.settings import Settings
from expunge.service.models import Committed, begun_at, forgetting, is_with_rows
from expunge.service.queue import (
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
    plan,
    points_of,
    publish,
    served,
    without_numbers,
)
from expunge.service.requests import Cause, Reason
from expunge.workers.guarantee.certify import Certified, certify, generator, needs_forgotten, needs_retained, refine
from expunge.workers.guarantee.terms import Terms, guarantee_from_json
from expunge.workers.runtime.db_retry import retry
from expunge.workers.runtime.failures import Attributed, reason_of
from expunge.workers.runtime.heartbeat import UNLEARN, Stopwatch
from expunge.workers.runtime.model import (
    Left,
    ModelCache,
    OpenModel,
    build_with_rows,
    forget_in_worlds,
    takes_rows,
)
from expunge.workers.runtime.worlds import readers
from expunge.workers.storage import Sealer, Storage, manifest, private_state
from expunge.workers.storage.as_published import (
    TablesDiffer,
    Uncommitted,
    as_published,
    changed_of,
    commit_at_first,
)
from expunge.workers.storage.checkpoint_format import Malformed
from expunge.workers.storage.environment import NAMED, Environment, Moved, moved
from expunge.workers.storage.parts import PartStore
from expunge.workers.update.draft import write_draft
from expunge.workers.update.rows import rows_of_update, samples_of_update
from expunge.workers.update.samples import UpdateSamples, other_form, other_recipe
from unlearning.accounting.budget import Budget, Overspent
from unlearning.accounting.certificate import Guarantee, Reference
from unlearning.model.parts import REFERENCE
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
    """The opened model, and what the method reads: the secret state, forgotten samples, and retained ones or None."""

    bench: OpenModel
    state: State
    forget: ForgetSet
    retained: manifest.FoundSamples | None
    evidence: Mapping[str, Json] = field(default_factory=dict)
    """how the rows changed since registration"""


@dataclass(frozen=True)
class Computed:
    """What an update computed, and the retained samples where they were read."""

    certified: Certified
    retained: manifest.FoundSamples | None
    training_work: float | None
    """as in ``Draft``"""
    parts: Collection[str] | None = None
    """the keys of the parts that the version is made of; None: it is not made of parts"""
    evidence: Mapping[str, Json] = field(default_factory=dict)
    """what is sealed with the version of how the rows changed"""


class Shared(Protocol):
    """Forgets together with other workers; None: this one does it alone. ``digest`` is that of the sealed state, and
    ``afresh``: of which nothing is used again."""

    def __call__(
        self,
        job: Deletions,
        bench: OpenModel,
        state: State,
        *,
        digest: str,
        forget: ForgetSet,
        retain: Examples,
        afresh: bool,
    ) -> Forgotten | None: ...


def alone(*_: object, **__: object) -> None:
    return None


def update(
    claim: Deletions,
    storage: Storage,
    models: ModelCache,
    settings: Settings,
    watch: Stopwatch,
    *,
    shared: Shared = alone,
) -> Mapping[ClaimedTask, Result]:
    """Carry out a batch of deletions, publish a version where anything is forgotten; return each task's result.

    Raises Stale, and RuntimeError where legal holds kept appearing during the computation.
    """
    crash_point("worker-after-claim")
    for _ in range(PLANS):
        try:
            with readers():
                return _update(claim, storage, models, settings, watch, shared=shared)
        except Replan:
            continue
    raise RuntimeError("legal holds kept appearing while the update was computed")


def _update(
    claim: Deletions, storage: Storage, models: ModelCache, settings: Settings, watch: Stopwatch, *, shared: Shared
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
    computed = compute(
        claim, current, selection, storage=storage, models=models, settings=settings, watch=watch, shared=shared
    )
    if isinstance(computed, Blocked):
        return end(_or_retrain(claim, storage.sealer, computed))
    certified, retained = computed.certified, computed.retained
    target = selection.target
    try:
        if _too_bad(claim, current, certified):
            cost = certified.budget_cost
            facts = {"withheld": Reason.ACCURACY_DROP, "budget_cost": cost, **points_of(claim.policy)}
            return end(Blocked(Reason.ACCURACY_DROP, facts), cost)
        with watch.phase("store"):
            size = ForgottenCount(len(target.positions), target.people)
            digests = {} if retained is None else retained.digests
            evidence = private_state.told(digests)
            draft = write_draft(
                storage,
                claim,
                certified,
                target,
                size,
                version_id=selected.version_id,
                evidence={**evidence, **computed.evidence},
                tables=selected.tables,
                begun=current.read_at,
            )
        parts = computed.parts
        draft = replace(draft, seconds=dict(watch.seconds), training_work=computed.training_work, parts=parts)
        secret = certified.state
        superseded = [] if parts is None else PartStore(storage, claim.generation_id).files_of_others(parts)
        del computed, certified  # the published weights are on the disk by now
        results = others | {task: Completed(len(positions)) for task, positions in selection.forget.items()}
        retry(partial(publish, storage.database, storage.journal, claim, draft, results, names=selection.names))
    except Overspent:
        return end(_or_retrain(claim, storage.sealer, Blocked(Reason.BUDGET_EXHAUSTED)))
    if parts is None:
        models.remember(claim.generation_id, Left(draft.version_id, secret, digests, retained))
    else:
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
    models: ModelCache,
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
        loaded = load(claim, current, selection, storage=storage, models=models, settings=settings)
    if isinstance(loaded, Blocked):
        return loaded
    bench, retained, evidence = loaded.bench, loaded.retained, loaded.evidence
    change = _moved(current, bench)
    if change is not None:
        log.warning(
            "the whole model is trained again: this worker's environment is another than its last version's (%s)",
            "; ".join(change.differences[:NAMED]),
        )
        loaded = replace(loaded, state=bench.method.afresh(loaded.state))
        terms = replace(terms, moved=change.sentence)
    retain = None if retained is None else retained.examples
    crash_point("worker-after-load")
    with watch.unlearning():
        try:
            result = None
            if retain is not None and bench.asked is None:
                result = shared(
                    claim,
                    bench,
                    loaded.state,
                    digest=current.state,
                    forget=loaded.forget,
                    retain=retain,
                    afresh=change is not None,
                )
            together = result is not None
            if result is None:
                result = forget_in_worlds(bench, loaded.state, loaded.forget, retain, terms.guarantee)
            if result is None:
                draws = generator(torch.device(bench.problem.device))
                result = bench.method.forget(bench.problem, loaded.state, loaded.forget, retain, draws)
            del loaded  # the state of a large model does not fit into memory together with its noise
            result = refine(bench, terms, result, retain)
            size = ForgottenCount(len(target.positions), target.people, len(target.holders))
            certified = certify(bench, terms, result, retain, size)
        except VectorsMissing as error:
            return Blocked(Reason.NEEDS_RETRAIN, {"cause": Cause.VECTORS_MISSING, "missing": error.count})
        except Refused as error:
            return _refused(claim, bench, error)
    if isinstance(certified, Blocked):
        return certified
    work = None if together else _training_work(bench, target, watch, whole=change is not None)
    parts = None if bench.parts_used is None else frozenset(bench.parts_used)
    return Computed(certified, None if parts is not None else retained, work, parts, evidence)


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
    claim: Deletions,
    current: Current,
    selection: Selection,
    *,
    storage: Storage,
    models: ModelCache,
    settings: Settings,
) -> Loaded | Blocked:
    """Load what the method reads. An update never starts from bytes that are not the current version's."""
    try:
        if takes_rows(settings, claim.tenant_id, claim.recipe):
            if not is_with_rows(current.manifest):
                return other_form(claim, settings)
            return _load_with_rows(claim, current, selection, storage=storage, settings=settings)
        return _load_samples(claim, current, selection, storage=storage, models=models, settings=settings)
    except Refused as error:
        return Blocked(*reason_of(error))


def _load_samples(
    claim: Deletions,
    current: Current,
    selection: Selection,
    *,
    storage: Storage,
    models: ModelCache,
    settings: Settings,
) -> Loaded | Blocked:
    """Do what ``load`` does, for a recipe that gives samples. Raises Refused."""
    bench, kept, given = models.of(claim.generation_id, claim.tenant_id, claim.recipe, claim.policy)
    bench = bench.under(current.terms.guarantee)
    changed = _changed(claim, current, bench, settings)
    if changed is not None:
        return changed
    device = bench.problem.device
    left = kept if kept and kept.version_id == current.version_id else _left(current, storage, device)
    if isinstance(left, Blocked):
        return left
    crash_point("worker-after-digest")
    wants = needs_forgotten(bench.method), needs_retained(bench.method, current.terms.guarantee)
    needed = UpdateSamples(claim, storage, settings, selection.target.positions, *wants)
    samples = needed.read(bench, left, current.terms.count, given)
    if isinstance(samples, Blocked):
        return samples
    theirs, retained = samples
    if retained is not None and len(retained.examples) == 0:
        return Blocked(Reason.NO_DATA_LEFT)
    numbers, target = int(current.manifest["vectors"]), selection.target
    vectors = private_state.VectorStore(storage.database, storage.keys, claim.generation_id, numbers, device)
    return Loaded(bench, left.state, ForgetSet(frozenset(target.holders), target.positions, theirs, vectors), retained)


def _load_with_rows(
    claim: Deletions, current: Current, selection: Selection, *, storage: Storage, settings: Settings
) -> Loaded | Blocked:
    """Read the sources, and find what is left of the generation's people in them. Raises Refused."""
    parts = PartStore(storage, claim.generation_id, partial(fence, lease=claim.lease))
    with storage.database.read() as session:
        begun = begun_at(session, claim.generation_id)
    bench = build_with_rows(settings, claim.tenant_id, claim.recipe, claim.policy, parts=parts, until=begun)
    bench = bench.under(current.terms.guarantee)
    changed = _changed(claim, current, bench, settings)
    if changed is not None:
        return changed
    left = _left(current, storage, bench.problem.device)
    if isinstance(left, Blocked):
        return left
    crash_point("worker-after-digest")
    if bench.asked is not None:
        return _load_described(claim, current, bench, left, storage=storage, positions=selection.target)
    found = rows_of_update(storage, claim.tenant_id, claim.generation_id, bench, selection.target.positions)
    if isinstance(found, Blocked):
        return found
    target = selection.target
    forget = ForgetSet(frozenset(target.holders), target.positions, None, Vectors({}))
    return Loaded(bench, left.state, forget, found.samples, {"rows": {"gone": found.gone, "changed": found.changed}})


def _load_described(
    claim: Deletions, current: Current, bench: OpenModel, left: Left, *, storage: Storage, positions: Target
) -> Loaded | Blocked:
    """Have the recipe make its samples of the rows of those who stay. Raises Refused."""
    guarantee, target = current.terms.guarantee, positions
    try:
        selected = samples_of_update(storage, claim, bench, target.positions, guarantee)
        if isinstance(selected, Blocked):
            return selected
        _require_dimension(current, selected.bench)
    except Refused as error:
        if isinstance(error, Attributed):
            raise
        return _refused(claim, bench, error)
    device = selected.bench.problem.device
    numbers = int(current.manifest["vectors"])
    vectors = private_state.VectorStore(storage.database, storage.keys, claim.generation_id, numbers, device)
    rows: dict[str, Json] = {"gone": selected.changes.missing, "changed": selected.changes.changed}
    return Loaded(selected.bench, left.state, selected.forget(vectors), selected.samples, {"rows": rows})


def _require_dimension(current: Current, bench: OpenModel) -> None:
    """Raise Refused where the model has another number of weights than the one that was registered."""
    registered, now = current.manifest["dimension"], bench.problem.dimension
    if registered != now:
        what = f"The recipe's model has {now} weights without those who leave, and had {registered}."
        raise Refused(what, "Retrain it, or build a model whose size does not follow from the rows.")


def _changed(claim: Deletions, current: Current, bench: OpenModel, settings: Settings) -> Blocked | None:
    """Return in what the opened model, or this machine, is not the registered one; None where it is."""
    frozen = current.manifest
    parts = [asdict(part) for part in bench.parts if part.kind != REFERENCE or part.public]
    dimension = frozen["dimension"] if bench.asked is not None else bench.problem.dimension  # known when it is asked
    found = (bench.digest, bench.settings, dimension, parts)
    names = ("recipe_digest", "settings_digest", "dimension")
    before = [part for part in frozen["parts"] if part["kind"] != REFERENCE or part["public"]]
    if found != (*(frozen[name] for name in names), before):
        return other_recipe(claim, settings, bench.digest != frozen["recipe_digest"])
    libraries, device = frozen["libraries"], bench.problem.device
    if Need.TRAJECTORY in bench.method.needs and not manifest.replayable(libraries, device):
        return Blocked(Reason.ENVIRONMENT_CHANGED, manifest.difference(libraries, device))
    return None


def _moved(current: Current, bench: OpenModel) -> Moved | None:
    """Return how the environment of an exact update is another than that of the version before it."""
    if not bench.method.exact:
        return None
    here = Environment.of(bench.problem.device, bench.problem.artefact)
    return moved(here, current.environment, current.manifest["libraries"])


def _left(current: Current, storage: Storage, device: torch.device) -> Left | Blocked:
    """Return what another process left of the current version: its state, and the digest of its samples."""
    try:
        found = private_state.opened(storage.private, storage.sealer, current.place, current.state, device)
        return Left(current.version_id, *found)
    except Damaged as error:
        return Blocked(Reason.STATE_UNREADABLE, {"file": current.state, "what": type(error).__name__})
    except Malformed:
        return Blocked(Reason.STATE_UNREADABLE, {"cause": Cause.FORMAT, "file": current.state})


def _too_bad(claim: Deletions, current: Current, certified: Certified) -> bool:
    """Return whether the holdout accuracy of the published weights fell by more than the policy allows."""
    return claim.policy.withholds(current.holdout_accuracy, certified.accuracy)


def _or_retrain(claim: Deletions, sealer: Sealer, why: Blocked) -> Result:
    """Return ``why``; or, where the policy falls back to a retrain and that helps, wait for the retrain."""
    if not claim.policy.falls_back or why.reason not in RETRAIN_HELPS:
        return why
    facts = {name: value for name, value in why.facts.items() if name != "cause"}
    note = {"method": "retrain", "why": why.facts.get("cause", why.reason), **facts}
    return Postponed(Reason.AWAITING_RETRAIN, private_state.seal_note(sealer, note))
