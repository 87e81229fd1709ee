"""Parts that several workers make: the bytes of one worker, and nothing is left of the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Never

import pytest

from expunge_service.infra.tables import Generation, Lease, Model, Task, TrainedPart, WorkUnit
from expunge_service.models import model_lease, plan_new_data, retire
from expunge_service.queue import WorkUnits, claims
from expunge_workers.runtime.build import WorldBuild
from expunge_workers.scheduler.run import sweep_files
from expunge_workers.storage import erase_ended
from expunge_workers.storage.environment import ENVIRONMENT
from expunge_workers.training import keyed_parts, prepare, start
from expunge_workers.training.keyed_parts import KeyedParts
from tests.harness.files import names_in
from tests.workers.rows.data import forget, lay_out, published, rows_of, trained_on, write_csv
from tests.workers.test_crashes import die_at
from tests.workers.worlds import World, keep_lease, open_world, release_connections
from unlearning.types import Refused

SHARDS = 3
OPTIONS = {"shards": SHARDS}
PEOPLE = 4
"""who ask to be forgotten; they are in several shards"""


@pytest.fixture
def world(world: World, folder: Path) -> World:
    lay_out(folder)
    return world.configured(recipes=folder)


@pytest.fixture
def helper(world: World) -> Iterator[World]:
    other = open_world(world.settings)
    other.pulse().beat()
    yield other
    other.storage.close()


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[str]]:
    """Who took each unit, in order."""
    taken: dict[int, list[str]] = {}
    take: Any = WorkUnits.take

    def noted(self: WorkUnits, session: Any) -> int | None:
        number: int | None = take(self, session)
        if number is not None:
            taken.setdefault(number, []).append(self.owner)
        return number

    monkeypatch.setattr(WorkUnits, "take", noted)
    return taken


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[WorldBuild]:
    """Who trained each part: a part that two made is in it twice."""
    makers: list[WorldBuild] = []
    train: Any = WorldBuild._train

    def noted(self: WorldBuild, *given: Any) -> Any:
        makers.append(self)
        return train(self, *given)

    monkeypatch.setattr(WorldBuild, "_train", noted)
    return makers


@pytest.fixture
def meanwhile(world: World, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """What others do after each unit of this world's worker, one after another."""
    acts: list[Callable[[], object]] = []
    attempt: Any = KeyedParts.attempt

    def attempted(self: KeyedParts, *given: Any) -> None:
        attempt(self, *given)
        if self.process is world.process and acts:
            acts.pop(0)()

    monkeypatch.setattr(KeyedParts, "attempt", attempted)
    return acts


def in_one_piece(world: World, monkeypatch: pytest.MonkeyPatch, name: str = "whole") -> str:
    """The slow twin: one worker makes all parts in one world."""
    with monkeypatch.context() as patch:
        patch.setattr(start, "_units", lambda *_, **__: None)
        return world.live("rows", "shards", name=name, options=OPTIONS)


def require_nothing_left(world: World, *models: str) -> None:
    """Neither units nor a note, and of parts those that the served versions are made of."""
    assert world.rows_of(WorkUnit) == []
    assert all(KeyedParts.NOTE not in (world.generation(model).manifest or {}) for model in models)
    parts = world.rows_of(TrainedPart)
    assert len(parts) == SHARDS * len(models)
    states = {world.head(model).state for model in models}
    assert set(names_in(world.storage.private)) == states | {part.result for part in parts}


def never(*_: object, **__: object) -> Never:
    raise AssertionError("it was begun anew")


def test_a_registration_by_two_workers_has_the_bytes_of_one(
    world: World,
    helper: World,
    owners: dict[int, list[str]],
    trained: list[WorldBuild],
    meanwhile: list[Callable[[], object]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = in_one_piece(world, monkeypatch)
    assert not owners
    trained.clear()
    model_id = world.register("rows", "shards", options=OPTIONS)
    meanwhile.append(lambda: helper.work(model_id))
    world.work(model_id)
    assert world.model(model_id).status == "live", world.model(model_id).reason
    ours, theirs = world.process.owner, helper.process.owner
    assert owners == {0: [ours], 1: [theirs], 2: [ours]} and len(trained) == SHARDS
    assert len({*map(id, trained)}) == 2
    assert published(world, model_id) == published(world, whole)
    assert world.head(model_id).holdout_accuracy == world.head(whole).holdout_accuracy
    claims_made = [{**world.head(each).claim, "digest": None} for each in (model_id, whole)]
    assert claims_made[0] == claims_made[1]
    require_nothing_left(world, model_id, whole)


@pytest.mark.parametrize("point", ["work-unit-inside", "work-unit-after"])
def test_a_registration_is_taken_over_and_makes_no_part_twice(
    world: World, helper: World, point: str, monkeypatch: pytest.MonkeyPatch, worlds_made: list[tuple[str, int]]
) -> None:
    whole = in_one_piece(world, monkeypatch)
    model_id = world.register("rows", "shards", options=OPTIONS)
    release_connections(world)
    die_at(world, point, lambda other: other.work(model_id))
    done = int(point == "work-unit-after")
    keep_lease(world, model_id)
    helper.work(model_id)
    assert world.model(model_id).status == "preparing"
    assert sum(row.done_at is not None for row in world.rows_of(WorkUnit)) == done + 1
    worlds_made.clear()
    monkeypatch.setattr(prepare, "begin", never)
    world.expire_lease(model_id)
    world.work(model_id)
    assert world.model(model_id).status == "live", world.model(model_id).reason
    assert worlds_made == [("train", 1)] * (SHARDS - 1 - done)
    assert published(world, model_id) == published(world, whole)
    require_nothing_left(world, model_id, whole)


def test_a_registration_whose_rows_were_edited_begins_anew(world: World, helper: World, folder: Path) -> None:
    model_id = world.register("rows", "shards", options=OPTIONS)
    release_connections(world)
    die_at(world, "work-unit-after", lambda other: other.work(model_id))
    rows = [*rows_of()]
    write_csv(folder / "people.csv", [{**row, "x": row["x"] + 1.0} for row in rows])
    keep_lease(world, model_id)
    helper.work(model_id)
    assert sum(row.done_at is not None for row in world.rows_of(WorkUnit)) == 1, "a helper takes no part of other rows"
    world.expire_lease(model_id)
    world.work(model_id)
    assert world.model(model_id).status == "live", world.model(model_id).reason
    assert published(world, model_id) == published(world, world.live("rows", "shards", name="later", options=OPTIONS))
    require_nothing_left(world, model_id, world.model_named("later"))


def test_deletions_are_done_between_two_parts_of_a_registration(
    world: World, meanwhile: list[Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "PATIENCE_SECONDS", 0.0)
    live = in_one_piece(world, monkeypatch)
    person = trained_on(world)[0]
    model_id = world.register("rows", "shards", options=OPTIONS)
    requests: list[str] = []
    meanwhile.append(lambda: requests.append(world.delete(f"p{person}")))
    world.work(model_id)
    assert world.model(model_id).status == "preparing"
    world.work(model_id)
    assert world.model(model_id).status == "live", world.model(model_id).reason
    assert world.head(live).number == 2
    assert published(world, model_id) == published(world, live), "the person is in neither"
    require_nothing_left(world, model_id, live)


def test_a_retrain_is_shared_where_it_takes_long(
    world: World,
    helper: World,
    owners: dict[int, list[str]],
    meanwhile: list[Callable[[], object]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model_id = in_one_piece(world, monkeypatch)
    before = published(world, model_id)
    for seconds, shared in ((1e9, False), (0.0, True)):
        monkeypatch.setattr(start, "WORTH_SECONDS", seconds)
        meanwhile[:] = [lambda: helper.work(model_id)]
        with world.database.write() as session:
            plan_new_data(session, world.model(model_id), dry_run=False)
        world.work(model_id)
        assert len(owners) == (SHARDS if shared else 0)
        assert published(world, model_id) == before
    assert world.head(model_id).number == 3 and owners[1] == [helper.process.owner]


@pytest.fixture
def asked(world: World, helper: World, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two equal models: the first has forgotten people of several shards alone, of the second they ask."""
    whole, model_id = (in_one_piece(world, monkeypatch, name) for name in ("whole", "shared"))
    people = trained_on(world)[:PEOPLE]
    forget(world, whole, *people)
    for person in people:
        world.delete(f"p{person}", models=("shared",))
    monkeypatch.setattr(keyed_parts, "WORTH_SECONDS", 0.0)
    return whole, model_id


def require_forgotten(world: World, whole: str, model_id: str) -> None:
    assert (world.head(model_id).number, world.head(model_id).people) == (2, PEOPLE)
    assert published(world, model_id) == published(world, whole)
    assert world.head(model_id).holdout_accuracy == world.head(whole).holdout_accuracy
    require_nothing_left(world, model_id, whole)


def test_an_update_of_several_shards_by_two_workers_has_the_bytes_of_one(
    world: World,
    helper: World,
    asked: tuple[str, str],
    owners: dict[int, list[str]],
    trained: list[WorldBuild],
    meanwhile: list[Callable[[], object]],
) -> None:
    whole, model_id = asked
    trained.clear()
    meanwhile.append(lambda: helper.work(model_id))
    world.work(model_id)
    assert len(trained) == len(owners) and len({*map(id, trained)}) == 2, "each by who took it, and none twice"
    assert {owner for taken in owners.values() for owner in taken} == {world.process.owner, helper.process.owner}
    require_forgotten(world, whole, model_id)


def test_a_short_update_is_made_by_one_worker(
    world: World, asked: tuple[str, str], owners: dict[int, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, model_id = asked
    monkeypatch.setattr(keyed_parts, "WORTH_SECONDS", 1e9)
    world.work(model_id)
    assert not owners
    require_forgotten(world, whole, model_id)


def test_a_helper_that_dies_in_its_part_costs_that_part_alone(
    world: World,
    asked: tuple[str, str],
    owners: dict[int, list[str]],
    meanwhile: list[Callable[[], object]],
) -> None:
    whole, model_id = asked

    def helps_and_dies() -> None:
        release_connections(world)
        die_at(world, "work-unit-inside", lambda other: other.work(model_id))
        assert sorted(row.done_at is not None for row in world.rows_of(WorkUnit))[-1]

    meanwhile.append(helps_and_dies)
    world.work(model_id)
    assert {owner for taken in owners.values() for owner in taken} == {world.process.owner}
    require_forgotten(world, whole, model_id)


def test_a_helper_that_was_given_up_keeps_no_part(
    world: World,
    helper: World,
    asked: tuple[str, str],
    owners: dict[int, list[str]],
    meanwhile: list[Callable[[], object]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, model_id = asked
    train: Any = WorldBuild._train
    before: list[set[str]] = []

    def slowly(self: WorldBuild, *given: Any) -> Any:
        made = train(self, *given)
        for row in world.rows_of(WorkUnit):
            if row.owner == helper.process.owner and row.done_at is None:
                before.append(names_in(world.storage.private))
                world.change(WorkUnit, (row.generation_id, row.key), owner=world.process.owner)
        return made

    def helps() -> None:
        helper.work(model_id)
        assert [names_in(world.storage.private)] == before

    monkeypatch.setattr(WorldBuild, "_train", slowly)
    meanwhile.append(helps)
    world.work(model_id)
    assert [helper.process.owner, world.process.owner] in owners.values()
    require_forgotten(world, whole, model_id)


def test_a_part_of_rows_that_were_edited_meanwhile_is_made_again(
    world: World,
    helper: World,
    asked: tuple[str, str],
    folder: Path,
    owners: dict[int, list[str]],
    meanwhile: list[Callable[[], object]],
) -> None:
    whole, model_id = asked

    def edits_and_helps() -> None:
        write_csv(folder / "people.csv", [{**row, "x": row["x"] + 1.0} for row in rows_of()])
        known = len(world.rows_of(TrainedPart))
        helper.work(model_id)
        assert len(world.rows_of(TrainedPart)) == known + 1, "it is kept under a key that nobody asks for"

    meanwhile.append(edits_and_helps)
    world.work(model_id)
    assert helper.process.owner in {owner for taken in owners.values() for owner in taken}
    require_forgotten(world, whole, model_id)


def test_a_helper_in_another_environment_takes_no_part(
    world: World,
    helper: World,
    asked: tuple[str, str],
    owners: dict[int, list[str]],
    meanwhile: list[Callable[[], object]],
) -> None:
    whole, model_id = asked

    def helps() -> None:
        generation = world.generation(model_id)
        manifest = generation.manifest or {}
        world.change(
            Generation,
            generation.id,
            manifest=manifest | {KeyedParts.NOTE: manifest[KeyedParts.NOTE] | {ENVIRONMENT: "another"}},
        )
        helper.work(model_id)

    meanwhile.append(helps)
    world.work(model_id)
    assert {owner for taken in owners.values() for owner in taken} == {world.process.owner}
    require_forgotten(world, whole, model_id)


def test_of_a_cancelled_registration_no_part_is_left(world: World) -> None:
    model_id = world.register("rows", "shards", options=OPTIONS)
    release_connections(world)
    die_at(world, "work-unit-after", lambda other: other.work(model_id))
    assert len(names_in(world.storage.private)) == 1
    with world.database.write() as session:
        retire(session, session.get_one(Model, model_id))
    erase_ended(world.database, world.storage.private, world.storage.keys)
    assert set(names_in(world.storage.private)) == set()


def test_a_worker_whose_lease_is_lost_keeps_no_part(
    world: World, asked: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then another may have published a version without people who are in it."""
    whole, model_id = asked
    monkeypatch.setattr(keyed_parts, "WORTH_SECONDS", 1e9)
    train: Any = WorldBuild._train
    lost: list[int] = []

    def slowly(self: WorldBuild, *given: Any) -> Any:
        made = train(self, *given)
        if not lost:
            lost.append(world.lease(model_id).token)
            world.change(Lease, model_lease(model_id), token=lost[0] + 1)
        return made

    monkeypatch.setattr(WorldBuild, "_train", slowly)
    known = {part.key for part in world.rows_of(TrainedPart)}
    world.work(model_id)
    assert lost and {part.key for part in world.rows_of(TrainedPart)} == known
    world.expire_lease(model_id)
    world.work(model_id)
    sweep_files(world.database, world.storage.store, world.storage.private, older_than=-1.0)
    require_forgotten(world, whole, model_id)


def test_of_an_update_that_the_recipe_stops_no_unit_is_left(
    world: World, asked: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, model_id = asked

    def refuse(*_: object) -> Never:
        raise Refused("In the world without, a class has no rows.", "Add some.")

    with monkeypatch.context() as patch:
        patch.setattr(WorldBuild, "_train", refuse)
        world.work(model_id)
    assert {task.status for task in world.rows_of(Task) if task.model_id == model_id} == {"blocked"}
    assert (world.head(model_id).number, world.head(whole).number) == (1, 2)
    require_nothing_left(world, model_id, whole)


def test_an_update_whose_worker_died_is_begun_anew_and_finds_its_parts(world: World, asked: tuple[str, str]) -> None:
    whole, model_id = asked
    release_connections(world)
    die_at(world, "work-unit-after", lambda other: other.work(model_id))
    assert KeyedParts.NOTE in (world.generation(model_id).manifest or {})
    world.expire_lease(model_id)
    world.work(model_id)
    require_forgotten(world, whole, model_id)


def test_units_that_are_cleared_from_outside_end_in_no_wait(
    world: World, asked: tuple[str, str], meanwhile: list[Callable[[], object]]
) -> None:
    """A preparation that was published by a slow worker clears what is left of it."""
    whole, model_id = asked
    meanwhile.append(lambda: KeyedParts.forget(world.process, world.generation(model_id).id))
    world.work(model_id)
    require_forgotten(world, whole, model_id)
