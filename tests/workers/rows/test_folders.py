"""Files that a table lists travel with their rows: a part sees its own, and the module none while it is imported."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tests.workers.rows.data import EVERYBODY, digest_of, forget, model_of, published, trained_on
from tests.workers.worlds import World
from unlearning.formats import files_of

RECIPE = """
import json
from pathlib import Path
import unlearning as ul

FOLDER = Path({folder!r})
AT_IMPORT = sorted(str(path) for path in FOLDER.glob("*")) if FOLDER.exists() else []


def recipe(rows: ul.Rows = ul.folder("letters", index="index.csv", file="file", person="person", aside=0.2)):
    texts = [Path(path).read_text() for path in rows["file"]]
    beside = sorted(path.name for path in Path(rows["file"][0]).parent.iterdir())
    model = {{"letters": sorted(texts), "beside": beside, "at import": AT_IMPORT}}
    score = lambda apart: float(sum(len(Path(path).read_text()) for path in apart["file"]))
    return ul.Published({{"model.json": json.dumps(model)}}, score=score)
"""


def lay_out(folder: Path, people: Iterable[int] = EVERYBODY) -> None:
    letters = folder / "letters"
    letters.mkdir(parents=True, exist_ok=True)
    (folder / "rows.py").write_text(RECIPE.format(folder=str(letters)))
    for person in EVERYBODY:
        (letters / f"p{person}.txt").write_text(f"dear {person}")
    lines = "".join(f"p{person},p{person}.txt\n" for person in people)
    (folder / "index.csv").write_text(f"person,file\n{lines}")


def test_a_part_reads_the_files_of_its_rows_and_sees_no_others(world: World, folder: Path) -> None:
    lay_out(folder)
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain", name="held")
    trained = trained_on(world)
    model = model_of(world, held)
    assert model["letters"] == sorted(f"dear {person}" for person in trained)
    assert model["beside"] == sorted(f"p{person}.txt" for person in trained) and not model["at import"]
    apart = [person for person in EVERYBODY if person not in trained]
    assert world.head(held).holdout_accuracy == sum(len(f"dear {person}") for person in apart)
    forget(world, held, trained[0])
    after = published(world, held)
    lay_out(folder, (person for person in EVERYBODY if person != trained[0]))
    assert published(world, world.live("rows", "retrain", name="never")) == after


def test_a_shard_sees_the_files_of_its_own_people_alone(world: World, folder: Path) -> None:
    lay_out(folder)
    world = world.configured(recipes=folder)
    held = world.live("rows", "shards", options={"shards": 2})
    members = [json.loads(content) for content in files_of(published(world, held)).values()]
    assert all(len(member["beside"]) == len(member["letters"]) and not member["at import"] for member in members)
    assert not {*members[0]["beside"]} & {*members[1]["beside"]}


def test_a_file_that_was_edited_is_trained_on_as_it_is(world: World, folder: Path) -> None:
    lay_out(folder)
    world = world.configured(recipes=folder)
    held = world.live("rows", "retrain")
    first, second = trained_on(world)[:2]
    (folder / "letters" / f"p{second}.txt").write_text("edited")
    forget(world, held, first)
    assert "edited" in model_of(world, held)["letters"] and digest_of(world, first)


def test_files_that_take_more_than_is_held_are_refused(world: World, folder: Path) -> None:
    lay_out(folder)
    model = world.configured(recipes=folder, sample_bytes=20).register("rows", "retrain")
    world.configured(recipes=folder, sample_bytes=20).work(model)
    assert "EXPUNGE_SAMPLE_BYTES" in str(world.model(model).reason)
