"""An update: select, load, forget, refine, certify, write, publish. One version for everything that waited.

What it decides before its transaction is a value; an exception is for what must roll back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from sqlalchemy.orm import Session

from expunge.service.infra.fault_injection import crash_point
from expunge.service.infra.files import Damaged
from expunge.service.infra.settings import Settings
from expunge.service.queue import (
    Blocked,
    ClaimedTask,
    Deletions,
    ForgottenCount,
    Postponed,
    Published,
    Replan,
    Result,
    Selection,
    end_without_version,
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
from expunge.workers.runtime.failures import facts_of
from expunge.workers.runtime.heartbeat import Stopwatch
from expunge.workers.runtime.model import Left, ModelCache, OpenModel
from expunge.workers.storage import Sealer, Storage, manifest, private_state
from expunge.workers.storage.checkpoint_format import Malformed
from expunge.workers.update.draft import write_draft
from expunge.workers.update.samples import UpdateSamples, other_recipe
from unlearning.accounting.budget import Budget, Overspent
from unlearning.accounting.certificate import Guarantee, Reference
from unlearning.model.parts import REFERENCE
from unlearning.types import Examples, ForgetSet, Forgotten, Need, Refused, State, VectorsMissing

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
    state: str
    holdout_accuracy: float | None
    terms: Terms
    manifest: Mapping[str, Any]
    read_at: int


@dataclass(frozen=True)
class Loaded:
    """The opened model, and what the method reads: the secret state, forgotten samples, and retained ones or None."""

    bench: OpenModel
    state: State
    forget: ForgetSet
    retained: manifest.FoundSamples | None


class Shared(Protocol):
    """Forgets together with other workers; None: this one does it alone. ``digest`` is that of the sealed state."""

    def __call__(
        self, job: Deletions, bench: OpenModel, state: State, *, digest: str, forget: ForgetSet, retain: Examples
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
            return _update(claim, storage, models, settings, watch, shared=shared)
        except Replan:
            continue
    raise RuntimeError("legal holds kept appearing while the update was computed")


def _update(
    claim: Deletions, storage: Storage, models: ModelCache, settings: Settings, watch: Stopwatch, *, shared: Shared
) -> Mapping[ClaimedTask, Result]:
    """Do what ``update`` does, on one selection. Raises Replan too."""
    with watch.phase("load"), storage.database.read() as session:
        current = current_of(session, claim)
        selection = plan(session, claim, atomic=bool(current.manifest["vectors"]))
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
    certified, retained = computed
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
            draft = write_draft(storage, claim, certified, target, size, evidence=evidence, begun=current.read_at)
        draft, secret = replace(draft, seconds=dict(watch.seconds)), certified.state
        del computed, certified  # the published weights are on the disk by now
        results = others | {task: Published(len(positions)) for task, positions in selection.forget.items()}
        retry(partial(publish, storage.database, storage.journal, claim, draft, results, names=selection.names))
    except Overspent:
        return end(_or_retrain(claim, storage.sealer, Blocked(Reason.BUDGET_EXHAUSTED)))
    models.remember(claim.generation_id, Left(draft.version_id, secret, digests, retained))
    return results


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
    return Current(now.version.id, now.version.state, now.version.holdout_accuracy, terms, frozen, now.at)


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
) -> tuple[Certified, manifest.FoundSamples | None] | Blocked:
    """Load, forget, refine, certify; return the retained samples too where they were read.

    An update that does not fit the budget is not begun; the transaction that publishes decides in the end.
    """
    terms, target = current.terms, selection.target
    if Budget(spent=terms.spent, limit=terms.limit, budget_cost=terms.budget_cost).exhausted:
        return Blocked(Reason.BUDGET_EXHAUSTED)
    with watch.phase("load"):
        loaded = load(claim, current, selection, storage=storage, models=models, settings=settings)
    if isinstance(loaded, Blocked):
        return loaded
    bench, retained = loaded.bench, loaded.retained
    retain = None if retained is None else retained.examples
    crash_point("worker-after-load")
    with watch.unlearning():
        try:
            draws = generator(torch.device(bench.problem.device))
            result = None
            if retain is not None:
                result = shared(claim, bench, loaded.state, digest=current.state, forget=loaded.forget, retain=retain)
            if result is None:
                result = bench.method.forget(bench.problem, loaded.state, loaded.forget, retain, draws)
            del loaded  # the state of a large model does not fit into memory together with its noise
            result = refine(bench, terms, result, retain)
            size = ForgottenCount(len(target.positions), target.people, len(target.holders))
            certified = certify(bench, terms, result, retain, size)
        except VectorsMissing as error:
            return Blocked(Reason.NEEDS_RETRAIN, {"cause": Cause.VECTORS_MISSING, "missing": error.count})
        except Refused as error:
            who, detail = claim.policy.method, without_numbers(error.what)
            return Blocked(Reason.NEEDS_RETRAIN, {"cause": Cause.METHOD_REFUSED, "method": who, "detail": detail})
    return certified if isinstance(certified, Blocked) else (certified, retained)


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
    except Refused as error:
        return Blocked(Reason.RECIPE_FAILED, facts_of(error))
    if isinstance(samples, Blocked):
        return samples
    theirs, retained = samples
    if retained is not None and len(retained.examples) == 0:
        return Blocked(Reason.NO_DATA_LEFT)
    numbers, target = int(current.manifest["vectors"]), selection.target
    vectors = private_state.VectorStore(storage.database, storage.keys, claim.generation_id, numbers, device)
    return Loaded(bench, left.state, ForgetSet(frozenset(target.holders), target.positions, theirs, vectors), retained)


def _changed(claim: Deletions, current: Current, bench: OpenModel, settings: Settings) -> Blocked | None:
    """Return in what the opened model, or this machine, is not the registered one; None where it is."""
    frozen = current.manifest
    parts = [asdict(part) for part in bench.parts if part.kind != REFERENCE or part.public]
    found = (bench.digest, bench.settings, bench.problem.dimension, parts)
    names = ("recipe_digest", "settings_digest", "dimension")
    before = [part for part in frozen["parts"] if part["kind"] != REFERENCE or part["public"]]
    if found != (*(frozen[name] for name in names), before):
        return other_recipe(claim, settings, bench.digest != frozen["recipe_digest"])
    libraries, device = frozen["libraries"], bench.problem.device
    if Need.TRAJECTORY in bench.method.needs and not manifest.replayable(libraries, device):
        return Blocked(Reason.ENVIRONMENT_CHANGED, manifest.difference(libraries, device))
    other = manifest.other_bytes(libraries, bench.problem.artefact)
    if other:
        return Blocked(Reason.ENVIRONMENT_CHANGED, other)
    return None


def _left(current: Current, storage: Storage, device: torch.device) -> Left | Blocked:
    """Return what another process left of the current version: its state, and the digest of its samples."""
    try:
        found = private_state.opened(storage.private, storage.sealer, current.state, device)
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
