"""A registration asks a person where its version is far less accurate than a plain training."""

from __future__ import annotations

import itertools
import re
from typing import Any

import pytest

from expunge_service.infra.tables import Model
from expunge_service.models import WITHHELD, is_withheld, publish_anyway, retire
from expunge_service.queue import is_due
from expunge_service.queue.claims import mark_notified
from expunge_service.requests.states import RequestRefused
from tests.harness.draws import keeps_apart
from tests.workers.worlds import World

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
SHARDS: dict[str, Any] = {"method": "shards", "options": {"shards": 3}}


@pytest.fixture
def withheld(world: World) -> tuple[World, str]:
    model_id = world.register("split", max_accuracy_drop=0.2, **SHARDS)
    world.work(model_id)
    return world, model_id


def two_who_are_trained_on(world: World) -> list[str]:
    everybody = (f"p{number}" for number in itertools.count())
    return list(itertools.islice((person for person in everybody if not keeps_apart(world.settings, person, 0.2)), 2))


def decide(world: World, model_id: str, act: Any) -> Any:
    with world.database.write() as session:
        return act(session, session.get_one(Model, model_id))


def test_it_stays_in_preparation_with_both_figures(withheld: tuple[World, str]) -> None:
    world, model_id = withheld
    model = world.model(model_id)
    assert model.status == "preparing" and is_withheld(model)
    assert model.reason == WITHHELD and not re.search(r"\d", WITHHELD), "a measured figure is in no row"
    assert not world.versions(model_id) and world.kinds().count("preparation.withheld") == 1
    figures = world.storage.figures.measured(world.generation(model_id).id)
    assert figures == {"plain_accuracy": 1.0, "accuracy": 0.0}
    generation = world.generation(model_id)
    assert world.storage.figures.shown(generation) == figures and not figures.keys() & generation.report.keys()
    with world.database.write() as session:
        assert not is_due(session, model_id) and model_id not in mark_notified(session)
    world.work(model_id)  # a message that was lost and found
    assert world.kinds().count("preparation.claimed") == 1, "no worker takes it"


def test_published_anyway_it_serves_and_leaves_out_those_who_asked_meanwhile(withheld: tuple[World, str]) -> None:
    world, model_id = withheld
    first, second = two_who_are_trained_on(world)
    request = world.delete(first)
    assert world.task(request).status == "queued"
    assert decide(world, model_id, publish_anyway) is True
    assert decide(world, model_id, publish_anyway) is False, "asked twice, it takes effect once"
    with world.database.write() as session:
        assert model_id in mark_notified(session)
    world.work(model_id)
    assert world.model(model_id).status == "live" and world.model(model_id).reason is None
    assert world.task(request).status == "completed"
    assert world.head(model_id).holdout_accuracy == 0.0
    later = world.delete(second)
    world.work(model_id)
    assert world.task(later).status == "completed", "later updates are compared with the version before"


def test_retired_it_ends(withheld: tuple[World, str]) -> None:
    world, model_id = withheld
    request = world.delete(two_who_are_trained_on(world)[0])
    decide(world, model_id, retire)
    assert world.model(model_id).status == "cancelled"
    assert world.request(request).status == "completed"
    with pytest.raises(RequestRefused, match="no version of it waits"):
        decide(world, model_id, publish_anyway)


def test_nothing_is_withheld_where_no_drop_is_named_or_the_figure_is_near(world: World) -> None:
    assert world.model(world.live("split", max_accuracy_drop=None, **SHARDS)).reason is None
    assert world.model(world.live("split", "retrain", "near", max_accuracy_drop=0.0)).reason is None
    with pytest.raises(RequestRefused, match="The model is live"):
        decide(world, world.model_named("near"), publish_anyway)


def test_a_plain_training_is_shown_beside_what_is_published(world: World) -> None:
    model_id = world.live("convex", "newton", guarantee="proved", max_accuracy_drop=0.5)
    report = world.report(model_id)
    assert 0.0 <= report["accuracy"] <= 1.0 and 0.0 <= report["plain_accuracy"] <= 1.0
