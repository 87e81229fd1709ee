"""Rows as one file of Arrow, which a process maps and reads without a copy."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from unlearning.columns import Column, Texts
from unlearning.rows._maps import MapFunction, MappedBefore
from unlearning.rows._people import People
from unlearning.rows._read import pyarrow
from unlearning.rows._rows import Rows
from unlearning.rows.declarations import ROW
from unlearning.sources import texts_of

PEOPLE, IDS, ARRAY, NOTE = "__people", "__id", "__array ", b"rows"
"""columns of the file that are none of the source's, and the name of what else it holds"""


def rows_to_bytes(rows: Rows) -> Any:
    """Write rows as the buffer of a file. The same rows give the same bytes, whoever else was in their source."""
    arrow = pyarrow("lib")
    table = rows._table.append_column(PEOPLE, _people(rows._people)).append_column(IDS, _texts(rows._ids))
    table = table.append_column(ROW, arrow.array(rows._numbers))
    shapes = {}
    for name, array in rows._arrays.items():
        shapes[name] = [array.dtype.str, list(array.shape[1:])]
        width = array.dtype.itemsize * int(np.prod(array.shape[1:], dtype=np.int64))
        cells = arrow.Array.from_buffers(
            arrow.binary(width), len(array), [None, arrow.py_buffer(np.ascontiguousarray(array))]
        )
        table = table.append_column(f"{ARRAY}{name}", cells)
    note = {"salt": rows._salt.hex(), "splits": rows._splits, "arrays": shapes}
    table = table.replace_schema_metadata({NOTE: json.dumps(note)}).combine_chunks()
    sink = arrow.BufferOutputStream()
    with pyarrow("ipc").new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def rows_from_bytes(
    data: Any, mapped: Callable[[Column[People]], Mapping[MapFunction, MappedBefore]] | None = None
) -> Rows:
    """Read what ``rows_to_bytes`` wrote, in place: numbers lie where ``data`` lies.

    ``mapped``: from the people of each row to what functions gave for all rows; ``Rows.map`` calls none then.
    """
    arrow = pyarrow("lib")
    table = pyarrow("ipc").open_file(arrow.py_buffer(data)).read_all()
    note = json.loads(table.schema.metadata[NOTE])
    coded = table.column(PEOPLE).combine_chunks()
    if isinstance(coded, arrow.ChunkedArray):  # of no rows
        coded = arrow.concat_arrays(coded.chunks) if coded.num_chunks else arrow.array([], coded.type)
    people = tuple(tuple(json.loads(text)) for text in coded.dictionary.to_pylist())
    codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    arrays = {}
    for name, (kind, shape) in note["arrays"].items():
        cells = table.column(f"{ARRAY}{name}").combine_chunks()
        buffer = b"" if not len(table) else cells.buffers()[1]
        arrays[name] = np.frombuffer(buffer, dtype=np.dtype(kind)).reshape(len(table), *shape)
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
