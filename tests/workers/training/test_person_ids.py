"""A registration looks at the ids of people before it trains: a damaged id is one that no request will name."""

from __future__ import annotations

import logging

import pytest
import torch

import unlearning as ul
from expunge.workers.check.checks import inspect, read
from expunge.workers.training.person_ids import lint_people, require_sound_ids
from tests.workers.worlds import RECIPES, World


def samples(*people: str | tuple[str, ...]) -> ul.Samples:
    ids = [f"s{row}" for row in range(len(people))]
    return ul.Samples(ids=ids, subjects=people, inputs=torch.zeros(len(people), 2), targets=torch.zeros(len(people)))


def test_a_registration_with_ids_read_as_floats_is_refused_with_its_samples(world: World) -> None:
    model_id = world.register("misread", name="m")
    world.work(model_id)
    model = world.model(model_id)
    assert model.status == "refused"
    assert "samples 1, 4, 7 and 9 more: whole numbers with decimals (17.0)" in (model.reason or "")
    assert "dtype=str" in (model.reason or "")


def test_check_names_what_a_registration_would_refuse() -> None:
    subject = read(RECIPES, "misread")
    finding = next(found for found in inspect(subject) if found.name == "ids of people")
    assert not finding.well and finding.what.startswith("Samples 1, 4, 7 and 9 more:") and "dtype=str" in finding.hint


def test_an_id_is_named_by_the_first_sample_that_has_it_and_once() -> None:
    (finding,) = lint_people(samples("a", ("b", "nan"), "a", "nan", "c"))
    assert (finding.count, finding.lines) == (1, (2,))


def test_ids_that_may_be_right_are_logged_without_an_id(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        require_sound_ids(samples("aB3", "x", "Ab3"), "churn")
    assert "The ids of people of churn: sample 3: the same as an earlier id" in caplog.text and "Ab3" not in caplog.text


def test_a_float_among_people_is_told_to_be_read_as_text() -> None:
    with pytest.raises(ul.RecipeError, match=r"17\.0 is nobody's id") as refused:
        samples(17.0, float("nan"))  # type: ignore[arg-type]
    assert "str(each)" not in str(refused.value)
