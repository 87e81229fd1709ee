"""The first part of a preparation: freeze the manifest, train or import, and lay out what is left to compute."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

import torch

from expunge_service.audit import record
from expunge_service.infra.db import BATCH, Database, batches
from expunge_service.models import block_rows, measured_work, write_blocks
from expunge_service.queue import (
    Preparation,
    extend_manifest,
    fence,
    freeze_manifest,
    generation_of,
    moved_on,
    served_beside,
    write_holdout,
)
from expunge_service.requests import HOLDOUT_NAMED, MEMBERS_FROZEN, SPELLINGS, WITH_ROWS
from expunge_workers.guarantee.certify import needs_retained
from expunge_workers.guarantee.terms import (
    design_of,
    guarantee_of,
    guarantee_without_judge,
    require_all_forgotten,
    require_trajectory,
    require_vectors_fit,
)
from expunge_workers.runtime.drain import look
from expunge_workers.runtime.heartbeat import Stopwatch
from expunge_workers.runtime.model import OpenModel, described, open_model, require_no_lapsed
from expunge_workers.runtime.process import Process
from expunge_workers.runtime.rows_recipe import SourceUnits, Unit
from expunge_workers.runtime.world_model import NoSamples
from expunge_workers.storage import Storage, manifest, spellings
from expunge_workers.storage.environment import ENVIRONMENT, Environment
from expunge_workers.storage.parts import PartStore
from expunge_workers.training.cohort import (
    admit,
    aside_of,
    count_changes,
    require_fits,
    require_room,
)
from expunge_workers.training.keyed_parts import KeyedParts
from expunge_workers.training.person_ids import require_sound_ids
from expunge_workers.training.port import count_people, ports_model
from expunge_workers.training.units import WORTH_SECONDS
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import AUTO, RETRAIN, Policy, method_by_rule
from unlearning.artefact import ARCHIVE_SUFFIX
from unlearning.bounds.calibration import Design
from unlearning.methods import package_of
from unlearning.model.method import InParts, KeepsVectors
from unlearning.model.training import train
from unlearning.recipe import Recipe
from unlearning.types import Examples, Ineffective, Learned, Need, Progress, Refused, State

PROGRESS_SECONDS = 0.5
NEWTON = "newton"
MEASURES = "`expunge check PATH --measure` measures which other methods work on this model."


class Ended(Enum):
    """Why a preparation ends for now, without a version."""

    DRY_RUN = "the candidate was a dry run, and has counted the changes"
    PUT_OFF = "deletions wait"


@dataclass(frozen=True)
class Begun:
    """A trained model without its method's state, which is still to be made of ``units``, or by one world (None)."""

    bench: OpenModel
    guarantee: Guarantee
    examples: Examples
    learned: Learned
    units: KeyedParts | None
    design: Design | None
    left_out: Mapping[str, int]
    """how many samples each request keeps out"""
    seconds: float
    """that it took so far"""
    work: float
    """of these, the seconds of work of the training itself"""
    made: State | None = None
    """what the method keeps, where the training's world computed it too"""


def begin(process: Process, job: Preparation, watch: Stopwatch) -> Begun | Ended:
    """Freeze the manifest, train or import, and lay work units out. Raises Refused, among others."""
    started, storage = time.monotonic(), process.storage
    with watch.phase("load"):
        if not job.retrains:
            require_no_lapsed(job.policy)
        ported = job.retrains and ports_model(process, job)
        bench = _opened(process, job)
        _require_recipe(storage, job, bench, ported=ported)
        guarantee = Guarantee.NONE
        if bench.world_model is None:
            guarantee = guarantee_of(job.policy, bench.problem, bench.method)
            bench = bench.under(guarantee)
        expected = require_fits(bench.recipe, bench.problem.device)
        storage.figures.keep(job.generation_id, {"expected": expected})
        everyone = manifest.entries(storage.pepper, job.tenant_id, bench.recipe.samples, job.policy.granularity)
        require_room(storage.database, everyone)
        written = spellings_of(storage, job, bench.recipe)
        kept, left_out = admit(process, job, bench, everyone, written)
        out = everyone.take(~torch.isin(everyone.at, kept.at))
        if ported and not count_people(bench.recipe, storage, job, everyone, kept):
            return Ended.DRY_RUN
        if bench.world_model is not None:
            bench, guarantee = _described(process, job, bench, kept)
            kept = manifest.entries(storage.pepper, job.tenant_id, bench.recipe.samples, job.policy.granularity)
        if job.retrains and not ported and not count_changes(storage, job, kept, out):
            return Ended.DRY_RUN
        examples = manifest.examples(bench.recipe.samples, kept, bench.problem.device)
        design = _design(job.policy, guarantee, examples)
        require_vectors_fit(bench, examples, process.limits.vector_bytes)
        if bench.built is not None:
            bench.built.aside = aside_of(process, job, bench.built.units)
            bench.built.repeat_within = process.settings.trial_seconds
        reads = needs_retained(bench.method, guarantee)
        memory = int(expected["bytes"]) if reads else 0
        _freeze(storage, job, bench, kept, len(out), written=written, memory=memory)
    with watch.phase("train"):
        learned, made = _learned(process, job, bench, examples, guarantee)
    seconds = time.monotonic() - started
    work = watch.work("train", str(bench.problem.device))
    units = _units(process, job, bench, examples, {"left_out": left_out, "seconds": seconds, "work": work})
    return Begun(bench, guarantee, examples, learned, units, design, left_out, seconds, work, made)


def _described(
    process: Process, job: Preparation, bench: OpenModel, units: manifest.SampleIndex
) -> tuple[OpenModel, Guarantee]:
    """Return the opened model with the samples that its recipe makes of these units, and the generation's guarantee.

    Raises Refused.
    """
    world_model = bench.required_world_model
    world_model.aside = aside_of(process, job, world_model.units)
    world_model.imports = bench.imports and not job.retrains
    if world_model.imports and world_model.units.aside:
        what = "The weights were trained elsewhere on everybody, and the sources keep people apart from training."
        raise Refused(what, "Leave aside= out, and give the holdout as two tensors.")
    bench = described(bench, world_model.units.having(bench.recipe.samples.inputs[units.at]))
    require_all_forgotten(job.policy, bench.method, bench.recipe)
    require_trajectory(job.policy, bench.method, bench.recipe, recorded=world_model.recorded)
    if world_model.has_judge:
        guarantee = guarantee_of(job.policy, bench.problem, bench.method)
    else:
        guarantee = guarantee_without_judge(job.policy, bench.problem, bench.method)
    return bench.under(guarantee), guarantee


def _opened(process: Process, job: Preparation) -> OpenModel:
    with process.storage.database.read() as session:
        begun = generation_of(session, job).created_at
    parts = PartStore(process.storage, job.generation_id, partial(fence, lease=job.lease), partial(moved_on, job=job))
    return open_model(process.settings, job.tenant_id, job.recipe, job.policy, parts=parts, until=begun)


def again(process: Process, job: Preparation, watch: Stopwatch) -> Begun | None:
    """Continue a preparation of a worker that was lost while it computed work units; None where there is none."""
    with process.storage.database.read() as session:
        generation = generation_of(session, job)
    note = KeyedParts.note_of(generation)
    if note is None:
        return None
    with watch.phase("load"):
        units = KeyedParts.opened(process, generation, job.recipe)
    if units is None:
        return None
    units.built.repeat_within = process.settings.trial_seconds
    guarantee = guarantee_of(job.policy, units.bench.problem, units.bench.method)
    design = _design(job.policy, guarantee, units.examples)
    left_out, seconds = note["left_out"], note["seconds"]
    work = note.get("work", seconds)  # a worker of a release before work was measured may have begun
    return Begun(units.bench, guarantee, units.examples, units.learned, units, design, left_out, seconds, work)


def shown(database: Database, job: Preparation, phase: str, start: float, stop: float) -> Progress:
    """Return the progress of a phase, which is this stretch of the whole, written where the API reads it.

    It is written twice a second at most. Raises Stale once the lease is lost, and Drained.
    """
    written = 0.0

    def show(share: float) -> None:
        nonlocal written
        look()
        if time.monotonic() - written < PROGRESS_SECONDS:
            return
        written = time.monotonic()
        with database.write() as session:
            fence(session, job.lease)
            generation = generation_of(session, job)
            generation.progress, generation.phase = min(start + (stop - start) * share, 0.99), phase

    return show


def _learned(
    process: Process, job: Preparation, bench: OpenModel, examples: Examples, guarantee: Guarantee
) -> tuple[Learned, State | None]:
    """Train. A method that trains by itself gets the start.

    A world also computes what the method keeps; None: it is computed afterwards. Raises Refused, Ineffective.
    """
    if bench.world_model is not None:
        return _learned_in_world(process, job, bench, examples, guarantee)
    progress = shown(process.storage.database, job, "train", 0.05, 0.5)
    if bench.method.trains:
        return Learned(bench.problem.initial()), None
    return train(bench.problem, examples, progress=progress), None


def _learned_in_world(
    process: Process, job: Preparation, bench: OpenModel, examples: Examples, guarantee: Guarantee
) -> tuple[Learned, State]:
    method, holders = bench.method, None
    if bench.recipe.vectors_for is not None and isinstance(method, KeepsVectors):
        holders = method.holders(bench.problem, examples)
    try:
        state, weights = bench.required_world_model.prepared(
            examples,
            guarantee,
            cold=job.retrains,
            threshold=process.limits.distance_left,
            holders_with_vector=holders,
        )
    except Ineffective as error:
        if job.policy.falls_back:
            raise
        raise Refused(error.what, f"{error.hint} {MEASURES}") from None
    return Learned(weights), state


def _require_recipe(storage: Storage, job: Preparation, bench: OpenModel, *, ported: bool) -> None:
    """Require the served generation's recipe of a retrain, and sound ids of a recipe that is new. Raises Refused."""
    if job.retrains and not ported:
        _require_same_recipe(storage, job, bench)
    else:
        require_sound_ids(bench.recipe.samples, job.recipe)


def _require_same_recipe(storage: Storage, job: Preparation, bench: OpenModel) -> None:
    """Raise Refused where the recipe's code is not the one that the served generation was trained with.

    Its settings may follow from the data, which a retrain reads again.
    """
    with storage.database.read() as session:
        served = served_beside(session, job)
    if (served.manifest or {}).get("recipe_digest") != bench.digest:
        raise Refused(
            "The recipe's code is not the one that the model was registered with.",
            "Restore it, or register the new one under another name.",
        )


def _units(
    process: Process, job: Preparation, bench: OpenModel, examples: Examples, note: Mapping[str, Any]
) -> KeyedParts | None:
    """Add work units where the method trains in parts. None: one world, or an engine, makes all."""
    built = bench.built
    if built is None or built.engine or not isinstance(bench.method, InParts) or _is_short(process, job):
        return None
    keyed = KeyedParts.of(process, job, bench, examples)
    KeyedParts.lay_out(process, job, keyed.state, keyed.chains, note)
    return keyed


def _is_short(process: Process, job: Preparation) -> bool:
    """Return whether a retrain repeats a training that is known to be too short to be shared."""
    with process.storage.database.read() as session:
        work = measured_work(served_beside(session, job)) if job.retrains else None
    return work is not None and work < WORTH_SECONDS


def _design(policy: Policy, guarantee: Guarantee, examples: Examples) -> Design | None:
    return design_of(policy, len(examples.people.distinct())) if guarantee is Guarantee.CALIBRATED else None


def _freeze(
    storage: Storage,
    job: Preparation,
    bench: OpenModel,
    kept: manifest.SampleIndex,
    left_out: int,
    *,
    written: spellings.Spellings,
    memory: int,
) -> None:
    """Write the manifest: its summary on the generation, its rows in batches. From then on its members are known.

    ``memory``: bytes that an update needs; 0 where it reads no samples.
    """
    libraries = manifest.surroundings(bench.problem.device)
    summary: dict[str, Any] = {
        "recipe_digest": bench.digest,
        "settings_digest": bench.settings,
        "samples": len(kept) if bench.world_model is None else bench.world_model.count,
        "left_out": left_out,
        "people": len(kept.people()),
        "dimension": bench.problem.dimension,
        "libraries": libraries,
        ENVIRONMENT: Environment.of(bench.problem.device).to_json(),
        "bound_to": libraries["device"] if Need.TRAJECTORY in bench.method.needs else None,
        HOLDOUT_NAMED: bench.world_model is None or not bench.world_model.brings_holdout,
        "memory": memory,
        "parts": [],
        WITH_ROWS: True,
        **({"suffix": ARCHIVE_SUFFIX} if bench.world_model is not None and bench.world_model.beside else {}),
    }
    package = package_of(job.policy.method)
    if package is not None:
        summary["package"] = package
    with storage.database.write() as session:
        freeze_manifest(session, job, summary)
    for start, block in manifest.blocks(kept):
        rows = manifest.rows(job.generation_id, start, block)
        with storage.database.write() as session:
            manifest.write(session, rows)
            fence(session, job.lease)  # last: requests wait for the model's row, and need not wait for the block
    everyone_held_out = manifest.holdout_rows(storage.pepper, job.tenant_id, job.generation_id, bench.recipe)
    for batch in batches(everyone_held_out, BATCH * 4):
        with storage.database.write() as session:
            write_holdout(session, job, batch)
    held_out = (row["subject_digest"] for row in everyone_held_out)
    there = written.only({*kept.people(), *held_out})
    for part in there.parts():
        with storage.database.write() as session:
            spellings.write(session, job.generation_id, part)
            fence(session, job.lease)
    with storage.database.snapshot() as session:
        blocks = block_rows(session, storage.pepper, job.generation_id)
    with storage.database.write() as session:
        fence(session, job.lease)
        write_blocks(session, blocks)
        extend_manifest(session, job, {MEMBERS_FROZEN: True, SPELLINGS: there.note})


def spellings_of(storage: Storage, job: Preparation, recipe: Recipe) -> spellings.Spellings:
    """Return how the ids of all people of the recipe are written, its holdout's too."""
    people = manifest.digests_of_people(storage.pepper, job.tenant_id, recipe)
    return spellings.Spellings.of(storage.pepper, job.tenant_id, people)


def settled(process: Process, job: Preparation) -> Preparation:
    """Return the job with its method: the policy's, or the one that the rule chooses. Raises Refused, Stale."""
    if job.policy.method != AUTO:
        return job
    by_newton = replace(job, policy=replace(job.policy, method=NEWTON, guarantee=None))
    bench = _opened(process, by_newton)
    world_model = bench.required_world_model
    try:
        bench = described(bench, _not_suppressed(process.storage, job, world_model.units))
        provable = world_model.has_judge and (
            guarantee_of(by_newton.policy, bench.problem, bench.method) is Guarantee.PROVED
        )
    except NoSamples:
        return _chosen(process, job, RETRAIN, "The recipe gets its rows from the service and trains by itself.")
    except Refused:
        if NEWTON not in world_model.refused:
            raise
        provable = False  # newton does not follow this training
    finally:
        world_model.close()
    method, why = method_by_rule(world_model.count, world_model.features, provable)
    return _chosen(process, job, method, why)


def _not_suppressed(storage: Storage, job: Preparation, units: SourceUnits) -> list[Unit]:
    """Return the units that are trained on, without those of people who asked to leave the tenant's models."""
    with storage.database.read() as session:
        leavers = manifest.asked_to_leave(session, job.tenant_id)
    subjects = manifest.subjects_of(storage.pepper, job.tenant_id, units.samples)
    return [unit for unit, people in zip(units.trained_on, subjects, strict=True) if leavers.isdisjoint(people)]


def _chosen(process: Process, job: Preparation, method: str, why: str) -> Preparation:
    """Make this the generation's method. Raises Stale."""
    with process.storage.database.write() as session:
        extend_manifest(session, job, {"chosen": {"method": method, "why": why}}).method = method
        record(session, job.tenant_id, "preparation.chosen", model_id=job.model_id, method=method)
    return replace(job, policy=job.policy.in_force(method))
