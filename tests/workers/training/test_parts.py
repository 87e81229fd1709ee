"""A training of shards as work units: by several workers, after a death, and with the bits of one piece."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Never

import pytest

from expunge.service.infra.pseudonyms import subject_digest
from expunge.service.infra.settings import Settings
from expunge.service.infra.tables import Generation, Model, WorkUnit
from expunge.service.models import plan_new_data, retire
from expunge.service.queue import WorkUnits, claims
from expunge.workers.runtime.fresh import Seen
from expunge.workers.runtime.model import build
from expunge.workers.scheduler.run import sweep_files
from expunge.workers.storage import erase_ended
from expunge.workers.training import parts, prepare, start
from expunge.workers.training.parts import LeavingUnits, PartUnits
from expunge.workers.training.units import assist
from tests.harness.files import names_in, path_in
from tests.workers.test_crashes import die_at
from tests.workers.training.test_calibrate import release_connections
from tests.workers.training.test_work_units import keep_lease
from tests.workers.worlds import TENANT, World, open_world
from unlearning.accounting.policy import Policy
from unlearning.methods.shards import Shards

OPTIONS = {"shards": 3, "slices": 2}
RECIPE = "network"


@pytest.fixture
def settings(settings: Settings) -> Settings:
    """Fix the key that shards are drawn with, so that each has people."""
    settings.pepper_file.write_text("5a" * 32)
    return settings


def in_one_piece(world: World, monkeypatch: pytest.MonkeyPatch, name: str = "whole", recipe: str = RECIPE) -> str:
    """The slow twin: one worker calls ``prepare``."""
    with monkeypatch.context() as patch:
        patch.setattr(start, "_units", lambda *_, **__: None)
        model_id = world.live(recipe, "shards", name=name, options=OPTIONS)
    assert PartUnits.NOTE not in (world.generation(model_id).manifest or {})
    return model_id


def never(*_: object, **__: object) -> Never:
    raise AssertionError("it was trained again")


def units_of(world: World) -> dict[int, tuple[str | None, bool]]:
    return {row.number: (row.owner, row.done_at is not None) for row in world.rows_of(WorkUnit)}


@pytest.mark.parametrize(
    ("database_url", "point"),
    [
        ("sqlite", "work-unit-inside"),
        ("postgresql", "work-unit-after"),
        pytest.param("postgresql", "work-unit-inside", marks=pytest.mark.drill),
        pytest.param("sqlite", "work-unit-after", marks=pytest.mark.drill),
    ],
    indirect=["database_url"],
)
def test_two_workers_and_one_that_died_give_the_bits_of_one_piece(
    world: World, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = in_one_piece(world, monkeypatch)
    model_id = world.register(RECIPE, "shards", options=OPTIONS)
    release_connections(world)
    die_at(world, point, lambda other: other.work(model_id))
    done = sum(done for _, done in units_of(world).values())
    assert done == (1 if point == "work-unit-after" else 0)
    keep_lease(world, model_id)
    helper = open_world(world.settings)
    helper.work(model_id)
    assert world.model(model_id).status == "preparing" and sum(done for _, done in units_of(world).values()) == done + 1
    sealed = {str(row.result) for row in world.rows_of(WorkUnit) if row.result}
    sweep_files(world.database, world.storage.store, world.storage.private, older_than=-1.0)
    assert sealed <= set(names_in(world.storage.private)), "a scheduler leaves the parts of a training alone"
    monkeypatch.setattr(prepare, "begin", never)
    world.expire_lease(model_id)
    world.work(model_id)
    assert world.model(model_id).status == "live", world.model(model_id).reason
    assert world.head(model_id).checkpoint == world.head(whole).checkpoint
    assert world.rows_of(WorkUnit) == []
    assert set(names_in(world.storage.private)) == {world.head(each).state for each in (model_id, whole)}
    request = world.delete("p1")
    for each in (model_id, whole):
        world.work(each)
    assert world.request(request).status == "completed"
    assert world.head(model_id).checkpoint == world.head(whole).checkpoint
    helper.storage.close()


def test_a_retrain_in_parts_has_the_bits_of_one_piece(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    models = [world.live(RECIPE, "shards", name=each, options=OPTIONS) for each in ("parts", "piece")]
    for number, model_id in enumerate(models):
        with world.database.write() as session:
            plan_new_data(session, world.model(model_id), dry_run=False)
        with monkeypatch.context() as patch:
            if number:
                patch.setattr(start, "_units", lambda *_, **__: None)
            world.work(model_id)
    heads = [world.head(model_id) for model_id in models]
    assert [head.number for head in heads] == [2, 2] and heads[0].checkpoint == heads[1].checkpoint


def test_a_part_whose_file_is_gone_is_trained_again(world: World) -> None:
    model_id = world.register(RECIPE, "shards", options=OPTIONS)
    release_connections(world)
    die_at(world, "work-unit-after", lambda other: other.work(model_id))
    (gone,) = [str(row.result) for row in world.rows_of(WorkUnit) if row.result]
    path_in(world.storage.private, gone).unlink()
    world.expire_lease(model_id)
    world.work(model_id)
    assert world.model(model_id).status == "live", world.model(model_id).reason


def test_of_a_cancelled_preparation_no_part_is_left(world: World) -> None:
    model_id = world.register(RECIPE, "shards", options=OPTIONS)
    release_connections(world)
    die_at(world, "work-unit-after", lambda other: other.work(model_id))
    assert len(names_in(world.storage.private)) == 2, "what the parts start from, and one part"
    with world.database.write() as session:
        retire(session, session.get_one(Model, model_id))
    erase_ended(world.database, world.storage.private, world.storage.keys)
    assert set(names_in(world.storage.private)) == set()


def test_a_helper_that_opened_what_was_laid_out_before_takes_no_part(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person may have left since: the part would be trained with that person."""
    model_id = world.register(RECIPE, "shards", options=OPTIONS)
    release_connections(world)
    die_at(world, "prepare-after-work-units", lambda other: other.work(model_id))
    keep_lease(world, model_id)
    opened: Any = PartUnits.opened.__func__  # type: ignore[attr-defined]

    def laid_out_anew(cls: Any, *given: Any) -> Any:
        found = opened(cls, *given)
        generation = world.generation(model_id)
        note = (generation.manifest or {})["in_parts"]
        world.change(
            Generation, generation.id, manifest=generation.manifest | {"in_parts": note | {"state": "another"}}
        )
        return found

    monkeypatch.setattr(PartUnits, "opened", classmethod(laid_out_anew))
    assert not assist(world.process, model_id, [PartUnits])
    assert set(units_of(world).values()) == {(None, False)}


def test_deletions_are_done_between_two_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "PATIENCE_SECONDS", 0.0)
    live = world.live(guarantee="proved")
    model_id = world.register(RECIPE, "shards", name="big", options=OPTIONS)
    asked: list[str] = []
    compute: Any = PartUnits.compute

    def computed(*given: Any) -> None:
        compute(*given)
        if not asked:
            asked.append(world.delete("p1", models=("m",)))

    monkeypatch.setattr(PartUnits, "compute", computed)
    world.work(model_id)
    assert world.model(model_id).status == "preparing"
    world.work(model_id)
    assert world.request(asked[0]).status == "completed" and world.head(live).number == 2
    assert world.model(model_id).status == "live"


def people_apart(world: World, model_id: str) -> list[str]:
    """One person of each shard."""
    bench = build(world.settings, TENANT, RECIPE, Policy.from_json(world.model(model_id).policy))
    assert isinstance(bench.method, Shards)
    found: dict[int, str] = {}
    for person in (f"p{number}" for number in range(24)):
        name = subject_digest(world.storage.pepper, TENANT, person)
        found.setdefault(bench.method._shard_of(bench.problem, (name,)), person)
    assert len(found) == 3
    return list(found.values())


@pytest.fixture
def asked(world: World, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str, list[str]]:
    """Two equal models of which two people of two shards ask to be forgotten, and another worker lives."""
    whole, model_id = (world.live(RECIPE, "shards", name=name, options=OPTIONS) for name in ("whole", "m"))
    people = people_apart(world, model_id)
    requests = [world.delete(person) for person in people[:2]]
    world.work(whole)  # alone, as the slow twin
    assert LeavingUnits.NOTE not in (world.generation(whole).manifest or {})
    monkeypatch.setattr(parts, "WORTH_SECONDS", 0.0)
    helper = open_world(world.settings)
    helper.pulse().beat()
    helper.storage.close()
    return whole, model_id, [*requests, people[2]]


def same(world: World, asked: tuple[str, str, list[str]]) -> None:
    whole, model_id, (first, second, _) = asked
    assert [world.request(each).status for each in (first, second)] == ["completed"] * 2
    assert world.head(model_id).checkpoint == world.head(whole).checkpoint
    assert LeavingUnits.NOTE not in (world.generation(model_id).manifest or {}) and world.rows_of(WorkUnit) == []
    assert set(names_in(world.storage.private)) == {world.head(each).state for each in (model_id, whole)}


def test_an_update_of_two_shards_by_two_workers_has_the_bits_of_one(
    world: World, asked: tuple[str, str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model_id, _ = asked
    helper = open_world(world.settings)
    take: Any = WorkUnits.take
    owners: dict[int, str] = {}

    def taken(self: WorkUnits, session: Any) -> int | None:
        number: int | None = take(self, session)
        if number is not None:
            owners[number] = self.owner
        return number

    attempt: Any = LeavingUnits.attempt

    def attempted(self: Any, *given: Any) -> None:
        attempt(self, *given)
        if self.process is world.process:  # what a message to an idle worker does meanwhile
            assert assist(helper.process, model_id, [LeavingUnits])

    monkeypatch.setattr(WorkUnits, "take", taken)
    monkeypatch.setattr(LeavingUnits, "attempt", attempted)
    world.work(model_id)
    assert sorted(owners.values()) == sorted([world.process.owner, helper.process.owner])
    same(world, asked)
    helper.storage.close()


def test_an_update_whose_worker_died_between_two_parts_begins_anew(
    world: World, asked: tuple[str, str, list[str]]
) -> None:
    """A person who asked since leaves too: what was trained with that person is of no use."""
    whole, model_id, (*_, third) = asked
    release_connections(world)

    def dies(other: World) -> None:
        parts.WORTH_SECONDS = 0.0
        other.work(model_id)

    die_at(world, "work-unit-after", dies)
    note = (world.generation(model_id).manifest or {})[LeavingUnits.NOTE]
    assert len(note["gone"]) == 2 and len(world.rows_of(WorkUnit)) == 2
    later = world.delete(third)
    world.work(whole)
    world.expire_lease(model_id)
    world.work(model_id)
    assert world.request(later).status == "completed"
    assert world.head(model_id).people == 3
    assert world.head(model_id).checkpoint == world.head(whole).checkpoint
    assert world.rows_of(WorkUnit) == [] and LeavingUnits.NOTE not in (world.generation(model_id).manifest or {})
    assert set(names_in(world.storage.private)) == {world.head(each).state for each in (model_id, whole)}


def test_what_one_training_saw_holds_for_all() -> None:
    seen = Seen()
    for more in (Seen(), Seen(sealed=False), Seen(held_out="kept"), Seen(deterministic=False)):
        seen.add(asdict(more))
    assert seen == Seen(deterministic=False, sealed=False, held_out="kept")


@pytest.mark.drill  # fresh processes train it twice
def test_what_other_workers_saw_of_the_recipes_own_code_is_in_the_claim(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = in_one_piece(world, monkeypatch, recipe="unshared")
    model_id = world.register("unshared", "shards", options=OPTIONS)
    release_connections(world)
    die_at(world, "prepare-after-work-units", lambda other: other.work(model_id))
    keep_lease(world, model_id)
    helper = open_world(world.settings)
    for _ in range(3):
        helper.work(model_id)
    world.expire_lease(model_id)
    world.work(model_id)
    assert world.model(model_id).status == "live", world.model(model_id).reason
    assert world.head(model_id).checkpoint == world.head(whole).checkpoint
    said = [{k: v for k, v in world.head(each).claim.items() if k != "digest"} for each in (model_id, whole)]
    assert said[0] == said[1]
    helper.storage.close()
