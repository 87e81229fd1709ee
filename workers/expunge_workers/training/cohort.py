"""Select the people to train on: all of the recipe, if they fit, except those that a suppression entry names.

People under a legal hold stay. A retrain counts first what changed in the recipe's data since the served generation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any

import torch
from sqlalchemy.orm import Session
from torch import Tensor

from expunge_service.infra.db import Database
from expunge_service.infra.pseudonyms import person_number, subject_digest
from expunge_service.models import is_dry_run
from expunge_service.queue import (
    Preparation,
    Suppressing,
    ask_nearly_suppressed,
    before_registration,
    begins_model,
    end_dry_run,
    fence,
    forgotten,
    generation_of,
    model_of,
    named_by_holds,
    nearly_suppressed,
    served_beside,
    served_people,
    still_served,
    suppressing,
)
from expunge_service.requests import Question, effective
from expunge_workers.runtime.build import staying_aside
from expunge_workers.runtime.model import OpenModel
from expunge_workers.runtime.process import Process
from expunge_workers.runtime.rows_recipe import SourceUnits
from expunge_workers.storage import Storage, manifest
from expunge_workers.storage.spellings import Spellings
from expunge_workers.training.admission import left_out
from unlearning.methods.recollection import room
from unlearning.recipe import Recipe, on_both_sides
from unlearning.types import Refused

SQLITE_PEOPLE = 100_000
SHOWN = 3
"""requests that a refusal names; it gives the number of the others"""
COLUMN_BYTES = 600
"""of a sample in ids, people and digests, while the sources are read a second time (benchmarks/results/scaling.md)"""
HELD_TIMES, CONVERGED_TIMES = 3, 8
"""how many times its own size a sample takes that is held: itself and copies of it; where a training converges, its
features in float64 and copies of those too"""


def require_room(database: Database, everyone: manifest.SampleIndex) -> None:
    """Require a database that is large enough for so many people. Raises Refused."""
    people = len(everyone.people())
    if database.dialect == "sqlite" and people > SQLITE_PEOPLE:
        raise Refused(
            f"The recipe names {people} people; on SQLite at most {SQLITE_PEOPLE} are served.",
            "Set EXPUNGE_DATABASE_URL to a PostgreSQL database.",
        )


def require_fits(recipe: Recipe, device: torch.device) -> dict[str, int]:
    """Return the ``bytes`` that the preparation is expected to take. Raises Refused where they are not free."""
    samples = recipe.samples
    times = HELD_TIMES if recipe.training.converge is None else CONVERGED_TIMES
    expected = (COLUMN_BYTES + times * samples.rows.row_bytes) * len(samples)
    what = f"The preparation's arrays for {len(samples):,} samples"
    room.require_room(what, expected, device, "Use a machine with more memory.")
    return {"bytes": expected}


def admit(
    process: Process, job: Preparation, bench: OpenModel, everyone: manifest.SampleIndex, written: Spellings
) -> tuple[manifest.SampleIndex, dict[str, int]]:
    """Return the samples to train on, and how many samples each request keeps out.

    Imported weights were trained on all people, so none can be left out; the method forgets them instead. A retrain
    imports none. Raises Refused where no person is left, where the registration does not say what becomes of people
    that it brings back, where the id of one is written nearly as that of a person who asked, and where an admission
    check does. A retrain leaves such people out where they are new, and asks.
    """
    storage, people = process.storage, {name for names in bench.recipe.samples.people.distinct() for name in names}
    not_admitted = frozenset(
        subject_digest(storage.pepper, job.tenant_id, name) for name in left_out(storage, process.settings, job, people)
    )
    with storage.database.read() as session:
        entries = suppressing(session, job)
        under_hold = _kept_by_hold(session, job, everyone)
        if begins_model(job):
            done = effective(session, job.tenant_id)
            under_hold &= ~everyone.named(names_of([each for each in entries if each.request_id in done]))
        before = before_registration(session, job)
        earlier = [each for each in entries if job.retrains or each.request_id in before]
        forms = {form for each in earlier if each.written for form in each.written.forms.values()}
        questions = nearly_suppressed(session, earlier, written.holders(forms)) if forms else {}
        asks = not job.retrains and not model_of(session, job).leave_out_forgotten
    if asks:
        _require_nobody_returns(everyone, [each for each in entries if each.request_id in before], under_hold)
    if questions:
        not_admitted |= _nearly_suppressed(storage, job, everyone, questions)
    imported = bench.recipe.weights is not None or bench.imports
    if imported and not job.retrains:
        _require_nobody_left_out(everyone, not_admitted - names_of(entries), under_hold)
        return everyone, {}
    out = everyone.named(names_of(entries) | not_admitted) & ~under_hold
    kept = everyone.take(~out) if bool(out.any()) else everyone
    if not len(kept):
        shown = ", ".join(sorted({each.request_id for each in entries})[:3]) or "none: an admission check names them"
        what = f"Everyone in the recipe asked to be forgotten (request {shown}, ...)."
        raise Refused(what, "Register the model with other data.")
    return kept, _samples_of(entries, everyone.take(out))


def aside_of(process: Process, job: Preparation, units: SourceUnits) -> dict[str, list[int]]:
    """Return the units, by source, of the people who are kept apart from training, but of those who asked to leave."""
    with process.storage.database.read() as session:
        names = names_of(suppressing(session, job))
    return staying_aside(process.storage.pepper, job.tenant_id, units, names.isdisjoint)


def _nearly_suppressed(
    storage: Storage, job: Preparation, everyone: manifest.SampleIndex, questions: Mapping[str, Question]
) -> frozenset[str]:
    """Let the requests wait for a decision; return the people, by digest, whom a retrain leaves out meanwhile.

    Those are the new ones: about the others their requests were asked before. Raises Refused for a registration, with
    the first lines of the recipe's samples that are in question.
    """
    numbers = {person for question in questions.values() for person in question.near}
    near = {person for person in everyone.people() if person_number(person) in numbers}
    if job.retrains:
        with storage.database.read() as session:
            near -= served_people(session, job, near)
        new = {person_number(person) for person in near}
        left = ((request, question, tuple(new.intersection(question.near))) for request, question in questions.items())
        questions = {request: question._replace(near=people) for request, question, people in left if people}
    rows = everyone.at[everyone.subjects.where(lambda people: not near.isdisjoint(people))].tolist()
    if rows and questions:
        with storage.database.write() as session:
            ask_nearly_suppressed(session, job, questions)
    if not rows or job.retrains:
        return frozenset(near)
    lines = ", ".join(str(row + 1) for row in rows[:SHOWN]) + (f" and {len(rows) - SHOWN} more" * (len(rows) > SHOWN))
    shown = ", ".join(sorted(questions)[:SHOWN])
    raise Refused(
        f"The recipe names people whose ids are written nearly as those of people who asked to be forgotten: samples "
        f"{lines}, counted from 1 (requests: {len(questions)}; {shown}).",
        "Say of each request which it is: `expunge requests same-person REQUEST --subject RIGHT-ID`, or `expunge "
        "requests other-person REQUEST`; then register again.",
    )


def kept_out(left_out: Mapping[str, int]) -> dict[str, Any]:
    """Return the part of the report that says which requests keep samples out, and how those could come back."""
    if not left_out:
        return {}
    requests = [{"request": request, "samples": count} for request, count in sorted(left_out.items())]
    why = (
        "The recipe still names people who were forgotten, or asked to be. Their samples were refused: nothing was "
        "trained on them. `POST /v1/deletion-requests/REQUEST/lift`, or the page, admits them to generations that "
        "begin afterwards."
    )
    return {"kept_out": {"requests": requests, "why": why}}


def holdout_told(recipe: Recipe) -> dict[str, Any]:
    """Return the part of the report about people who are kept apart and trained on too, in rows of several people."""
    both = len(on_both_sides(recipe))
    if not both:
        return {}
    why = (
        "These people are trained on and kept apart too, in rows of several people, so accuracy is too good. A "
        "deletion takes them out of the model and of the rows kept apart."
    )
    return {"holdout": {"people_trained_on": both, "why": why}}


def _require_nobody_returns(everyone: manifest.SampleIndex, entries: Sequence[Suppressing], under_hold: Tensor) -> None:
    """Require that these suppression entries name no sample of the recipe that no legal hold keeps. Raises Refused."""
    out = everyone.take(everyone.named(names_of(entries)) & ~under_hold)
    requests = sorted(_samples_of(entries, out))
    if not requests:
        return
    more = f" and {len(requests) - SHOWN} more" if len(requests) > SHOWN else ""
    raise Refused(
        f"The recipe still names {len(out)} samples of people who asked to be forgotten before it was registered "
        f"(requests: {len(requests)}; {', '.join(requests[:SHOWN])}{more}).",
        "Take these samples out of the recipe (imported weights: train them again without), or register with "
        "--leave-out-forgotten, or lift the suppression of people who may come back: on the page, or "
        "with `POST /v1/deletion-requests/REQUEST/lift`.",
    )


def _require_nobody_left_out(everyone: manifest.SampleIndex, names: frozenset[str], under_hold: Tensor) -> None:
    """Require that the checks leave out only people that a request names: imported weights know all. Raises Refused."""
    known = int((everyone.named(names) & ~under_hold).sum())
    if known:
        raise Refused(
            f"The weights were trained on {known} samples of people that an admission check leaves out.",
            "Ask for their deletion (drop: `expunge drop match`), or train the weights again without them; then "
            "register again.",
        )


def names_of(entries: Sequence[Suppressing]) -> frozenset[str]:
    """Return the digests of the people and samples that the entries name."""
    return frozenset(name for each in entries for name in (each.subject_digest, each.sample_digest) if name)


def _samples_of(entries: Sequence[Suppressing], out: manifest.SampleIndex) -> dict[str, int]:
    """Return how many of these samples each request names; requests that name none are absent."""
    counts = Counter(name for people in out.subjects for name in people) + Counter(manifest.HexColumn(out.samples))
    found: Counter[str] = Counter()
    for each in entries:
        found[each.request_id] += counts[each.subject_digest or each.sample_digest or ""]
    return {request: count for request, count in found.items() if count}


def _kept_by_hold(session: Session, job: Preparation, everyone: manifest.SampleIndex) -> Tensor:
    """Return a mask (n,) bool of the samples that a legal hold keeps in.

    In a retrain it keeps only what the model still has: the hold may have been placed for another model, after the
    people were forgotten in this one.
    """
    kept = everyone.named(named_by_holds(session, job))
    if not job.retrains or not bool(kept.any()):
        return kept
    return kept & everyone.named(still_served(session, job))


MOST_GONE = 0.1
"""of the served samples; a scheduled retrain refuses data that lack more, because they were not looked at"""


@dataclass(frozen=True)
class Changes:
    """Counts of samples and people: the recipe's data now, against those that the served generation is trained on.

    Args:
        served: samples that the served generation still has: those that it was trained on, without the forgotten.
        samples: samples that the retrain trains on.
        gone: samples of ``served`` that the recipe does not give any more.
        changed: samples of ``served`` that the recipe gives with another content.
        new: samples of ``samples`` that the served generation never had.
        people_new: people of ``samples`` that the served generation never had.
        left_out: samples of the recipe that are left out, because their people asked.
        people_left_out: people of those samples without a sample in ``samples``.
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
    kept: manifest.SampleIndex,
    out: manifest.SampleIndex,
) -> Changes:
    """Count the changes from a generation's manifest (``places``) to the recipe's samples now.

    ``kept`` are those that a retrain trains on, ``out`` those of people who asked or left.
    """
    gone = torch.isin(places.at, torch.tensor(sorted(forgotten_positions), dtype=torch.int64))
    served = places.take(~gone)
    now = manifest.compared(kept, served)
    absent = served.take(now.here < 0)
    return Changes(
        served=len(served),
        samples=len(kept),
        gone=manifest.compared(out, absent).missing,
        changed=now.changed,
        new=manifest.compared(places, kept).missing,
        people_new=len(kept.people() - places.people()),
        left_out=len(out),
        people_left_out=len(out.people() - kept.people()),
    )


def count_changes(
    storage: Storage,
    job: Preparation,
    kept: manifest.SampleIndex,
    out: manifest.SampleIndex,
) -> bool:
    """Write the changes into the candidate's report; return False where it was a dry run, which has ended.

    Raises:
        Refused: the retrain was planned by the schedule, and more than ``MOST_GONE`` of the served samples are gone.
        Stale: the lease was lost.
    """
    with storage.database.read() as session:
        served = served_beside(session, job).id
        places, gone = manifest.places(session, served), forgotten(session, served)
    found = changes(places, gone, kept, out)
    report = note_counts(storage, job, {"changes": asdict(found)})
    if report is None:
        return False
    if "scheduled" in report and found.gone > MOST_GONE * found.served:
        raise Refused(
            f"{found.gone} of {found.served} samples are missing from the recipe's data.",
            "Put them back. If they are to stay away: `expunge models retrain NAME`.",
        )
    return True


def note_counts(storage: Storage, job: Preparation, counts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Write counts into the candidate's report and return it; None where it was a dry run, which has ended.

    Raises Stale.
    """
    with storage.database.write() as session:
        model, generation = fence(session, job.lease), generation_of(session, job)
        generation.report = (generation.report or {}) | dict(counts)
        if is_dry_run(generation):
            end_dry_run(session, model, generation, {})
            return None
        return generation.report
