"""What a worker logs about an update: one line for the claim, one for the publication, and nobody's id."""

from __future__ import annotations

import logging

import pytest

from expunge.service.infra.logging import JsonLines
from tests.workers.worlds import World

PERSON = "p3"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_claim_and_a_publication_are_one_line_each(world: World, caplog: pytest.LogCaptureFixture) -> None:
    model_id = world.live("convex")
    request = world.delete(PERSON)
    caplog.set_level(logging.INFO)
    caplog.clear()
    world.work(model_id)
    said = {each.message: vars(each) for each in caplog.records}
    claimed, published, completed = (
        said[each] for each in ("deletions claimed", "version published", "request completed")
    )
    assert (claimed["model"], claimed["count"]) == ("m", 1)
    assert (published["model"], published["version"], published["count"]) == ("m", 2, 1)
    assert published["seconds"] > 0 and (completed["request_id"], completed["status"]) == (request, "completed")
    messages = [each.message for each in caplog.records]
    assert all(messages.count(each) == 1 for each in ("deletions claimed", "version published", "request completed"))
    written = "".join(JsonLines().format(each) for each in caplog.records)
    assert PERSON not in written
