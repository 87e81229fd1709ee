"""`calibrated` through the service: streams of updates against real retrainings, by whom nobody calibrated.

``python -m pytest -m drill tests/workers/guarantee/test_coverage.py -s`` counts 200 fresh streams over 20 calibrations.
"""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from expunge_service.infra.tables import CalibrationOrder
from tests.workers.rows.test_calibrate import sealed_errors
from tests.workers.worlds import RECIPES, World, open_world, recipe_in, settings_of
from unlearning.accounting.certificate import Claim, Guarantee
from unlearning.bounds.calibration import Calibrated, Design, calibrate
from unlearning.model.problem import Problem
from unlearning.model.training import train
from unlearning.quality.simulate import forget_set, left_by

SIZES = (1, 2)
CAP = 0.05
"""above every bound that was seen, below what doing nothing leaves"""
PEOPLE = [f"p{index}" for index in range(12)]


def opened(home: Path) -> World:
    return open_world(settings_of(home, f"sqlite:///{home}/expunge.db"))


def calibrated(home: Path, template: Path, **asked: Any) -> Calibrated:
    """A registered model in a new installation of its own; q, which is sealed there."""
    home.mkdir(parents=True)
    shutil.copy(template, home / "expunge.db")
    world = opened(home)
    measuring = {"sizes": list(SIZES), **asked}
    policy = {"guarantee": "calibrated", "calibration": measuring, "max_distance": CAP, "noise_std": 10.0}
    world.live("convex", "newton", **policy)
    notes = {row.number: json.loads(sealed_errors(world, row)) for row in world.rows_of(CalibrationOrder)}
    world.storage.close()
    errors = {number: tuple(float(each) for each in note["errors"]) for number, note in notes.items()}
    return calibrate(Design(SIZES, alpha=asked["alpha"], orders=asked["orders"]), errors)


def stream(home: Path, people: list[str]) -> Iterator[tuple[Claim, float]]:
    """Forget ``people`` one after the other: each update's claim and its true distance to a retraining."""
    world = opened(home)
    model_id = world.model_named("m")
    recipe = recipe_in(RECIPES, "convex")
    problem, examples = Problem(recipe), recipe.samples.examples()
    for count in range(1, len(people) + 1):
        request = world.delete(people[count - 1])
        world.work(model_id)
        assert world.request(request).status == "completed"
        kept = left_by(examples, forget_set(examples, people[:count]))
        retrained = train(problem, kept, planned=examples.positions).weights
        released = world.state(world.head(model_id)).weights
        claim = Claim.from_json(world.head(model_id).claim)
        yield claim, float((released.double() - retrained).norm())
    world.storage.close()


def streams(tmp_path: Path, template: Path, seed: int, count: int, **asked: Any) -> Iterator[bool]:
    """Whether each of ``count`` fresh streams of one calibrated generation stays within q b(s); none leaves its cap."""
    fresh = random.Random(seed)
    bound = calibrated(tmp_path / "first", template, **asked)
    for index in range(count):
        home = tmp_path / f"stream-{index}"
        shutil.copytree(tmp_path / "first", home)
        covered = True
        for size, (claim, error) in enumerate(stream(home, fresh.sample(PEOPLE, len(SIZES))), start=1):
            assert (claim.guarantee, claim.max_distance, claim.updates) == (Guarantee.CALIBRATED, CAP, size)
            assert error <= CAP, "what is published and charged"
            covered &= error <= bound.bound(size)
        shutil.rmtree(home)
        yield covered


@pytest.fixture
def template(sqlite_template: Path) -> Path:
    return sqlite_template


def test_whole_streams_lie_within_the_published_cap_of_real_retrainings(tmp_path: Path, template: Path) -> None:
    assert len(list(streams(tmp_path, template, seed=1, count=3, alpha=0.2, orders=4))) == 3


@pytest.mark.drill
@pytest.mark.timeout(7200)
def test_200_fresh_streams_are_covered_as_often_as_the_confidence_says(tmp_path: Path, template: Path) -> None:
    """Over calibration and request order: 19 orders, alpha 5 %. Spread: Beta(19, 1) over 20 calibrations has a
    deviation of .011 in the mean, 200 streams one of .015; three of both together are .056."""
    covered = [
        inside
        for round_ in range(20)
        for inside in streams(tmp_path / str(round_), template, seed=round_, count=10, alpha=0.05, orders=19)
    ]
    share = sum(covered) / len(covered)
    print(f"covered: {sum(covered)} of {len(covered)} streams")
    assert share >= 0.95 - 0.056
