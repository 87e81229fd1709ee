"""People who are only in the holdout: nothing of them can be forgotten, and they are told so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from expunge_service.infra.pseudonyms import subject_digest
from expunge_service.infra.tables import HoldoutPerson
from expunge_service.requests import legal_holds
from expunge_service.requests.legal_holds import Keeps
from tests.unlearning.recipes import softmax
from tests.workers.worlds import TENANT, World
from unlearning.recipe import holdout_people
from unlearning.types import RecipeError

POLICY = {"guarantee": "proved"}
PEOPLE = [f"p{number}" for number in range(24)]


def sides(world: World) -> tuple[list[str], list[str]]:
    """The people whom the recipe keeps apart, and those whom it trains on."""
    digests = {row.subject_digest for row in world.rows_of(HoldoutPerson)}
    apart = [name for name in PEOPLE if subject_digest(world.storage.pepper, TENANT, name) in digests]
    return apart, [name for name in PEOPLE if name not in apart]


def reason(world: World, subject: str) -> str | None:
    request = world.request(world.delete(subject))
    assert request.status == "completed"
    return request.reason


def test_who_is_only_in_the_holdout_completes_as_that(world: World) -> None:
    world.live("held_out", **POLICY)
    apart, trained_on = sides(world)
    assert apart and trained_on
    assert [reason(world, name) for name in (apart[0], "p99")] == ["in_holdout", "no_match"]


def test_who_asks_while_the_model_is_prepared_is_told_the_same(world: World) -> None:
    world.live("held_out", name="first", **POLICY)
    apart, _ = sides(world)
    model_id = world.register("held_out", **POLICY)
    asked = {name: world.delete(name, models=("m",)) for name in (apart[0], "p99")}
    world.work(model_id)
    assert {name: world.task(each).reason for name, each in asked.items()} == {
        apart[0]: "in_holdout",
        "p99": "no_match",
    }
    assert {world.task(each).status for each in asked.values()} == {"completed"}


def test_a_hold_on_them_keeps_no_sample(world: World) -> None:
    world.live("held_out", **POLICY)
    apart, trained_on = sides(world)
    found = {}
    for name in (apart[0], trained_on[0], "p99"):
        with world.database.write() as session:
            hold = legal_holds.place_hold(
                session, world.storage.pepper, TENANT, subject_id=name, sample_id=None, reason="court"
            )
            session.flush()
            found[name] = legal_holds.keeps(session, hold)
    assert found == {apart[0]: Keeps.HELD_OUT, trained_on[0]: Keeps.SAMPLES, "p99": Keeps.NOTHING}


def test_a_recipe_names_everyone_of_its_holdout_or_nobody() -> None:
    base = softmax()
    count = len(base.holdout[0])
    assert holdout_people(base) == frozenset()
    named = replace(base, holdout_subjects=["a"] * (count - 1) + [("b", "c")])
    assert holdout_people(named) == {"a", "b", "c"}
    with pytest.raises(RecipeError, match="holdout_subjects"):
        replace(base, holdout_subjects=["a"] * (count + 1))
    with pytest.raises(RecipeError, match="empty subject"):
        replace(base, holdout_subjects=[""] * count)
