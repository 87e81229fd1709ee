"""Rows as one file of Arrow, which a process maps and reads without a copy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from unlearning.arrow import pyarrow, texts_of
from unlearning.columns import Column, Texts
from unlearning.rows._entries import KEY_BYTES, Entries, LoadedEntries, seal_entries, sealed_entries
from unlearning.rows._maps import MapFunction, MappedBefore
from unlearning.rows._paths import open_file
from unlearning.rows._people import People
from unlearning.rows._rows import FileColumn, Rows
from unlearning.rows.declarations import ROW, require_beneath
from unlearning.types import RecipeError

PEOPLE, IDS, ARRAY, CONTENTS, NOTE = "__people", "__id", "__array ", "__contents", b"rows"
"""columns of the file that are none of the source's, and the name of what else it holds"""
LIMIT_BYTES, ANY = 8, 2**63 - 1
LARGER_ROWS = (
    "Raise it where the machine has the memory, or select the columns by ul.query. Arrays (ul.arrays) may take more: "
    "they are sealed on a disk, and read batch by batch."
)


def rows_to_bytes(rows: Rows) -> Any:
    """Return rows as the buffer of a file; see ``write_rows``."""
    sink = pyarrow("lib").BufferOutputStream()
    write_rows(rows, sink)
    return sink.getvalue()


def write_rows(rows: Rows, sink: Any, most: int | None = None, spool: IO[bytes] | None = None) -> bytes:
    """Write rows as a file of Arrow, with the contents of their files where the source is a folder.

    The same rows give the same bytes, whoever else was in their source.

    Args:
        sink: a file that is open for writing, or a sink of Arrow.
        most: bytes that rows and files may take together in memory; None: however many.
        spool: a file on disk, into which the arrays are sealed; None: they are in the file of Arrow.

    Returns:
        What the file must end with for who reads it: the key of the arrays, and ``most``; empty where none is sealed.

    Raises:
        RecipeError: they take more.
    """
    arrow = pyarrow("lib")
    columns, entries = rows._table.nbytes, sum(array.nbytes for array in rows._arrays.values())
    sealed, key = dict[str, Any](), b""
    if most is not None and (columns if spool else columns + entries) > most:
        what = f"The rows take {columns + entries:,} bytes, and a worker holds {most:,} (EXPUNGE_SAMPLE_BYTES)."
        raise RecipeError(what, LARGER_ROWS)
    if spool is not None:
        sealed, key = seal_entries(rows._arrays, spool)
    table = rows._table if rows._files is None else _with_contents(rows._table, rows._files, most)
    table = table.append_column(PEOPLE, _people(rows._people)).append_column(IDS, _texts(rows._ids))
    table = table.append_column(ROW, arrow.array(rows._numbers))
    shapes = {}
    for name, array in rows._arrays.items() if not sealed else ():
        shapes[name] = [array.dtype.str, list(array.shape[1:])]
        values = arrow.py_buffer(np.ascontiguousarray(array.whole()))
        cells = arrow.Array.from_buffers(arrow.binary(array.entry_bytes), len(array), [None, values])
        table = table.append_column(f"{ARRAY}{name}", cells)
    note: dict[str, Any] = {"salt": rows._salt.hex(), "splits": rows._splits, "arrays": shapes}
    note |= {"sealed": sealed} if sealed else {}
    note |= {} if rows._files is None else {"files": rows._files.name}
    table = table.replace_schema_metadata({NOTE: json.dumps(note)}).combine_chunks()
    with pyarrow("ipc").new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return key + (ANY if most is None else most).to_bytes(LIMIT_BYTES) if spool is not None else b""


def is_larger(rows: Rows, most: int) -> bool:
    """Return whether rows take more than these bytes, and have arrays that can be sealed on a disk."""
    arrays = sum(array.nbytes for array in rows._arrays.values())
    return arrays > 0 and rows._table.nbytes + arrays > most


def rows_from_bytes(
    data: Any,
    mapped: Callable[[Column[People]], Mapping[MapFunction, MappedBefore]] | None = None,
    folder: Path | None = None,
    spool: memoryview | None = None,
) -> Rows:
    """Read what ``write_rows`` wrote, in place: numbers lie where ``data`` lies.

    ``folder``: where the files of a folder's rows are written, which then name them there. ``mapped``: from the people
    of each row to what functions gave for all rows; ``Rows.map`` calls none then. ``spool``: what holds the arrays.
    """
    arrow, end = pyarrow("lib"), b""
    if spool is not None:
        data, end = data[: -KEY_BYTES - LIMIT_BYTES], bytes(data[-KEY_BYTES - LIMIT_BYTES :])
    table = pyarrow("ipc").open_file(arrow.py_buffer(data)).read_all()
    note = json.loads(table.schema.metadata[NOTE])
    if "files" in note:
        table = _written_to(folder or Path.cwd(), table, note["files"])
    coded = table.column(PEOPLE).combine_chunks()
    if isinstance(coded, arrow.ChunkedArray):  # of no rows
        coded = arrow.concat_arrays(coded.chunks) if coded.num_chunks else arrow.array([], coded.type)
    people = tuple(map(tuple, json.loads(f"[{','.join(coded.dictionary.to_pylist())}]")))
    codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    arrays = dict[str, Entries]()
    if spool is not None:
        arrays |= sealed_entries(note["sealed"], spool, end[:KEY_BYTES], int.from_bytes(end[KEY_BYTES:]))
    for name, (kind, shape) in note["arrays"].items():
        cells = table.column(f"{ARRAY}{name}").combine_chunks()
        buffer = b"" if not len(table) else cells.buffers()[1]
        arrays[name] = LoadedEntries(np.frombuffer(buffer, dtype=np.dtype(kind)).reshape(len(table), *shape))
    ours = {PEOPLE, IDS, ROW, *(f"{ARRAY}{name}" for name in arrays)}
    rows = Rows(
        _table=table.select([name for name in table.column_names if name not in ours]).replace_schema_metadata(None),
        _people=Column[People](torch.from_numpy(codes), people),
        _ids=texts_of(table.column(IDS)),
        _numbers=table.column(ROW).to_numpy(),
        _arrays=arrays,
        _salt=bytes.fromhex(note["salt"]),
        _splits=note["splits"],
    )
    return rows if mapped is None else replace(rows, _mapped=mapped(rows._people))


def _with_contents(table: Any, files: FileColumn, most: int | None) -> Any:
    """Return the table with names below the folder in place of whole paths, and what each file holds where it is
    named first.
    """
    arrow = pyarrow("lib")
    names, contents, size = [], list[bytes | None](), 0
    seen = set[str]()
    for path in table.column(files.name).to_pylist():
        name = str(Path(path).relative_to(files.root / files.folder))
        names.append(name)
        if name in seen:
            contents.append(None)
            continue
        seen.add(name)
        with open_file(files.root, f"{files.folder}/{name}") as file:
            contents.append(file.read())
        size += len(contents[-1] or b"")
        if most is not None and size > most:
            what = f"The files of the rows take more than {most / 1e9:.1f} GB together (EXPUNGE_SAMPLE_BYTES)."
            raise RecipeError(what, "Raise it where the machine has the memory, or make smaller files.")
    place = table.column_names.index(files.name)
    table = table.set_column(place, files.name, arrow.array(names, arrow.string()))
    return table.append_column(CONTENTS, arrow.array(contents, arrow.large_binary()))


def _written_to(folder: Path, table: Any, column: str) -> Any:
    """Write the contents into the folder, and return the table with the whole paths of the files."""
    paths = []
    for name, content in zip(table.column(column).to_pylist(), table.column(CONTENTS), strict=True):
        path = folder.joinpath(*require_beneath(name))
        if content.is_valid:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.as_buffer())
        paths.append(str(path))
    arrow = pyarrow("lib")
    table = table.drop_columns([CONTENTS])
    return table.set_column(table.column_names.index(column), column, arrow.array(paths, arrow.string()))


def _people(people: Column[People]) -> Any:
    """Return the people of each row as a dictionary of texts, in the order of their first rows."""
    arrow = pyarrow("lib")
    present, first, places = np.unique(people.codes.numpy(), return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    ranks = np.empty(len(order), dtype=np.int32)
    ranks[order] = np.arange(len(order), dtype=np.int32)
    values = [json.dumps(people.values[code]) for code in present[order].tolist()]
    return arrow.DictionaryArray.from_arrays(arrow.array(ranks[places]), arrow.array(values, arrow.string()))


def _texts(texts: Texts) -> Any:
    arrow = pyarrow("lib")
    return arrow.LargeStringArray.from_buffers(
        len(texts), arrow.py_buffer(np.ascontiguousarray(texts.ends)), arrow.py_buffer(np.ascontiguousarray(texts.data))
    )
