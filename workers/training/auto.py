"""The method ``auto``: measure on the model what each method costs, choose one, and write the choice down once.

The choice is part of the generation from then on: a worker that continues after another died, every update and every
later retrain use it. The row holds the sentence without figures; the figures are deleted with the first deletion.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace

from expunge.service.audit.log import record
from expunge.service.infra.tables import Generation
from expunge.service.infra.tenants import recipes_of
from expunge.workers.advice.measure import Findings, OutOfTime, Scene, measure
from expunge.workers.runtime import recipes
from expunge.workers.runtime.jobs import Preparation
from expunge.workers.runtime.lease import fence
from expunge.workers.runtime.model import build
from expunge.workers.runtime.process import Process
from expunge.workers.runtime.stopwatch import Stopwatch
from expunge.workers.storage import manifest
from expunge.workers.training.cohort import admit
from expunge.workers.training.start import shown
from expunge.workers.training.trial import tried
from unlearning.accounting.advice import Chosen, Demand, choose
from unlearning.accounting.policy import AUTO
from unlearning.types import Progress, Refused

SECONDS = 240.0
"""for all methods together; a plain training that is short decides by itself"""
SHOWN = 3
"""reasons that a refusal names"""


def settled(process: Process, job: Preparation, watch: Stopwatch) -> Preparation:
    """Return the job with its method: the policy's, or, under ``auto``, the chosen one. Raises Refused, Stale."""
    if job.policy.method != AUTO:
        return job
    with watch.phase("advise"):
        scene = _scene(process, job)
        policy = job.policy
        demand = Demand(policy.min_guarantee, policy.requests_per_month, policy.cadence_seconds)
        found, choice = _chosen(process, job, scene, demand)
    with process.storage.database.write() as session:
        fence(session, job.lease)
        generation = session.get_one(Generation, job.generation_id)
        told = {"method": choice.method, "why": choice.why}
        generation.method, generation.manifest = choice.method, (generation.manifest or {}) | {"chosen": told}
        record(session, job.tenant_id, "preparation.chosen", model_id=job.model_id, method=choice.method)
    advice = {
        "figures": choice.figures,
        "retraining": found.retraining,
        "offers": [asdict(each) for each in found.offers],
    }
    process.storage.figures.keep(job.generation_id, {"advice": advice})
    return replace(job, policy=job.policy.in_force(choice.method))


def _chosen(process: Process, job: Preparation, scene: Scene, demand: Demand) -> tuple[Findings, Chosen]:
    """Measure a retraining; measure the other methods too where it is not short.

    Raises Refused where none has the guarantee, and where the time is over before anything was trained.
    """

    @contextmanager
    def limit(seconds: float) -> Iterator[Progress]:
        end, show = time.monotonic() + seconds, shown(process.storage.database, job, "advise", 0.0, 0.05)

        def look(share: float) -> None:
            show(share)
            if time.monotonic() > end:
                raise OutOfTime

        yield look

    try:
        found = measure(scene, SECONDS, limit, lambda _: None, ("retrain",))
    except OutOfTime as slow:
        told = "Name a method. `expunge advise --seconds` measures, with more time, which one suits."
        raise Refused(str(slow), told) from None
    choice = choose(found.offers, demand, found.retraining)
    if choice is None or not choice.short:
        found = measure(scene, SECONDS, limit, lambda _: None)
        choice = choose(found.offers, demand, found.retraining)
    if choice is not None:
        return found, choice
    refused = [f"{offer.method}: {offer.refused}" for offer in found.offers if offer.refused is not None]
    weaker = [f"{offer.method}: its guarantee is {offer.guarantee}." for offer in found.offers if offer.refused is None]
    raise Refused(
        f"No method has the guarantee {demand.min_guarantee.value} on this model.",
        " ".join(["Lower min_guarantee, or name a method.", *[*weaker, *refused][:SHOWN]]),
    )


def _scene(process: Process, job: Preparation) -> Scene:
    """Run the recipe; leave out whom the registration leaves out. Raises Refused as a preparation does."""
    settings, storage = process.settings, process.storage
    bench = build(settings, job.tenant_id, job.recipe, replace(job.policy, method="retrain", fallback=None))
    start = time.perf_counter()
    loaded = recipes.load(recipes_of(settings.recipes, job.tenant_id), job.recipe)
    reading = time.perf_counter() - start
    samples, device = loaded.recipe.samples, bench.problem.device
    everyone = manifest.entries(storage.pepper, job.tenant_id, samples, job.policy.granularity)
    kept, _ = admit(storage, job, bench, everyone)
    if loaded.recipe.train is not None:
        tried(settings, bench, kept)  # before this process runs it: what is refused is not measured either
    examples = manifest.examples(samples, kept, device, settings.sample_bytes)
    return Scene(loaded, examples, job.policy, device, reading, settings.vector_bytes)
