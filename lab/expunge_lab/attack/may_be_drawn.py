"""Leave out of a recipe everybody who asked to be forgotten: attacks are measured on drawn people, never on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import torch
from sqlalchemy.exc import SQLAlchemyError

from expunge.service.access import require_pepper
from expunge.service.cli.checks import lacks_file
from expunge.service.infra.db import Database
from expunge.service.infra.migrate import SchemaState, schema_state
from expunge.service.infra.pseudonyms import Pepper, sample_digest, subject_digest
from expunge.service.infra.settings import Settings, SettingsError
from expunge.service.requests import names_with_requests
from unlearning.recipe import Recipe, Samples
from unlearning.types import Refused

HERE = "Run it where a worker runs: its database and its pepper say who must not be drawn."


def may_be_drawn(recipe: Recipe, tenant_id: str, settings: Settings) -> Recipe:
    """Return the recipe without the people whom the tenant's requests and suppression list name.

    They are in no training, no forget set and no holdout of what is measured. A request for samples counts for the
    people of these samples.

    Raises:
        Refused: the record cannot be read, or the weights were trained elsewhere on somebody who asked.
        RecipeError: nobody is left to train on, or in the holdout.
    """
    samples, asked = recipe.samples, asks_to_leave(recipe.samples, tenant_id, settings)
    out = samples.people.where(lambda people: any(map(asked, people)))
    if recipe.weights is not None and bool(out.any()):
        raise Refused(
            f"The weights were trained on {int(out.sum())} samples of people who asked to be forgotten.",
            "Train them again without these people, and measure that recipe.",
        )
    left = recipe if not bool(out.any()) else replace(recipe, samples=samples.take((~out).nonzero().squeeze(1)))
    return _holdout_without(left, [any(map(asked, people)) for people in recipe.holdout_subjects or ()])


def asks_to_leave(samples: Samples, tenant_id: str, settings: Settings) -> Callable[[str], bool]:
    """Return what tells of a person's id whether the tenant's requests and suppression list name the person.

    A request for samples counts for the people of these ``samples``. Raises Refused where the record cannot be read.
    """
    pepper, names = _record(tenant_id, settings)
    named = [sample_digest(pepper, tenant_id, id) in names for id in samples.ids]
    owners = {person for people in samples.people.take(torch.tensor(named).nonzero().squeeze(1)) for person in people}

    @cache
    def asks(person: str) -> bool:
        return person in owners or subject_digest(pepper, tenant_id, person) in names

    return asks


def _holdout_without(recipe: Recipe, out: Sequence[bool]) -> Recipe:
    if not any(out) or recipe.holdout_subjects is None:
        return recipe
    staying = [place for place, gone in enumerate(out) if not gone]
    inputs, targets = recipe.holdout_tensors
    return replace(
        recipe,
        holdout=(inputs[staying], targets[staying]),
        holdout_subjects=[recipe.holdout_subjects[place] for place in staying],
    )


def _record(tenant_id: str, settings: Settings) -> tuple[Pepper, frozenset[str]]:
    """Return the pepper, and the digests of whom the tenant's requests name."""
    database = None if lacks_file(settings.database_url) else Database(settings.database_url)
    try:
        pepper = Pepper.load(settings.pepper_file)
        if database is None or schema_state(database) is not SchemaState.CURRENT:
            raise Refused("There is no record of requests here.", HERE)
        with database.read() as session:
            require_pepper(session, pepper)
            return pepper, names_with_requests(session, tenant_id)
    except (SettingsError, SQLAlchemyError, OSError) as error:
        raise Refused(f"The record of requests cannot be read ({type(error).__name__}).", HERE) from None
    finally:
        if database is not None:
            database.close()
