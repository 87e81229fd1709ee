"""Whom a deletion keeps out of later registrations, also where it names models."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from expunge_service.infra.tables import DeletionRequest
from expunge_service.requests import intake
from expunge_service.requests.states import Suppress
from expunge_service.requests.suppression import concerns
from tests.faults.invariants import broken
from tests.workers.worlds import TENANT, World

LEAVE_OUT = {"guarantee": "proved", "leave_out_forgotten": True}


def samples(world: World, model_id: str) -> int:
    return int((world.generation(model_id).manifest or {})["samples"])


def accept(world: World, subject: str, *models: str) -> intake.Accepted:
    with world.database.write() as session:
        order = intake.Order(subject_id=subject, models=models or None)
        return intake.accept(session, world.storage.pepper, TENANT, order)


@pytest.mark.parametrize("models", [("m",), None], ids=["named", "every model"])
def test_who_was_deleted_is_not_back_with_the_next_registration(world: World, models: tuple[str, ...] | None) -> None:
    first = world.live(guarantee="proved")
    request = world.delete("p1", models=models, suppress=Suppress.EVERYWHERE)
    world.work(first)
    assert world.request(request).status == "completed"
    again = world.live(name="again", **LEAVE_OUT)
    assert samples(world, again) < samples(world, first)
    assert broken(world.database) == []


def test_a_registration_that_brings_somebody_back_is_refused_though_the_request_named_another_model(
    world: World,
) -> None:
    first = world.live(guarantee="proved")
    request = world.delete("p1", models=("m",), suppress=Suppress.EVERYWHERE)
    world.work(first)
    again = world.register(name="again", guarantee="proved")
    world.work(again)
    assert world.model(again).status == "refused" and request in (world.model(again).reason or "")


def test_a_request_can_be_limited_to_the_named_models_for_good(world: World) -> None:
    first = world.live(guarantee="proved")
    world.delete("p1", models=("m",), suppress=Suppress.NAMED_MODELS)
    world.work(first)
    again = world.live(name="again", guarantee="proved")
    assert samples(world, again) == samples(world, first)


def test_models_that_were_there_keep_the_person_and_are_named(world: World) -> None:
    world.live(guarantee="proved")
    other = world.live(name="other", guarantee="proved")
    empty = accept(world, "nobody", "m")
    assert empty.remains_in == ()
    beginning = world.register(name="beginning", guarantee="proved")
    taken = accept(world, "p1", "m")
    assert taken.remains_in == ("beginning", "other") and taken.models == ("m",)
    world.work(beginning)
    assert samples(world, beginning) == samples(world, other)
    world.work(other)
    assert world.head(other).number == 1
    assert accept(world, "p1").remains_in == ()


def test_a_model_that_was_registered_before_the_request_was_verified_forgets_too(world: World) -> None:
    world.live(guarantee="proved")
    with world.database.write() as session:
        order = intake.Order(subject_id="p1", models=("m",), verified=False)
        taken = intake.accept(session, world.storage.pepper, TENANT, order)
    assert taken.remains_in is None
    later = world.live(name="later", guarantee="proved")
    world.verify(taken.request.id)
    world.work(later)
    assert world.head(later).samples > 0
    with world.database.read() as session:
        assert session.get_one(DeletionRequest, taken.request.id).status == "queued"


@given(
    named=st.none() | st.sets(st.sampled_from("abc")),
    after=st.none() | st.integers(0, 9),
    name=st.sampled_from("abc"),
    registration=st.integers(1, 9),
)
def test_the_rule(named: set[str] | None, after: int | None, name: str, registration: int) -> None:
    expected = named is None or name in named or (after is not None and after < registration)
    assert concerns(named, after, name, registration) is expected
