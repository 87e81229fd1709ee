"""The first part of a preparation: freeze the manifest, train or import, and lay out what is left to compute."""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum
from functools import partial
from typing import Any

import torch

from expunge.service.audit import record
from expunge.service.infra.db import BATCH, Database, batches
from expunge.service.infra.fault_injection import crash_point
from expunge.service.infra.settings import Settings
from expunge.service.infra.tenants import recipes_of
from expunge.service.models import WITH_ROWS, block_rows, measured_work, write_blocks
from expunge.service.queue import (
    Preparation,
    declared_parts,
    extend_manifest,
    fence,
    freeze_manifest,
    generation_of,
    served_beside,
    write_holdout,
)
from expunge.service.requests import HOLDOUT_NAMED, MEMBERS_FROZEN, SPELLINGS
from expunge.workers.guarantee.certify import needs_retained
from expunge.workers.guarantee.terms import (
    design_of,
    guarantee_of,
    may_claim_without_her,
    require_closed_form,
    require_needs,
    require_vectors_fit,
)
from expunge.workers.runtime import recipes
from expunge.workers.runtime.drain import look
from expunge.workers.runtime.heartbeat import Stopwatch
from expunge.workers.runtime.model import OpenModel, build, build_with_rows, described, set_up, takes_rows
from expunge.workers.runtime.process import Process
from expunge.workers.runtime.world_model import WorldModel
from expunge.workers.storage import Storage, checkpoint_format, manifest, spellings
from expunge.workers.storage.environment import ENVIRONMENT, Environment
from expunge.workers.storage.parts import PartStore
from expunge.workers.training.cohort import (
    admit,
    aside_of,
    count_changes,
    require_fits,
    require_readable,
    require_room,
)
from expunge.workers.training.first_samples import require_computable
from expunge.workers.training.keyed_parts import KeyedParts
from expunge.workers.training.parts import PartUnits
from expunge.workers.training.person_ids import require_sound_ids
from expunge.workers.training.port import count_people, ports_model
from expunge.workers.training.shortened import require_samples_apart
from expunge.workers.training.trial import Trial, tried
from expunge.workers.training.units import WORTH_SECONDS, VectorUnits, divisible, wanted
from unlearning.accounting import policy
from unlearning.accounting.certificate import Guarantee, Part
from unlearning.accounting.policy import AUTO, RETRAIN, Policy, method_by_rule
from unlearning.bounds.calibration import Design
from unlearning.methods import package_of
from unlearning.model.method import Divisible, InParts
from unlearning.model.parts import digest_of, require_declared, trains_by_own_code
from unlearning.model.problem import Problem
from unlearning.model.training import learn, train
from unlearning.recipe import Recipe
from unlearning.types import Examples, Ineffective, Learned, Need, Progress, Refused, State

PROGRESS_SECONDS = 0.5
MEASURES = "`expunge check PATH --measure` measures which other methods work on this model."


class Ended(Enum):
    """Why a preparation ends for now, without a version."""

    DRY_RUN = "the candidate was a dry run, and has counted the changes"
    PUT_OFF = "deletions wait"


@dataclass(frozen=True)
class Begun:
    """A trained model without its method's state, still to be computed: in ``units``, or by one worker (None)."""

    bench: OpenModel
    guarantee: Guarantee
    examples: Examples
    learned: Learned
    units: VectorUnits | PartUnits | KeyedParts | None
    design: Design | None
    trial: Trial | None
    """of the recipe's own training, where it has one"""
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
        ported = job.retrains and ports_model(process, job)
        bench = _opened(process, job)
        _require_recipe(storage, job, bench, ported=ported)
        guarantee = Guarantee.NONE
        if bench.asked is None:
            require_needs(job.policy, bench.method, bench.recipe)
            guarantee = guarantee_of(job.policy, bench.problem, bench.method)
            bench = bench.under(guarantee)
        _require_others_apart(process, job, bench, guarantee)
        most = process.settings.sample_bytes
        expected = require_fits(bench.recipe, bench.method, bench.problem.device, most)
        storage.figures.keep(job.generation_id, {"expected": expected})
        everyone = manifest.entries(storage.pepper, job.tenant_id, bench.recipe.samples, job.policy.granularity)
        require_room(storage.database, everyone)
        written = spellings_of(storage, job, bench.recipe)
        kept, left_out = admit(process, job, bench, everyone, written)
        if ported and not count_people(bench.recipe, storage, job, everyone, kept):
            return Ended.DRY_RUN
        if bench.asked is not None:
            bench, guarantee = _described(process, job, bench, kept)
            kept = everyone = manifest.entries(
                storage.pepper, job.tenant_id, bench.recipe.samples, job.policy.granularity
            )
        if job.retrains and not ported and not count_changes(storage, job, everyone, kept):
            return Ended.DRY_RUN
        examples = manifest.examples(bench.recipe.samples, kept, bench.problem.device, most)
        design = _design(job.policy, guarantee, examples)
        _require_possible(process, bench, examples)
        if not bench.with_rows:
            require_readable(process, job, bench, guarantee, everyone)
        if bench.built is not None:
            bench.built.aside = aside_of(process, job, bench.built.units)
            bench.built.repeat_within = process.settings.trial_seconds
        reads = needs_retained(bench.method, guarantee)
        memory = int(expected["bytes"]) if reads else 0
        _freeze(storage, job, bench, kept, everyone, written=written, memory=memory)
    crash_point("prepare-after-manifest")
    trial = _tried(process, job, bench, kept, watch)
    with watch.phase("train"):
        learned, made = _learned(process, job, bench, examples, guarantee)
    crash_point("prepare-after-train")
    seconds = time.monotonic() - started
    work = watch.work("train", str(bench.problem.device))
    note = {"left_out": left_out, "seconds": seconds, "work": work, "trial": None if trial is None else asdict(trial)}
    units = _units(process, job, bench, examples, learned, note=note)
    return Begun(bench, guarantee, examples, learned, units, design, trial, left_out, seconds, work, made)


def _described(
    process: Process, job: Preparation, bench: OpenModel, units: manifest.SampleIndex
) -> tuple[OpenModel, Guarantee]:
    """Return the opened model with the samples that its recipe makes of these units, and the generation's guarantee.

    Raises Refused.
    """
    if bench.asked is None:
        raise ValueError("the recipe's samples are known")
    bench.asked.aside = aside_of(process, job, bench.asked.units)
    bench = described(bench, bench.asked.units.at(bench.recipe.samples, units.at))
    if bench.asked is not None and bench.asked.has_judge:
        guarantee = guarantee_of(job.policy, bench.problem, bench.method)
    else:
        guarantee = _without_judge(job.policy)
    return bench.under(guarantee), guarantee


def _without_judge(policy: Policy) -> Guarantee:
    """Return the guarantee of a model that worlds of the recipe's own code compute with. Raises Refused."""
    if policy.guarantee not in (None, Guarantee.NONE):
        what = (
            f"The guarantee {policy.guarantee.value} is had with rows where no code of the recipe computes it: by "
            f"{policy.method} for a linear head under a named loss, whose training converges."
        )
        raise Refused(what, "Ask for the guarantee none; or choose retrain, shards or late, which are exact.")
    return Guarantee.NONE


def _require_possible(process: Process, bench: OpenModel, examples: Examples) -> None:
    """Require that the model can be computed with, and that what the method keeps of it fits. Raises Refused.

    The worlds of a recipe with rows find out themselves what its model can do.
    """
    if bench.asked is None:
        require_computable(bench.problem, examples, process.settings.recipes)
        require_closed_form(bench.method, bench.problem, examples)
    require_vectors_fit(bench, examples, process.limits.vector_bytes)


def _tried(
    process: Process, job: Preparation, bench: OpenModel, kept: manifest.SampleIndex, watch: Stopwatch
) -> Trial | None:
    """Try the recipe's own training, where it has one that is to be repeated. Raises Refused."""
    trains_here = bench.method.exact or job.retrains or bench.recipe.weights is None
    if not trains_here or bench.with_rows or not trains_by_own_code(bench.recipe):
        return None
    with watch.phase("trial"):
        trial = tried(process.settings, bench, kept)
    if trial.differs_at:  # a figure of people's data: kept where the first deletion deletes it, in no row
        process.storage.figures.keep(job.generation_id, {"differs_at": trial.differs_at})
        trial = replace(trial, differs_at="")
    return trial


def _require_others_apart(process: Process, job: Preparation, bench: OpenModel, guarantee: Guarantee) -> None:
    """Require that nothing fitted on people comes into the model beside its samples. Raises Refused.

    A recipe with rows brings nothing along: its worlds open what it declares.
    """
    if bench.with_rows:
        return
    if job.retrains or may_claim_without_her(job.policy, guarantee, bench.recipe):
        require_declared(bench.recipe, bench.parts)
        require_samples_apart(process.settings.recipes, job.tenant_id, job.recipe, bench.recipe)
    require_nobody_in_public(process.storage, job, bench)


def _opened(process: Process, job: Preparation) -> OpenModel:
    settings = process.settings
    if not takes_rows(settings, job.tenant_id, job.recipe):
        return build(settings, job.tenant_id, job.recipe, job.policy)
    with process.storage.database.read() as session:
        begun = generation_of(session, job).created_at
    parts = PartStore(process.storage, job.generation_id, partial(fence, lease=job.lease))
    return build_with_rows(settings, job.tenant_id, job.recipe, job.policy, parts=parts, until=begun)


def again(process: Process, job: Preparation, watch: Stopwatch) -> Begun | None:
    """Continue a preparation of a worker that was lost while it computed work units; None where there is none."""
    with process.storage.database.read() as session:
        generation = generation_of(session, job)
    kinds: tuple[type[PartUnits | KeyedParts], ...] = (PartUnits, KeyedParts)
    kind = next((kind for kind in kinds if kind.note_of(generation) is not None), VectorUnits)
    note = kind.note_of(generation)
    if note is None:
        return None
    with watch.phase("load"):
        units = kind.opened(process, generation, job.recipe)
    if units is None:
        return None
    if units.bench.built is not None:
        units.bench.built.repeat_within = process.settings.trial_seconds
    guarantee = guarantee_of(job.policy, units.bench.problem, units.bench.method)
    design = _design(job.policy, guarantee, units.examples)
    trial = None if note.get("trial") is None else Trial(**note["trial"])
    left_out, seconds = note["left_out"], note["seconds"]
    work = note.get("work", seconds)  # a worker of a release before work was measured may have begun
    return Begun(units.bench, guarantee, units.examples, units.learned, units, design, trial, left_out, seconds, work)


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
    """Train or import; a retrain always trains. A method that trains by itself gets the start.

    A world also computes what the method keeps; None: it is computed afterwards. Raises Refused, Ineffective.
    """
    if bench.asked is not None:
        return _learned_in_world(process, job, bench.asked, examples, guarantee)
    progress = shown(process.storage.database, job, "train", 0.05, 0.5)
    if bench.method.trains:
        return Learned(bench.problem.initial()), None
    problem = copy.copy(bench.problem)
    if job.retrains and bench.built is None:  # it is published as exact, under any method
        problem.fresh = bench.fresh
    return (cold if job.retrains else learn)(bench.recipe, problem, examples, progress), None


def _learned_in_world(
    process: Process, job: Preparation, asked: WorldModel, examples: Examples, guarantee: Guarantee
) -> tuple[Learned, State]:
    threshold = process.limits.distance_left
    try:
        state, weights = asked.prepared(examples, guarantee, cold=job.retrains, threshold=threshold)
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


def cold(recipe: Recipe, problem: Problem, examples: Examples, progress: Progress) -> Learned:
    """Train from the data-independent initialisation: only that earns a fresh budget.

    Raises Refused for a model that was trained elsewhere, where the recipe does not say how (``train``).
    """
    if recipe.weights is not None and recipe.train is None:
        raise Refused(
            "The model was trained elsewhere, so it cannot be retrained here.",
            "Train it again without the people who asked, and register the new weights.",
        )
    return train(problem, examples, progress=progress)


def _units(
    process: Process,
    job: Preparation,
    bench: OpenModel,
    examples: Examples,
    learned: Learned,
    *,
    note: Mapping[str, Any],
) -> VectorUnits | PartUnits | KeyedParts | None:
    """Add work units where the method trains in parts, or its preparation divides and there are enough people."""
    method = bench.method
    if bench.asked is not None:
        return None
    if bench.built is not None and (not isinstance(method, InParts) or _is_short(process, job)):
        return None  # one world makes all parts
    if bench.built is not None:
        keyed = KeyedParts.of(process, job, bench, examples)
        KeyedParts.lay_out(process, job, keyed.state, keyed.chains, note)
        crash_point("prepare-after-work-units")
        return keyed
    if isinstance(method, InParts):
        start = method.start()
        digest = PartUnits.lay_out(process, job, start, method.unfinished(start), note)
        crash_point("prepare-after-work-units")
        return PartUnits(process, job.generation_id, job.model_id, bench, examples, start, digest)
    count = wanted(process, len(method.holders(bench.problem, examples))) if isinstance(method, Divisible) else 0
    if count < 2 or divisible(bench, learned) is None:
        return None
    kept = State(learned.weights, {} if learned.trajectory is None else learned.trajectory.tensors())
    digest = VectorUnits.lay_out(process, job, kept, range(count), note)
    crash_point("prepare-after-work-units")
    return VectorUnits(process, job.generation_id, job.model_id, bench, examples, kept, digest)


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
    everyone: manifest.SampleIndex,
    *,
    written: spellings.Spellings,
    memory: int,
) -> None:
    """Write the manifest: its summary on the generation, its rows in batches. From then on its members are known.

    ``memory``: bytes that an update needs; 0 where it reads no samples.
    """
    artefact = bench.problem.artefact
    libraries = manifest.surroundings(bench.problem.device)
    summary = {
        "recipe_digest": bench.digest,
        "settings_digest": bench.settings,
        "samples": len(kept) if bench.asked is None else bench.asked.count,
        "left_out": len(everyone) - len(kept),
        "people": len(kept.people()),
        "dimension": bench.problem.dimension,
        "libraries": libraries,
        ENVIRONMENT: Environment.of(bench.problem.device, artefact).to_json(),
        "bound_to": libraries["device"] if Need.TRAJECTORY in bench.method.needs else None,
        HOLDOUT_NAMED: bench.recipe.holdout_subjects is not None,
        "memory": memory,
        "parts": [asdict(part) for part in bench.parts],
    }
    if artefact is not None:
        summary["suffix"] = artefact.suffix
    if bench.with_rows:
        summary[WITH_ROWS] = True
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


def require_nobody_in_public(storage: Storage, job: Preparation, bench: OpenModel) -> None:
    """Compare the public parts with every tensor of the tenant's versions that still have a file, by digest.

    A tensor that a version's own recipe declares public belongs to no person: two models may share it. A tensor that
    was changed on the way, by a cast to another dtype for instance, is not found. Raises Refused.
    """
    public = {part.digest: part for part in bench.parts if part.public}
    if not public:
        return
    with storage.database.read() as session:
        versions = declared_parts(session, job.tenant_id)
    for name, number, checkpoint, shared in versions:
        wanted = {digest: part for digest, part in public.items() if digest not in shared}
        found = _found(storage, checkpoint, wanted.values())
        if found is not None:
            raise Refused(
                f"The recipe declares {found.name!r} public, and it is a tensor of version {number} of the model "
                f"{name!r}, which was trained on people who may ask to be forgotten.",
                "Train it with this model, or start from numbers that hold no person who may ask.",
            )


def _found(storage: Storage, checkpoint: str, parts: Collection[Part]) -> Part | None:
    """Return the first part that is a tensor of the file; tensors of other sizes are not compared."""
    if not parts:
        return None
    sizes = {part.size for part in parts}
    by_digest = {part.digest: part for part in parts}
    if not storage.store.holds(checkpoint):
        return None
    try:
        tensors, _ = checkpoint_format.decode(storage.store.read(checkpoint))
    except checkpoint_format.Malformed:  # the bytes of an artefact, which hold no tensor
        return None
    found = (by_digest.get(digest_of(tensor)) for tensor in tensors.values() if tensor.numel() in sizes)
    return next((part for part in found if part is not None), None)


def settled(process: Process, job: Preparation) -> Preparation:
    """Return the job with its method: the policy's, or the one that the rule chooses. Raises Refused, Stale."""
    if job.policy.method != AUTO:
        return job
    settings = process.settings
    if takes_rows(settings, job.tenant_id, job.recipe):
        return _chosen(process, job, RETRAIN, "The recipe gets its rows from the service and trains by itself.")
    loaded = recipes.load(recipes_of(settings.recipes, job.tenant_id), job.recipe)
    samples = loaded.recipe.samples
    inputs, _ = next(iter(samples.rows.read([torch.zeros(1, dtype=torch.int64)])))
    provable = len(samples) * inputs.numel() > policy.SMALL and _provable(settings, job, loaded)
    method, why = method_by_rule(len(samples), inputs.numel(), provable)
    return _chosen(process, job, method, why)


def _chosen(process: Process, job: Preparation, method: str, why: str) -> Preparation:
    """Make this the generation's method. Raises Stale."""
    with process.storage.database.write() as session:
        extend_manifest(session, job, {"chosen": {"method": method, "why": why}}).method = method
        record(session, job.tenant_id, "preparation.chosen", model_id=job.model_id, method=method)
    return replace(job, policy=job.policy.in_force(method))


def _provable(settings: Settings, job: Preparation, loaded: recipes.LoadedRecipe) -> bool:
    """Return whether newton has the guarantee ``proved`` on the recipe's model.

    Raises Refused for a recipe that no method can open.
    """
    asked = replace(job.policy, method="newton", guarantee=None)
    bench = set_up(settings, job.tenant_id, job.recipe, loaded, asked)
    try:
        require_needs(asked, bench.method, bench.recipe)
    except Refused:  # newton does not follow this training, so it proves nothing
        return False
    return guarantee_of(asked, bench.problem, bench.method) is Guarantee.PROVED
