"""The rows that an update of a recipe with rows trains on: those of the generation's people who are left.

Whoever came later is ignored until the model is trained on new data. Rows that somebody edited are trained on as they
are now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from sqlalchemy.orm import Session

from expunge.service.models import FORGOTTEN, MEMBERSHIPS, marks_changed, memberships_changed
from expunge.service.queue import Blocked, forgotten
from expunge.service.requests import Reason
from expunge.workers.runtime.build import staying_aside
from expunge.workers.runtime.model import OpenModel
from expunge.workers.runtime.rows_recipe import MOST_GONE
from expunge.workers.storage import Storage, manifest
from unlearning.types import Examples, Tensors


@dataclass(frozen=True)
class RowsOfUpdate:
    """The retained samples, and how many of them the sources lack or hold changed since registration."""

    samples: manifest.FoundSamples
    gone: int
    changed: int


def rows_of_update(
    storage: Storage, tenant_id: str, generation_id: int, bench: OpenModel, going: Sequence[int]
) -> RowsOfUpdate | Blocked:
    """Find what an update retains, without the positions that are ``going``, and set by whom it is scored."""
    with storage.database.snapshot() as session:
        differs = _differing(session, storage, generation_id)
        if differs is not None:
            return Blocked(Reason.TABLES_DIFFER, {"table": differs})
        places, gone = manifest.places(session, generation_id), forgotten(session, generation_id)
        known, asked = manifest.held_out(session, generation_id), manifest.asked_to_leave(session, tenant_id)
    leaving = torch.tensor(sorted(gone.union(going)), dtype=torch.int64)
    wanted = places.take(~torch.isin(places.at, leaving))
    present = manifest.given(storage.pepper, tenant_id, bench.recipe.samples)
    difference = manifest.compared(present, wanted)
    if difference.missing > MOST_GONE * len(wanted):
        facts = {"lacking": difference.missing, "missing": difference.missing, "changed": difference.changed}
        return Blocked(Reason.SAMPLES_CHANGED, facts)
    if bench.built is not None:
        bench.built.aside = staying_aside(storage.pepper, tenant_id, bench.built, asked, known)
    here = difference.here >= 0
    kept, index = wanted.take(here), difference.here[here]
    held = bench.recipe.samples.held(None, bench.problem.device)
    if not isinstance(held, Tensors):
        raise TypeError("units are held in memory")
    examples = Examples(kept.at.to(bench.problem.device), held, kept.holders, kept.subjects, index).compact()
    found = manifest.FoundSamples.of(bench.recipe.samples.names.take(index), examples)
    return RowsOfUpdate(found, difference.missing, difference.changed)


def _differing(session: Session, storage: Storage, generation_id: int) -> str | None:
    """Return which table is not what the log commits to; None where both are."""
    if marks_changed(session, storage.pepper, generation_id):
        return FORGOTTEN
    return MEMBERSHIPS if memberships_changed(session, storage.pepper, generation_id) else None
