"""Retraining as a release: a candidate lineage without everyone who asked, cold, with a fresh budget."""

from __future__ import annotations

from typing import Any

from sqlalchemy.orm import Session

from service.records import Model
from unlearning.problem import Problem
from unlearning.protocol import Examples, Learned, Progress, Refused
from unlearning.recipe import Recipe
from unlearning.training import train
from workers.candidate import refuse_candidate
from workers.erase import bury, destroy_keys, drop_superseded_state
from workers.jobs import Retraining
from workers.prepare import Ending, build_lineage, lineage_of
from workers.stopwatch import Stopwatch
from workers.switch import publish_switch, size_of
from workers.workshop import Workshop


def retrain(workshop: Workshop, job: Retraining, watch: Stopwatch) -> None:
    """Build the candidate and switch to it, or refuse it and hold who waits. Raises Stale."""
    with workshop.database.read() as session:
        parent = session.get_one(Model, job.lease.model_id).head_id
    build_lineage(workshop, job, watch, ending_of(job))
    drop_superseded_state(workshop.database, workshop.private, parent)
    bury(workshop.database)
    destroy_keys(workshop.database, workshop.keys)


def ending_of(job: Retraining) -> Ending:
    """A candidate ends in the switch, or in a refusal that leaves the old lineage as it is."""

    def refuse(session: Session, what: str, hint: str) -> None:
        refuse_candidate(session, session.get_one(Model, job.lease.model_id), lineage_of(session, job), what, hint)

    return Ending(
        publish=lambda database, draft, registered: publish_switch(database, job, draft, registered),
        leaving=lambda session, _: size_of(session, job),
        refuse=refuse,
        learn=cold,
    )


def cold(recipe: Recipe, problem: Problem, examples: Examples, progress: Progress) -> Learned:
    """Train from the data-independent initialisation: only that earns a fresh budget.

    Raises Refused for a model that was trained elsewhere: its weights came from everyone.
    """
    if recipe.weights is not None:
        raise Refused(
            "The model was trained elsewhere, so it cannot be trained anew here.",
            "Train it again without the people who asked, and register the new weights.",
        )
    learned: Any = train(problem, examples, progress=progress)
    return Learned(learned.weights, learned.trajectory)
