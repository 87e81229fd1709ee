"""A registration looks at the ids of people before it trains: a damaged id is one that no request will name."""

from __future__ import annotations

import logging

import pytest
import torch

import unlearning as ul
from expunge_workers.training.person_ids import lint_people, require_sound_ids
from tests.workers.worlds import World


def samples(*people: str | tuple[str, ...]) -> ul.Samples:
    ids = [f"s{row}" for row in range(len(people))]
    return ul.Samples(ids=ids, subjects=people, inputs=torch.zeros(len(people), 2), targets=torch.zeros(len(people)))


def test_a_registration_with_ids_read_as_floats_is_refused_with_the_persons(world: World) -> None:
    world.write_rows(row | {"person": f"{row['person'][1:]}.0"} for row in world.rows())
    model_id = world.register("means", "retrain")
    world.work(model_id)
    model = world.model(model_id)
    assert model.status == "refused"
    told = "persons 1, 2, 3 and 9 more (counted by first appearance): whole numbers with decimals (17.0)"
    assert told in (model.reason or "")
    assert "Correct that column of the source" in (model.reason or "")


def test_a_person_is_counted_where_the_id_comes_first_and_once() -> None:
    (finding,) = lint_people(samples("a", ("b", "nan"), "a", "nan", "c"))
    assert (finding.count, finding.lines) == (1, (3,))


def test_ids_that_may_be_right_are_logged_without_an_id(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        require_sound_ids(samples("aB3", "x", "Ab3"), "churn")
    told = "The ids of people of churn: person 3 (counted by first appearance): the same as an earlier id"
    assert told in caplog.text and "Ab3" not in caplog.text


def test_a_float_among_people_is_told_to_be_read_as_text() -> None:
    with pytest.raises(ul.RecipeError, match=r"17\.0 is nobody's id") as refused:
        samples(17.0, float("nan"))  # type: ignore[arg-type]
    assert "str(each)" not in str(refused.value)
