"""A method that was not named: chosen by a rule, once, and written down with its reason.

The choice is part of the generation from then on: a worker that continues after another died, every update and every
later retrain use it.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from expunge.service.audit import record
from expunge.service.infra.settings import Settings
from expunge.service.infra.tables import Generation
from expunge.service.infra.tenants import recipes_of
from expunge.service.queue import Preparation, fence
from expunge.workers.guarantee.choose import guarantee_of, require_needs
from expunge.workers.runtime import recipes
from expunge.workers.runtime.model import set_up
from expunge.workers.runtime.process import Process
from unlearning.accounting import policy
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import AUTO, method_by_rule
from unlearning.types import Refused


def settled(process: Process, job: Preparation) -> Preparation:
    """Return the job with its method: the policy's, or the one that the rule chooses. Raises Refused, Stale."""
    if job.policy.method != AUTO:
        return job
    settings = process.settings
    loaded = recipes.load(recipes_of(settings.recipes, job.tenant_id), job.recipe)
    samples = loaded.recipe.samples
    inputs, _ = next(iter(samples.rows.read([torch.zeros(1, dtype=torch.int64)])))
    provable = len(samples) * inputs.numel() > policy.SMALL and _provable(settings, job, loaded)
    method, why = method_by_rule(len(samples), inputs.numel(), provable)
    with process.storage.database.write() as session:
        fence(session, job.lease)
        generation = session.get_one(Generation, job.generation_id)
        told = {"method": method, "why": why}
        generation.method, generation.manifest = method, (generation.manifest or {}) | {"chosen": told}
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
