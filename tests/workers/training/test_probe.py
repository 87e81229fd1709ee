"""A preparation that computes a vector for each person is tried on a few people first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from expunge.service.infra.tables import StoredVector
from tests.workers.recipes import network
from tests.workers.worlds import World
from unlearning.methods.recollection import Recollection
from unlearning.model.problem import Problem
from unlearning.model.training import learn
from unlearning.quality.distance_left import mean_distance_left
from unlearning.quality.probe import Probed, probe
from unlearning.types import Ineffective, Vectors

SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def clock() -> float:
    return 0.0


def test_the_probe_finds_what_the_whole_preparation_finds() -> None:
    """Its sets are the preparation's own where these are small; the twin computes everyone's vectors."""
    recipe = network.recipe()
    problem, examples = Problem(recipe), recipe.samples.examples()
    learned = learn(recipe, problem, examples)
    found = probe(Recollection(), problem, examples, learned, clock)
    state = Recollection().prepare(problem, examples, learned)
    whole = mean_distance_left(Recollection(), problem, examples, learned, state, vectors=Vectors(state.vectors))
    assert found.people == 3
    assert found.distance_left == pytest.approx(whole, rel=1e-3)


def test_its_price_is_counted_by_the_clock_that_it_is_given() -> None:
    """A clock that ticks once a reading: 1 for three vectors, 1 for three retrainings, so 24 people cost 24."""
    recipe, ticks = network.recipe(), iter(range(100))
    problem, examples = Problem(recipe), recipe.samples.examples()
    found = probe(Recollection(), problem, examples, learn(recipe, problem, examples), lambda: float(next(ticks)))
    assert found.retrainings == pytest.approx(24.0)


def test_a_probe_below_the_threshold_passes() -> None:
    Probed(0.4, 3, 10.0).require_below(0.5)
    with pytest.raises(Ineffective, match="times as far from retraining"):
        Probed(0.6, 3, 10.0).require_below(0.5)


@SQLITE
def test_relu_is_refused_before_the_whole_preparation(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    part = Recollection.part

    def watched(
        self: Recollection, problem: Any, examples: Any, learned: Any, people: Sequence[str], *rest: Any
    ) -> Any:
        asked.append(len(people))
        return part(self, problem, examples, learned, people, *rest)

    monkeypatch.setattr(Recollection, "part", watched)
    model_id = world.register("relu", "recollection", threshold=0.4)
    world.work(model_id)
    reason = world.model(model_id).reason or ""
    assert world.model(model_id).status == "refused"
    assert "After the update of a few people (3, a probe)" in reason and "retrainings, was not made" in reason
    assert "`expunge check PATH --measure` measures which other methods work on this model." in reason
    assert set(asked) == {3} and world.count(StoredVector) == 0


@SQLITE
def test_what_the_probe_found_is_a_figure_that_the_report_shows(world: World) -> None:
    model_id = world.live("network", "recollection")
    found = world.report(model_id)["probe"]
    assert found["people"] == 3 and found["retrainings"] > 0.0
    assert found["distance_left"] == pytest.approx(world.report(model_id)["distance_left"], rel=1e-3)
