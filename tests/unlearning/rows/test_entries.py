"""Arrays that are larger than memory: sealed on a disk, and read where they are looked at. The twin is in memory."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import unlearning as ul
from unlearning.rows import Rows, open_rows, read_source, rows_from_bytes, rows_to_bytes, write_rows
from unlearning.rows._batches import NEIGHBOURS_BYTES, TOGETHER_BYTES, windows_of
from unlearning.types import RecipeError

COUNT = 37
ARRAYS = {
    "images": np.arange(COUNT * 12, dtype=np.uint8).reshape(COUNT, 3, 4),
    "x": np.linspace(0, 1, COUNT * 5, dtype=np.float32).reshape(COUNT, 5),
    "y": np.arange(COUNT) % 3,
    "odd": np.array([f"t{n}".encode() for n in range(COUNT)]),
    "big": np.arange(COUNT, dtype=">i4"),
    "by_column": np.asfortranarray(np.arange(COUNT * 2, dtype=np.float64).reshape(COUNT, 2)),
    "moments": np.arange(COUNT).astype("datetime64[s]"),
    "none": np.empty((COUNT, 0)),
}
SOURCE = ul.arrays(names="names.csv", person="person", **{name: f"{name}.npy" for name in ARRAYS})
CANARY = b"a person's own words"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    lines = ["person,level"] + [f"p{n // 4},{n}" for n in range(COUNT)]
    (tmp_path / "names.csv").write_text("\n".join(lines) + "\n")
    for name, array in ARRAYS.items():
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


def on_disk(rows: Rows, most: int = 10**6) -> tuple[Rows, bytes, bytes]:
    """Rows whose arrays are sealed on a disk, the file that holds the others, and the one on the disk."""
    file, disk = io.BytesIO(), io.BytesIO()
    file.write(write_rows(rows, file, most, disk))
    data, sealed = file.getvalue(), disk.getvalue()
    return rows_from_bytes(memoryview(data), spool=memoryview(sealed)), data, sealed


def in_memory(rows: Rows) -> Rows:
    return rows_from_bytes(memoryview(rows_to_bytes(rows)))


def assert_equal(rows: Rows, twin: Rows) -> None:
    assert rows.columns == twin.columns and len(rows) == len(twin)
    for name in rows.columns:
        array, other = rows[name], twin[name]
        assert array.dtype == other.dtype and array.shape == other.shape, name
        assert array.dtype.hasobject or array.tobytes() == other.tobytes(), name
        assert array.tolist() == other.tolist(), name
    assert [*rows.people] == [*twin.people] and [*rows._ids] == [*twin._ids]


def views(rows: Rows) -> Iterator[Rows]:
    """The ways in which a recipe takes some of the rows."""
    yield rows
    yield from rows.blocks(5)
    yield from rows.batches(4, seed=3)
    for side in rows.split(0.3):
        yield side
        yield from side.batches(4, seed=3)
        yield from side.split(0.5)
    yield from rows.blocks_at([1, 3] if len(rows) else [])


@pytest.mark.parametrize("without", [frozenset[str](), frozenset({"p3"}), frozenset(f"p{n}" for n in range(10))])
def test_rows_on_a_disk_are_those_in_memory(folder: Path, without: frozenset[str]) -> None:
    rows = open_rows(SOURCE, folder, without=without, salt=b"salt")
    sealed, _, _ = on_disk(rows)
    for some, twin in zip(views(sealed), views(in_memory(rows)), strict=True):
        assert_equal(some, twin)
    assert bytes(rows_to_bytes(sealed)) == bytes(rows_to_bytes(rows))


def test_what_is_read_from_the_source_by_pieces_is_what_is_read_at_once(folder: Path) -> None:
    reading = read_source(SOURCE, folder)
    places = np.array([3, 4, 5, 30, 7, 0])
    rows = reading.at(places, b"salt")
    for name, array in ARRAYS.items():
        assert rows[name].tobytes() == np.ascontiguousarray(array[places]).tobytes(), name
    sealed, _, _ = on_disk(reading.at(places, b"salt"))
    assert_equal(sealed, rows)


def test_nothing_of_a_person_can_be_read_on_the_disk(folder: Path) -> None:
    np.save(folder / "odd.npy", np.array([CANARY] * COUNT))
    rows = open_rows(SOURCE, folder)
    (_, data, sealed), (_, again, other) = on_disk(rows), on_disk(rows)
    assert CANARY not in sealed and CANARY not in data and len(sealed) == sum(rows[name].nbytes for name in ARRAYS)
    assert sealed != other, "each file has a key of its own"
    assert data[:-40] == again[:-40] and data[-40:-8] != again[-40:-8], "which stands in memory alone, behind the rows"


def test_the_rows_in_memory_say_what_is_on_the_disk(folder: Path) -> None:
    """Or a part would be found under its key whose arrays are other ones."""
    _, before, _ = on_disk(open_rows(SOURCE, folder))
    moved = ARRAYS["x"].copy()
    moved[7, 2] += 1
    np.save(folder / "x.npy", moved)
    _, after, _ = on_disk(open_rows(SOURCE, folder))
    assert before[:-40] != after[:-40]


def test_more_than_a_worker_holds_is_not_read_at_once(folder: Path) -> None:
    rows, _, _ = on_disk(open_rows(SOURCE, folder), most=735)
    with pytest.raises(RecipeError, match=r"37 entries take 740 bytes, and a worker holds 735 in memory.*rows.batches"):
        rows["x"]
    assert sum(len(batch["x"]) for batch in rows.batches(20, seed=0)) == COUNT
    with pytest.raises(RecipeError, match=r"The rows take .* and a worker holds 10 "):
        on_disk(open_rows(SOURCE, folder), most=10)


def test_a_file_that_is_written_to_meanwhile_is_refused(folder: Path) -> None:
    rows = read_source(SOURCE, folder).at(np.arange(COUNT), b"")
    np.save(folder / "x.npy", ARRAYS["x"] + 1)
    with pytest.raises(RecipeError, match=r"x\.npy was written to while it was read"):
        rows["x"]
    with (folder / "images.npy").open("r+b") as file:
        file.truncate(200)
    with pytest.raises(RecipeError, match=r"images\.npy was written to"):
        rows["images"]


@pytest.mark.parametrize("content", [b"no array", b""])
def test_what_is_no_array_is_refused(folder: Path, content: bytes) -> None:
    (folder / "x.npy").write_bytes(content)
    with pytest.raises(RecipeError, match=r"x\.npy is no array without objects"):
        open_rows(SOURCE, folder)


@pytest.mark.parametrize("count", [0, 1, 7, 1000])
@pytest.mark.parametrize("row_bytes", [1, NEIGHBOURS_BYTES // 3, TOGETHER_BYTES // 10, 2 * TOGETHER_BYTES])
def test_windows_are_all_rows_once_in_an_order_of_the_seed(count: int, row_bytes: int) -> None:
    windows = [*windows_of(count, row_bytes, 7, seed=1)]
    assert sorted(place for places, _ in windows for place in places) == [*range(count)]
    assert all([*places] == sorted(places) and sorted(order) == [*range(len(places))] for places, order in windows)
    assert all(len(places) % 7 == 0 for places, _ in windows[:-1]), "a batch has rows of one window"
    assert all(len(places) * row_bytes <= max(TOGETHER_BYTES, 7 * row_bytes) for places, _ in windows)
    assert in_order(windows) == in_order(windows_of(count, row_bytes, 7, seed=1))
    assert count < 2 or in_order(windows) != in_order(windows_of(count, row_bytes, 7, seed=2))


def in_order(windows: Iterable[tuple[Any, Any]]) -> list[int]:
    return [int(place) for places, order in windows for place in places[order]]


def test_batches_are_all_rows_once(folder: Path) -> None:
    rows, _, _ = on_disk(open_rows(SOURCE, folder))
    batches = [*rows.batches(7, seed=1)]
    assert [len(batch) for batch in batches] == [7] * 5 + [2]
    assert sorted(place for batch in batches for place in batch["__row"]) == [*range(COUNT)]
    assert all((batch["x"] == ARRAYS["x"][batch["__row"]]).all() for batch in batches)
    with pytest.raises(RecipeError, match="A block or batch has 0 rows"):
        rows.batches(0, seed=1)


def test_a_window_of_large_rows_is_read_at_few_places() -> None:
    """Of rows of 12 KB: some 64 groups of 87 neighbours."""
    group = NEIGHBOURS_BYTES // 12_000
    windows = [*windows_of(100_000, 12_000, 256, seed=0)]
    assert max(len(np.unique(places // group)) for places, _ in windows) <= TOGETHER_BYTES // NEIGHBOURS_BYTES + 2
    places, order = windows[0]
    assert len(np.unique(places[order[:256]] // group)) > 50, "and a batch has rows of most of them"


def test_rows_are_a_data_set_of_torch(folder: Path) -> None:
    chosen = ul.arrays(names="names.csv", person="person", x="x.npy", y="y.npy", images="images.npy")
    rows, _, _ = on_disk(open_rows(chosen, folder))
    data = rows.dataset()
    batches: list[dict[str, Any]] = [*DataLoader(data, batch_size=8)]
    assert [len(batch["y"]) for batch in batches] == [8, 8, 8, 8, 5]
    assert torch.cat([batch["x"] for batch in batches]).numpy().tobytes() == ARRAYS["x"].tobytes()
    assert [name for batch in batches for name in batch["person"]] == [*rows["person"]]
    assert data[-1]["y"] == ARRAYS["y"][-1] and len(data) == COUNT
    with pytest.raises(IndexError):
        data[COUNT]
