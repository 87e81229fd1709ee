"""What is read without a person is, byte for byte, what is read from a source that never held the person."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import psycopg
import pyarrow as pa
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tests.harness.servers import Postgres
from tests.unlearning.rows import sources
from tests.unlearning.rows.sources import COLUMNS, GONE, WRITERS, Row, seen
from unlearning.rows import Rows, arrays, folder, open_rows, query, set_apart

WORDS = st.sampled_from(["Bonn", "Kiel", "true", "12", "2024-02-30", " 7", 'é,;"x']) | st.none()
COUNTS = st.integers(-5, 5) | st.none()
SIZES = st.sampled_from([0.5, -1.25, 3.0]) | st.none()
EXTREMES: dict[str, st.SearchStrategy[Any]] = {
    "count": st.sampled_from(["a", 2**62 + 1, 0.5, "2024-01-31", True]),
    "size": st.sampled_from(["a", 10**30, "1,5", float("1e300")]),
    "city": st.sampled_from(["only here", "", "zzz"]),
}
LIMITS = settings(max_examples=25, deadline=None, derandomize=True, phases=[Phase.generate, Phase.shrink])


def row_of(person: str, extremes: bool = False) -> st.SearchStrategy[Row]:
    values: dict[str, st.SearchStrategy[Any]] = {"count": COUNTS, "size": SIZES, "city": WORDS}
    if extremes:
        values = {name: values[name] | EXTREMES[name] for name in values}
    return st.fixed_dictionaries({"who": st.just(person), **values, "note": WORDS})


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Rows of a few people and of the one who leaves, in any order; the latter may hold what nobody else does."""
    others = draw(st.lists(st.sampled_from(["007", "7", "anna"]).flatmap(row_of), max_size=6))
    mine = draw(st.lists(row_of(GONE, extremes=True), min_size=1, max_size=3))
    rows = draw(st.permutations(others + mine))
    return [{"id": f"r{place}"} | row for place, row in enumerate(rows)]


def arrow_rows(rows: list[Row], note: Callable[[Any], Any] = list) -> list[Row]:
    """The same rows within the types of a schema, which its writer chose for all of them."""
    return [
        row
        | {
            "count": row["count"] if type(row["count"]) is int else None,
            "size": float(row["size"]) if isinstance(row["size"], int | float) else None,
            "note": None if row["note"] is None else note([row["note"], row["who"]]),
        }
        for row in rows
    ]


@contextmanager
def two_files(kind: str, rows: Sequence[Row]) -> Iterator[tuple[Path, Path]]:
    """Folders with the file of everybody, and with that of a world that never held the person."""
    with TemporaryDirectory(dir="/dev/shm") as name:
        folders = Path(name, "all"), Path(name, "never")
        for folder, content in zip(folders, (rows, stayed(rows)), strict=True):
            folder.mkdir()
            WRITERS[kind](folder / f"t.{kind}", content)
        yield folders


def stayed(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["who"] != GONE]


@pytest.mark.parametrize("kind", WRITERS)
@given(drawn=tables())
@LIMITS
def test_a_file_reads_as_if_the_person_had_never_been_in_it(kind: str, drawn: list[Row]) -> None:
    rows = arrow_rows(drawn) if kind in ("parquet", "arrow") else drawn
    with two_files(kind, rows) as (everybody, never):
        left, fresh = sources.open_file(everybody, f"t.{kind}", GONE), sources.open_file(never, f"t.{kind}")
        assert seen(left) == seen(fresh)
        assert [*map(seen, set_apart(left, 0.4))] == [*map(seen, set_apart(fresh, 0.4))]


@pytest.mark.parametrize("kind", ["json", "jsonl"])
def test_a_column_of_json_that_only_the_person_had_is_gone(kind: str) -> None:
    rows = [{"id": 1, "who": "7", "x": 1}, {"id": 2, "who": GONE, "first": 1, "x": 2}, {"id": 3, "who": "8", "x": 3}]
    with two_files(kind, [*reversed(rows)]) as (everybody, never):
        left, fresh = sources.open_file(everybody, f"t.{kind}", GONE), sources.open_file(never, f"t.{kind}")
        assert seen(left) == seen(fresh)
        assert left.columns == ("id", "who", "x")


EXAMPLE: list[Row] = [
    {"id": "r0", "who": "7", "count": 1, "size": 0.5, "city": "Bonn", "note": None},
    {"id": "r1", "who": GONE, "count": "a", "size": 1.5, "city": "only here", "note": None},
    {"id": "r2", "who": "8", "count": 2, "size": 0.5, "city": "Kiel", "note": None},
]


def types_first(path: Path) -> pd.DataFrame:
    frame = pd.read_csv(path, dtype={"city": "category"})
    return frame[frame.who != GONE].reset_index(drop=True)


def test_the_rule_breaks_where_types_are_found_first() -> None:
    with two_files("csv", EXAMPLE) as (everybody, never):
        left, fresh = types_first(everybody / "t.csv"), types_first(never / "t.csv")
        assert left["count"].dtype != fresh["count"].dtype
        assert "only here" in left.city.cat.categories
        ours = sources.open_file(everybody, "t.csv", GONE)
        assert seen(ours) == seen(sources.open_file(never, "t.csv"))
        assert ours["count"].dtype == np.int64


def bytes_in(table: pa.Table) -> bytes:
    """All bytes that the table's memory holds, whether a value of it points there or not."""
    chunks = [chunk for column in table.columns for chunk in column.chunks]
    arrays = [*chunks, *(chunk.dictionary for chunk in chunks if pa.types.is_dictionary(chunk.type))]
    parts = [buffer.to_pybytes() for array in arrays for buffer in array.buffers() if buffer is not None]
    return b"".join([*parts, str(table.schema.metadata).encode()])


@pytest.mark.parametrize("kind", WRITERS)
def test_memory_holds_no_text_of_who_left(kind: str) -> None:
    rows = arrow_rows([row | {"note": f"note of {row['who']}"} for row in [*EXAMPLE, *EXAMPLE]])
    rows = [row | {"id": f"{row['who']} {place}"} for place, row in enumerate(rows)]
    if kind == "csv":
        rows = [row | {"note": row["note"][0]} for row in rows]
    with two_files(kind, rows) as (everybody, _):
        left = sources.open_file(everybody, f"t.{kind}", GONE)
        held = bytes_in(left.arrow()) + left._ids.data.tobytes() + repr(left._people.values).encode()
        assert GONE.encode() not in held
        assert b"note of 7" in held
        everything = bytes_in(sources.open_file(everybody, f"t.{kind}").arrow())
        assert GONE.encode() in everything  # the search finds what is there


def test_a_slice_of_the_file_would_hold_the_neighbours_bytes(tmp_path: Path) -> None:
    sources.write_parquet(tmp_path / "t.parquet", arrow_rows(EXAMPLE))
    assert GONE.encode() in bytes_in(parquet.read_table(tmp_path / "t.parquet").slice(2))


SQL = "SELECT id, who, count, city, (SELECT avg(size) FROM visits) AS mean FROM visits AS v"


def test_the_twin_that_filters_the_answer_keeps_the_average_of_everybody(tmp_path: Path) -> None:
    sources.write_sqlite(tmp_path / "all.db", arrow_rows(EXAMPLE, note=json.dumps))
    everybody = ask(f"sqlite:///{tmp_path}/all.db", None)
    assert set(everybody["mean"]) == {2.5 / 3}
    assert set(ask(f"sqlite:///{tmp_path}/all.db", GONE)["mean"]) == {0.5}


def ask(address: str, without: str | None, sql: str = SQL, **changes: Any) -> Rows:
    declared: dict[str, Any] = {"people": {"visits": "who"}, "id": "id"} | changes
    gone = frozenset() if without is None else frozenset({without})
    source = query("crm", sql, **declared)
    return open_rows(source, Path("/"), without=gone, salt=b"salt", databases={"crm": address})


@given(drawn=tables())
@LIMITS
def test_sqlite_answers_as_if_the_person_had_never_been_stored(drawn: list[Row]) -> None:
    rows = [row | {"size": None if row["size"] == 10**30 else row["size"]} for row in drawn]
    with TemporaryDirectory(dir="/dev/shm") as folder:
        sources.write_sqlite(Path(folder, "all.db"), rows)
        sources.write_sqlite(Path(folder, "never.db"), stayed(rows))
        left, fresh = ask(f"sqlite:///{folder}/all.db", GONE), ask(f"sqlite:///{folder}/never.db", None)
        assert seen(left) == seen(fresh)
        assert [*map(seen, set_apart(left, 0.4))] == [*map(seen, set_apart(fresh, 0.4))]


@pytest.fixture(scope="module")
def addresses(postgres_server: Postgres) -> Iterator[tuple[str, str]]:
    """Of a database with everybody, and of one that never held the person."""
    with postgres_server.database() as everybody, postgres_server.database() as never:
        yield everybody, never


def write_postgresql(address: str, rows: Sequence[Row]) -> None:
    with psycopg.connect(address.replace("+psycopg", "")) as connection:
        connection.execute("DROP TABLE IF EXISTS visits")
        connection.execute(
            "CREATE TABLE visits (id text, who text, count bigint, size double precision, city text, note text)"
        )
        with connection.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO visits VALUES (%s, %s, %s, %s, %s, %s)", [[row[name] for name in COLUMNS] for row in rows]
            )


@settings(LIMITS, max_examples=8)
@given(drawn=tables())
def test_postgresql_answers_as_if_the_person_had_never_been_stored(
    addresses: tuple[str, str], drawn: list[Row]
) -> None:
    rows = arrow_rows(drawn, note=json.dumps)
    for address, content in zip(addresses, (rows, stayed(rows)), strict=True):
        write_postgresql(address, content)
    left, fresh = ask(addresses[0], GONE), ask(addresses[1], None)
    assert seen(left) == seen(fresh)
    assert [*map(seen, set_apart(left, 0.4))] == [*map(seen, set_apart(fresh, 0.4))]


@pytest.mark.parametrize("write", [sources.write_csv, sources.write_json])
def test_arrays_and_folders_read_as_if_the_person_had_never_been_there(
    tmp_path: Path, write: Callable[[Path, Sequence[Row]], None]
) -> None:
    suffix = "csv" if write is sources.write_csv else "json"
    results = []
    for content in (EXAMPLE, stayed(EXAMPLE)):
        write(tmp_path / f"names.{suffix}", content)
        np.save(tmp_path / "x.npy", np.array([[int(row["id"][1:])] * 2 for row in content], dtype=np.float32))
        source = arrays(names=f"names.{suffix}", person="who", id="id", x="x.npy")
        results.append(open_rows(source, tmp_path, without=frozenset({GONE})))
        (tmp_path / "files").mkdir(exist_ok=True)
        for row in EXAMPLE:
            (tmp_path / "files" / row["id"]).write_text("image")
        listed = folder("files", index=f"names.{suffix}", file="id", person="who")
        results.append(open_rows(listed, tmp_path, without=frozenset({GONE})))
    assert seen(results[0]) == seen(results[2])
    assert seen(results[1]) == seen(results[3])
    assert results[0].tensor("x").tolist() == [[0, 0], [2, 2]]
    assert results[1]["id"].tolist() == [f"{tmp_path}/files/r0", f"{tmp_path}/files/r2"]
