"""Whoever can write to the queue can ring a bell, and nothing more."""

from __future__ import annotations

from typing import Any

import pytest
from kombu.exceptions import ContentDisallowed
from kombu.serialization import loads, prepare_accept_content

from expunge_service.infra.broker.notify import consumer
from tests.workers.worlds import World

FORGED: tuple[Any, ...] = (
    *("", "no-such-model", "../../etc/passwd", "' OR 1=1 --", "x" * 100_000, "\0"),
    *(7, None, {"a": 1}, ["a"]),
)


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_forged_messages_change_nothing_and_do_not_stop_the_worker(world: World) -> None:
    model_id = world.live()
    before, worker = world.footprint(), world.worker()
    for told in FORGED:
        worker.work(told)
        assert world.footprint() == before, told
    world.delete("p3")
    world.work(model_id)
    assert world.head(model_id).number == 2


@pytest.mark.parametrize("kind", ["application/x-python-serialize", "application/x-yaml", "application/x-msgpack"])
def test_a_message_of_another_kind_is_not_even_read(kind: str) -> None:
    app = consumer("redis://127.0.0.1:1/0")
    assert list(app.conf.accept_content) == ["json"]
    with pytest.raises(ContentDisallowed):
        loads(b"\x80\x04N.", kind, "binary", accept=prepare_accept_content(app.conf.accept_content))
