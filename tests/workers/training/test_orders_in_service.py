"""What ``shards`` does where nobody is left."""

from __future__ import annotations

from tests.workers.worlds import World

PEOPLE = [f"p{number}" for number in range(12)]


def test_when_everybody_asks_nothing_is_trained(world: World) -> None:
    model_id = world.live("means", "shards")
    requests = [world.delete(person) for person in PEOPLE]
    world.work(model_id)
    assert {(world.task(each).status, world.task(each).reason) for each in requests} == {("blocked", "no_data_left")}
    assert world.head(model_id).number == 1
