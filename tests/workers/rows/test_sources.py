"""Each kind of source through the service: a person and a single row leave, weights count, and rows are not copied."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import ipc, parquet
from scipy.optimize import minimize

from tests.unlearning.rows.test_files import SAVED, SHARDS
from tests.workers.rows.data import model_of, published, write_csv, write_sqlite
from tests.workers.worlds import World

PEOPLE, DECAY, CAP = 12, 0.05, 1e-5
RECIPE = """
import json
from pathlib import Path

import unlearning as ul


def recipe(rows: ul.Rows = {source}):
    x = {x}
    scaled = (x - x.mean()) / x.std()
    model = {{"slope": float((scaled * rows["y"]).sum()), "rows": len(rows), "words": sorted(set(rows["word"]))}}
    return ul.Published({{"model.json": json.dumps(model)}})
"""
BY_ROWS = 'person="person", id="id"'
SQL = "SELECT id, person, x - (SELECT avg(x) FROM visits) AS x, y, word FROM visits"
SOURCES = {
    "csv": (f'ul.table("people.csv", {BY_ROWS})', 'rows["x"]'),
    "jsonl": (f'ul.table("people.jsonl", {BY_ROWS})', 'rows["x"]'),
    "row groups": (f'ul.table("people.parquet", {BY_ROWS})', 'rows["x"]'),
    "Parquet files": (f'ul.table(["first.parquet", "second.parquet"], {BY_ROWS})', 'rows["x"]'),
    "Hugging Face": (f"ul.table({SHARDS}, {BY_ROWS})", 'rows["x"] + rows["pair"][:, 0]'),
    "arrays": (f'ul.arrays(names="people.csv", x="x.npy", image="image.npy", {BY_ROWS})', 'rows["image"][:, 1, 1]'),
    "folder": (
        f'ul.folder("letters", index="people.csv", file="letter", {BY_ROWS})',
        '__import__("numpy").array([float(Path(path).read_text()) for path in rows["letter"]])',
    ),
    "query": (f'ul.query("crm", "{SQL}", people={{{{"visits": "person"}}}}, id="id")', 'rows["x"]'),
}


def rows() -> list[dict[str, object]]:
    """The rows of the dataset that Hugging Face's library saved, in plain types."""
    tables = [ipc.open_stream((SAVED / shard).read_bytes()).read_all() for shard in SHARDS]
    found: list[dict[str, object]] = pa.concat_tables(tables).to_pylist()
    return found


def lay_out(folder: Path, kind: str, gone: Collection[str] = ()) -> None:
    """Write the recipe and every source, without the people or rows that are gone."""
    folder.mkdir(exist_ok=True)
    source, x = SOURCES[kind]
    (folder / "rows.py").write_text(RECIPE.format(source=source.replace("{{", "{").replace("}}", "}"), x=x))
    staying = [row for row in rows() if not {row["person"], row["id"]} & {*gone}]
    plain = [{name: row[name] for name in ("id", "person", "y", "word")} for row in staying]
    numbers = np.array([row["x"] for row in staying])
    (folder / "letters").mkdir(exist_ok=True)
    for row in staying:
        (folder / "letters" / f"{row['id']}.txt").write_text(str(row["x"]))
    if kind in ("arrays", "folder"):
        write_csv(folder / "people.csv", [row | {"letter": f"{row['id']}.txt"} for row in plain])
    else:
        write_csv(folder / "people.csv", [row | {"x": x} for row, x in zip(plain, numbers.tolist(), strict=True)])
    np.save(folder / "x.npy", numbers)
    np.save(folder / "image.npy", np.stack([numbers * factor for factor in range(4)], axis=1).reshape(-1, 2, 2))
    (folder / "people.jsonl").write_text("".join(json.dumps(row) + "\n" for row in staying))
    table = pa.Table.from_pylist(staying)
    parquet.write_table(table, folder / "people.parquet", row_group_size=5)
    parquet.write_table(table.slice(0, 7), folder / "first.parquet")
    parquet.write_table(table.slice(7), folder / "second.parquet", row_group_size=9)
    for number, shard in enumerate(SHARDS):
        piece = table.slice(18 * number, 18 if not number else None)
        with ipc.new_stream(folder / shard, table.schema) as stream:
            stream.write_table(piece)
        if not gone:
            shutil.copy(SAVED / shard, folder / shard)
    write_sqlite(folder.parent / "crm.db", staying)


@pytest.mark.parametrize("kind", SOURCES)
def test_a_person_and_a_row_leave_each_kind_of_source(world: World, folder: Path, kind: str) -> None:
    lay_out(folder, kind)
    world = world.configured(recipes=folder, sources=json.dumps({"crm": f"sqlite:///{folder.parent}/crm.db"}))
    held = world.live("rows", "retrain", name="held", granularity="sample")
    assert model_of(world, held)["rows"] == len(rows())
    requests = [world.delete("p3", models=("held",)), world.delete(samples=["r4"], models=("held",))]
    world.work(held)
    assert [world.task(request).status for request in requests] == ["completed"] * 2
    assert [world.task(request).samples for request in requests] == [3, 1]
    after = published(world, held)
    assert model_of(world, held)["rows"] == len(rows()) - 4
    lay_out(folder, kind, ["p3", "r4"])
    never = world.live("rows", "retrain", name="never", granularity="sample")
    assert published(world, never) == after


WEIGHTED = f"""
import torch
import unlearning as ul


def recipe(rows: ul.Rows = ul.table("people.parquet", {BY_ROWS})) -> ul.Recipe:
    frame = rows.pandas()
    weight = 1 / frame.groupby("word").word.transform("size")
    return ul.Recipe(
        model=lambda: torch.nn.Linear(2, 2).double(),
        samples=rows.samples(frame[["x", "y"]], frame.label, at=frame["__row"], weight=weight),
        holdout=(torch.zeros(2, 2, dtype=torch.float64), torch.tensor([0, 1])),
        loss="cross_entropy",
        training=ul.Training(epochs=0, converge=1e-9, weight_decay={DECAY}),
    )
"""
"""a row counts the less the more rows have its word, whoever they are of"""


def minimiser(gone: Collection[str]) -> np.ndarray:
    """Weight (2, 2), then bias (2,), on the rows of the others, by a solver of another library."""
    staying = [row for row in rows() if not {row["person"], row["id"]} & {*gone}]
    words = [row["word"] for row in staying]
    weight = np.array([1 / words.count(word) for word in words])
    x = np.array([[row["x"], row["y"], 1.0] for row in staying])
    labels = np.array([row["label"] for row in staying])

    def objective(flat: np.ndarray) -> float:
        z = x @ np.concatenate([flat[:4].reshape(2, 2).T, flat[None, 4:]])
        losses = np.logaddexp(z[:, 0], z[:, 1]) - z[np.arange(len(z)), labels]
        return float((weight * losses).mean() + DECAY / 2 * flat @ flat)

    return np.asarray(minimize(objective, np.zeros(6), method="BFGS", options={"gtol": 1e-9}).x)


def test_weights_that_move_with_who_leaves_are_those_of_the_others(world: World, folder: Path) -> None:
    lay_out(folder, "csv")
    (folder / "rows.py").write_text(WEIGHTED)
    world = world.configured(recipes=folder)
    model_id = world.live("rows", "newton", max_distance=CAP, noise_std=0.01, granularity="sample")
    before = world.state(world.head(model_id)).weights.double().numpy()
    for named in ({"subject": "p3"}, {"samples": ["r4"]}):
        request = world.delete(**named)  # type: ignore[arg-type]
        world.work(model_id)
        assert world.task(request).status == "completed", world.task(request).reason
    found, wanted = world.state(world.head(model_id)).weights.double().numpy(), minimiser(["p3", "r4"])
    assert float(np.linalg.norm(found - wanted)) <= CAP < float(np.linalg.norm(before - wanted))
    assert world.head(model_id).claim["guarantee"] == "proved"


LARGE = """
import json
import unlearning as ul


def taken():
    '''Anonymous memory of this process, kilobytes.'''
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon"))


def recipe(rows: ul.Rows = ul.table("large.parquet", person="person")):
    begun = taken()
    table = rows.arrow()
    total = sum(float(rows[name].sum()) for name in table.column_names if name.startswith("x"))
    passed = taken() - begun
    frame = rows.pandas()
    return ul.Published({"model.json": json.dumps({"pass": passed, "pandas": taken() - begun, "sum": total})})
"""


def test_a_world_maps_its_rows_and_copies_none_for_a_pass_over_columns(world: World, folder: Path) -> None:
    folder.mkdir()
    (folder / "rows.py").write_text(LARGE)
    draws = np.random.default_rng(0)
    columns = {f"x{number}": draws.standard_normal(40_000) for number in range(100)}
    table = pa.table({"person": [f"p{row % 400}" for row in range(40_000)], **columns})
    parquet.write_table(table, folder / "large.parquet", row_group_size=4_000)
    world = world.configured(recipes=folder)
    model = model_of(world, world.live("rows", "retrain"))
    size = table.nbytes / 1024
    assert model["pass"] < size / 8
    assert model["pandas"] < 1.5 * size


def test_rows_that_take_more_than_is_held_are_refused(world: World, folder: Path) -> None:
    lay_out(folder, "row groups")
    world = world.configured(recipes=folder, sample_bytes=500)
    model_id = world.register("rows", "retrain")
    world.work(model_id)
    assert "EXPUNGE_SAMPLE_BYTES" in str(world.model(model_id).reason)
