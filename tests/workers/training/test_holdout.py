"""People who are only in the holdout: nothing of them can be forgotten, and they are told so."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fastapi.testclient import TestClient

from expunge.service.api.routes.requests.holds import NOTES
from expunge.service.infra.tables import HoldoutPerson, Task
from expunge.service.requests import legal_holds
from expunge.service.requests.legal_holds import Keeps
from tests.unlearning.recipes import softmax
from tests.workers.test_never_again import api
from tests.workers.worlds import TENANT, World
from unlearning.recipe import holdout_people
from unlearning.types import RecipeError

__all__ = ["api"]
POLICY = {"guarantee": "proved"}


def reason(world: World, subject: str) -> str | None:
    request = world.request(world.delete(subject))
    assert request.status == "completed"
    return request.reason


def test_who_is_only_in_the_holdout_completes_as_that(world: World) -> None:
    model_id = world.live("held_out", **POLICY)
    assert world.count(HoldoutPerson) == 3
    assert [reason(world, name) for name in ("aside", "besides", "nobody")] == ["in_holdout", "in_holdout", "no_match"]
    known = world.delete("p1")
    world.work(model_id)
    assert world.head(model_id).samples == 3 and world.request(known).reason is None


def test_a_registration_says_how_many_are_trained_on_and_in_the_holdout(world: World) -> None:
    """A sample that people share may put one of them on both sides, so it is said and not refused."""
    told = world.report(world.live("held_out", **POLICY))["holdout"]
    assert told["people_trained_on"] == 1 and "Split by the person" in told["why"]
    assert "holdout" not in world.report(world.live("convex", name="apart", **POLICY))


def test_who_asks_while_the_model_is_prepared_is_told_the_same(world: World) -> None:
    model_id = world.register("held_out", **POLICY)
    asked = {name: world.delete(name) for name in ("aside", "nobody")}
    world.work(model_id)
    tasks = {task.request_id: task for task in world.rows_of(Task)}
    assert tasks[asked["aside"]].reason == "in_holdout" and tasks[asked["nobody"]].reason == "no_match"
    assert {task.status for task in tasks.values()} == {"completed"}


def test_a_preparation_that_begins_anew_writes_the_holdout_once(world: World) -> None:
    model_id = world.live("held_out", **POLICY)
    again = world.live("held_out", name="again", **POLICY)
    assert world.count(HoldoutPerson) == 6
    assert {row.generation_id for row in world.rows_of(HoldoutPerson)} == {
        world.generation(model_id).id,
        world.generation(again).id,
    }


def test_a_hold_on_them_protects_nothing_and_says_so(world: World, api: TestClient) -> None:
    world.live("held_out", **POLICY)
    found = {}
    for name in ("aside", "p1", "nobody"):
        with world.database.write() as session:
            hold = legal_holds.place_hold(
                session, world.storage.pepper, TENANT, subject_id=name, sample_id=None, reason="court"
            )
            session.flush()
            found[name] = legal_holds.keeps(session, hold)
    assert found == {"aside": Keeps.HELD_OUT, "p1": Keeps.SAMPLES, "nobody": Keeps.NOTHING}
    told = {name: api.post("/v1/holds", json={"subject_id": name, "reason": "court"}).json() for name in found}
    assert {name: hold["note"] for name, hold in told.items()} == {name: NOTES[what] for name, what in found.items()}
    listed = api.get("/v1/holds").json()["data"]
    assert {hold["note"] for hold in listed} == {None}


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
