"""The first part of a preparation: freeze the manifest, train or import, and lay out what is left to compute."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from sqlalchemy import insert

from service.infra.fault_injection import crash_point
from service.infra.tables import Generation, HoldoutPerson
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import Policy
from unlearning.bounds.calibration import Design
from unlearning.methods.recollection.sketch import require_steps_fit
from unlearning.model.method import Divisible
from unlearning.model.parts import require_declared
from unlearning.model.training import steps_per_epoch
from unlearning.types import Examples, Learned, Refused
from workers.guarantee.choose import design_of, guarantee_of, may_claim_without_her, require_closed_form, require_needs
from workers.runtime.jobs import Preparation, Retraining
from workers.runtime.lease import fence
from workers.runtime.model import Bench, build
from workers.runtime.process import Process
from workers.runtime.stopwatch import Stopwatch
from workers.storage import manifest
from workers.storage.key_store import BATCH, batches
from workers.storage.storage import Storage
from workers.training import parallel as work_units
from workers.training.cohort import admit, require_readable, require_room
from workers.training.parallel import Course
from workers.training.progress import Shown
from workers.training.rekey import rekey
from workers.training.resume import Unprepared, note_of

NUMBER_BYTES = 4


@dataclass(frozen=True)
class Begun:
    """A trained model whose method's state is still to be computed. ``course``: in work units; None: in one piece."""

    bench: Bench
    guarantee: Guarantee
    examples: Examples
    learned: Learned
    course: Course | None
    design: Design | None
    left_out: Mapping[str, int]
    """how many samples each request keeps out"""
    seconds: float
    """that it took so far"""


def begin(process: Process, job: Preparation, watch: Stopwatch, learn: Callable[..., Learned]) -> Begun:
    """Manifest and training. Raises Refused and its like."""
    started = time.monotonic()
    with watch.phase("load"):
        bench = build(process.settings, job.tenant_id, job.recipe, job.policy)
        require_needs(job.policy, bench.method, bench.recipe)
        guarantee = guarantee_of(job.policy, bench.problem, bench.method)
        if isinstance(job, Retraining) or may_claim_without_her(job.policy, guarantee, bench.recipe):
            require_declared(bench.recipe, bench.parts)
        everyone = manifest.entries(process.storage.pepper, job.tenant_id, bench.recipe.samples, job.policy.granularity)
        require_room(process.storage.database, everyone)
        rekey(process.storage, job, bench.recipe.samples)
        kept, left_out = admit(process.storage, job, bench, everyone)
        examples = manifest.examples(bench.recipe.samples, kept, bench.problem.device)
        require_closed_form(bench.method, bench.problem, examples)
        design = _design(job.policy, guarantee, examples)
        require_vectors_fit(process, bench, examples)
        require_readable(process, job, bench, guarantee, everyone)
        _freeze(process.storage, job, bench, kept, everyone)
    crash_point("prepare-after-manifest")
    with watch.phase("train"):
        shown = Shown(process.storage.database, job).part("train", 0.05, 0.5)
        learned = learn(bench.recipe, bench.problem, examples, shown)
    crash_point("prepare-after-train")
    course = _course(process, job, bench, examples, learned)
    seconds = time.monotonic() - started
    if course is not None:
        more = {"left_out": left_out, "seconds": seconds}
        work_units.lay_out(process, job, course, work_units.wanted(process, examples), more)
        crash_point("prepare-after-work-units")
    return Begun(bench, guarantee, examples, learned, course, design, left_out, seconds)


def again(process: Process, job: Preparation, watch: Stopwatch) -> Begun | None:
    """A preparation that was computing its work units when its worker was lost. None: begin anew."""
    with process.storage.database.read() as session:
        generation = session.get_one(Generation, job.generation_id)
    note = note_of(generation, work_units.NOTE)
    if note is None:
        return None
    try:
        with watch.phase("load"):
            course = work_units.course_of(process, generation, job.recipe)
    except Unprepared:
        return None
    guarantee = guarantee_of(job.policy, course.bench.problem, course.bench.method)
    design = _design(job.policy, guarantee, course.examples)
    left_out, seconds = note["left_out"], note["seconds"]
    return Begun(course.bench, guarantee, course.examples, course.learned, course, design, left_out, seconds)


def require_vectors_fit(process: Process, bench: Bench, examples: Examples) -> None:
    """Raises Refused where the holders' vectors, or a sketch's steps, would take more room than there is for them."""
    method = bench.method
    method.require_size(bench.problem, len(examples))
    if not isinstance(method, Divisible):
        return
    holders = len(set(examples.people))
    size = NUMBER_BYTES * holders * method.length(bench.problem)
    if size > process.settings.vector_bytes:
        raise Refused(
            f"The vectors of {holders} holders of {bench.problem.dimension} weights take {size:,} bytes; at most "
            f"{process.settings.vector_bytes:,} are kept (EXPUNGE_VECTOR_BYTES).",
            _smaller(bench, examples),
        )


def _smaller(bench: Bench, examples: Examples) -> str:
    """Say what works in place of exact vectors: a sketch only where it can be had."""
    if bench.problem.training.converge is not None:
        return "Use newton or retrain."
    try:
        require_steps_fit(bench.problem, _steps(bench, examples))
    except Refused as error:
        return f"Use rewind or retrain. A sketch (--rank) would not fit either: {error.what}"
    return "Register with --rank 64, which keeps a few numbers for each, or use rewind or retrain."


def _steps(bench: Bench, examples: Examples) -> int:
    return steps_per_epoch(bench.problem, len(examples)) * bench.problem.training.epochs


def _course(process: Process, job: Preparation, bench: Bench, examples: Examples, learned: Learned) -> Course | None:
    if work_units.wanted(process, examples) < 2:
        return None
    method = work_units.divisible(bench.method, bench, learned)
    if method is None:
        return None
    return Course(job.generation_id, job.lease.model_id, bench, method, examples, learned)


def _design(policy: Policy, guarantee: Guarantee, examples: Examples) -> Design | None:
    return design_of(policy, len(set(examples.people))) if guarantee is Guarantee.CALIBRATED else None


def _freeze(
    storage: Storage,
    job: Preparation,
    bench: Bench,
    kept: Sequence[manifest.Entry],
    everyone: Sequence[manifest.Entry],
) -> None:
    """Write the manifest: its summary on the generation, its rows in batches."""
    summary = {
        "recipe_digest": bench.digest,
        "samples": len(kept),
        "left_out": len(everyone) - len(kept),
        "people": len({subject for entry in kept for subject in entry.subjects}),
        "dimension": bench.problem.dimension,
        "pepper_id": storage.pepper.id,
        "libraries": manifest.surroundings(bench.problem.device),
        "parts": [asdict(part) for part in bench.parts],
    }
    with storage.database.write() as session:
        fence(session, job.lease)
        generation = session.get_one(Generation, job.generation_id)
        generation.manifest = (generation.manifest or {}) | summary
    for batch in batches(manifest.rows(job.generation_id, storage.pepper.id, kept), BATCH * 4):
        with storage.database.write() as session:
            fence(session, job.lease)
            manifest.write(session, batch)
    everyone_held_out = manifest.holdout_rows(storage.pepper, job.tenant_id, job.generation_id, bench.recipe)
    for batch in batches(everyone_held_out, BATCH * 4):
        with storage.database.write() as session:
            fence(session, job.lease)
            session.execute(insert(HoldoutPerson), batch)
