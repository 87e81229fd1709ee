"""An update: claim -> load -> forget -> refine -> certify -> publish. One version for everything that waited."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.audit import log as ledger
from service.infra.fault_injection import crash_point
from service.infra.files import Damaged
from service.infra.pseudonyms import PepperMissing, new_id
from service.infra.tables import Forgotten as ForgottenPosition
from service.infra.tables import Generation, Membership, Version
from service.infra.tenants import recipes_of
from service.models.retrain_plan import budget_of
from service.requests.states import AWAITING_RETRAIN
from unlearning.accounting.budget import Budget
from unlearning.accounting.certificate import Guarantee, Reference
from unlearning.accounting.policy import Clock, Queue, next_action
from unlearning.types import Examples, ForgetSet, Forgotten, Need, Refused, State, VectorsMissing
from workers.guarantee.certify import CapNotReached, Certified, Oversize, Size, Terms, certify
from workers.guarantee.dry_run import guarantee_from_json
from workers.guarantee.needs import generator, needs_forgotten, needs_retained
from workers.guarantee.refine import refine
from workers.runtime import recipes
from workers.runtime.collector import collector_at_rest
from workers.runtime.db_retry import patiently
from workers.runtime.jobs import Claimed, Deletions
from workers.runtime.model import Bench, Benches
from workers.runtime.process import Process
from workers.runtime.stopwatch import Stopwatch
from workers.storage import manifest
from workers.storage import private_state as state
from workers.storage.checkpoint_format import Malformed
from workers.storage.crypto_erase import destroy_keys, drop_superseded_state
from workers.storage.encryption import Unsealable
from workers.storage.operator_notes import seal_note
from workers.storage.storage import Storage
from workers.update.blocked import NUMBERS, RETRAIN_HELPS, Blocked
from workers.update.publish import Draft, HoldAppeared, note_commit, publish
from workers.update.select import Plan, Target, forgotten, plan
from workers.update.task_results import Outcome, settle_without_version, withhold
from workers.update.version_files import write_files

PLANS = 5
"""a legal hold that appears while we compute makes us plan again, so often at most in one claim"""


@dataclass(frozen=True)
class Head:
    """What this release stands on."""

    terms: Terms
    budget: Budget
    version_id: str
    state: str
    accuracy: float | None
    recipe_digest: str
    pepper_id: str
    libraries: Mapping[str, str]
    parts: Sequence[Mapping[str, Any]]
    """what the model brought along at registration"""
    vectors: int
    """the most numbers that a holder's row has; 0: the method keeps no rows"""


@dataclass(frozen=True)
class Errand:
    """One claim in hand, and what it is done with."""

    process: Process
    benches: Benches
    job: Deletions
    watch: Stopwatch


@dataclass(frozen=True)
class Loaded:
    """Everything that forgetting reads."""

    bench: Bench
    state: State
    forget: ForgetSet
    retain: Examples | None


def release(errand: Errand) -> None:
    """Carry out a batch of deletions: a new version, or an outcome for each task. Raises Stale."""
    crash_point("worker-after-claim")
    for _ in range(PLANS):
        try:
            _update_once(errand)
            return
        except HoldAppeared:
            continue
    raise RuntimeError("legal holds kept appearing while the release was computed")


def _update_once(errand: Errand) -> None:
    storage, job = errand.process.storage, errand.job
    with errand.watch.phase("load"), storage.database.read() as session:
        head = _head(session, job)
        planned = plan(session, job, atomic=bool(head.vectors))
    outcomes = _without_weights(errand, planned)
    if not planned.forget:
        settle_without_version(storage.database, job, outcomes)
        return
    try:
        _require_budget(job, head, len(planned.forget))
        certified = _compute(errand, head, planned)
        if _too_bad(job, head, certified):
            _withhold(errand, planned, certified)
            return
        draft = _draft(errand, planned, certified)
        secret = certified.state
        del certified  # y lies on the disk by now
        _publish(errand, head, planned, draft)
        errand.benches.remember(draft.state.digest, secret)
    except Blocked as held:
        outcomes |= dict.fromkeys(planned.forget, _held(errand, held))
        told = {} if _falls_back(job, held.reason) else held.facts
        settle_without_version(storage.database, job, outcomes, **told)


def _compute(errand: Errand, head: Head, planned: Plan) -> Certified:
    """Load, forget, certify. Raises Blocked with the reason, where one of them cannot be done."""
    watch = errand.watch
    with watch.phase("load"):
        bench = _bench(errand.benches, errand.job, head)
    try:
        with watch.phase("load"):
            loaded = _load(errand, head, planned, bench)
        crash_point("worker-after-load")
        with watch.unlearning():
            result = _forget(loaded)
            retain = loaded.retain
            del loaded
            target = planned.target
            size = Size(len(target.positions), target.people, len(target.holders))
            result = refine(bench, head.terms, result, retain)
            return certify(bench, head.terms, result, retain, size)
    except VectorsMissing as error:
        raise Blocked("vectors_missing", missing=error.count) from None
    except Oversize:
        raise Blocked("beyond_calibration") from None
    except CapNotReached:
        raise Blocked("cap_not_reached") from None
    except Malformed:
        raise Blocked("weights_not_finite") from None
    except Refused as error:
        raise Blocked("method_refused", what=NUMBERS.sub("#", error.what)) from None
    except manifest.Changed as error:
        raise Blocked("samples_changed", missing=error.missing, changed=error.changed) from None


def _draft(errand: Errand, planned: Plan, certified: Certified) -> Draft:
    """Write the files, durably."""
    storage, watch, generation_id = errand.process.storage, errand.watch, errand.job.generation_id
    with watch.phase("store"):
        checkpoint, kept = write_files(storage, certified)
        resealed = state.reseal_vectors(storage.database, storage.keys, generation_id, certified.state.vectors)
    return Draft(
        version_id=new_id(),
        checkpoint=checkpoint,
        state=kept,
        method=errand.job.policy.method,
        claim=certified.claim,
        accuracy=certified.accuracy,
        budget_cost=certified.budget_cost,
        target=planned.target,
        size=Size(len(planned.target.positions), planned.target.people),
        seconds=dict(watch.seconds),
        vectors=resealed,
    )


@collector_at_rest()
def _publish(errand: Errand, head: Head, planned: Plan, draft: Draft) -> None:
    storage = errand.process.storage
    outcomes = _without_weights(errand, planned)
    outcomes |= {task: Outcome("completed", len(positions)) for task, positions in planned.forget.items()}
    start = time.perf_counter()
    try:
        patiently(lambda: publish(storage, errand.job, draft, outcomes))
    except ledger.Overspent:
        raise Blocked("budget_exhausted") from None
    note_commit(storage.database, errand.job, draft, time.perf_counter() - start)
    drop_superseded_state(storage.database, storage.private, head.version_id)
    storage.figures.sweep(storage.database)
    destroy_keys(storage.database, storage.keys, storage.journal.root, errand.process.settings.served_tenants)


def _withhold(errand: Errand, planned: Plan, certified: Certified) -> None:
    held = Outcome("blocked", None, "utility_gate")
    outcomes = _without_weights(errand, planned) | dict.fromkeys(planned.forget, held)
    try:
        withhold(errand.process.storage, errand.job, certified.budget_cost, outcomes, "utility_gate")
    except ledger.Overspent:
        raise Blocked("budget_exhausted") from None


def _head(session: Session, job: Deletions) -> Head:
    generation = session.get_one(Generation, job.generation_id)
    version = session.get_one(Version, job.current_id)
    frozen = generation.manifest or {}
    updates = session.scalar(
        select(func.count(ForgottenPosition.version_id.distinct())).where(
            ForgottenPosition.generation_id == generation.id
        )
    )
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
        updates=updates or 0,
        unlearned=_holders_gone(session, generation.id),
        **guarantee_from_json(frozen),
    )
    return Head(
        terms=terms,
        budget=budget_of(generation),
        version_id=version.id,
        state=version.state,
        accuracy=version.holdout_accuracy,
        recipe_digest=frozen["recipe_digest"],
        pepper_id=frozen["pepper_id"],
        libraries=frozen["libraries"],
        parts=frozen["parts"],
        vectors=int(frozen["vectors"]),
    )


def _holders_gone(session: Session, generation_id: int) -> int:
    """How many holders were forgotten so far."""
    gone = select(ForgottenPosition.position).where(ForgottenPosition.generation_id == generation_id)
    count = select(func.count(Membership.holder.distinct()))
    return session.scalar(count.where(Membership.generation_id == generation_id, Membership.position.in_(gone))) or 0


def _require_budget(job: Deletions, head: Head, waiting: int) -> None:
    """Stop before the work where the next update does not fit; the transaction decides in the end."""
    action = next_action(job.policy, head.budget, Queue(waiting=waiting), Clock(0))
    if action.kind in ("hold", "retrain"):
        raise Blocked("budget_exhausted")


def _load(errand: Errand, head: Head, planned: Plan, bench: Bench) -> Loaded:
    process, job = errand.process, errand.job
    if Need.TRAJECTORY in bench.method.needs and not manifest.replayable(head.libraries, bench.problem.device):
        raise Blocked("environment_changed")
    device = bench.problem.device
    secret = errand.benches.state_of(head.state) or _secret(process.storage, head, device)
    crash_point("worker-after-digest")
    storage, target = process.storage, planned.target
    forget_examples, retain = _samples(process, bench, job, head, target)
    vectors = state.Kept(storage.database, storage.keys, job.generation_id, head.vectors, device)
    forget = ForgetSet(frozenset(target.holders), target.positions, forget_examples, vectors)
    return Loaded(bench, secret, forget, retain)


def _secret(storage: Storage, head: Head, device: torch.device) -> State:
    """The current version's state. Fails closed: an update never stands on bytes that are not those of the current
    version.
    """
    try:
        return state.load(storage.private, storage.sealer, head.state, device)
    except (Damaged, Unsealable) as error:
        raise Blocked("state_damaged", what=type(error).__name__) from None
    except Malformed:
        raise Blocked("state_format_unknown") from None


def _bench(benches: Benches, job: Deletions, head: Head) -> Bench:
    try:
        bench = benches.of(job.generation_id, job.tenant_id, job.recipe, job.policy)
    except Refused as error:
        raise Blocked("recipe_refused", what=error.what) from None
    if bench.digest != head.recipe_digest or [asdict(part) for part in bench.parts] != list(head.parts):
        raise Blocked("recipe_changed")
    return bench


def _samples(
    process: Process, bench: Bench, job: Deletions, head: Head, target: Target
) -> tuple[Examples | None, Examples | None]:
    """The forgotten and the retained samples, each only where it is needed; the recipe is run anew for them."""
    wants_forgotten = needs_forgotten(bench.method)
    wants_retained = needs_retained(bench.method, head.terms.guarantee)
    if not (wants_forgotten or wants_retained):
        return None, None
    with process.storage.database.read() as session:
        places = manifest.places(session, job.generation_id)
        gone = forgotten(session, job.generation_id)
    try:
        samples = recipes.load(recipes_of(process.settings.recipes, job.tenant_id), job.recipe).recipe.samples
    except Refused as error:
        raise Blocked("recipe_refused", what=error.what) from None
    try:
        pepper = process.storage.pepper.named(head.pepper_id)
    except PepperMissing as error:
        raise Blocked("pepper_missing", what=str(error)) from None
    now = manifest.entries(pepper, job.tenant_id, samples, job.policy.granularity)
    going = frozenset(target.positions)
    device = bench.problem.device
    everyone = frozenset(place.position for place in places)
    retained = manifest.found_again(samples, now, places, gone | going, device) if wants_retained else None
    if retained is not None and len(retained) == 0:
        raise Blocked("nobody_left")
    return manifest.found_again(samples, now, places, everyone - going, device) if wants_forgotten else None, retained


def _forget(loaded: Loaded) -> Forgotten:
    bench = loaded.bench
    return bench.method.forget(
        bench.problem,
        loaded.state,
        loaded.forget,
        loaded.retain,
        generator(torch.device(bench.problem.device)),
    )


def _too_bad(job: Deletions, head: Head, certified: Certified) -> bool:
    """The utility gate: y's holdout accuracy fell by more than the policy allows."""
    tolerance = job.policy.utility_tolerance
    if tolerance is None or head.accuracy is None:
        return False
    return head.accuracy - certified.accuracy > tolerance


def _without_weights(errand: Errand, planned: Plan) -> dict[Claimed, Outcome]:
    """The outcomes that no update changes: nothing to forget, held, or left to the fallback."""
    empty: Mapping[Claimed, str] = planned.empty
    return {task: Outcome("completed", 0, reason) for task, reason in empty.items()} | {
        task: _held(errand, Blocked(reason)) for task, reason in planned.held.items()
    }


def _held(errand: Errand, held: Blocked) -> Outcome:
    """Held; or, where the policy names retraining as its fallback and that helps, waiting for the retrain."""
    if not _falls_back(errand.job, held.reason):
        return Outcome("blocked", None, held.reason)
    note = seal_note(errand.process.storage.sealer, {"method": "retrain", "why": held.reason, **held.facts})
    return Outcome("queued", None, AWAITING_RETRAIN, note)


def _falls_back(job: Deletions, reason: str) -> bool:
    return job.policy.fallback == "retrain" and reason in RETRAIN_HELPS
