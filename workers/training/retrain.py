"""Retraining as an update: a candidate generation without everyone who asked, cold, with a fresh budget."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from sqlalchemy.orm import Session

from service.audit import log as ledger
from service.infra.db import Database
from service.infra.tables import Generation, Model
from service.requests.reasons import Reason
from unlearning.accounting.certificate import Guarantee, Reference
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.recipe import Recipe
from unlearning.types import Examples, Learned, Progress, Refused
from workers.guarantee.certify import Terms
from workers.runtime.jobs import Retraining
from workers.runtime.lease import fence
from workers.runtime.process import Process
from workers.runtime.stopwatch import Stopwatch
from workers.storage.crypto_erase import bury, destroy_keys, drop_superseded_state
from workers.storage.operator_notes import open_note
from workers.storage.storage import Storage
from workers.training.calibrate import drop_prepared
from workers.training.promote import ForgottenPersonBack, HeldPersonMissing, Shift, shift, switch
from workers.training.run import Ending, build_generation, clean, generation_of
from workers.update.publish import Departure, Draft, Registered, Unusable
from workers.update.retrain_plan import Refusal, note_of, refuse_candidate


class UtilityFell(Unusable):
    """y's holdout accuracy is lower than the policy allows. ``charge`` is what its draw costs all the same."""

    def __init__(self, budget_cost: int) -> None:
        super().__init__("The retrained model's accuracy fell by more than the policy allows.")
        self.budget_cost = budget_cost


def retrain(process: Process, job: Retraining, watch: Stopwatch) -> None:
    """Build the candidate and switch to it, or refuse it and hold who waits. Raises Stale."""
    storage = process.storage
    with storage.database.read() as session:
        parent = session.get_one(Model, job.lease.model_id).current_id
    try:
        _build(process, job, watch)
    except UtilityFell as fell:
        _withhold(process, job, fell)
        return
    drop_superseded_state(storage.database, storage.private, parent)
    storage.figures.sweep(storage.database)
    bury(storage.database)
    destroy_keys(storage.database, storage.keys, storage.journal.root, process.settings.served_tenants)


def _build(process: Process, job: Retraining, watch: Stopwatch) -> None:
    while True:
        try:
            build_generation(process, job, watch, ending_of(process.storage, job))
            return
        except (HeldPersonMissing, ForgottenPersonBack):  # nothing of it may be taken up: it would be so again
            clean(process, job)
            drop_prepared(process.storage, job.generation_id)


def ending_of(storage: Storage, job: Retraining) -> Ending:
    """A candidate ends in the switch, or in a refusal that leaves the old generation as it is."""
    with storage.database.read() as session:
        note = note_of(generation_of(session, job))

    def learn(recipe: Recipe, problem: Problem, examples: Examples, progress: Progress) -> Learned:
        _require_recipe(storage.database, job)
        return cold(recipe, problem, examples, progress)

    def publish(storage: Storage, draft: Draft, registered: Registered, departure: Departure) -> None:
        drafted = cast(Shift, departure)
        _require_utility(job, draft, drafted)
        switch(storage, job, draft, registered, drafted)

    def refuse(session: Session, what: str, hint: str) -> None:
        model = session.get_one(Model, job.lease.model_id)
        refuse_candidate(session, model, generation_of(session, job), Refusal(what, hint))

    return Ending(
        look=lambda session: shift(session, job),
        terms=terms_of,
        publish=publish,
        refuse=refuse,
        learn=learn,
        evidence={"fallback": open_note(storage.sealer, note)} if note else {},
    )


def terms_of(terms: Terms, departure: Departure) -> Terms:
    """Exact, and without charge, where everybody who leaves was left out of the training: nothing was computed from
    them. Where the method had to forget somebody who asked since, the generation's own terms."""
    if departure.target.positions:
        return terms
    return replace(
        terms,
        method="retrain",
        guarantee=Guarantee.EXACT,
        reference=Reference.RENORMALISED,
        noise_std=0.0,
        max_distance=0.0,
        budget_cost=0,
        constants=(),
        design=None,
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
    return train(problem, examples, progress=progress)


def _require_recipe(database: Database, job: Retraining) -> None:
    """A changed recipe is another model: it is registered, not switched to. Raises Refused."""
    with database.read() as session:
        present = session.get_one(Model, job.lease.model_id).generation_id
        old, new = (session.get_one(Generation, key).manifest or {} for key in (present, job.generation_id))
    if old.get("recipe_digest") != new.get("recipe_digest"):
        raise Refused(
            "The recipe's file is not the one that the model was registered with.",
            "Restore it, or register the new one under another name.",
        )


def _require_utility(job: Retraining, draft: Draft, drafted: Shift) -> None:
    tolerance, before = job.policy.utility_tolerance, drafted.present.accuracy
    if tolerance is not None and before is not None and before - draft.accuracy > tolerance:
        raise UtilityFell(draft.budget_cost)


def _withhold(process: Process, job: Retraining, fell: UtilityFell) -> None:
    """The draw was looked at: it is charged, and never redrawn until it passes."""
    clean(process, job)
    with process.storage.database.write() as session:
        model = fence(session, job.lease)
        if fell.budget_cost:
            ledger.charge(session, job.generation_id, None, fell.budget_cost)
            process.storage.journal.confirm(process.storage.journal.write(session, job, fell.budget_cost, None))
        why = Refusal(str(fell), "Retry the blocked requests to retrain once more.", Reason.UTILITY_GATE)
        refuse_candidate(session, model, generation_of(session, job), why)
