"""Preparation: freeze the manifest, train or import, compute what the method keeps, publish the first version.

A retrain is the preparation of a candidate generation, trained without the people who asked, with a fresh budget. A
worker that dies leaves rows and keys behind; the next attempt deletes them. A refusal deletes them too: a refused
generation has its reason alone.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from sqlalchemy.orm import Session

from expunge_service.audit import record
from expunge_service.infra.db import Database, now
from expunge_service.infra.pseudonyms import new_id
from expunge_service.infra.time import time_bucket
from expunge_service.models import (
    ACCEPTED,
    FORGOTTEN,
    MEMBERSHIPS,
    PORTED,
    Committed,
    committed,
    forgetting,
    has_blocks,
    is_port,
    marks_changed,
    memberships_changed,
    write_vectors,
)
from expunge_service.queue import (
    Blocked,
    Draft,
    Leaving,
    Preparation,
    Replan,
    Target,
    charge_withheld,
    departure,
    extend_manifest,
    fence,
    generation_of,
    model_of,
    points_of,
    publish_generation,
    refuse,
    start_over,
    withhold,
    without_numbers,
    without_vector,
)
from expunge_service.requests import Reason
from expunge_workers.guarantee.certify import (
    certify,
    refine,
    require_certified,
)
from expunge_workers.guarantee.dry_run import costs, dry_run, establish, plain_accuracy, published_accuracy, size_of
from expunge_workers.guarantee.terms import (
    Terms,
    freeze_guarantee,
    guarantee_from_json,
    how_chosen,
    longest_of,
    register,
    report_of,
    terms_of,
)
from expunge_workers.runtime.db_retry import retry
from expunge_workers.runtime.drain import undivided
from expunge_workers.runtime.failures import Attributed, facts_of, refusal_of
from expunge_workers.runtime.heartbeat import Stopwatch
from expunge_workers.runtime.model import OpenModel, forget_in_worlds
from expunge_workers.runtime.process import Process
from expunge_workers.runtime.world_model import NoSamples
from expunge_workers.runtime.worlds import readers
from expunge_workers.storage import (
    Storage,
    delete_ended_generations,
    private_state,
)
from expunge_workers.storage.as_published import WHAT_TO_RUN, TablesDiffer, as_published
from expunge_workers.storage.parts import PartStore
from expunge_workers.storage.private_state import open_note
from expunge_workers.training.calibrate import CalibrationUnits, require_useful_cap
from expunge_workers.training.cohort import holdout_told, kept_out
from expunge_workers.training.keyed_parts import KeyedParts
from expunge_workers.training.start import MEASURES, Begun, Ended, again, begin, settled, shown
from expunge_workers.update.draft import write_draft
from expunge_workers.update.rows import samples_of_update
from unlearning.accounting.certificate import Guarantee, Reference
from unlearning.accounting.policy import RETRAIN
from unlearning.model.method import KeepsVectors
from unlearning.quality.distance_left import with_distance_left
from unlearning.types import (
    Examples,
    ForgetSet,
    Forgotten,
    Ineffective,
    Json,
    Progress,
    RecipeError,
    Refused,
    State,
    Vectors,
    silent,
)

TRAININGS = 5
"""What comes during a training makes us train again, this often at most."""
REGISTER_AGAIN = "Find out who changed it, and prepare the model again."
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A trained model with its method's state, and what registration learned."""

    bench: OpenModel
    terms: Terms
    examples: Examples
    state: State
    report: Mapping[str, Any]
    left_out: Mapping[str, int]
    """how many samples each request keeps out of the training"""


def prepare(process: Process, job: Preparation, watch: Stopwatch) -> Ended | None:
    """Build a generation and publish its first version; or refuse it with a reason, and leave no half-done work.

    Return why it ended without either.

    It starts again, unless an earlier attempt was computing work units, or calibrating: then it continues
    there. What the recipe's code raises is refused at once, because every attempt would raise it. Raises Stale.
    """
    try:
        return _trained_until_used(process, job, watch)
    except (Refused, RecipeError) as error:
        raised = error.__cause__
        own = refusal_of(raised, process.settings.recipes) if isinstance(raised, Exception) else None
        _give_up(process, job, own or error)
    except Exception as error:
        refused = refusal_of(error, process.settings.recipes)
        if refused is None:
            raise
        _give_up(process, job, refused)
    return None


def _trained_until_used(process: Process, job: Preparation, watch: Stopwatch) -> Ended | None:
    """Build again where what was trained cannot be used, for a legal hold or a request that came meanwhile, or because
    work units are gone. Raises Refused where that goes on.
    """
    why = Replan("")
    for _ in range(TRAININGS):
        try:
            with readers():
                return _build(process, job, watch)
        except Replan as error:
            why = error
            log.warning("begun again: %s", why, extra={"model": job.model_name})
            clean(process, job)
    raise Refused(f"It was trained {TRAININGS} times and could not be used: {why}.", why.remedy)


def _build(process: Process, job: Preparation, watch: Stopwatch) -> Ended | None:
    """Build and publish or withhold. Raises Replan where the training must be repeated."""
    storage = process.storage
    if job.retrains:
        _require_as_published(storage, job)
    with storage.database.read() as session:
        replaced = model_of(session, job).current_id
    prepared = taken_up(process, job, watch) or _made_ready(process, job, watch)
    if isinstance(prepared, Ended):
        return prepared
    if _withheld(process, job) or not bring_into_service(process, job, prepared, watch):
        return None
    _forget_units(process, job)
    CalibrationUnits.drop_state(process, job.generation_id)
    if replaced is not None:
        delete_ended_generations(storage.database)
    storage.figures.sweep(storage.database)
    return None


def _give_up(process: Process, job: Preparation, error: Refused | RecipeError) -> None:
    clean(process, job)
    with process.storage.database.write() as session:
        model = fence(session, job.lease)
        facts = facts_of(error) if isinstance(error, Attributed) else None
        refuse(session, model, generation_of(session, job), error.what, error.hint, facts=facts)


def _made_ready(process: Process, job: Preparation, watch: Stopwatch) -> Prepared | Ended:
    """Make it ready by the policy's method; where that does not help on this model, by the policy's fallback."""
    try:
        begun = again(process, job, watch)
        if begun is not None:
            log.info("resumed: the units that are done are kept", extra={"model": job.model_name, "phase": "method"})
            return finish(process, job, watch, begun)
        clean(process, job, parts=False)
        job = settled(process, job)
        return make_ready(process, job, watch)
    except Ineffective as why:
        clean(process, job)
        return make_ready(process, _switched(process.storage.database, job, why), watch)
    except NoSamples as why:
        if not job.retrains:
            raise
        clean(process, job)  # a port: the rewritten recipe trains by itself
        return make_ready(process, _switched(process.storage.database, job, why, ported=True), watch)


def _switched(database: Database, job: Preparation, why: Refused, *, ported: bool = False) -> Preparation:
    """Make the policy's fallback the generation's method, also for a worker that continues the preparation.

    ``ported``: and that of every later generation.
    """
    with database.write() as session:
        method = generation_of(session, job).method
        notes = {"switched": {"from": method, "to": RETRAIN, "why": without_numbers(why.what)}}
        notes |= {PORTED: {"method": RETRAIN, "instead": method}} if ported else {}
        extend_manifest(session, job, notes).method = RETRAIN
        kind, instead = "preparation.switched", job.policy.method
        record(session, job.tenant_id, kind, model_id=job.model_id, method=RETRAIN, instead=instead)
    return replace(job, policy=job.policy.in_force(RETRAIN))


def make_ready(process: Process, job: Preparation, watch: Stopwatch) -> Prepared | Ended:
    """Freeze the manifest, train, compute the method's state and seal its rows. Raises Refused, among others."""
    begun = begin(process, job, watch)
    return begun if isinstance(begun, Ended) else finish(process, job, watch, begun)


def finish(process: Process, job: Preparation, watch: Stopwatch, begun: Begun) -> Prepared | Ended:
    """Compute the method's state, seal its rows and fix the generation's terms. Raises Refused, among others."""
    started, bench = time.monotonic(), begun.bench
    with watch.phase("method"):
        made = _prepared(process, job, begun, shown(process.storage.database, job, "method", 0.5, 0.95))
    if isinstance(made, Ended):
        return made
    seconds = begun.seconds + time.monotonic() - started
    shared = begun.units
    work = begun.work + (watch.work("method", str(bench.problem.device)) if shared is None else sum(shared.work))
    if bench.built is not None:
        made = bench.method.afresh(made)  # its parts are kept by their keys
        _name_file(process.storage, job, bench.built.suffix(made.weights))
    report = report_of(made, bench, job) | {"seconds": time_bucket(seconds), "work_seconds": time_bucket(work)}
    if not job.retrains:
        report |= {"plain_accuracy": plain_accuracy(bench, begun.examples, begun.learned, job.policy)}
    longest = longest_of(made)
    rounds = bench.method.most_updates()
    count = len(begun.examples) if bench.world_model is None else bench.world_model.count
    terms = register(process.storage.database, job, begun.guarantee, made, count, longest=longest, rounds=rounds)
    terms = replace(terms, design=begun.design)
    if bench.built is not None:
        terms = replace(terms, deterministic=bench.built.repeats is True, repeats=bench.built.repeats)
    with watch.phase("bound"):
        terms, found = establish(bench, terms, begun.examples, made)
    freeze_guarantee(process.storage.database, job, terms)
    report |= found | how_chosen(process.storage.database, job) | kept_out(begun.left_out)
    report |= holdout_told(bench.recipe)
    report |= costs(bench.method, len(begun.examples.people.distinct())) | {"state_bytes": size_of(made)}
    report = process.storage.figures.keep(job.generation_id, report)
    bare = State(made.weights, made.tensors, made.facts)
    if terms.design is not None:
        CalibrationUnits.lay_out(
            process, job, bare, range(terms.design.orders), {"report": report, "left_out": begun.left_out}
        )
    prepared = Prepared(bench, terms, begun.examples, bare, report, begun.left_out)
    return _settled(process, job, watch, prepared)


def _name_file(storage: Storage, job: Preparation, suffix: str) -> None:
    """Note how the names of the generation's published files end."""
    with storage.database.write() as session:
        extend_manifest(session, job, {"suffix": suffix})


def taken_up(process: Process, job: Preparation, watch: Stopwatch) -> Prepared | Ended | None:
    """Continue a calibration of a lost worker, with the orders that are done; None where there is none."""
    with process.storage.database.read() as session:
        generation = generation_of(session, job)
    kept = CalibrationUnits.note_of(generation)
    if kept is None:
        return None
    with watch.phase("load"):
        orders = CalibrationUnits.opened(process, generation, job.recipe)
    if orders is None:
        return None
    log.info("resumed: the orders that are done are kept", extra={"model": job.model_name, "phase": "calibrate"})
    reference = Reference((generation.manifest or {})["reference"])
    terms = terms_of(job.policy, Guarantee.CALIBRATED, reference, len(orders.examples))
    frozen = guarantee_from_json(generation.manifest or {}) | {"design": orders.design}
    terms = replace(terms, **frozen)
    known = kept["report"], kept["left_out"]
    return _settled(process, job, watch, Prepared(orders.bench, terms, orders.examples, orders.state, *known))


def _settled(process: Process, job: Preparation, watch: Stopwatch, prepared: Prepared) -> Prepared | Ended:
    """Add the last of what registration learns: the calibration, where one is asked for, and the dry run."""
    if prepared.terms.design is not None:
        with watch.phase("calibrate"):
            if not _calibrate(process, job, prepared.bench):
                return Ended.PUT_OFF
    rows = dry_run(prepared.bench, prepared.terms, prepared.state.weights)
    tried = {"dry_run": rows, "accuracy": published_accuracy(rows, prepared.terms)}
    return replace(prepared, report=process.storage.figures.keep(job.generation_id, {**prepared.report, **tried}))


def _withheld(process: Process, job: Preparation) -> bool:
    """Leave a registration to a person's decision where it is too much less accurate than a plain training."""
    found = process.storage.figures.measured(job.generation_id)
    plain, published = (cast("float | None", found.get(name)) for name in ("plain_accuracy", "accuracy"))
    with process.storage.database.read() as session:
        accepted = (generation_of(session, job).manifest or {}).get(ACCEPTED)
    if job.retrains or accepted or plain is None or published is None or not job.policy.withholds(plain, published):
        return False
    clean(process, job)
    report = process.storage.figures.keep(job.generation_id, {"plain_accuracy": plain, "accuracy": published})
    with process.storage.database.write() as session:
        withhold(session, fence(session, job.lease), generation_of(session, job), report)
    return True


def _calibrate(process: Process, job: Preparation, bench: OpenModel) -> bool:
    """Measure the guarantee; False where it gave way to deletions. Raises Refused, Replan.

    ``bench``: the model, whose world is ended: each order asks worlds of its own.
    """
    if bench.world_model is not None:
        bench.world_model.close()
    with process.storage.database.read() as session:
        generation = generation_of(session, job)
    orders = CalibrationUnits.opened(process, generation, job.recipe)
    if orders is None:
        raise Replan("the recipe or its data changed before the calibration began", train_again=True)
    if not orders.compute_all(job, shown(process.storage.database, job, "calibrate", 0.5, 0.95)):
        return False
    require_useful_cap(orders.finished(silent), job.policy.max_distance)
    return True


def _prepared(process: Process, job: Preparation, begun: Begun, progress: Progress) -> State | Ended:
    """Return the method's state; its rows are written.

    Raises Ineffective where the fallback is to try, and Refused otherwise.
    """
    bench = begun.bench
    try:
        if begun.made is not None:  # its world has measured the distance left
            _keep_vectors(process.storage, job, begun.made)
            return begun.made
        if begun.units is None:
            made = bench.method.prepare(bench.problem, begun.examples, begun.learned, progress)
        elif not begun.units.compute_all(job, progress):
            return Ended.PUT_OFF
        else:
            made = begun.units.finished(progress)
        return with_distance_left(
            bench.method,
            bench.problem,
            begun.examples,
            begun.learned,
            made,
            vectors=Vectors({}),
            threshold=process.limits.distance_left,
        )
    except Ineffective as error:
        if job.policy.falls_back:
            raise
        raise Refused(error.what, f"{error.hint} {MEASURES}") from None


def bring_into_service(process: Process, job: Preparation, prepared: Prepared, watch: Stopwatch) -> bool:
    """Publish the first version, without the people who asked by then; False where it is withheld.

    Raises Stale, and Replan where it must be trained again.
    """
    storage = process.storage
    while True:
        if job.retrains:
            _require_as_published(storage, job)
        with storage.database.read() as session:
            leaving, ported = departure(session, job), is_port(generation_of(session, job))
            holders = leaving.target.holders if prepared.bench.recipe.vectors_for is not None else ()
            keeps = isinstance(prepared.bench.method, KeepsVectors)
            if keeps and without_vector(session, job.generation_id, holders):
                what = "a person without a vector asked while the model was prepared"
                raise Replan(what, train_again=True)
        draft = _draft(storage, job, prepared, watch, leaving)
        if not ported and _accuracy_fell(job, draft, leaving):  # another recipe's score, of other people
            _throw_away(storage, draft)
            _withhold(process, job, draft.budget_cost)
            return False
        try:
            superseded: list[str] = []
            used = prepared.bench.parts_used
            if used is not None:
                draft = replace(draft, parts=frozenset(used))
                superseded = PartStore(storage, job.generation_id).files_of_others(used)
            publication = partial(publish_generation, storage.database, storage.journal, job, draft, drafted=leaving)
            retry(partial(publication, report=prepared.report, left_out=prepared.left_out))
            storage.private.delete(*superseded)
            return True
        except Replan as error:
            _throw_away(storage, draft)
            if error.train_again:
                raise
            log.warning("drafted again: %s", error, extra={"model": job.model_name})


def _accuracy_fell(job: Preparation, draft: Draft, leaving: Leaving) -> bool:
    """Return whether a retrain loses more accuracy than the policy allows."""
    before = None if leaving.replaced is None else leaving.replaced.holdout_accuracy
    return job.policy.withholds(before, draft.accuracy)


def _withhold(process: Process, job: Preparation, budget_cost: int) -> None:
    """Refuse a retrain after its weights were looked at. It is charged, so that the draw cannot be repeated."""
    clean(process, job)
    with process.storage.database.write() as session:
        model = fence(session, job.lease)
        charge_withheld(session, process.storage.journal, job, budget_cost)
        what = "The retrained model's accuracy fell by more than the policy allows."
        hint = "Retry the blocked requests to retrain once more."
        refuse(
            session,
            model,
            generation_of(session, job),
            what,
            hint,
            reason=Reason.ACCURACY_DROP,
            facts=points_of(job.policy),
        )


def _throw_away(storage: Storage, draft: Draft) -> None:
    """Delete the files of a draft that was not published."""
    storage.private.delete(draft.state.digest)
    storage.store.delete(draft.checkpoint.digest)


def _draft(storage: Storage, job: Preparation, prepared: Prepared, watch: Stopwatch, leaving: Leaving) -> Draft:
    target = leaving.target
    terms = _terms(job, prepared.terms, target)
    forgotten, retain = Forgotten(prepared.state), prepared.examples
    with watch.unlearning():
        if target.positions:
            forgotten, retain = _forget(storage, job, prepared, target)
        size = replace(leaving.size, unlearned=len(target.holders))
        refined = refine(prepared.bench, terms, forgotten, retain)
        certified = require_certified(certify(prepared.bench, terms, refined, size))
    with watch.phase("store"):
        evidence = _evidence(storage, job)
        version_id = new_id()
        with storage.database.snapshot() as session:
            begun, frozen = now(session), _frozen_tables(session, storage, job)
            tables = forgetting(session, storage.pepper, frozen, positions=target.positions, version_id=version_id)
        return write_draft(
            storage,
            job,
            certified,
            target,
            leaving.size,
            version_id=version_id,
            evidence=evidence,
            tables=tables,
            begun=begun,
        )


def _frozen_tables(session: Session, storage: Storage, job: Preparation) -> Committed:
    """Return what the tables say of the generation, of which every membership is read.

    Raises Refused where they changed since its members were frozen, and Replan where a release before 0.3 froze them.
    """
    tables = committed(session, storage.pepper, generation_of(session, job))
    has_marks = bool(tables.marks) or marks_changed(session, storage.pepper, job.generation_id)
    if has_marks or memberships_changed(session, storage.pepper, job.generation_id):
        if not has_blocks(session, job.generation_id):
            raise Replan("a release before 0.3 has begun the preparation", train_again=True)
        table = FORGOTTEN if has_marks else MEMBERSHIPS
        raise Refused(f"The database's table {table} was changed while the model was prepared.", REGISTER_AGAIN)
    return tables


def _require_as_published(storage: Storage, job: Preparation) -> None:
    """Check that the version which a retrain is to replace is what was published. Raises Refused."""
    with storage.database.snapshot() as session:
        served = model_of(session, job).generation_id
        tables = as_published(session, storage, job.model_id, served or 0, every_row=True)
    if isinstance(tables, TablesDiffer):
        raise Refused(str(tables), WHAT_TO_RUN)


def _terms(job: Preparation, terms: Terms, target: Target) -> Terms:
    """Return what the first version may claim.

    A retrain without deletions is exact and free: all who leave were left out of the training. Where the
    method has to delete people who asked since, the generation's own terms apply.
    """
    if not job.retrains or target.positions:
        return terms
    return replace(
        terms,
        method="retrain",
        guarantee=Guarantee.EXACT,
        reference=Reference.RENORMALISED,
        noise_std=0.0,
        max_distance=0.0,
        budget_cost=0,
        constants=(),
        design=None,
    )


def _evidence(storage: Storage, job: Preparation) -> dict[str, Json]:
    """Return why the policy's fallback was taken, where the retrain was planned for that."""
    with storage.database.read() as session:
        note = (generation_of(session, job).manifest or {}).get("note")
    return {"fallback": open_note(storage.sealer, note)} if note else {}


def _forget(storage: Storage, job: Preparation, prepared: Prepared, target: Target) -> tuple[Forgotten, Examples]:
    gone = torch.tensor(target.positions, dtype=torch.int64)
    retain = prepared.examples.without(gone)
    if not len(retain):
        raise Refused("Everyone asked to be forgotten while the model was prepared.", "Register it with other data.")
    bench = prepared.bench
    problem = bench.problem
    vectors = private_state.VectorStore(
        storage.database, storage.keys, job.generation_id, problem.dimension, problem.device
    )
    forget = ForgetSet(frozenset(target.holders), target.positions, None, vectors)
    if bench.world_model is not None:
        selected = samples_of_update(storage, job, bench, target.positions, prepared.terms.guarantee)
        if isinstance(selected, Blocked):
            what = "The recipe's data, or the database's tables, changed while the model was prepared."
            raise Refused(what, REGISTER_AGAIN)
        forget, retain = selected.forget(vectors), selected.retained
    return forget_in_worlds(bench, prepared.state, forget, retain, prepared.terms.guarantee), retain


def _keep_vectors(storage: Storage, job: Preparation, made: State) -> None:
    for rows in private_state.seal_vectors(storage.keys, job.generation_id, made.vectors):
        with storage.database.write() as session:
            fence(session, job.lease)
            write_vectors(session, rows)


def _forget_units(process: Process, job: Preparation) -> None:
    KeyedParts.forget(process, job.generation_id)


def clean(process: Process, job: Preparation, *, parts: bool = True) -> None:
    """Delete everything that an earlier attempt left: rows, and their keys. Raises Stale, Drained.

    ``parts``: also of its training. An attempt that goes on in its place finds by their keys those that it needs, and
    the others leave when it publishes.
    """
    with undivided():
        with process.storage.database.write() as session:
            start_over(session, job)
        _forget_units(process, job)
        if parts:
            PartStore(process.storage, job.generation_id).drop_others(())
        CalibrationUnits.forget(process, job.generation_id)
        process.storage.figures.delete(job.generation_id)
        process.storage.keys.destroy_generation(job.generation_id)
