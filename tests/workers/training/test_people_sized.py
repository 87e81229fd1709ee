"""A recommender with a row for each person lives through a month: people leave and join, and no request blocks."""

from __future__ import annotations

import pytest
from safetensors.torch import load as load_tensors

import unlearning as ul
from expunge.service.infra.tables import Model
from expunge.service.models.retrain_plan import plan_new_data
from tests.workers import meanwhile
from tests.workers.recipes import embedded
from tests.workers.worlds import World
from unlearning.accounting.certificate import Claim, Guarantee

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_twenty_leave_twenty_join_and_their_rows_are_erased(world: World) -> None:
    model_id = world.live("embedded", "retrain")
    requests = []
    for day in range(4):
        leaving = [f"p{number}" for number in range(5 * day, 5 * day + 5)]
        meanwhile.JOINED.update(f"p{40 + number}" for number in range(5 * day, 5 * day + 5))
        requests += [world.delete(person) for person in leaving]
        if day % 2:  # erased at once, before the update; on other days the owner does it later
            meanwhile.DROPPED.update(f"s{3 * int(person[1:]) + place}" for person in leaving for place in range(3))
        world.work(model_id)
        meanwhile.DROPPED.update(f"s{3 * int(person[1:]) + place}" for person in leaving for place in range(3))
        if day == 1:
            with world.database.write() as session:
                plan_new_data(session, session.get_one(Model, model_id), dry_run=False)
            world.work(model_id)
    assert {world.task(each).status for each in requests} == {"completed"}
    assert len(served(world, model_id)) == 40 - 20 + 10, "those of the last two days wait for the next training"
    with world.database.write() as session:
        plan_new_data(session, session.get_one(Model, model_id), dry_run=False)
    world.work(model_id)
    assert Claim.from_json(world.head(model_id).claim).guarantee is Guarantee.EXACT
    staying = ul.person_numbers([f"p{number}" for number in range(20, 60)], embedded.KEY)
    assert served(world, model_id) == sorted(staying.tolist())
    again = world.live("embedded", "retrain", name="cold")
    assert world.head(again).checkpoint == world.head(model_id).checkpoint, "in bytes a training of those who are there"


def served(world: World, model_id: str) -> list[int]:
    """The numbers of the people who have a row in the published file, in the order of the rows."""
    index = ul.Index(100)
    index.people.copy_(load_tensors(world.storage.store.read(world.head(model_id).checkpoint))["index.people"])
    return [each for each in index.numbers().tolist() if each]
