"""A training of shards as work units: by several workers, after a death, and with the bits of one piece."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Never

import pytest

from expunge.service.infra.settings import Settings
from expunge.service.infra.tables import Generation, WorkUnit
from expunge.service.models import plan_new_data
from expunge.service.queue import claims
from expunge.workers.runtime.fresh import Seen
from expunge.workers.scheduler.run import sweep_files
from expunge.workers.training import prepare, start
from expunge.workers.training.parts import PartUnits
from expunge.workers.training.units import assist
from tests.harness.files import names_in, path_in
from tests.workers.test_crashes import die_at
from tests.workers.training.test_calibrate import release_connections
from tests.workers.training.test_work_units import keep_lease
from tests.workers.worlds import World, open_world

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
