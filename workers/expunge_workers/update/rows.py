"""The rows that an update of a recipe with rows trains on: those of the generation's people who are left.

Whoever came later is ignored until the model is trained on new data. Rows that somebody edited are trained on as they
are now.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import torch
from sqlalchemy.orm import Session
from torch import Tensor

from expunge_service.infra.pseudonyms import digests
from expunge_service.models import FORGOTTEN, MEMBERSHIPS, marks_changed
from expunge_service.queue import Blocked, forgotten
from expunge_service.requests import Reason
from expunge_workers.runtime.build import staying_aside
from expunge_workers.runtime.model import OpenModel, described
from expunge_workers.runtime.rows_recipe import MOST_GONE, SourceUnits, Unit
from expunge_workers.runtime.world_model import JUDGED_ORDERS, silent_id
from expunge_workers.storage import Storage, manifest
from unlearning.accounting.certificate import Guarantee
from unlearning.accounting.policy import Policy
from unlearning.types import Examples, ForgetSet, Need, Refused, Tensors, VectorSource


class OfGeneration(Protocol):
    """Work on a generation of a tenant."""

    @property
    def generation_id(self) -> int: ...
    @property
    def tenant_id(self) -> str: ...
    @property
    def policy(self) -> Policy: ...


@dataclass(frozen=True)
class RowsOfUpdate:
    """The retained samples, and how many of them the sources lack or hold changed since registration."""

    retained: Examples
    gone: int
    changed: int


@dataclass(frozen=True)
class SamplesOfUpdate:
    """What an update that trains nothing anew works on.

    Args:
        bench: the opened model, with the samples that its recipe makes of the rows of those who stay.
        retained: the retained samples, by digests.
        leaving: the positions and the holders of samples that leave, without people of whose rows none was made.
        changes: how many samples of those who stay the recipe makes no more, or otherwise.
        examples: what the leaving samples hold, where the method reads them; else None.
    """

    bench: OpenModel
    retained: Examples
    leaving: manifest.SampleIndex
    changes: manifest.Changed
    examples: Examples | None = None

    def forget(self, vectors: VectorSource) -> ForgetSet:
        """Return what the method is to forget: nothing where no sample leaves."""
        positions = tuple(sorted(self.leaving.at.tolist()))
        return ForgetSet(frozenset(self.leaving.holders), positions, self.examples, vectors)


def samples_of_update(
    storage: Storage,
    job: OfGeneration,
    bench: OpenModel,
    going: Sequence[int],
    guarantee: Guarantee,
    *,
    before: Sequence[int] = (),
) -> SamplesOfUpdate | Blocked:
    """Run the recipe on the rows of those who stay, and find that it makes the samples that the model was trained on.

    A method that begins anew takes those that it makes now. ``before``: positions that are to count as deleted already.
    Raises Refused where others need to be the same and are not, and Lost, MemoryError.
    """
    world_model = bench.required_world_model
    with storage.database.snapshot() as session:
        places = _as_committed(session, storage, job.generation_id)
        if isinstance(places, Blocked):
            return places
        gone = forgotten(session, job.generation_id).union(before)
        held_out = manifest.held_out(session, job.tenant_id, job.generation_id)
    world_model.aside = staying_aside(storage.pepper, job.tenant_id, world_model.units, held_out.issuperset)
    if guarantee in (Guarantee.PROVED, Guarantee.ESTIMATED):  # none of them is claimed but on a judge's word
        world_model.orders = JUDGED_ORDERS
    if world_model.imports:  # an update of the first version: it starts from what was imported, and imports nothing
        world_model.close()
        world_model.imports = False
    away = torch.tensor(sorted(gone.union(going)), dtype=torch.int64)
    stays = ~torch.isin(places.at, away)
    wanted = places.take(stays)
    if not len(wanted):
        return Blocked(Reason.NO_DATA_LEFT)
    theirs = places.take(torch.isin(places.at, torch.tensor(sorted(going), dtype=torch.int64)))
    units = world_model.units
    names = manifest.named(storage.pepper, job.tenant_id, units.samples)
    staying, leaving = _sides(storage, job, units, names, wanted=wanted, theirs=theirs, away=places.take(~stays))
    bench = described(bench, [units.trained_on[place] for place in staying.tolist()], again=True).under(guarantee)
    samples = bench.recipe.samples
    # most recipes make a sample of each row, in order and of the row's name, which was digested above
    known = names[staying.numpy()] if samples.names.same(units.samples.names.take(staying)) else None
    present = manifest.given(storage.pepper, job.tenant_id, samples, known)
    if bool((manifest.compared(present, places.take(~stays)).here >= 0).any()):
        what = "The recipe makes samples again that were deleted, from rows that stay."
        raise Refused(what, "Let the source name its rows (id=), so that a sample can leave with its row.")
    difference = manifest.compared(present, wanted)
    changes = manifest.Changed(difference.missing, difference.changed)
    leaving_units = [units.trained_on[place] for place in leaving.tolist()]
    theirs = theirs.take(~theirs.named(_digests_of_silent(storage, job, units, leaving_units)))
    if changes.missing > MOST_GONE * len(wanted):
        facts = {"lacking": changes.missing, "missing": changes.missing, "changed": changes.changed}
        return Blocked(Reason.SAMPLES_CHANGED, facts)
    if bench.method.begins_anew:
        return SamplesOfUpdate(bench, _as_they_are(storage, job, bench, places, present), theirs, changes)
    if difference.missing or difference.changed:
        raise Refused(
            f"The recipe makes {difference.missing} of the {len(wanted)} samples of those who stay no more, and "
            f"{difference.changed} otherwise: the rows were edited, or what it computes of all rows moved with those "
            "who leave.",
            "Retrain it, or choose a recipe whose samples follow from their own rows alone.",
        )
    index = difference.here
    held = bench.recipe.samples.held(bench.problem.device)
    examples = Examples(wanted.at.to(bench.problem.device), held, wanted.holders, wanted.subjects, index).compact()
    reads = Need.FORGOTTEN in bench.method.needs and len(theirs) > 0
    read = _samples_leaving(storage, job, bench, theirs, leaving_units) if reads else None
    return SamplesOfUpdate(bench, examples, theirs, changes, read)


def _digests_of_silent(
    storage: Storage, job: OfGeneration, units: SourceUnits, leaving: Sequence[Unit]
) -> frozenset[str]:
    """Return the digests of the ids that stand for those people of these units of whose rows no sample was made."""
    ids = [silent_id(units.people(unit)).encode() for unit in leaving]
    found = digests(storage.pepper, "sample", job.tenant_id, ids).hex()
    return frozenset(found[start : start + 64] for start in range(0, len(found), 64))


def _sides(
    storage: Storage,
    job: OfGeneration,
    units: SourceUnits,
    names: np.ndarray[Any, Any],
    *,
    wanted: manifest.SampleIndex,
    theirs: manifest.SampleIndex,
    away: manifest.SampleIndex,
) -> tuple[Tensor, Tensor]:
    """Return the places of the units whose rows the new version is made of, and of those that leave with this update.

    A unit leaves with its people; where the source names its rows, also with a sample of the row's name.
    ``names``: the digests of the units' names.
    """
    people = manifest.subjects_of(storage.pepper, job.tenant_id, units.samples)
    stay, leave = wanted.subjects.distinct(), theirs.subjects.distinct()
    stays = people.where(stay.__contains__) & ~manifest.is_among(names, away.samples)
    leaves = ~stays & (people.where(leave.__contains__) | manifest.is_among(names, theirs.samples))
    return stays.nonzero().squeeze(1), leaves.nonzero().squeeze(1)


def _as_they_are(
    storage: Storage,
    job: OfGeneration,
    bench: OpenModel,
    places: manifest.SampleIndex,
    present: manifest.SampleDigests,
) -> Examples:
    """Return the samples that the recipe makes now, also such as it did not make before, at positions of their own.

    ``present``: their digests.
    """
    now = manifest.indexed(present, storage.pepper, job.tenant_id, bench.recipe.samples, job.policy.granularity)
    examples = manifest.examples(bench.recipe.samples, now, bench.problem.device)
    positions = examples.positions + int(places.at.max()) + 1
    return replace(examples, positions=positions)


def _samples_leaving(
    storage: Storage, job: OfGeneration, bench: OpenModel, theirs: manifest.SampleIndex, leaving: Sequence[Unit]
) -> Examples:
    """Return what the samples of those who leave hold. Raises Refused where the recipe makes them otherwise by now."""
    world_model = bench.required_world_model
    named, rows = world_model.samples_of(leaving)
    difference = manifest.compared(manifest.given(storage.pepper, job.tenant_id, named), theirs)
    if difference.missing or difference.changed:
        raise Refused(
            f"The recipe makes {difference.missing} of the {len(theirs)} samples of those who leave no more, and "
            f"{difference.changed} otherwise.",
            "Retrain it, or put their rows back as they were until the deletion is done.",
        )
    device = bench.problem.device
    moved = Tensors(rows.inputs.to(device), rows.targets.to(device))
    return Examples(theirs.at.to(device), moved, theirs.holders, theirs.subjects, difference.here).compact()


def rows_of_update(
    storage: Storage, tenant_id: str, generation_id: int, bench: OpenModel, going: Sequence[int]
) -> RowsOfUpdate | Blocked:
    """Find what an update retains, without the positions that are ``going``, and set by whom it is scored."""
    with storage.database.snapshot() as session:
        places = _as_committed(session, storage, generation_id)
        if isinstance(places, Blocked):
            return places
        gone = forgotten(session, generation_id)
        held_out = manifest.held_out(session, tenant_id, generation_id)
    leaving = torch.tensor(sorted(gone.union(going)), dtype=torch.int64)
    wanted = places.take(~torch.isin(places.at, leaving))
    if not len(wanted):
        return Blocked(Reason.NO_DATA_LEFT)
    present = manifest.given(storage.pepper, tenant_id, bench.recipe.samples)
    difference = manifest.compared(present, wanted)
    if difference.missing > MOST_GONE * len(wanted):
        facts = {"lacking": difference.missing, "missing": difference.missing, "changed": difference.changed}
        return Blocked(Reason.SAMPLES_CHANGED, facts)
    if bench.built is not None:
        bench.built.aside = staying_aside(storage.pepper, tenant_id, bench.built.units, held_out.issuperset)
    here = difference.here >= 0
    kept, index = wanted.take(here), difference.here[here]
    held = bench.recipe.samples.held(bench.problem.device)
    examples = Examples(kept.at.to(bench.problem.device), held, kept.holders, kept.subjects, index).compact()
    return RowsOfUpdate(examples, difference.missing, difference.changed)


def _as_committed(session: Session, storage: Storage, generation_id: int) -> manifest.SampleIndex | Blocked:
    """Return the manifest, by position, where both tables are what the log commits to."""
    if marks_changed(session, storage.pepper, generation_id):
        return Blocked(Reason.TABLES_DIFFER, {"table": FORGOTTEN})
    places = manifest.places_as_committed(session, storage.pepper, generation_id)
    return Blocked(Reason.TABLES_DIFFER, {"table": MEMBERSHIPS}) if places is None else places
