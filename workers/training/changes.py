"""What changed in a recipe's data since the served generation was trained: counted before a retrain trains anything."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import asdict, dataclass

import torch

from expunge.service.infra.tables import Generation, Model
from expunge.service.models import is_dry_run
from expunge.service.queue import Preparation, end_dry_run, fence, forgotten
from expunge.workers.storage import manifest
from expunge.workers.storage.storage import Storage
from unlearning.types import Refused

MOST_GONE = 0.1
"""of the served samples; a scheduled retrain refuses data that lack more, because nobody has looked at them"""


@dataclass(frozen=True)
class Changes:
    """Counts of samples and people: the recipe's data now, against those that the served generation is trained on.

    Args:
        served: samples that the served generation still has: those that it was trained on, without the forgotten.
        samples: samples that the retrain trains on.
        gone: samples of ``served`` that the recipe does not give any more.
        changed: samples of ``served`` that the recipe gives with another content.
        new: samples of ``samples`` that the served generation never had.
        people_new: people of ``samples`` whom the served generation never had.
        left_out: samples of the recipe that are left out, because of people who asked to be forgotten.
        people_left_out: people of those samples who have no sample in ``samples``.
    """

    served: int
    samples: int
    gone: int
    changed: int
    new: int
    people_new: int
    left_out: int
    people_left_out: int


def changes(
    places: manifest.SampleIndex,
    forgotten_positions: Set[int],
    everyone: manifest.SampleIndex,
    kept: manifest.SampleIndex,
) -> Changes:
    """Count the changes from a generation's manifest (``places``) to the recipe's samples now (``everyone``).

    ``kept`` are those of ``everyone`` that a retrain trains on.
    """
    gone = torch.isin(places.at, torch.tensor(sorted(forgotten_positions), dtype=torch.int64))
    served = places.take(~gone)
    now, out = manifest.compared(everyone, served), everyone.take(~torch.isin(everyone.at, kept.at))
    return Changes(
        served=len(served),
        samples=len(kept),
        gone=now.missing,
        changed=now.changed,
        new=manifest.compared(places, kept).missing,
        people_new=len(kept.people() - places.people()),
        left_out=len(out),
        people_left_out=len(out.people() - kept.people()),
    )


def count_changes(
    storage: Storage,
    job: Preparation,
    everyone: manifest.SampleIndex,
    kept: manifest.SampleIndex,
) -> bool:
    """Write the changes into the candidate's report; return False where it was a dry run, which has ended.

    Raises:
        Refused: the retrain was planned by the schedule, and more than ``MOST_GONE`` of the served samples are gone.
        Stale: the lease was lost.
    """
    with storage.database.read() as session:
        served = session.get_one(Model, job.model_id).generation_id or 0
        places, gone = manifest.places(session, served), forgotten(session, served)
    found = changes(places, gone, everyone, kept)
    with storage.database.write() as session:
        model, generation = fence(session, job.lease), session.get_one(Generation, job.generation_id)
        generation.report = (generation.report or {}) | {"changes": asdict(found)}
        scheduled = "scheduled" in generation.report
        ended = is_dry_run(generation)
        if ended:
            end_dry_run(session, model, generation, {})
    if scheduled and not ended and found.gone > MOST_GONE * found.served:
        raise Refused(
            f"{found.gone} of {found.served} samples are missing from the recipe's data.",
            "Put them back. If they are to stay away: `expunge models retrain NAME --new-data`.",
        )
    return not ended
