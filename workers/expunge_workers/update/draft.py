"""The files of a version, durable before the transaction that publishes it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from expunge_service.models import Committed
from expunge_service.queue import Draft, ForgottenCount, Job, Target
from expunge_workers.guarantee.certify import Certified
from expunge_workers.storage import Storage, checkpoint_format, private_state
from unlearning.types import Json


def write_draft(
    storage: Storage,
    job: Job,
    certified: Certified,
    target: Target,
    size: ForgottenCount,
    *,
    version_id: str,
    evidence: Mapping[str, Json],
    tables: Committed,
    begun: int,
) -> Draft:
    """Write checkpoint and secret state at the same time, for each waits for its disk; both are durable on return.

    ``evidence`` is sealed with the state, next to the update's own. ``tables``: what the version commits to.
    ``begun``: a moment before it, on the database's clock.
    """
    sealed = certified.evidence | dict(evidence)
    place = private_state.version_place(job.generation_id, version_id)
    with ThreadPoolExecutor(1) as second:
        kept = second.submit(private_state.keep, storage.private, storage.sealer, place, certified.state, sealed)
        made = certified.published
        data = made if isinstance(made, bytes) else checkpoint_format.encode(made, {"format": "pt"})
        checkpoint = storage.store.put([data])
    return Draft(
        version_id=version_id,
        checkpoint=checkpoint,
        state=kept.result(),
        method=certified.claim.method,
        claim=certified.claim,
        accuracy=certified.accuracy,
        budget_cost=certified.budget_cost,
        target=target,
        size=size,
        commitments=tables.tables,
        marked={name: tables.marks[name] for name in tables.written},
        vectors=private_state.reseal_vectors(
            storage.database, storage.keys, job.generation_id, certified.state.vectors
        ),
        begun=begun,
        environment=certified.environment,
    )
