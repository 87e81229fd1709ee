"""Several files as one source, datasets as Hugging Face's library saves them, and what a large Parquet file takes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from tests.unlearning.rows.sources import WRITERS, open_file, seen
from tests.unlearning.rows.test_never_held import EXAMPLE, GONE, arrow_rows
from unlearning.rows import open_rows, read_source, table
from unlearning.types import RecipeError

SAVED = Path(__file__).parent / "saved_dataset"
"""36 rows of 12 people in two files, as ``datasets`` 5.2.0 wrote them: ``dataset.save_to_disk(path, num_shards=2)``"""
SHARDS = [f"data-0000{number}-of-00002.arrow" for number in range(2)]


def several(folder: Path, paths: list[str], without: str | None = None) -> Any:
    gone = frozenset() if without is None else frozenset({without})
    return open_rows(table(paths, person="who", id="id"), folder, without=gone, salt=b"salt")


@pytest.mark.parametrize("kind", WRITERS)
def test_files_are_read_one_after_the_other(tmp_path: Path, kind: str) -> None:
    rows = arrow_rows(EXAMPLE) if kind in ("parquet", "arrow") else EXAMPLE
    for name, content in (("whole", rows), ("a", rows[:1]), ("b", rows[1:])):
        WRITERS[kind](tmp_path / f"{name}.{kind}", content)
    paths = [f"a.{kind}", f"b.{kind}"]
    assert seen(several(tmp_path, paths, GONE)) == seen(open_file(tmp_path, f"whole.{kind}", GONE))


def test_columns_of_a_csv_may_stand_in_another_order(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,who,x\n1,a,2\n")
    (tmp_path / "b.csv").write_text("x,id,who\n3,2,b\n")
    assert several(tmp_path, ["a.csv", "b.csv"])["x"].tolist() == [2, 3]


def test_files_of_different_columns_or_types_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,who,x\n1,a,2\n")
    (tmp_path / "b.csv").write_text("id,who,z\n2,b,3\n")
    with pytest.raises(RecipeError, match="have different columns: x, z is not in both"):
        several(tmp_path, ["a.csv", "b.csv"])
    for name, number in (("a", 1), ("b", 0.5)):
        parquet.write_table(pa.table({"id": [name], "who": [name], "x": [number]}), tmp_path / f"{name}.parquet")
    with pytest.raises(RecipeError, match="'x' is int64 and double in the files of"):
        several(tmp_path, ["a.parquet", "b.parquet"])
    with pytest.raises(RecipeError, match="names no format"):
        table([], person="who")


def test_a_dataset_of_hugging_face_is_read_as_it_was_saved() -> None:
    rows = open_rows(table(SHARDS, person="person", id="id"), SAVED, without=frozenset({"p3"}))
    assert rows.columns == ("id", "person", "x", "y", "word", "label", "pair")
    assert (len(rows), rows["pair"].shape, rows["pair"].dtype.name) == (33, (33, 2), "float32")
    assert rows["label"].dtype == np.int64 and set(rows["person"]) == {f"p{number}" for number in range(12)} - {"p3"}
    assert rows.arrow().schema.metadata is None


def large(folder: Path) -> pa.Table:
    """Write 4 MB of numbers in 20 row groups."""
    draws = np.random.default_rng(0)
    columns = {f"x{number}": draws.standard_normal(20_000) for number in range(24)}
    whole = pa.table({"who": [f"p{row // 4}" for row in range(20_000)], **columns})
    parquet.write_table(whole, folder / "t.parquet", row_group_size=1000)
    return whole


def test_of_a_parquet_file_no_more_is_in_memory_than_is_looked_at(tmp_path: Path) -> None:
    whole = large(tmp_path)
    before = pa.total_allocated_bytes()
    source = read_source(table("t.parquet", person="who"), tmp_path)
    assert pa.total_allocated_bytes() - before < whole.nbytes / 10
    taken = []
    for number, _ in enumerate(source.unread.contents()):
        if number % 1000 == 0:
            taken.append(pa.total_allocated_bytes() - before)
    assert len(taken) == 20 and max(taken) < 2 * whole.nbytes, (
        "texts of some rows, which of all would take seven times as much"
    )
    units = source.units()
    staying = np.arange(1, len(units))
    before = pa.total_allocated_bytes()
    rows = source.rows(units, staying)
    assert pa.total_allocated_bytes() - before < 1.2 * whole.nbytes, "the rows, and no second copy"
    assert len(rows) == 19_996


def test_a_parquet_file_that_is_written_to_meanwhile_is_refused(tmp_path: Path) -> None:
    large(tmp_path)
    source = read_source(table("t.parquet", person="who"), tmp_path)
    with (tmp_path / "t.parquet").open("r+b") as file:
        file.write(b"PAR1")
    os.utime(tmp_path / "t.parquet", ns=(0, 1))
    with pytest.raises(RecipeError, match="was written to while it was read"):
        source.units()


def test_a_parquet_file_that_is_replaced_meanwhile_is_read_to_its_end(tmp_path: Path) -> None:
    large(tmp_path)
    source = read_source(table("t.parquet", person="who"), tmp_path)
    (tmp_path / "new.parquet").write_bytes(b"another")
    (tmp_path / "new.parquet").rename(tmp_path / "t.parquet")
    assert len(source.units()) == 5000
