"""Writers of one table in every format, and what can be seen of the rows that are read from it."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import ipc, parquet

from unlearning.rows import Rows, open_rows, table

Row = dict[str, Any]
GONE = "gone-7"
COLUMNS = ("id", "who", "count", "size", "city", "note")
SCHEMA = pa.schema(
    {
        "id": pa.string(),
        "who": pa.dictionary(pa.int32(), pa.string()),
        "count": pa.int64(),
        "size": pa.float64(),
        "city": pa.dictionary(pa.int8(), pa.string()),
        "note": pa.list_(pa.string()),
    }
)


def write_csv(path: Path, rows: Sequence[Row], delimiter: str = ",") -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(COLUMNS)
        writer.writerows([["" if row[name] is None else row[name] for name in COLUMNS] for row in rows])


def write_json(path: Path, rows: Sequence[Row]) -> None:
    path.write_text(json.dumps([dict(row) for row in rows]))


def write_json_lines(path: Path, rows: Sequence[Row]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def arrow_table(rows: Sequence[Row]) -> pa.Table:
    """The rows in chunks that differ with their number, with metadata that name everybody."""
    chunks = [rows[start : start + 3] for start in range(0, len(rows), 3)]
    tables = [pa.Table.from_pylist(list(chunk), SCHEMA) for chunk in chunks]
    people = json.dumps([row["who"] for row in rows])
    table = pa.concat_tables(tables) if tables else SCHEMA.empty_table()
    return table.replace_schema_metadata({"pandas": people, "people": people})


def write_parquet(path: Path, rows: Sequence[Row]) -> None:
    parquet.write_table(arrow_table(rows).unify_dictionaries(), path, row_group_size=3)


def write_arrow(path: Path, rows: Sequence[Row]) -> None:
    table = arrow_table(rows).unify_dictionaries()
    with ipc.new_file(path, table.schema) as file:
        file.write_table(table)


def write_sqlite(path: Path, rows: Sequence[Row]) -> None:
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE visits (id, who, count, size, city, note)")
        values = [tuple(row[name] for name in COLUMNS) for row in rows]
        connection.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, ?, ?)", values)
    connection.close()


WRITERS: Mapping[str, Callable[[Path, Sequence[Row]], None]] = {
    "csv": write_csv,
    "json": write_json,
    "jsonl": write_json_lines,
    "parquet": write_parquet,
    "arrow": write_arrow,
}


def stream_of(table: pa.Table) -> bytes:
    """The bytes of the table as Arrow's stream."""
    sink = pa.BufferOutputStream()
    with ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def seen(rows: Rows) -> list[Any]:
    """Everything that a recipe can see of rows, as values that are equal where all bytes are."""
    frame = rows.pandas()
    numbers = [name for name in rows.columns if rows[name].dtype.kind in "fiub"]
    tensors = [rows.tensor(name) for name in numbers]
    return [
        stream_of(rows.arrow()),
        frame.to_json(orient="split", double_precision=15),
        [(str(name), str(kind)) for name, kind in frame.dtypes.items()],
        [frame[name].astype("category").cat.categories.tolist() for name in frame if frame[name].dtype == "str"],
        [(name, rows.numpy(name).dtype.str, rows.numpy(name).tobytes()) for name in numbers],
        [(str(tensor.dtype), tensor.numpy().tobytes()) for tensor in tensors],
        rows.people.tolist(),
        list(rows._ids),
        [stream_of(block.arrow()) for block in rows.blocks(2)],
        [stream_of(half.arrow()) for half in rows.split(0.5)],
    ]


def open_file(folder: Path, name: str, without: str | None = None, **changes: Any) -> Rows:
    declared = {"person": "who", "id": "id"} | changes
    gone = frozenset() if without is None else frozenset({without})
    return open_rows(table(name, **declared), folder, without=gone, salt=b"salt")
