"""A version after a deletion is, byte for byte, what a registration that never held the person publishes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.workers.rows.data import (
    ALL,
    APART,
    EVERYBODY,
    TABLE,
    forget,
    kept_apart,
    lay_out,
    model_of,
    published,
    rows_of,
    trained_on,
    write_sqlite,
)
from tests.workers.worlds import World

MERGED = ALL.replace(
    "def recipe",
    """def merge(members):
    models = [json.loads(member["model.json"]) for member in members]
    return ul.Published({"mean.json": json.dumps({"slope": sum(model["slope"] for model in models) / len(models)})})


def recipe""",
)


LIGHTGBM = """
import lightgbm
import unlearning as ul


def recipe(rows: ul.Rows = ul.table("people.csv", person="person")):
    frame = rows.pandas()
    settings = {"objective": "binary", "seed": 0, "num_threads": 1, "verbose": -1, "min_data_in_leaf": 2}
    booster = lightgbm.train(settings, lightgbm.Dataset(frame[["x"]], frame.y > 0.5), 5)
    return ul.Published({"model.txt": booster.model_to_string()})
"""


@pytest.mark.parametrize("recipe", [APART, MERGED], ids=["apart", "merged"])
@pytest.mark.parametrize("method", ["retrain", "shards", "late"])
def test_of_every_exact_method(world: World, folder: Path, method: str, recipe: str) -> None:
    lay_out(folder, recipe=recipe)
    world = world.configured(recipes=folder)
    held = world.live("rows", method, name="held")
    first, second, third = trained_on(world)[:3]
    before = published(world, held)
    forget(world, held, first)
    forget(world, held, second, third)
    after = published(world, held)
    assert after != before
    lay_out(folder, (person for person in EVERYBODY if person not in (first, second, third)), recipe)
    never = world.live("rows", method, name="never")
    assert published(world, never) == after
    claim = world.head(held).claim
    assert claim["guarantee"] == "exact" and not claim["operators_word"] and claim["world"]["walls"] == "new root"


def test_of_a_query_that_averages_over_everybody(world: World, folder: Path, tmp_path: Path) -> None:
    sql = "SELECT id, person, x - (SELECT avg(x) FROM visits) AS x, y, word FROM visits"
    source = f'"crm", "{sql}", people={{"visits": "person"}}, id="id"'
    lay_out(folder, recipe=TABLE.format(source=source).replace("ul.table", "ul.query"))
    database = tmp_path / "crm.db"
    write_sqlite(database, rows_of())
    world = world.configured(recipes=folder, sources=json.dumps({"crm": f"sqlite:///{database}"}))
    held = world.live("rows", "retrain", name="held")
    forget(world, held, 13)
    after = published(world, held)
    write_sqlite(database, rows_of(person for person in EVERYBODY if person != 13))
    assert published(world, world.live("rows", "retrain", name="never")) == after


def test_of_two_sources_where_a_person_is_two_tables_away(world: World, folder: Path) -> None:
    recipe = """
import json
import unlearning as ul

BY_ORDER = ul.via("orders.csv", "order", "customer")


def recipe(people=ul.table("people.csv", person="person"), items=ul.table("items.csv", person=BY_ORDER)):
    merged = items.pandas().groupby("kind").price.mean()
    return ul.Published({"model.json": json.dumps({"x": people["x"].mean(), "prices": merged.to_dict()})})
"""
    lay_out(folder, recipe=recipe)
    orders = [(f"o{order}", f"p{order % 40}") for order in range(90)]
    everyone = "".join(f"{order},{customer}\n" for order, customer in orders)
    (folder / "orders.csv").write_text(f"order,customer\n{everyone}")
    lines = [f"o{item % 90},{item % 4},{item * 0.37}\n" for item in range(200)]
    (folder / "items.csv").write_text("order,kind,price\n" + "".join(lines))
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain", name="held")
    forget(world, held, 7)
    after = published(world, held)
    lay_out(folder, (person for person in EVERYBODY if person != 7), recipe)
    theirs = {order for order, customer in orders if customer == "p7"}
    kept = [line for line in lines if line.partition(",")[0] not in theirs]
    (folder / "items.csv").write_text("order,kind,price\n" + "".join(kept))
    assert published(world, world.live("rows", "retrain", name="never")) == after


def test_a_deletion_makes_the_parts_of_the_person_alone_and_imports_the_recipe_once(
    world: World, folder: Path, worlds_made: list[tuple[str, int]]
) -> None:
    lay_out(folder)
    world = world.configured(recipes=folder)
    held = world.live("rows", "shards", options={"shards": 4})
    worlds_made.clear()
    forget(world, held, trained_on(world)[0])
    assert worlds_made == [("train", 1)]
    worlds_made.clear()
    forget(world, held, *trained_on(world)[:6])
    ((job, count),) = worlds_made
    assert job == "train" and 1 < count <= 4
    worlds_made.clear()
    request = world.delete(f"p{kept_apart(world)[0]}")
    world.work(held)
    assert world.request(request).completed_at is not None
    assert worlds_made == [] and len(world.versions(held)) == 3, "no key moves where the person is kept apart"


def test_four_shards_of_lightgbm_forget_in_one_world(
    world: World, folder: Path, worlds_made: list[tuple[str, int]]
) -> None:
    pytest.importorskip("lightgbm")
    lay_out(folder, recipe=LIGHTGBM)
    world = world.configured(recipes=folder)
    held = world.live("rows", "shards", name="held", options={"shards": 4})
    worlds_made.clear()
    forget(world, held, 3, 4, 5, 6)
    assert [job for job, _ in worlds_made] == ["train"], "the recipe's module is imported once"
    after = published(world, held)
    lay_out(folder, (person for person in EVERYBODY if person not in (3, 4, 5, 6)), LIGHTGBM)
    never = world.live("rows", "shards", name="never", options={"shards": 4})
    assert published(world, never) == after


def test_shards_keep_a_scaler_and_a_vocabulary_each(world: World, folder: Path) -> None:
    lay_out(folder, recipe=ALL)
    world = world.configured(recipes=folder)
    held = world.live("rows", "shards", options={"shards": 2})
    from unlearning.formats import files_of  # noqa: PLC0415 (of this test alone)

    members = files_of(published(world, held))
    assert sorted(members) == ["member-0/model.json", "member-1/model.json"]
    assert world.head(held).holdout_accuracy is None
    assert len({*members.values()}) == 2


def test_late_goes_on_from_the_part_before(world: World, folder: Path) -> None:
    lay_out(folder, recipe=ALL)
    world = world.configured(recipes=folder)
    held = world.live("rows", "late")
    assert model_of(world, held)["start"] is not None and model_of(world, held)["rows"] == 120
