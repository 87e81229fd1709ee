"""The port of a model to its recipe with rows: which recipe it may be, and who of the earlier generation is found.

People are known by the digests of their ids alone. Where the sources write these otherwise than the earlier recipe did,
nobody who left would be recognised, so such a port is refused.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from expunge_service.models import is_port, is_with_rows
from expunge_service.queue import (
    Preparation,
    asked_for_samples,
    forgotten,
    generation_of,
    note_holds_read,
    served_beside,
    suppressing,
)
from expunge_workers.runtime.process import Process
from expunge_workers.storage import Storage, manifest
from expunge_workers.training.cohort import names_of, note_counts
from unlearning.recipe import Recipe
from unlearning.types import Refused

RECOGNISED = 0.5
"""of the earlier generation's people, and of its samples where single ones were deleted, that the sources must name"""


@dataclass(frozen=True)
class PortedPeople:
    """Counts of people.

    Args:
        found: in the recipe's sources, kept apart from training or not.
        missing: people of the served generation whom the sources do not name.
        left_out: of ``found``, those who stay out because they, or people of the same row, asked or left.
    """

    found: int
    missing: int
    left_out: int


def ports_model(process: Process, job: Preparation) -> bool:
    """Return whether this retrain ports its model.

    Raises:
        Refused: it does not, and the model was registered with a recipe that had no rows.
        Stale: the lease was lost.
    """
    with process.storage.database.read() as session:
        port = is_port(generation_of(session, job))
        had_rows = is_with_rows(served_beside(session, job).manifest)
    if not had_rows and not port:
        what = "The model was registered with a recipe that read its data by itself."
        raise Refused(what, f"`expunge models port {job.model_name}` trains the model by the recipe's rows.")
    if port:
        with process.storage.database.write() as session:
            note_holds_read(session, job)
    return port


def count_people(
    recipe: Recipe, storage: Storage, job: Preparation, everyone: manifest.SampleIndex, kept: manifest.SampleIndex
) -> bool:
    """Write who is in the sources into the candidate's report; return False where it was a dry run, which has ended.

    ``everyone`` are the samples of the sources but those kept apart, ``kept`` those that are trained on.

    Raises:
        Refused: the sources name too few of the earlier generation's people, or of its samples where requests name
            samples.
        Stale: the lease was lost.
    """
    with storage.database.read() as session:
        served = served_beside(session, job).id
        places, gone = manifest.places(session, served), forgotten(session, served)
        names, single = names_of(suppressing(session, job)), asked_for_samples(session, job)
    before = places.take(~torch.isin(places.at, torch.tensor(sorted(gone), dtype=torch.int64)))
    people = frozenset(manifest.digests_of_people(storage.pepper, job.tenant_id, recipe).values())
    missing = before.people() - people
    if len(missing) > (1 - RECOGNISED) * len(before.people()):
        raise Refused(
            f"The sources lack {len(missing)} of the {len(before.people())} people of the served generation. Their ids "
            "may be written otherwise there, and who asked to leave would not be recognised.",
            "Give the sources spelled=, so that they name people as requests do. Other people: register another model.",
        )
    if single:
        _require_same_samples(before, everyone)
    apart = people - everyone.people()
    left_out = (everyone.people() - kept.people()) | (apart & names)
    counts = PortedPeople(found=len(people), missing=len(missing), left_out=len(left_out))
    return note_counts(storage, job, {"people": asdict(counts)}) is not None


def _require_same_samples(before: manifest.SampleIndex, everyone: manifest.SampleIndex) -> None:
    """Require that the sources name the rows as the earlier recipe named its samples: requests name single ones.

    Raises Refused.
    """
    theirs = before.take(before.subjects.where(everyone.people().issuperset))
    named = len(theirs) - manifest.compared(everyone, theirs).missing
    if named < RECOGNISED * len(theirs):
        raise Refused(
            f"Single samples were deleted by their ids, and the sources name {named} of {len(theirs)} samples as the "
            "earlier recipe did: a deleted one could come back.",
            "Give the source id=, the column with the ids that the samples had (and no at=).",
        )
