"""Refuse a recipe that declares a part public and starts from a model that this service trains on people."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select

from expunge.service.infra.tables import Generation, Model, Version
from expunge.service.queue import Preparation
from expunge.workers.runtime.model import OpenModel
from expunge.workers.storage import checkpoint_format
from expunge.workers.storage.storage import Storage
from unlearning.accounting.certificate import Part
from unlearning.model.parts import digest_of
from unlearning.types import Refused


def require_nobody_in_public(storage: Storage, job: Preparation, bench: OpenModel) -> None:
    """Compare the public parts with every tensor of the tenant's versions whose file is still there, by digest.

    A tensor that a version's own recipe declares public is nobody's: two models may share it. A tensor that was
    changed on the way, by a cast to another dtype for instance, is not found. Raises Refused.
    """
    public = {part.digest: part for part in bench.parts if part.public}
    if not public:
        return
    with storage.database.read() as session:
        query = (
            select(Model.name, Version.number, Version.checkpoint, Generation.manifest)
            .join(Version, Version.model_id == Model.id)
            .join(Generation, Generation.id == Version.generation_id)
            .where(Model.tenant_id == job.tenant_id, Version.status != "purged")
            .order_by(Version.published_at)
        )
        versions = session.execute(query).all()
    for name, number, checkpoint, manifest in versions:
        shared = {each["digest"] for each in (manifest or {}).get("parts", ())}
        wanted = {digest: part for digest, part in public.items() if digest not in shared}
        found = _found(storage, checkpoint, wanted.values())
        if found is not None:
            raise Refused(
                f"The recipe declares {found.name!r} public, and it is a tensor of version {number} of the model "
                f"{name!r}, which was trained on people who may ask to be forgotten.",
                "Train it with this model, or start from numbers that nobody who may ask is in.",
            )


def _found(storage: Storage, checkpoint: str, parts: Collection[Part]) -> Part | None:
    """Return the first part that is a tensor of the file; tensors of other sizes are not compared."""
    if not parts:
        return None
    sizes = {part.size for part in parts}
    by_digest = {part.digest: part for part in parts}
    if not storage.store.holds(checkpoint):
        return None
    tensors, _ = checkpoint_format.decode(storage.store.read(checkpoint))
    found = (by_digest.get(digest_of(tensor)) for tensor in tensors.values() if tensor.numel() in sizes)
    return next((part for part in found if part is not None), None)
