"""Preparation: freeze the manifest, train or import, compute what the method keeps, publish version 1.

A worker that dies leaves rows and keys behind; the next attempt deletes them and starts clean. A refusal deletes
them too: a refused model has nothing but its reason.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.audit.log import record
from service.infra.db import Database
from service.infra.durations import bucket
from service.infra.fault_injection import crash_point
from service.infra.pseudonyms import new_id
from service.infra.tables import Generation, HoldoutPerson, Membership, Model, Recollection, Version
from unlearning.accounting.certificate import Guarantee, Reference
from unlearning.model.closed_form import DoesNotRun
from unlearning.model.training import learn
from unlearning.types import (
    Examples,
    ForgetSet,
    Forgotten,
    Ineffective,
    Json,
    Learned,
    Progress,
    RecipeError,
    Refused,
    State,
    Unsuited,
)
from workers.guarantee.certify import CapNotReached, Size, Terms, certify
from workers.guarantee.dry_run import dry_run, establish
from workers.guarantee.needs import generator, needs_forgotten, needs_retained
from workers.guarantee.refine import refine
from workers.guarantee.register import freeze_guarantee, how_chosen, longest_of, register, report_of, terms_of
from workers.runtime.db_retry import patiently
from workers.runtime.failures import refusal_of
from workers.runtime.jobs import Preparation
from workers.runtime.lease import fence
from workers.runtime.model import Bench
from workers.runtime.process import Process
from workers.runtime.stopwatch import Stopwatch
from workers.storage import checkpoint_format as codec
from workers.storage import private_state as state
from workers.storage.crypto_erase import destroy_keys
from workers.storage.storage import Storage
from workers.training import calibrate
from workers.training import parallel as work_units
from workers.training import suggest as alternatives
from workers.training.cohort import kept_out
from workers.training.progress import Shown
from workers.training.rekey import rekey
from workers.training.resume import Unprepared
from workers.training.start import Begun, again, begin
from workers.update import claim
from workers.update.blocked import NUMBERS
from workers.update.publish import (
    Departure,
    Draft,
    HoldAppeared,
    Registered,
    SuppressionAppeared,
    Unusable,
    publish_first,
)
from workers.update.select import Target, asked, target_of
from workers.update.version_files import write_files

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ready:
    """A trained model with its method's state, and what registration learned."""

    bench: Bench
    terms: Terms
    examples: Examples
    state: State
    registered: Registered


@dataclass(frozen=True)
class Ending:
    """How a generation that was made ready comes into service, or does not."""

    look: Callable[[Session], Departure]
    """who leaves the served model with the generation's first version, as the database stands"""
    terms: Callable[[Terms, Departure], Terms]
    """what that version may claim"""
    publish: Callable[[Storage, Draft, Registered, Departure], None]
    refuse: Callable[[Session, str, str], None]
    learn: Callable[..., Learned]
    evidence: Mapping[str, Json] = field(default_factory=dict)
    """sealed with the first version's state"""


def prepare(process: Process, job: Preparation, watch: Stopwatch) -> None:
    """Prepare the model, or refuse it with a plain reason. Raises Stale where the lease was taken over."""
    build_generation(process, job, watch, ending_of(job))


def ending_of(job: Preparation) -> Ending:
    """A model's first generation ends in version 1, or in a refusal of the model."""

    def refuse(session: Session, what: str, hint: str) -> None:
        claim.refuse(session, session.get_one(Model, job.lease.model_id), generation_of(session, job), what, hint)

    def look(session: Session) -> Departure:
        target = target_of(session, job.generation_id, asked(session, job).going)
        return Departure(target, Size(len(target.positions), target.people))

    return Ending(
        look=look,
        terms=lambda terms, _: terms,
        publish=lambda storage, draft, registered, _: publish_first(storage, job, draft, registered),
        refuse=refuse,
        learn=learn,
    )


def build_generation(process: Process, job: Preparation, watch: Stopwatch, ending: Ending) -> None:
    """Make the generation ready, bring it into service; or refuse, and leave nothing half done.

    It starts clean, unless an earlier attempt had trained and was computing work units, or calibrating: that is taken
    up where it stood. What the recipe's code raises is refused at once, as it would be raised at every attempt.
    """
    storage = process.storage
    try:
        ready = taken_up(process, job, watch)
        if ready is None:
            ready = _made_ready(process, job, watch, ending)
        bring_into_service(storage, job, ready, watch, ending)
    except DoesNotRun as error:
        raised = error.__cause__
        own = refusal_of(raised, process.settings.recipes) if isinstance(raised, Exception) else None
        _give_up(process, job, ending, own or error)
    except (Refused, RecipeError, CapNotReached, codec.Malformed) as error:
        _give_up(process, job, ending, error)
    except Exception as error:
        refused = refusal_of(error, process.settings.recipes)
        if refused is None:
            raise
        _give_up(process, job, ending, refused)
    else:
        work_units.forget(process, job.generation_id)
        calibrate.drop_prepared(storage, job.generation_id)
        storage.figures.sweep(storage.database)
        destroy_keys(storage.database, storage.keys, storage.journal.root, process.settings.served_tenants)


def _give_up(process: Process, job: Preparation, ending: Ending, error: Exception) -> None:
    clean(process, job)
    with process.storage.database.write() as session:
        fence(session, job.lease)
        ending.refuse(session, *reason_of(error))


def _made_ready(process: Process, job: Preparation, watch: Stopwatch, ending: Ending) -> Ready:
    """Ready by the policy's method; where that does not help on this model, by the policy's fallback."""
    try:
        begun = again(process, job, watch)
        if begun is not None:
            return finish(process, job, watch, begun)
        clean(process, job)
        return make_ready(process, job, watch, ending.learn)
    except Ineffective as why:
        clean(process, job)
        return make_ready(process, _switched(process.storage.database, job, why), watch, ending.learn)


def _switched(database: Database, job: Preparation, why: Ineffective) -> Preparation:
    """The generation's method is the policy's fallback from now on, for a worker that takes it up too."""
    fallback = job.policy.fallback
    if fallback is None:  # _prepared has refused already
        raise why
    with database.write() as session:
        fence(session, job.lease)
        generation = generation_of(session, job)
        switched = {"from": generation.method, "to": fallback, "why": NUMBERS.sub("#", why.what)}
        generation.method, generation.manifest = fallback, (generation.manifest or {}) | {"switched": switched}
        kind, instead = "preparation.switched", job.policy.method
        record(session, job.tenant_id, kind, model_id=job.lease.model_id, method=fallback, instead=instead)
    return replace(job, policy=job.policy.in_force(fallback))


def generation_of(session: Session, job: Preparation) -> Generation:
    """The generation that is being built."""
    return session.get_one(Generation, job.generation_id)


def make_ready(process: Process, job: Preparation, watch: Stopwatch, learn: Callable[..., Learned] = learn) -> Ready:
    """Manifest, training, the method's state and its sealed rows. Raises Refused and its like."""
    return finish(process, job, watch, begin(process, job, watch, learn))


def finish(process: Process, job: Preparation, watch: Stopwatch, begun: Begun) -> Ready:
    """The method's state and its sealed rows, and the generation's terms. Raises Refused and its like."""
    started, bench = time.monotonic(), begun.bench
    with watch.phase("method"):
        made = _prepared(process, job, begun, Shown(process.storage.database, job).part("method", 0.5, 0.95))
    crash_point("prepare-after-rows")
    seconds = begun.seconds + time.monotonic() - started
    report = report_of(made, bench, job) | {"seconds": bucket(seconds)}
    longest = begun.course.method.length(bench.problem) if begun.course is not None else longest_of(made)
    terms = register(process.storage.database, job, begun.guarantee, made, len(begun.examples), longest=longest)
    with watch.phase("bound"):
        terms, found = establish(bench, replace(terms, design=begun.design), begun.examples, made)
    freeze_guarantee(process.storage.database, job, terms)
    report |= found | how_chosen(process.storage.database, job) | kept_out(begun.left_out)
    report = process.storage.figures.keep(job.generation_id, report)
    bare = State(made.weights, made.tensors, made.facts)
    if terms.design is not None:
        calibrate.open_orders(process, job, bare, terms.design, {"report": report, "left_out": begun.left_out})
    registered = Registered(report, begun.left_out)
    return _settled(process, job, watch, Ready(bench, terms, begun.examples, bare, registered))


def taken_up(process: Process, job: Preparation, watch: Stopwatch) -> Ready | None:
    """A preparation that was calibrating when its worker was lost, with the orders that are done. None: start anew."""
    with process.storage.database.read() as session:
        generation = generation_of(session, job)
    kept = calibrate.prepared_of(generation)
    if kept is None:
        return None
    try:
        with watch.phase("load"):
            course = calibrate.course_of(process, generation, job.recipe)
    except Unprepared:
        return None
    reference = Reference((generation.manifest or {})["reference"])
    terms = replace(terms_of(job.policy, Guarantee.CALIBRATED, reference, len(course.examples)), design=course.design)
    registered = Registered(kept["report"], kept["left_out"])
    return _settled(process, job, watch, Ready(course.bench, terms, course.examples, course.state, registered))


def _settled(process: Process, job: Preparation, watch: Stopwatch, ready: Ready) -> Ready:
    """The last of what registration learns: the calibration, where one is asked for, and the dry run."""
    if ready.terms.design is not None:
        with watch.phase("calibrate"):
            _calibrate(process, job)
    tried = {"dry_run": dry_run(ready.bench, ready.terms, ready.state.weights)}
    report = process.storage.figures.keep(job.generation_id, {**ready.registered.report, **tried})
    return replace(ready, registered=replace(ready.registered, report=report))


def _calibrate(process: Process, job: Preparation) -> None:
    with process.storage.database.read() as session:
        generation = generation_of(session, job)
    course = calibrate.course_of(process, generation, job.recipe)
    shown = Shown(process.storage.database, job).part("calibrate", 0.5, 0.95)
    found = calibrate.measure_all(process, job, course, shown)
    calibrate.require_useful_cap(found, job.policy.max_distance)


def _prepared(process: Process, job: Preparation, begun: Begun, progress: Progress) -> State:
    """The method's state, its rows written. Where the method does not help on this model, and no fallback does, the
    refusal names those that do."""
    bench = begun.bench
    try:
        if begun.course is not None:
            work_units.compute_all(process, job, begun.course, progress)
            return work_units.completed(process.storage, begun.course, progress)
        made = bench.method.prepare(bench.problem, begun.examples, begun.learned, progress)
    except (Ineffective, Unsuited) as error:
        if isinstance(error, Ineffective) and job.policy.fallback is not None:
            raise
        others = alternatives.hint(bench, job.policy, begun.examples, begun.learned, progress)
        raise Refused(error.what, f"{error.hint} {others}" if isinstance(error, Unsuited) else others) from None
    _keep_vectors(process.storage, job, made)
    return made


def bring_into_service(storage: Storage, job: Preparation, ready: Ready, watch: Stopwatch, ending: Ending) -> None:
    """Publish; whoever asked meanwhile is forgotten first, and then it is tried again."""
    while True:
        rekey(storage, job, ready.bench.recipe.samples)  # who asked meanwhile, where the pepper is being changed
        with storage.database.read() as session:
            departure = ending.look(session)
        claimed = replace(ready, terms=ending.terms(ready.terms, departure))
        draft = _draft(storage, job, claimed, watch, (departure, ending.evidence))
        try:
            patiently(partial(ending.publish, storage, draft, ready.registered, departure))
            return
        except (SuppressionAppeared, HoldAppeared) as error:
            log.warning("%s", error)
            _throw_away(storage, draft)
        except Unusable:
            _throw_away(storage, draft)
            raise


def _throw_away(storage: Storage, draft: Draft) -> None:
    """Delete the files of a draft that was not published."""
    storage.private.delete(draft.state.digest)
    storage.store.delete(draft.checkpoint.digest)


def _draft(
    storage: Storage,
    job: Preparation,
    ready: Ready,
    watch: Stopwatch,
    going: tuple[Departure, Mapping[str, Json]],
) -> Draft:
    departure, evidence = going
    target, size = departure.target, departure.size
    forgotten, retain = Forgotten(ready.state), ready.examples
    with watch.unlearning():
        if target.positions:
            forgotten, retain = _forget(storage, job, ready, target)
        forgot = replace(size, unlearned=len(target.holders))
        refined = refine(ready.bench, ready.terms, forgotten, retain)
        certified = certify(ready.bench, ready.terms, refined, retain, forgot)
    with watch.phase("store"):
        checkpoint, kept = write_files(storage, certified, evidence)
        resealed = state.reseal_vectors(storage.database, storage.keys, job.generation_id, certified.state.vectors)
    return Draft(
        version_id=new_id(),
        checkpoint=checkpoint,
        state=kept,
        method=ready.terms.method,
        claim=certified.claim,
        accuracy=certified.accuracy,
        budget_cost=certified.budget_cost,
        target=target,
        size=size,
        seconds={},
        vectors=resealed,
    )


def _forget(storage: Storage, job: Preparation, ready: Ready, target: Target) -> tuple[Forgotten, Examples]:
    gone = torch.tensor(target.positions, dtype=torch.int64)
    retain = ready.examples.without(gone)
    if not len(retain):
        raise Refused("Everyone asked to be forgotten while the model was prepared.", "Register it with other data.")
    bench = ready.bench
    vectors = state.Kept(
        storage.database, storage.keys, job.generation_id, bench.problem.dimension, bench.problem.device
    )
    theirs = ready.examples.only(gone) if needs_forgotten(bench.method) else None
    forget = ForgetSet(frozenset(target.holders), target.positions, theirs, vectors)
    draws = generator(bench.problem.device)
    reads = retain if needs_retained(bench.method, ready.terms.guarantee) else None
    return bench.method.forget(bench.problem, ready.state, forget, reads, draws), retain


def _keep_vectors(storage: Storage, job: Preparation, made: State) -> None:
    for rows in state.seal_vectors(storage.keys, job.generation_id, made.vectors):
        with storage.database.write() as session:
            fence(session, job.lease)
            state.write_vectors(session, rows)


def clean(process: Process, job: Preparation) -> None:
    """Delete everything that an earlier attempt left: rows, and their keys."""
    with process.storage.database.write() as session:
        fence(session, job.lease)
        if session.scalar(select(Version.id).where(Version.generation_id == job.generation_id).limit(1)):
            raise RuntimeError(f"generation {job.generation_id} has a version: it is not being prepared")
        for rows in (Membership, Recollection, HoldoutPerson):
            session.execute(delete(rows).where(rows.generation_id == job.generation_id))
    work_units.forget(process, job.generation_id)
    calibrate.forget_orders(process, job.generation_id)
    process.storage.figures.delete(job.generation_id)
    process.storage.keys.destroy_generation(job.generation_id)


def reason_of(error: Exception) -> tuple[str, str]:
    if isinstance(error, Refused | RecipeError):
        return error.what, error.hint
    if isinstance(error, CapNotReached):
        return f"The cap cannot be reached: {error}.", "Raise max_distance and noise_std together, or weight_decay."
    return f"The trained weights cannot be published: {error}.", "Lower the learning rate."
