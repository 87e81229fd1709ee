"""The two files of a version: what is published, and what never leaves the workers."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from service.infra.files import Stored
from unlearning.types import Json
from workers.guarantee.certify import Certified
from workers.storage import checkpoint_format as codec
from workers.storage import private_state as state
from workers.storage.storage import Storage


def write_files(
    storage: Storage, certified: Certified, more: Mapping[str, Json] | None = None
) -> tuple[Stored, Stored]:
    """Write checkpoint and secret state, both durable when this returns; side by side, for each waits for its disk.

    ``more`` is sealed with the state, beside the update's own evidence.
    """
    with ThreadPoolExecutor(1) as beside:
        evidence = certified.evidence | dict(more or {})
        kept = beside.submit(state.keep, storage.private, storage.sealer, certified.state, evidence)
        checkpoint = storage.store.put(codec.encode(certified.tensors, {"format": "pt"}))
        return checkpoint, kept.result()
