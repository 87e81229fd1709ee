"""An update: claim, select, load, forget, refine, certify, store, publish. One version for everything that waited."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from expunge.service.infra.fault_injection import crash_point
from expunge.service.infra.files import Damaged
from expunge.service.infra.tables import Generation, Membership, Removal, Version
from expunge.service.infra.tenants import recipes_of
from expunge.service.queue import (
    Blocked,
    Claimed,
    Deletions,
    Draft,
    Postponed,
    Published,
    Replan,
    Result,
    Selection,
    Size,
    end_without_version,
    forgotten,
    note_commit,
    plan,
    points_of,
    publish,
    without_numbers,
)
from expunge.service.requests.reasons import Cause, Reason
from expunge.workers.guarantee.certify import CapNotReached, Certified, Terms, certify
from expunge.workers.guarantee.dry_run import guarantee_from_json
from expunge.workers.guarantee.needs import generator, needs_forgotten, needs_retained
from expunge.workers.guarantee.refine import refine
from expunge.workers.runtime import recipes
from expunge.workers.runtime.db_retry import retry
from expunge.workers.runtime.failures import facts_of
from expunge.workers.runtime.model import Bench, Benches, device_of
from expunge.workers.runtime.process import Process
from expunge.workers.runtime.stopwatch import Stopwatch
from expunge.workers.storage import manifest
from expunge.workers.storage import private_state as state
from expunge.workers.storage.checkpoint_format import Malformed
from expunge.workers.storage.crypto_erase import destroy_keys, drop_superseded_state
from expunge.workers.storage.private_state import seal_note
from expunge.workers.update.draft import write_draft
from unlearning.accounting.budget import Budget, Overspent
from unlearning.accounting.certificate import Guarantee, Reference
from unlearning.model.parts import REFERENCE
from unlearning.recipe import Samples
from unlearning.types import Examples, ForgetSet, Json, Need, Refused, State, VectorsMissing

PLANS = 5
"""A legal hold that appears during the computation makes us select again, this often at most in one claim."""
TRUSTED_SECONDS = 60.0
"""A recipe's data may change outside. An update on samples that were compared longer ago runs the recipe again."""
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
class Errand:
    """One claim, and what a worker needs to carry it out."""

    process: Process
    benches: Benches
    job: Deletions
    watch: Stopwatch


@dataclass(frozen=True)
class Current:
    """What the update starts from: the current version, and what its generation fixed at registration."""

    version: Version
    terms: Terms
    manifest: Mapping[str, Any]


class CannotUpdate(Exception):
    """Stops an update from deep inside; ``why`` is the result of its tasks."""

    def __init__(self, reason: Reason, **facts: Any) -> None:
        super().__init__(reason)
        self.why = Blocked(reason, facts)


def update(errand: Errand) -> Mapping[Claimed, Result]:
    """Carry out a batch of deletions, publish a version where anything is forgotten; return each task's result.

    Raises Stale, and RuntimeError where legal holds kept appearing during the computation.
    """
    crash_point("worker-after-claim")
    for _ in range(PLANS):
        try:
            return _update(errand)
        except Replan:
            continue
    raise RuntimeError("legal holds kept appearing while the update was computed")


def _update(errand: Errand) -> Mapping[Claimed, Result]:
    storage, job = errand.process.storage, errand.job
    with errand.watch.phase("load"), storage.database.read() as session:
        current = _current(session, job)
        selection = plan(session, job, atomic=bool(current.manifest["vectors"]))
    results: dict[Claimed, Result] = dict(selection.empty)
    results |= {task: _or_retrain(errand, why) for task, why in selection.blocked.items()}
    try:
        if selection.forget:
            return _forget(errand, current, selection, results)
    except (CannotUpdate, Overspent) as stopped:
        why = stopped.why if isinstance(stopped, CannotUpdate) else Blocked(Reason.BUDGET_EXHAUSTED)
        results |= dict.fromkeys(selection.forget, _or_retrain(errand, why))
    end_without_version(storage.database, storage.journal, job, results)
    return results


def _forget(
    errand: Errand, current: Current, selection: Selection, others: dict[Claimed, Result]
) -> Mapping[Claimed, Result]:
    """Compute and publish; or withhold an update that loses more accuracy than the policy allows.

    Raises CannotUpdate, Overspent, Replan.
    """
    _require_budget(current.terms)
    certified, retained = _compute(errand, current, selection)
    if _too_bad(errand.job, current, certified):
        cost = certified.budget_cost
        facts: dict[str, Json] = {"withheld": Reason.ACCURACY_DROP, "budget_cost": cost, **points_of(errand.job.policy)}
        why = Blocked(Reason.ACCURACY_DROP, facts)
        results = others | dict.fromkeys(selection.forget, why)
        storage = errand.process.storage
        end_without_version(storage.database, storage.journal, errand.job, results, cost)
        return results
    with errand.watch.phase("store"):
        size = Size(len(selection.target.positions), selection.target.people)
        draft = write_draft(errand.process.storage, errand.job, certified, selection.target, size)
    draft = replace(draft, seconds=dict(errand.watch.seconds))
    secret = certified.state
    del certified  # the published weights are on the disk by now
    results = others | {task: Published(len(positions)) for task, positions in selection.forget.items()}
    _publish(errand, current, draft, results)
    errand.benches.remember(draft.version_id, draft.state.digest, secret, retained)
    return results


def _compute(errand: Errand, current: Current, selection: Selection) -> tuple[Certified, manifest.Located | None]:
    """Load, forget, refine, certify; return the retained samples too where they were read. Raises CannotUpdate."""
    watch, target = errand.watch, selection.target
    size = Size(len(target.positions), target.people, len(target.holders))
    try:
        with watch.phase("load"):
            bench = _bench(errand, current)
            given, forget, found = _load(errand, current, selection, bench)
        retain = None if found is None else found.examples
        crash_point("worker-after-load")
        with watch.unlearning():
            draws = generator(torch.device(bench.problem.device))
            result = bench.method.forget(bench.problem, given, forget, retain, draws)
            del given, forget  # the state of a large model does not fit into memory together with its noise
            result = refine(bench, current.terms, result, retain)
            return certify(bench, current.terms, result, retain, size), found
    except (VectorsMissing, CapNotReached, Malformed, Refused, manifest.Changed) as error:
        raise _why(error, errand.job.policy.method) from None


def _why(error: Exception, method: str) -> CannotUpdate:
    match error:
        case VectorsMissing():
            return CannotUpdate(Reason.NEEDS_RETRAIN, cause=Cause.VECTORS_MISSING, missing=error.count)
        case CapNotReached():
            return CannotUpdate(Reason.NEEDS_RETRAIN, **error.facts)
        case manifest.Changed():
            counts = {"missing": error.missing, "changed": error.changed}
            return CannotUpdate(Reason.SAMPLES_CHANGED, lacking=sum(counts.values()), **counts)
        case Refused():
            detail = without_numbers(error.what)
            return CannotUpdate(Reason.NEEDS_RETRAIN, cause=Cause.METHOD_REFUSED, method=method, detail=detail)
        case _:
            return CannotUpdate(Reason.NEEDS_RETRAIN, cause=Cause.WEIGHTS_NOT_FINITE)


def _publish(errand: Errand, current: Current, draft: Draft, results: Mapping[Claimed, Result]) -> None:
    storage = errand.process.storage
    start = time.perf_counter()
    retry(lambda: publish(storage.database, storage.journal, errand.job, draft, results))
    note_commit(storage.database, errand.job, draft, time.perf_counter() - start)
    drop_superseded_state(storage.database, storage.private, current.version.id)
    storage.figures.sweep(storage.database)
    destroy_keys(storage.database, storage.keys, storage.guard.witness, errand.process.settings.served_tenants)


def _current(session: Session, job: Deletions) -> Current:
    generation = session.get_one(Generation, job.generation_id)
    frozen = generation.manifest or {}
    version, fixed = session.get_one(Version, job.current_id), guarantee_from_json(frozen)
    terms = Terms(
        method=generation.method,
        guarantee=Guarantee(generation.guarantee),
        reference=Reference(frozen["reference"]),
        noise_std=generation.noise_std or 0.0,
        max_distance=generation.max_distance or 0.0,
        delta=job.policy.delta,
        budget_cost=generation.budget_cost,
        spent=generation.spent,
        limit=generation.budget,
        count=int(frozen["samples"]),
        updates=_updates(session, version),
        unlearned=_unlearned(session, generation.id) if fixed["design"] is not None else 0,
        **fixed,
    )
    return Current(version, terms, frozen)


def _updates(session: Session, version: Version) -> int:
    """Return how many updates of its generation led to the version; what built the generation counts if it forgot."""
    before = select(Version.generation_id).where(Version.id == version.parent_id)
    if session.scalar(before) == version.generation_id:
        return int(version.claim["updates"])
    forgot = Removal.version_id == version.id, Removal.generation_id == version.generation_id
    return int(session.scalar(select(Removal.position).where(*forgot).limit(1)) is not None)


def _unlearned(session: Session, generation_id: int) -> int:
    """Return how many people the method has forgotten so far: a calibration measured a limited number."""
    gone = select(Removal.position).where(Removal.generation_id == generation_id)
    people = select(func.count(Membership.holder.distinct())).where(Membership.generation_id == generation_id)
    return session.scalar(people.where(Membership.position.in_(gone))) or 0


def _require_budget(terms: Terms) -> None:
    """Stop before the work where the next update does not fit; the publish transaction decides in the end."""
    if Budget(spent=terms.spent, limit=terms.limit, budget_cost=terms.budget_cost).exhausted:
        raise CannotUpdate(Reason.BUDGET_EXHAUSTED)


def _load(
    errand: Errand, current: Current, selection: Selection, bench: Bench
) -> tuple[State, ForgetSet, manifest.Located | None]:
    """Load what the method reads: the secret state, who is forgotten, and the retained samples where they are needed.

    Fails closed: an update never starts from bytes that are not the current version's. Raises CannotUpdate, Changed.
    """
    storage, device, target = errand.process.storage, bench.problem.device, selection.target
    if Need.TRAJECTORY in bench.method.needs and not manifest.replayable(current.manifest["libraries"], device):
        raise CannotUpdate(Reason.ENVIRONMENT_CHANGED, **manifest.difference(current.manifest["libraries"], device))
    secret = errand.benches.state_of(current.version.state)
    if secret is None:
        try:
            secret = state.load(storage.private, storage.sealer, current.version.state, device)
        except Damaged as error:
            why = {"file": current.version.state, "what": type(error).__name__}
            raise CannotUpdate(Reason.STATE_UNREADABLE, **why) from None
        except Malformed:
            raise CannotUpdate(Reason.STATE_UNREADABLE, cause=Cause.FORMAT, file=current.version.state) from None
    crash_point("worker-after-digest")
    theirs, retain = _samples(errand, current, selection, bench)
    numbers, generation_id = int(current.manifest["vectors"]), errand.job.generation_id
    vectors = state.Kept(storage.database, storage.keys, generation_id, numbers, device)
    return secret, ForgetSet(frozenset(target.holders), target.positions, theirs, vectors), retain


def _bench(errand: Errand, current: Current) -> Bench:
    job, frozen = errand.job, current.manifest
    try:
        bench = errand.benches.of(job.generation_id, job.tenant_id, job.recipe, job.policy)
    except Refused as error:
        raise CannotUpdate(Reason.RECIPE_FAILED, **facts_of(error)) from None
    parts = [asdict(part) for part in bench.parts if part.kind != REFERENCE or part.public]
    found = (bench.digest, bench.settings, bench.problem.dimension, parts)
    names = ("recipe_digest", "settings_digest", "dimension")
    before = [part for part in frozen["parts"] if part["kind"] != REFERENCE or part["public"]]
    if found != (*(frozen[name] for name in names), before):
        raise _changed(errand, bench.digest != frozen["recipe_digest"])
    return bench


def _samples(
    errand: Errand, current: Current, selection: Selection, bench: Bench
) -> tuple[Examples | None, manifest.Located | None]:
    """Return the forgotten and the retained samples; None where they are not needed.

    They are those that the last update left in this process, or the recipe's. What was left is compared with the
    recipe again once it is older than ``TRUSTED_SECONDS``. Raises CannotUpdate, Changed.
    """
    wants_forgotten = needs_forgotten(bench.method)
    wants_retained = needs_retained(bench.method, current.terms.guarantee)
    if not (wants_forgotten or wants_retained):
        return None, None
    going = selection.target.positions
    left = errand.benches.samples_of(current.version.id)
    if left is not None and time.monotonic() - left.compared_at > TRUSTED_SECONDS:
        left = (left if wants_forgotten else left.without(going)).again(_recipe_samples(errand, bench))
    if left is None:
        return _found_again(errand, bench, going, wants_forgotten, wants_retained)
    everyone = left.examples
    theirs = everyone.only(torch.tensor(going, dtype=torch.int64)) if wants_forgotten else None
    return theirs, _of_somebody(left.without(going))


def _found_again(
    errand: Errand, bench: Bench, going: Sequence[int], wants_forgotten: bool, wants_retained: bool
) -> tuple[Examples | None, manifest.Located | None]:
    """Find the forgotten and the retained samples in the recipe, each by its digests. Raises CannotUpdate, Changed."""
    storage, job, device = errand.process.storage, errand.job, device_of(errand.process.settings.device)
    with storage.database.read() as session:
        places = manifest.places(session, job.generation_id)
        gone = forgotten(session, job.generation_id)
    samples = _recipe_samples(errand, bench)
    present = manifest.given(storage.pepper, job.tenant_id, samples)
    found = partial(manifest.found_again, samples, present, places, most=errand.process.settings.sample_bytes)
    staying = frozenset(places.at.tolist()).difference(going)
    theirs = found(staying, device).examples if wants_forgotten else None
    if not wants_retained:
        return theirs, None
    return theirs, _of_somebody(found(gone.union(going), device))


def _of_somebody(retained: manifest.Located) -> manifest.Located:
    if len(retained.examples) == 0:
        raise CannotUpdate(Reason.NO_DATA_LEFT)
    return retained


def _recipe_samples(errand: Errand, bench: Bench) -> Samples:
    """Run the recipe for its samples. A setting that it computes from its data must be that of the opened model."""
    job = errand.job
    try:
        loaded = recipes.load(recipes_of(errand.process.settings.recipes, job.tenant_id), job.recipe)
    except Refused as error:
        raise CannotUpdate(Reason.RECIPE_FAILED, **facts_of(error)) from None
    if (loaded.digest, loaded.settings) != (bench.digest, bench.settings):
        raise _changed(errand, loaded.digest != bench.digest)
    return loaded.recipe.samples


def _changed(errand: Errand, code: bool) -> CannotUpdate:
    """Return that the recipe is not the registered one. ``code``: its file, or a module that it imports, differs."""
    folder = recipes_of(errand.process.settings.recipes, errand.job.tenant_id)
    file = recipes.find(folder, errand.job.recipe).name
    return CannotUpdate(Reason.RECIPE_CHANGED, **({"file": file} if code else {}))


def _too_bad(job: Deletions, current: Current, certified: Certified) -> bool:
    """Return whether the holdout accuracy of the published weights fell by more than the policy allows."""
    tolerance, before = job.policy.max_accuracy_drop, current.version.holdout_accuracy
    return tolerance is not None and before is not None and before - certified.accuracy > tolerance


def _or_retrain(errand: Errand, why: Blocked) -> Result:
    """Return ``why``; or, where the policy falls back to a retrain and that helps, wait for the retrain."""
    if not errand.job.policy.falls_back or why.reason not in RETRAIN_HELPS:
        return why
    facts = {name: value for name, value in why.facts.items() if name != "cause"}
    note = {"method": "retrain", "why": why.facts.get("cause", why.reason), **facts}
    return Postponed(Reason.AWAITING_RETRAIN, seal_note(errand.process.storage.sealer, note))
